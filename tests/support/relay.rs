//! What the relays between pgsluice and PostgreSQL have in common.

use std::net::{TcpListener, TcpStream};

/// Flush and Sync: a flush goes up. pgsluice writes rows, guard and these in one piece.
pub const FLUSH_END: [u8; 10] = [b'H', 0, 0, 0, 4, b'S', 0, 0, 0, 4];

/// Does a flush end in what goes up?
pub fn has_flush(bytes: &[u8]) -> bool {
    bytes.windows(FLUSH_END.len()).any(|w| w == FLUSH_END)
}

/// Hands each connection, and one of its own to the server on 127.0.0.1:`target`, to `relay`. The port where it listens.
pub fn listen(target: u16, relay: impl Fn(TcpStream, TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let port = listener.local_addr().expect("address").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            relay(client, server);
        }
    });
    port
}

/// Passes on what either side sends, until both have ended.
pub fn both_ways(client: TcpStream, server: TcpStream) {
    let streams = || Some((client.try_clone().ok()?, server.try_clone().ok()?));
    for swapped in [false, true] {
        let Some((client, server)) = streams() else { return };
        let (mut from, mut to) = if swapped { (server, client) } else { (client, server) };
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
    }
}
