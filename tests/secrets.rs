//! Secrets stay where they are: no log line at any level, no `Debug`, no error holds a password, a verifier, a nonce or a key.

use std::process::Command;

use crate::support;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use pgsluice::auth::{Auth, Credential, Found};
use pgsluice::config;
use pgsluice::settings::Secret;
use pgsluice::wire::{CancelKey, backend as b, frame, frontend as f};
use support::{Postgres, Proxy, Raw, client_command};

/// Of the client in clear, of the client hashed, of the client as a verifier, of the server.
const PASSWORDS: [&str; 4] = ["hunter2-clear", "hunter2-hashed", "hunter2-verified", "hunter2-server"];

/// Roles on the server: their secrets as PostgreSQL stores them.
fn stored(server: &Postgres, role: &str, encryption: &str, password: &str) -> String {
    let sql = format!(
        "SET password_encryption = '{encryption}'; DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN PASSWORD '{password}'"
    );
    server.psql("postgres", &sql);
    server
        .psql("postgres", &format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{role}'"))
        .trim()
        .to_owned()
}

fn login(proxy: &Proxy, user: &str, password: &str) -> Result<Raw, support::Message> {
    Raw::login_as(proxy.port(), &[("user", user), ("database", "postgres")], password)
}

/// Begins a SCRAM exchange with a nonce of its own and ends it with nonsense; the nonce of both.
fn half_an_exchange(proxy: &Proxy, nonce: &str) -> String {
    let mut raw = Raw::connect(proxy.port());
    raw.startup(3 << 16, &[("user", "s_clear"), ("database", "postgres")]);
    raw.read();
    let first = format!("n,,n=,r={nonce}");
    let answer = |raw: &mut Raw, body: &[u8]| {
        let mut out = Vec::new();
        frame::put(&mut out, f::PASSWORD, |out| out.extend_from_slice(body));
        raw.send(&out);
        raw.read()
    };
    let length = (first.len() as u32).to_be_bytes();
    let challenge = answer(&mut raw, &[&b"SCRAM-SHA-256\0"[..], &length, first.as_bytes()].concat());
    let challenge = String::from_utf8_lossy(&challenge.body[4..]).into_owned();
    let both =
        challenge.strip_prefix("r=").and_then(|rest| rest.split(',').next()).expect("a nonce").to_owned();
    assert!(both.len() > nonce.len());
    let proof = BASE64.encode([7; 32]);
    let refused = answer(&mut raw, format!("c=biws,r={both},p={proof}").as_bytes());
    assert_eq!(refused.tag, b::ERROR_RESPONSE);
    both
}

#[test]
fn a_log_at_trace_level_holds_no_secret() {
    let server = Postgres::shared();
    let md5 = stored(server, "s_hashed", "md5", PASSWORDS[1]);
    let verifier = stored(server, "s_verified", "scram-sha-256", PASSWORDS[2]);
    stored(server, "s_clear", "scram-sha-256", PASSWORDS[0]);
    let server_secret = stored(server, "s_server", "scram-sha-256", PASSWORDS[3]);
    assert!(md5.starts_with("md5") && verifier.starts_with("SCRAM-SHA-256$"));
    let users =
        format!("\"s_clear\" \"{}\"\n\"s_hashed\" \"{md5}\"\n\"s_verified\" \"{verifier}\"\n", PASSWORDS[0]);
    let mut all = String::new();
    for auth_type in ["scram-sha-256", "md5", "plain"] {
        for format in ["text", "json"] {
            let config = format!(
                "[general]\nlisten_addr = \"127.0.0.1\"\nlisten_port = @PORT@\nauth_type = \"{auth_type}\"\n\
                 auth_file = \"userlist.txt\"\nlog_level = \"trace\"\nlog_format = \"{format}\"\n\
                 [databases.\"*\"]\nhost = \"127.0.0.1\"\nport = {}\nuser = \"s_server\"\npassword = \"{}\"\n\
                 [policy]\nsimple_query = \"deny\"\n",
                server.port(),
                PASSWORDS[3]
            );
            let mut proxy = Proxy::start_with(&config, &[("userlist.txt", &users)]);
            let mut clear =
                login(&proxy, "s_clear", PASSWORDS[0]).unwrap_or_else(|e| panic!("{}", e.outline()));
            let secret = format!("SELECT 'hunter2-literal-{auth_type}'");
            assert_eq!(clear.error(&secret).sqlstate(), "42501");
            clear.extended("SELECT $1", &[Some("hunter2-parameter")]);
            let key = clear.key.clone();
            clear.cancel(proxy.port());
            assert_eq!(login(&proxy, "s_hashed", PASSWORDS[1]).is_ok(), auth_type != "scram-sha-256");
            assert!(login(&proxy, "s_verified", PASSWORDS[2]).is_ok());
            for user in ["s_clear", "s_hashed", "s_verified", "nobody"] {
                assert!(login(&proxy, user, "hunter2-wrong").is_err());
            }
            let nonce = (auth_type == "scram-sha-256").then(|| half_an_exchange(&proxy, "hunter2nonce"));
            proxy.reload("[general]\nauth_file = \"userlist.txt\"\nno_such_key = \"hunter2-clear\"\n");
            proxy.wait_for_log("not reloaded");
            proxy.terminate();
            assert!(proxy.wait_end().success());
            let log = proxy.log();
            assert!(log.contains("login"), "something was logged: {log}");
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            for secret in [hex(&key), format!("{key:?}"), BASE64.encode(&key)].into_iter().chain(nonce) {
                assert!(!log.contains(&secret), "{secret}:\n{log}");
            }
            all += &log;
        }
    }
    let parts = |secret: &str| secret.split(['$', ':']).skip(2).map(str::to_owned).collect::<Vec<_>>();
    let secrets =
        [md5["md5".len()..].to_owned()].into_iter().chain(parts(&verifier)).chain(parts(&server_secret));
    for secret in secrets.chain(["hunter2".to_owned()]) {
        assert!(!all.contains(&secret), "{secret}:\n{all}");
    }
}

#[test]
fn check_and_debug_print_no_secret() {
    let dir = tempfile::tempdir().expect("directory");
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("write");
    write("userlist.txt", "\"ann\" \"hunter2\"\n\"bob\" \"md50123456789abcdef0123456789abcdef\"\n");
    write(
        "pgsluice.toml",
        "[general]\nauth_file = \"userlist.txt\"\n[databases.app]\nhost = \"localhost\"\nuser = \"u\"\npassword = \"hunter2\"\n",
    );
    let path = dir.path().join("pgsluice.toml");
    let checked = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["check", "-c"])
        .arg(&path)
        .output()
        .expect("check");
    assert!(checked.status.success());
    let loaded = config::read(&path).unwrap_or_else(|problems| panic!("{problems:?}"));
    let auth = Auth::new(&loaded.settings);
    let account = auth.account_of(&loaded.settings, "ann", &Found::NotAsked);
    let key = CancelKey::from(&b"hunter2"[..]);
    let told = [
        String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr),
        format!("{:?} {auth:?} {account:?} {:?}", loaded.settings, account.credential()),
        format!("{:?} {key:?} {:?}", Credential::plain("hunter2"), Secret::Plain("hunter2".into())),
        config::describe(&loaded.settings),
        config::shown(&loaded.settings).iter().map(|row| format!("{row:?}\n")).collect(),
    ];
    for told in told {
        let numbers = "[104, 117, 110, 116, 101, 114, 50]";
        assert!(
            !told.contains("hunter2") && !told.contains("0123456789abcdef") && !told.contains(numbers),
            "{told}"
        );
    }
}

/// What a client is told of its own failure does not say more than it knew.
#[test]
fn errors_repeat_no_secret() {
    let server = Postgres::shared();
    let config = format!(
        "[general]\nlisten_addr = \"127.0.0.1\"\nlisten_port = @PORT@\nauth_type = \"plain\"\nauth_file = \"userlist.txt\"\n\
         [databases.\"*\"]\nhost = \"127.0.0.1\"\nport = {}\n",
        server.port()
    );
    let proxy = Proxy::start_with(&config, &[("userlist.txt", "\"ann\" \"hunter2\"\n")]);
    let refused = login(&proxy, "ann", "hunter3").err().expect("refused");
    assert!(!refused.outline().contains("hunter"), "{}", refused.outline());
    let dsn = format!("host=127.0.0.1 port={} user=ann dbname=postgres sslmode=disable", proxy.port());
    let psql = client_command("psql").args(["-X", &dsn, "-c", "x"]).env("PGPASSWORD", "hunter2").output();
    let psql = psql.expect("psql");
    assert!(!String::from_utf8_lossy(&psql.stderr).contains("hunter2"), "{psql:?}");
    assert!(!proxy.log().contains("hunter"), "{}", proxy.log());
}

#[test]
fn nothing_that_is_shipped_lets_anybody_in() {
    let read = |path: &str| {
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
    };
    for sample in ["config/minimal.toml", "config/pgsluice.toml"] {
        let text = read(sample);
        let made = text.lines().filter(|line| !line.starts_with('#'));
        let open: Vec<_> = made.filter(|line| line.contains("trust") || line.contains("password")).collect();
        assert!(open.is_empty(), "{sample}: {open:?}");
    }
    let users = read("config/userlist.txt");
    assert!(
        users.lines().all(|line| line.is_empty() || line.starts_with(';')),
        "a user in config/userlist.txt"
    );
    for part in ["values.yaml", "templates/_helpers.tpl", "templates/statefulset.yaml"] {
        let part = read(&format!("deploy/chart/{part}"));
        assert!(!part.contains("trust") && !part.contains("password = ") && !part.contains("kind: Secret"));
    }
    let image = read("deploy/Dockerfile");
    let commands = image.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    assert!(
        !commands.contains("userlist")
            && !commands.contains("PASSWORD")
            && commands.contains("USER pgsluice")
    );
    assert_eq!(pgsluice::settings::General::default().auth_type, pgsluice::settings::AuthType::ScramSha256);
}
