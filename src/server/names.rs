//! `hosts_file`: host names that are resolved without asking the system. Never: caches; the file is read at each lookup.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::files;
use crate::limits::HOSTS_BYTES_MAX;
use crate::telemetry::events;

/// It could not be read at the last look. A process has one such file; that it can't be read is said once, not at each look.
static UNREADABLE: AtomicBool = AtomicBool::new(false);

/// The addresses that `file` has for `name`; none, if it can't be read.
pub(super) async fn known(file: Option<&Path>, name: &str) -> Vec<IpAddr> {
    let Some(file) = file else { return Vec::new() };
    let owned = file.to_owned();
    let Ok(text) = tokio::task::spawn_blocking(move || read(&owned)).await else { return Vec::new() };
    let was = UNREADABLE.swap(text.is_err(), Ordering::Relaxed);
    match text {
        Ok(text) => addresses(&text, name),
        Err(why) => {
            if !was {
                events::hosts_file_unreadable(file, &why);
            }
            Vec::new()
        }
    }
}

/// Its whole lines, as far as it is read. Comments are in whatever encoding somebody wrote them.
fn read(file: &Path) -> std::io::Result<String> {
    let mut bytes = files::read(file, HOSTS_BYTES_MAX)?;
    if bytes.len() as u64 > HOSTS_BYTES_MAX {
        // The last line may go on.
        bytes.truncate(memchr::memrchr(b'\n', &bytes).unwrap_or(0));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Lines of an address and its names, `#` comments, as in `/etc/hosts`.
pub fn addresses(text: &str, name: &str) -> Vec<IpAddr> {
    let of_line = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let ip = words.next()?.parse().ok()?;
        words.any(|own| own.eq_ignore_ascii_case(name)).then_some(ip)
    };
    text.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_has_the_addresses_of_all_its_lines() {
        let text =
            "# none\n127.0.0.1 a.test b.test # c.test\n\n::1\tA.TEST\nnonsense a.test\n127.0.0.2 b.test.\n";
        for (name, found) in [
            ("a.test", &["127.0.0.1", "::1"][..]),
            ("b.test", &["127.0.0.1"]),
            ("B.Test", &["127.0.0.1"]),
            ("c.test", &[]),
            ("127.0.0.1", &[]),
            ("", &[]),
        ] {
            let found: Vec<IpAddr> = found.iter().map(|ip| ip.parse().unwrap()).collect();
            assert_eq!(addresses(text, name), found, "{name}");
        }
    }

    #[test]
    fn a_file_is_read_whatever_its_encoding_and_a_line_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hosts");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let one = "127.0.0.1".parse::<IpAddr>().unwrap();
        let found = |bytes: &[u8], name: &str| {
            std::fs::write(&file, bytes).unwrap();
            runtime.block_on(known(Some(&file), name))
        };
        assert_eq!(found(b"# caf\xe9\n127.0.0.1 a.test\n", "a.test"), [one]);
        let (first, last) = ("127.0.0.1 a.test\n", "127.0.0.1 b.test");
        let pad = "#".repeat(HOSTS_BYTES_MAX as usize - first.len() - last.len() - 1);
        let whole = format!("{first}{pad}\n{last}");
        assert_eq!(whole.len() as u64, HOSTS_BYTES_MAX);
        assert_eq!(found(whole.as_bytes(), "b.test"), [one]);
        let longer = format!("{whole}.example");
        assert_eq!(found(longer.as_bytes(), "a.test"), [one]);
        assert!(found(longer.as_bytes(), "b.test").is_empty(), "it is another's name that was cut");
        // Read is one byte more than may be, and with it the name is whole.
        assert!(found(format!("{first}#{pad}\n{last}.example").as_bytes(), "b.test").is_empty());
    }

    /// It may become one at any time.
    #[test]
    fn a_file_that_never_ends_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("hosts");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for file in [&fifo, Path::new("/dev/zero"), dir.path()] {
            assert!(runtime.block_on(known(Some(file), "a.test")).is_empty());
        }
    }

    proptest! {
        #[test]
        fn a_name_has_the_addresses_of_its_lines_in_their_order(
            lines in proptest::collection::vec(
                (any::<IpAddr>(), proptest::collection::vec("[ab]{1,2}", 0..4), "[ ab#]{0,4}"), 0..8),
            name in "[ab]{1,2}",
        ) {
            let lines: Vec<(IpAddr, Vec<String>, String)> = lines;
            let text: String =
                lines.iter().map(|(ip, names, behind)| format!("{ip}\t{} #{behind}\r\n", names.join(" "))).collect();
            let its: Vec<IpAddr> =
                lines.iter().filter(|(_, names, _)| names.contains(&name)).map(|(ip, ..)| *ip).collect();
            prop_assert_eq!(addresses(&text, &name), its);
        }

        #[test]
        fn any_text_is_read(text in any::<String>(), name in any::<String>()) {
            let _ = addresses(&text, &name);
        }
    }
}
