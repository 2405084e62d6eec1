//! Replays the committed seeds of every fuzz target, so that plain `cargo test` holds what fuzzing found.

use std::path::Path;

#[path = "fuzz/targets.rs"]
mod targets;

#[test]
fn every_seed_of_every_target_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    for (name, target) in targets::ALL {
        let mut seeds = 0;
        for entry in std::fs::read_dir(corpus.join(name)).unwrap_or_else(|e| panic!("{name}: {e}")) {
            let path = entry.expect("an entry").path();
            let seed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            println!("{}", path.display());
            target(&seed);
            // Cut anywhere, a seed is another seed.
            (0..seed.len().min(512)).for_each(|end| target(&seed[..end]));
            seeds += 1;
        }
        assert!(seeds > 0, "{name} has no seeds");
    }
}

#[test]
fn every_target_has_a_binary() {
    let manifest = include_str!("fuzz/Cargo.toml");
    for (name, _) in targets::ALL {
        assert!(
            manifest.contains(&format!("name = \"{name}\"\n")),
            "{name} is missing from tests/fuzz/Cargo.toml"
        );
    }
}
