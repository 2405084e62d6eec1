//! The command line: `check` and `serve` say what is wrong with a configuration, and end accordingly.

use std::path::Path;
use std::process::{Command, Output};

fn pgsluice(arguments: &[&str], file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pgsluice")).args(arguments).arg(file).output().expect("pgsluice starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn a_good_file_is_printed_as_it_is_effective_and_what_has_no_effect_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("pgbouncer.ini");
    let ini = "[databases]\napp = host=10.0.0.1\n[pgbouncer]\nauth_type = trust\nlogfile = /x\npool_mode = statement\n";
    std::fs::write(&file, ini).expect("a file");
    let output = pgsluice(&["check", "-c"], &file);
    assert!(output.status.success(), "{output:?}");
    let effective = text(&output.stdout);
    assert!(effective.contains("pool_mode = \"statement\"  # default: \"transaction\"\n"), "{effective}");
    assert!(effective.contains("[databases.\"app\"]\nhost = [\"10.0.0.1\"]\n"), "{effective}");
    let notices = text(&output.stderr);
    assert!(notices.contains("pgbouncer.ini:5: logfile: not understood: ignored, because"), "{notices}");
    assert_eq!(notices.lines().count(), 1, "{notices}");
}

#[test]
fn a_bad_file_is_refused_by_check_and_by_serve_with_every_mistake() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("pgsluice.toml");
    let toml = "[general]\nauth_type = \"trust\"\nlisten_prt = 1\n[databases.app]\nhost = \"a\"\nport = 0\n";
    std::fs::write(&file, toml).expect("a file");
    for command in ["check", "serve"] {
        let output = pgsluice(&[command, "--config"], &file);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let lines: Vec<&str> = text(&output.stderr).lines().collect();
        let [first, second, last] = lines[..] else { panic!("{lines:?}") };
        assert!(
            first.ends_with("pgsluice.toml:3: listen_prt: unknown key; did you mean listen_port?"),
            "{first}"
        );
        assert!(second.contains("pgsluice.toml:6: databases.app.port: found 0; expected"), "{second}");
        assert_eq!(last, "pgsluice: 2 problems in the configuration");
    }
}

#[test]
fn what_stops_the_start_is_logged_in_the_form_that_was_asked_for() {
    // Somebody else has the port: the start fails whatever else the machine can do.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("pgsluice.toml");
    let toml = format!(
        "[general]\nauth_type = \"trust\"\nlog_format = \"json\"\nlog_level = \"error\"\n\
         listen_port = {port}\n[databases.\"*\"]\nhost = \"127.0.0.1\"\n"
    );
    std::fs::write(&file, toml).expect("a file");
    let output = pgsluice(&["serve", "-c"], &file);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let lines: Vec<&str> = text(&output.stderr).lines().collect();
    assert!(!lines.is_empty());
    for line in lines {
        let event: serde_json::Value = serde_json::from_str(line).expect(line);
        assert_eq!(event["level"], "ERROR", "{line}");
        assert!(event["message"].is_string(), "{line}");
    }
}
