//! What the product is made of: licences, build scripts, doubles, sources of its dependencies, from Cargo's own metadata.
//!
//! A new name on a list here is a decision, to be seen in a review. Nothing is fetched: what a registry knows of yanked
//! or vulnerable versions is not asked.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Licences that the product may contain, as alternatives or all together.
const LICENCES: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "CC0-1.0",
];

/// Packages that run code while they are built.
const BUILD_SCRIPTS: &[&str] = &[
    "ahash",
    "anyhow",
    "aws-lc-rs",
    "aws-lc-sys",
    "bindgen",
    "clang-sys",
    "generic-array",
    "getrandom",
    "libc",
    "nix",
    "num-traits",
    "oid-registry",
    "pg_query",
    "prettyplease",
    "proc-macro2",
    "quote",
    "rlimit",
    "rustix",
    "rustls",
    "rustversion",
    "serde",
    "serde_core",
    "serde_json",
    "thiserror",
    "zerocopy",
    "zmij",
];

/// Packages that are there in more than one incompatible version, because their users have not met yet.
const DOUBLES: &[&str] = &[
    "getrandom",
    "itertools",
    "linux-raw-sys",
    "rustix",
    "shlex",
    "syn",
    "thiserror",
    "thiserror-impl",
    "winnow",
];

/// Native code that is linked in.
const NATIVE: &[&str] = &["aws-lc-rs", "aws-lc-sys", "clang-sys", "prettyplease"];

/// The only source a locked dependency may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// One package that ends up in the product, or helps to build it.
struct Package {
    name: String,
    version: String,
    licence: String,
    source: String,
    builds: bool,
    links: bool,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What a command of Cargo's prints, without the network.
fn cargo(command: &[&str]) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(command).args(["--offline", "--locked"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    if command[0] == "metadata" {
        let rustc = Command::new("rustc").arg("-vV").output().expect("rustc");
        let rustc = String::from_utf8_lossy(&rustc.stdout).into_owned();
        let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
        cargo.args(["--filter-platform", host]);
    }
    let output = cargo.output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Everything but what only tests and benchmarks need, and the product itself.
fn packages() -> Vec<Package> {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--format-version", "1"])).expect("JSON");
    let tree = cargo(&["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
    // The first line is the product itself.
    let tree: BTreeSet<_> = tree
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            Some((words.next()?, words.next()?))
        })
        .collect();
    let shipped = array(&metadata["packages"])
        .iter()
        .filter(|p| tree.contains(&(text(&p["name"]), format!("v{}", text(&p["version"])))));
    let all: Vec<_> = shipped
        .map(|p| Package {
            name: text(&p["name"]),
            version: text(&p["version"]),
            licence: text(&p["license"]),
            source: text(&p["source"]),
            builds: array(&p["targets"])
                .iter()
                .any(|t| array(&t["kind"]).iter().any(|kind| kind == "custom-build")),
            links: !p["links"].is_null(),
        })
        .collect();
    assert!(all.len() > 50, "{} packages", all.len());
    all
}

/// An SPDX expression: one side of an OR, both of an AND; `/` is what OR was called before.
fn is_allowed(licence: &str) -> bool {
    let licence = licence.replace('/', " OR ");
    let words = licence.replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut at = 0;
    let allowed = or(&words, &mut at);
    allowed && at == words.len()
}

fn or(words: &[&str], at: &mut usize) -> bool {
    let mut allowed = and(words, at);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        allowed |= and(words, at);
    }
    allowed
}

fn and(words: &[&str], at: &mut usize) -> bool {
    let mut allowed = one(words, at);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        allowed &= one(words, at);
    }
    allowed
}

fn one(words: &[&str], at: &mut usize) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let allowed = or(words, at);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return allowed && closed;
    }
    let mut licence = (*word).to_owned();
    if let (Some(&"WITH"), Some(exception)) = (words.get(*at), words.get(*at + 1)) {
        licence = format!("{licence} WITH {exception}");
        *at += 2;
    }
    LICENCES.contains(&licence.as_str())
}

#[test]
fn every_licence_is_one_of_those_allowed() {
    let others: Vec<_> = packages()
        .into_iter()
        .filter(|p| !is_allowed(&p.licence))
        .map(|p| format!("{} {}: {:?}", p.name, p.version, p.licence))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn licences_are_read_as_they_are_written() {
    assert!(
        is_allowed("GPL-3.0 OR MIT") && is_allowed("GPL-2.0/MIT") && is_allowed("(MIT OR GPL-3.0) AND ISC")
    );
    assert!(is_allowed("Apache-2.0 WITH LLVM-exception OR GPL-3.0"));
    for no in ["", "GPL-3.0", "MIT AND GPL-3.0", "MIT AND (GPL-3.0 OR AGPL-3.0)", "MIT MIT", "(MIT"] {
        assert!(!is_allowed(no), "{no:?}");
    }
}

#[test]
fn everything_comes_from_one_registry() {
    let others: Vec<_> = packages().into_iter().filter(|p| p.source != REGISTRY).map(|p| p.name).collect();
    assert!(others.is_empty(), "{others:?}");
    let lock =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock")).expect("Cargo.lock");
    let mut elsewhere = lock.lines().filter_map(|line| line.strip_prefix("source = "));
    assert_eq!(elsewhere.find(|source| source.trim_matches('"') != REGISTRY), None);
    let (sources, checksums) = (lock.matches("\nsource = ").count(), lock.matches("\nchecksum = ").count());
    assert_eq!(sources, checksums, "each has a checksum");
}

#[test]
fn build_scripts_native_code_and_doubles_are_known() {
    let (mut scripts, mut native) = (BTreeSet::new(), BTreeSet::new());
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        if package.builds && !BUILD_SCRIPTS.contains(&&*package.name) {
            scripts.insert(package.name.clone());
        }
        if package.links && !NATIVE.contains(&&*package.name) {
            native.insert(package.name.clone());
        }
        versions.entry(package.name).or_default().insert(package.version);
    }
    let doubles = versions.into_iter().filter(|(name, v)| v.len() > 1 && !DOUBLES.contains(&&**name));
    assert_eq!(scripts, BTreeSet::new(), "build scripts that nobody has looked at");
    assert_eq!(native, BTreeSet::new(), "native code that nobody has looked at");
    assert_eq!(doubles.collect::<Vec<_>>(), [], "in more than one version");
}
