//! tokio-postgres: the cases, as a transcript.

use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt, TryStreamExt, pin_mut};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::error::DbError;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Config, Error, NoTls, SimpleQueryMessage};

use super::support::Certs;

/// How long all cases together may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs all cases against `localhost:port`; with `certs` over TLS.
pub(crate) fn transcript(port: u16, database: &str, certs: Option<&Certs>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let mut config = Config::new();
    config
        .host("localhost")
        .port(port)
        .dbname(database)
        .user("app")
        .password("secret")
        .application_name("drivers");
    let site = Site { config, tls: certs.map(Tls::new) };
    let mut out = String::new();
    let ended = runtime.block_on(async { tokio::time::timeout(PATIENCE, cases(&site, &mut out)).await });
    assert!(ended.is_ok(), "the last case hangs:\n{out}");
    out
}

struct Site {
    config: Config,
    tls: Option<Tls>,
}

/// What arrived beside the answers.
type Heard = tokio::sync::mpsc::UnboundedReceiver<String>;

impl Site {
    async fn connect(&self) -> (Client, Heard) {
        match &self.tls {
            None => spawned(self.config.connect(NoTls).await.expect("connect")),
            Some(tls) => {
                let mut config = self.config.clone();
                config.ssl_mode(tokio_postgres::config::SslMode::Require);
                spawned(config.connect(tls.clone()).await.expect("connect over TLS"))
            }
        }
    }
}

fn spawned<S>(
    (client, mut connection): (Client, tokio_postgres::Connection<tokio_postgres::Socket, S>),
) -> (Client, Heard)
where
    S: TlsStream + Unpin + Send + 'static,
{
    let (sender, heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(Ok(message)) = messages.next().await {
            let line = match message {
                AsyncMessage::Notice(notice) => format!("notice {}", fields(&notice)),
                AsyncMessage::Notification(n) => format!("notification {} {}", n.channel(), n.payload()),
                _ => continue,
            };
            let _ = sender.send(line);
        }
    });
    (client, heard)
}

fn fields(e: &DbError) -> String {
    format!("{e:?}")
}

fn explain(e: &Error) -> String {
    e.as_db_error().map_or_else(|| format!("UNEXPECTED {e}"), fields)
}

async fn cases(site: &Site, out: &mut String) {
    macro_rules! case {
        ($name:literal, $run:expr) => {{
            let _ = writeln!(out, "== {}", $name);
            let (mut client, mut heard) = site.connect().await;
            let run = $run;
            match run(&mut client, &mut heard, site).await {
                Ok(text) => out.push_str(&text),
                Err(e) => out.push_str(&format!("error {}", explain(&e))),
            }
            while let Ok(line) = heard.try_recv() {
                let _ = write!(out, "\n{line}");
            }
            out.push('\n');
        }};
    }
    case!("kinds, text", async |c: &mut Client, _: &mut Heard, _: &Site| simple(c, "SELECT * FROM kinds")
        .await);
    case!("kinds, binary", kinds);
    case!("bound", bound);
    case!("prepared", prepared);
    case!("transactions", transactions);
    case!("errors", errors);
    case!("notices", async |c: &mut Client, _: &mut Heard, _: &Site| simple(c, "SELECT remark('hm')").await);
    case!("several statements", async |c: &mut Client, _: &mut Heard, _: &Site| {
        simple(c, "SELECT 1; SELECT 'two', 2; SELECT 1/0; SELECT 4").await
    });
    case!("copy", copy);
    case!("cancelled", cancelled);
    case!("pipeline", pipeline);
    case!("pipeline with an error", pipeline_error);
    case!("at once", at_once);
    case!("large", large);
    case!("portal", portal);
    case!("settings", settings);
    case!("settings are gone", async |c: &mut Client, _: &mut Heard, _: &Site| simple(c, "SHOW TimeZone")
        .await);
    case!("listen", listening);
    case!("changed type", changed_type);
    case!("the same statements", same_statements);
    out.push_str("== end\n");
}

async fn simple(client: &Client, sql: &str) -> Result<String, Error> {
    let mut out = String::new();
    for message in client.simple_query(sql).await? {
        let _ = match message {
            SimpleQueryMessage::Row(row) => {
                writeln!(out, "{:?}", (0..row.len()).map(|i| row.get(i)).collect::<Vec<_>>())
            }
            SimpleQueryMessage::CommandComplete(count) => writeln!(out, "count {count}"),
            _ => Ok(()),
        };
    }
    Ok(out)
}

async fn kinds(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let rows = client.query("SELECT b, i2, i4, i8, f4, f8, t, v, by, ia, ta FROM kinds", &[]).await?;
    let mut out = format!("{:?}\n", rows[0].columns());
    for row in rows {
        let _ = writeln!(
            out,
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            row.get::<_, Option<bool>>(0),
            row.get::<_, Option<i16>>(1),
            row.get::<_, Option<i32>>(2),
            row.get::<_, Option<i64>>(3),
            row.get::<_, Option<f32>>(4),
            row.get::<_, Option<f64>>(5),
            row.get::<_, Option<String>>(6),
            row.get::<_, Option<String>>(7),
            row.get::<_, Option<Vec<u8>>>(8),
            row.get::<_, Option<Vec<Option<i32>>>>(9),
            row.get::<_, Option<Vec<Option<String>>>>(10),
        );
    }
    // Table OIDs differ between two databases.
    Ok(without_oids(&out))
}

/// Cuts `table_oid: Some(n)` out of a column's description.
fn without_oids(text: &str) -> String {
    text.split("table_oid: Some(").enumerate().fold(String::new(), |all, (i, part)| {
        all + if i == 0 { part } else { part.trim_start_matches(|c: char| c.is_ascii_digit()) }
    })
}

async fn bound(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let text = "SELECT $1::int, $2::text, $3::bytea, $4::int[], $5::int8";
    let values: (Option<i32>, &str, &[u8], Vec<Option<i32>>, i64) =
        (None, "naïve 'quote' \\ back", &[0, 255], vec![Some(1), None], 1 << 40);
    let row = client.query_one(text, &[&values.0, &values.1, &values.2, &values.3, &values.4]).await?;
    Ok(format!(
        "{:?} {:?} {:?} {:?} {:?}",
        row.get::<_, Option<i32>>(0),
        row.get::<_, String>(1),
        row.get::<_, Vec<u8>>(2),
        row.get::<_, Vec<Option<i32>>>(3),
        row.get::<_, i64>(4)
    ))
}

async fn prepared(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let twice = client.prepare_typed("SELECT $1 * 2, $2::text", &[Type::INT4]).await?;
    let mut out = format!("{:?}", twice.params());
    for n in 0..10i32 {
        let row = client.query_one(&twice, &[&n, &"w"]).await?;
        let _ = write!(out, " {}{}", row.get::<_, i32>(0), row.get::<_, String>(1));
    }
    drop(twice); // Closes it on the server.
    Ok(out + &simple(client, "SELECT 'after'").await?)
}

async fn transactions(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let mut out = String::new();
    let mut outer = client.transaction().await?;
    outer.execute("INSERT INTO item VALUES ($1, 'one', 1.5, NULL)", &[&601i32]).await?;
    let inner = outer.transaction().await?;
    let again = inner.execute("INSERT INTO item VALUES ($1, 'again', 1.5, NULL)", &[&601i32]).await;
    let failed = inner.execute("SELECT 1", &[]).await;
    let _ = writeln!(
        out,
        "{}\n{}",
        explain(&again.expect_err("a duplicate")),
        explain(&failed.expect_err("failed block"))
    );
    inner.rollback().await?;
    outer.execute("INSERT INTO item VALUES (602, 'two', 1.5, NULL)", &[]).await?;
    outer.commit().await?;
    let dropped = client.transaction().await?;
    dropped.execute("INSERT INTO item VALUES (603, 'three', 1.5, NULL)", &[]).await?;
    drop(dropped);
    Ok(out + &simple(client, "SELECT id, name FROM item WHERE id > 600 ORDER BY id").await?)
}

async fn errors(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let mut out = String::new();
    let texts = [
        "SELEKT 1",
        "SELECT 'ü', nowhere FROM item",
        "INSERT INTO item VALUES (9, NULL, 1, NULL)",
        "INSERT INTO item VALUES (9, 'x', -1, NULL)",
        "INSERT INTO item VALUES (9, 'x', 1, 12345)",
        "INSERT INTO stream (client) VALUES ('abc')",
        "SELECT complain('noise')",
    ];
    for text in texts {
        for outcome in [simple(client, text).await.err(), client.query(text, &[]).await.err()] {
            let _ = writeln!(out, "{}", outcome.map_or_else(|| "UNEXPECTED success".into(), |e| explain(&e)));
        }
    }
    Ok(out + &simple(client, "SELECT 'alive'").await?)
}

async fn copy(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let mut out = String::new();
    let sink = client.copy_in::<_, bytes::Bytes>("COPY stream (client, seq, word) FROM STDIN").await?;
    pin_mut!(sink);
    for n in 0..1000 {
        sink.send(bytes::Bytes::from(format!("7\t{n}\tw\\t{n}\n"))).await?;
    }
    let _ = writeln!(out, "{}", sink.finish().await?);
    let sink = client.copy_in::<_, bytes::Bytes>("COPY stream (client, seq) FROM STDIN").await?;
    pin_mut!(sink);
    sink.send(bytes::Bytes::from_static(b"1\t2\nx\t3\n")).await?;
    let _ = writeln!(out, "{}", explain(&sink.finish().await.expect_err("a bad row")));
    {
        // Dropped without finish: CopyFail.
        let sink = client.copy_in::<_, bytes::Bytes>("COPY stream (client, seq) FROM STDIN").await?;
        pin_mut!(sink);
        sink.send(bytes::Bytes::from_static(b"99\t1\n")).await?;
    }
    let blocks =
        client.copy_out("COPY (SELECT client, seq, word FROM stream ORDER BY 1, 2) TO STDOUT").await?;
    let all: Vec<bytes::Bytes> = blocks.try_collect().await?;
    let _ = writeln!(out, "{:?}", all.concat().escape_ascii().to_string());
    Ok(out)
}

async fn cancelled(client: &mut Client, _: &mut Heard, site: &Site) -> Result<String, Error> {
    let token = client.cancel_token();
    let (watch, _) = site.connect().await;
    let sleep = client.simple_query("SELECT pg_sleep(60) /* to be cancelled */");
    let cancel = async {
        // Not before the server runs it: an early cancel would be lost.
        let running = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
        while watch.query_one(running, &[]).await.map_or(0, |row| row.get::<_, i64>(0)) == 0 {
            tokio::task::yield_now().await;
        }
        match &site.tls {
            None => token.cancel_query(NoTls).await,
            Some(tls) => token.cancel_query(tls.clone()).await,
        }
    };
    let (slept, sent) = tokio::join!(sleep, cancel);
    sent?;
    let error = slept.err().map_or_else(|| "UNEXPECTED success".into(), |e| explain(&e));
    Ok(error + &simple(client, "SELECT 'alive'").await?)
}

async fn pipeline(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let insert =
        client.prepare("INSERT INTO stream (client, seq, word, data) VALUES (1, $1, $2, $3)").await?;
    let rows: Vec<(i32, String, Vec<u8>)> = (0..200).map(|n| (n, format!("w{n}"), vec![n as u8])).collect();
    let parameters: Vec<[&(dyn tokio_postgres::types::ToSql + Sync); 3]> =
        rows.iter().map(|r| [&r.0 as _, &r.1 as _, &r.2 as _]).collect();
    // All are sent before the first is answered.
    let answers = futures_util::future::join_all(parameters.iter().map(|p| client.execute(&insert, p))).await;
    let counts: u64 = answers.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().sum();
    let sums = "SELECT count(*), sum(seq), min(word), max(encode(data, 'hex')) FROM stream WHERE client = 1";
    Ok(format!("{counts}\n{}", simple(client, sums).await?))
}

async fn pipeline_error(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let client = &*client;
    let insert = client.prepare("INSERT INTO item VALUES ($1, 'p', 1, NULL)").await?;
    let ids = [650i32, 651, 650, 652];
    let answers = futures_util::future::join_all(ids.iter().map(|id| {
        let insert = &insert;
        async move { client.execute(insert, &[id]).await }
    }))
    .await;
    let lines = answers.into_iter().map(|a| a.map_or_else(|e| explain(&e), |n| n.to_string()));
    let out = lines.collect::<Vec<_>>().join("\n");
    Ok(out + "\n" + &simple(client, "SELECT id FROM item WHERE id BETWEEN 650 AND 659 ORDER BY id").await?)
}

async fn at_once(client: &mut Client, _: &mut Heard, site: &Site) -> Result<String, Error> {
    let one = async |number: i32| -> Result<u64, Error> {
        let (mine, _) = site.connect().await;
        let mut count = 0;
        for n in 0..50i32 {
            count += mine.execute("INSERT INTO stream (client, seq) VALUES ($1, $2)", &[&number, &n]).await?;
        }
        Ok(count)
    };
    let counts = futures_util::future::join_all((70..86).map(one)).await;
    let counts = counts.into_iter().collect::<Result<Vec<_>, _>>()?;
    let sums =
        "SELECT client, count(*), sum(seq) FROM stream WHERE client BETWEEN 70 AND 85 GROUP BY 1 ORDER BY 1";
    Ok(format!("{counts:?}\n{}", simple(client, sums).await?))
}

async fn large(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let text = "0123456789abcdef".repeat(400_000);
    let back: String = client.query_one("SELECT $1::text", &[&text]).await?.get(0);
    let rows = client.query("SELECT repeat('x', 1000) FROM generate_series(1, 5000)", &[]).await?;
    Ok(format!("{} {} {}", back == text, back.len(), rows.len()))
}

async fn portal(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let transaction = client.transaction().await?;
    let portal = transaction.bind("SELECT * FROM generate_series(1, 10)", &[]).await?;
    let mut out = String::new();
    for limit in [3, 4, 10] {
        let rows = transaction.query_portal(&portal, limit).await?;
        let _ = writeln!(out, "{:?}", rows.iter().map(|r| r.get::<_, i32>(0)).collect::<Vec<_>>());
    }
    transaction.commit().await?;
    Ok(out)
}

async fn settings(client: &mut Client, _: &mut Heard, _: &Site) -> Result<String, Error> {
    let mut out = simple(client, "SET TIME ZONE 'Asia/Tokyo'").await?;
    for _ in 0..5 {
        out += &simple(client, "SHOW TimeZone").await?;
    }
    Ok(out)
}

async fn changed_type(client: &mut Client, _: &mut Heard, site: &Site) -> Result<String, Error> {
    client.batch_execute("DROP TABLE IF EXISTS changing; CREATE TABLE changing AS SELECT 1 AS a").await?;
    let (other, _) = site.connect().await;
    let old = other.prepare("SELECT * FROM changing").await?;
    let mut out = String::new();
    for _ in 0..6 {
        let _ = write!(out, "{} ", other.query_one(&old, &[]).await?.len());
    }
    client.batch_execute("ALTER TABLE changing ADD COLUMN b text").await?;
    for _ in 0..3 {
        // The line of the server's source is not there when the proxy says it in the server's place.
        let _ = match other.query_one(&old, &[]).await {
            Ok(row) => writeln!(out, "UNEXPECTED {}", row.len()),
            Err(e) => writeln!(out, "{:?} {:?}", e.code(), e.as_db_error().and_then(DbError::routine)),
        };
    }
    let new = other.prepare("SELECT * FROM changing").await?;
    for _ in 0..6 {
        let _ = write!(out, "{} ", other.query_one(&new, &[]).await?.len());
    }
    Ok(out)
}

async fn same_statements(client: &mut Client, _: &mut Heard, site: &Site) -> Result<String, Error> {
    let (other, _) = site.connect().await;
    let mine = client.prepare("SELECT $1::int + 1").await?;
    let theirs = other.prepare("SELECT $1::text || 'b'").await?;
    let mut out = String::new();
    for n in 0..6i32 {
        let number: i32 = client.query_one(&mine, &[&n]).await?.get(0);
        let text: String = other.query_one(&theirs, &[&n.to_string()]).await?.get(0);
        let _ = write!(out, "{number} {text} ");
    }
    Ok(out)
}

async fn listening(client: &mut Client, heard: &mut Heard, site: &Site) -> Result<String, Error> {
    client.batch_execute("LISTEN words").await?;
    let (other, _) = site.connect().await;
    other.batch_execute("NOTIFY words, 'hello'").await?;
    Ok(heard.recv().await.unwrap_or_else(|| "UNEXPECTED end".into()))
}

/// TLS for tokio-postgres by rustls, trusting one authority.
#[derive(Clone)]
struct Tls {
    connector: tokio_rustls::TlsConnector,
}

impl Tls {
    fn new(certs: &Certs) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&certs.ca).expect("PEM")).expect("authority");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("protocol versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { connector: Arc::new(config).into() }
    }
}

impl MakeTlsConnect<tokio_postgres::Socket> for Tls {
    type Stream = Stream<tokio_postgres::Socket>;
    type TlsConnect = Self;
    type Error = io::Error;

    fn make_tls_connect(&mut self, _: &str) -> io::Result<Self> {
        Ok(self.clone())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Tls {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let name = ServerName::try_from("localhost").expect("a name");
        Box::pin(async move { Ok(Stream(self.connector.connect(name, stream).await?)) })
    }
}

struct Stream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
