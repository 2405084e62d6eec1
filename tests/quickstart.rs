//! `pgsluice quickstart` shows what it has to show whatever the shell is set to, and leaves nothing behind however it ends.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::support::{PATIENCE, poll};

/// Where its temporary directory will lie: under a name that is too long for a socket's file, if that is asked for.
struct Ground {
    _whole: tempfile::TempDir,
    dir: PathBuf,
}

impl Ground {
    fn new(name: &str) -> Self {
        let whole = tempfile::tempdir().expect("a directory");
        let dir = whole.path().join(name);
        std::fs::create_dir(&dir).expect("a directory");
        for path in [whole.path(), &dir] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("permissions");
        }
        Self { _whole: whole, dir }
    }

    fn quickstart(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        command.arg("quickstart").args(arguments).env("TMPDIR", &self.dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What it has made there.
    fn made(&self) -> Option<PathBuf> {
        std::fs::read_dir(&self.dir).expect("a directory").next().map(|entry| entry.expect("an entry").path())
    }

    fn is_left_as_it_was(&self) {
        assert_eq!(self.made(), None);
        let running = || processes_of(&self.dir);
        assert!(poll(PATIENCE, || running().is_empty().then_some(())).is_some(), "{:?}", running());
    }
}

/// Command lines that name something in `dir`.
fn processes_of(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(dir.to_str().expect("UTF-8"))).collect()
}

fn ended(child: &mut Child) -> ExitStatus {
    // It may have a whole cluster to make before.
    let status = poll(4 * PATIENCE, || child.try_wait().expect("it is ours"));
    status.unwrap_or_else(|| {
        let _ = child.kill();
        panic!("it goes on");
    })
}

#[test]
fn a_signal_leaves_neither_a_process_nor_a_file() {
    for signal in ["INT", "TERM", "HUP", "QUIT"] {
        let ground = Ground::new("t");
        let mut child = ground.quickstart(&[]).spawn().expect("it starts");
        // In the middle of initdb, which goes on making files until it is ended itself.
        let in_initdb = poll(PATIENCE, || ground.made()?.join("postgres/data/base").exists().then_some(()));
        assert!(in_initdb.is_some());
        let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(kill.expect("kill runs").success());
        assert!(ended(&mut child).success(), "{signal}");
        ground.is_left_as_it_was();
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_it() {
    let ground = Ground::new("t");
    let mut child = ground.quickstart(&["--once"]).spawn().expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_line(&mut String::new()).expect("a line");
    drop(out);
    assert_eq!(ended(&mut child).code(), Some(1));
    let said = std::io::read_to_string(child.stderr.take().expect("a pipe")).expect("UTF-8");
    assert_eq!(said, "pgsluice quickstart: cannot print: Broken pipe (os error 32)\n");
    ground.is_left_as_it_was();
}

#[test]
fn what_a_shell_has_set_for_another_server_is_not_used() {
    let ground = Ground::new(&"x".repeat(90));
    let mut command = ground.quickstart(&["--once", "--clients", "2", "--rows", "3"]);
    for (name, value) in [
        ("PGSERVICE", "none"),
        ("PGHOSTADDR", "127.0.0.9"),
        ("PGTARGETSESSIONATTRS", "standby"),
        ("PGDATESTYLE", "none"),
        ("PGTZ", "none"),
    ] {
        command.env(name, value);
    }
    let output = command.output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.matches("the same").count(), 3, "{said}");
    ground.is_left_as_it_was();
}
