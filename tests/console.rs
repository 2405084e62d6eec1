//! The console's conversation with drivers as they are: tokio-postgres, which prepares everything and wants binary
//! results, and psql, which does neither. The rows are fixed; what fills them is tested with the core.

use std::net::SocketAddr;
use std::process::Command;

use pgsluice::admin::PARAMETERS;
use pgsluice::admin::parse::{Action, Role};
use pgsluice::admin::rows::*;
use pgsluice::admin::session::{Engine, Session, Step};
use pgsluice::admin::{Refusal, parse::Shutdown};
use pgsluice::limits::SMALL_MESSAGE_BYTES_MAX;
use pgsluice::wire::startup::{StartupPacket, put_authentication};
use pgsluice::wire::{TransactionStatus, backend, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

struct Fixed;

impl Engine for Fixed {
    fn pools(&self) -> Vec<PoolRow> {
        vec![PoolRow { database: "app".into(), user: "bob".into(), cl_active: 3, ..PoolRow::default() }]
    }
    fn clients(&self) -> Vec<SocketRow> {
        vec![SocketRow { kind: "C", id: 7, ..SocketRow::default() }]
    }
    fn servers(&self) -> Vec<SocketRow> {
        Vec::new()
    }
    fn databases(&self) -> Vec<DatabaseRow> {
        Vec::new()
    }
    fn users(&self) -> Vec<UserRow> {
        Vec::new()
    }
    fn lists(&self) -> Vec<ListRow> {
        vec![ListRow { list: "databases", items: 1 }]
    }
    fn peers(&self) -> Vec<PeerRow> {
        Vec::new()
    }
    fn peer_pools(&self) -> Vec<PeerPoolRow> {
        Vec::new()
    }
    fn config(&self) -> Vec<ConfigRow> {
        Vec::new()
    }
    fn mem(&self) -> Vec<MemRow> {
        vec![MemRow { name: "client", memtotal: 1 << 40, ..MemRow::default() }]
    }
    fn state(&self) -> Vec<StateRow> {
        vec![StateRow { key: "active", value: "yes" }]
    }
    fn stats(&self) -> Vec<StatsRow> {
        let total = Counters { xact_count: 12_345_678, ..Counters::default() };
        vec![StatsRow { database: "app".into(), total, ..StatsRow::default() }]
    }
    fn averages(&self) -> Counters {
        Counters::default()
    }
    fn lanes(&self) -> Vec<LaneRow> {
        let rows_per_flush = Ratio { of: 61, by: 10 };
        vec![LaneRow { table: "public.t".into(), rows_per_flush, ..LaneRow::default() }]
    }
    fn coalesce_tables(&self) -> Vec<CoalesceTableRow> {
        Vec::new()
    }
    fn coalesce_flushes(&self) -> Vec<FlushRow> {
        Vec::new()
    }
    fn policy(&self) -> Vec<PolicyRow> {
        vec![PolicyRow { rule: "simple_query=deny", rejected: 2, ..PolicyRow::default() }]
    }
    fn audit(&self) -> Vec<AuditRow> {
        Vec::new()
    }
}

/// Performs nothing but says how it would have gone.
fn perform(action: &Action) -> Result<(), Refusal> {
    match action {
        Action::Reload | Action::Shutdown(Shutdown::WaitForClients) => Ok(()),
        _ => Err(Refusal::new("3D000", "no such database")),
    }
}

/// Lets one client in without asking who it is, and answers it until it leaves.
async fn serve(mut tcp: TcpStream) -> std::io::Result<()> {
    let (mut buf, mut out) = (Vec::new(), Vec::new());
    loop {
        match StartupPacket::whole(&buf).expect("a driver's startup packet") {
            None => assert!(tcp.read_buf(&mut buf).await? > 0),
            Some((StartupPacket::Startup(_), len)) => {
                buf.drain(..len);
                break;
            }
            Some((_, len)) => {
                buf.drain(..len);
                tcp.write_all(b"N").await?;
            }
        }
    }
    put_authentication(&mut out, 0, &[]);
    PARAMETERS.iter().for_each(|(n, v)| backend::put_parameter_status(&mut out, n.as_bytes(), v.as_bytes()));
    backend::put_ready_for_query(&mut out, TransactionStatus::Idle);

    let mut session = Session::new(Role::Admin);
    loop {
        tcp.write_all(&out).await?;
        out.clear();
        while let Some((head, body)) = frame::whole(&buf, SMALL_MESSAGE_BYTES_MAX).expect("a driver's frame")
        {
            match session.recv(head.tag, body, &Fixed, &mut out) {
                Step::Next => {}
                Step::Perform(action) => session.finish(perform(&action), &mut out),
                Step::Close => return tcp.write_all(&out).await,
            }
            buf.drain(..head.total());
        }
        if out.is_empty() && tcp.read_buf(&mut buf).await? == 0 {
            return Ok(());
        }
    }
}

async fn console() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::spawn(serve(tcp));
        }
    });
    addr
}

async fn connect(addr: SocketAddr) -> Client {
    let config = format!("host=127.0.0.1 port={} user=ops dbname=pgsluice", addr.port());
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("a login");
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn a_driver_that_prepares_and_reads_binary() {
    let client = connect(console().await).await;
    let row = client.query_one("SHOW POOLS", &[]).await.expect("rows");
    assert_eq!(row.get::<_, &str>("user"), "bob");
    assert_eq!(row.get::<_, i32>("cl_active"), 3);
    assert_eq!(row.get::<_, Option<&str>>("load_balance_hosts"), None);
    let row = client.query_one("SHOW MEM", &[]).await.expect("rows");
    assert_eq!(row.get::<_, i64>("memtotal"), 1 << 40);
    assert_eq!(client.query_one("select 1", &[]).await.expect("rows").get::<_, i32>(0), 1);
    assert!(client.query("show servers", &[]).await.expect("no rows").is_empty());

    client.execute("RELOAD", &[]).await.expect("done");
    let error = client.execute("PAUSE nothing", &[]).await.expect_err("refused");
    assert_eq!(error.code().map(|c| c.code()), Some("3D000"));
    let error = client.query("show me", &[]).await.expect_err("refused");
    assert_eq!(error.code().map(|c| c.code()), Some("42601"));
    // Each refusal cost one statement and nothing else.
    assert_eq!(client.query("show lists", &[]).await.expect("rows").len(), 1);
}

#[tokio::test]
async fn a_driver_that_asks_simply() {
    let client = connect(console().await).await;
    let answers = client.simple_query("SHOW STATS_TOTALS").await.expect("rows");
    let row = answers.iter().find_map(|m| if let SimpleQueryMessage::Row(r) = m { Some(r) } else { None });
    assert_eq!(row.and_then(|r| r.get("xact_count")), Some("12345678"));
    client.batch_execute("begin").await.expect("a warning only");
    client.batch_execute("SET extra_float_digits = 3").await.expect("ignored");
}

#[tokio::test]
async fn psql_can_ask_the_console() {
    let addr = console().await;
    let ask = move |text: &str| {
        let port = addr.port().to_string();
        let mut psql = Command::new("psql");
        crate::support::without_pg_settings(&mut psql);
        psql.args([
            "-X",
            "-A",
            "-F",
            "|",
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "-U",
            "ops",
            "-c",
            text,
            "pgsluice",
        ]);
        psql.env("PGSSLMODE", "prefer").output().expect("psql")
    };
    let (lanes, help) =
        tokio::task::spawn_blocking(move || (ask("show coalesce;"), ask("show help"))).await.expect("ran");
    let lanes = String::from_utf8_lossy(&lanes.stdout);
    assert!(lanes.starts_with("database|user|table|columns|format|mode|state|lanes|waiting|"), "{lanes}");
    assert!(lanes.contains("|public.t|") && lanes.contains("|6.10|"), "{lanes}");
    let help = String::from_utf8_lossy(&help.stderr);
    assert!(help.contains("Console usage") && help.contains("FLUSH [<table>]"), "{help}");
}
