//! Replays the committed seeds of every fuzz target, so that plain `cargo test` holds what fuzzing found, and mutates
//! them a little, so that it finds some of what fuzzing would.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

#[path = "fuzz/targets.rs"]
mod targets;

/// A target's seeds, by name.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{target}: {e}"))
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (path.display().to_string(), std::fs::read(&path).expect("a seed")))
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}

#[test]
fn every_seed_of_every_target_holds() {
    for (name, target) in targets::ALL {
        for (path, seed) in seeds(name) {
            println!("{path}");
            target(&seed);
            // Cut anywhere, a seed is another seed.
            (0..seed.len().min(512)).for_each(|end| target(&seed[..end]));
        }
    }
}

/// Numbers in an order that is the same each time (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// Bytes that lengths, counts and quotes are made of.
const ODD: &[&[u8]] = &[
    &[0],
    &[0xff],
    &[0x7f, 0xff, 0xff, 0xff],
    &[0x80, 0, 0, 0],
    &[0xff, 0xff, 0xff, 0xff],
    &[0xff, 0xff],
    &[0, 0, 0, 4],
    b"'",
    b"\"",
    b"\\",
    b"$$",
    b"--",
    b"/*",
    b";",
    b",",
    b"=",
    b"\n",
    "\u{1f600}".as_bytes(),
];

/// One to four small changes.
fn mutate(input: &mut Vec<u8>, other: &[u8], chance: &mut Chance) {
    for _ in 0..=chance.below(4) {
        let at = chance.below(input.len() + 1);
        match chance.below(6) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..(at + chance.below(8)).min(input.len()))),
            2 => drop(input.splice(at..at, ODD[chance.below(ODD.len())].iter().copied())),
            3 => {
                let odd = ODD[chance.below(ODD.len())];
                let end = (at + odd.len()).min(input.len());
                drop(input.splice(at..end, odd.iter().copied()));
            }
            4 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << chance.below(8);
                }
            }
            _ => {
                let from = chance.below(other.len() + 1);
                let piece = &other[from..(from + chance.below(64)).min(other.len())];
                drop(input.splice(at..at, piece.iter().copied()));
            }
        }
        input.truncate(4096);
    }
}

/// More with PGSLUICE_TEST_MUTATIONS=1000000, and other ones with PGSLUICE_TEST_SEED=2.
#[test]
fn seeds_that_were_changed_a_little_hold() {
    let number = |name: &str, or: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or);
    let (rounds, seed) = (number("PGSLUICE_TEST_MUTATIONS", 500), number("PGSLUICE_TEST_SEED", 1));
    for (name, target) in targets::ALL {
        let seeds = seeds(name);
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15 ^ (seed << 32));
        let (began, mut pool): (_, Vec<Vec<u8>>) =
            (std::time::Instant::now(), seeds.into_iter().map(|(_, seed)| seed).collect());
        let honest = pool.len();
        for _ in 0..rounds {
            let other = pool[chance.below(pool.len())].clone();
            let mut input = pool[chance.below(pool.len())].clone();
            mutate(&mut input, &other, &mut chance);
            if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
                panic!("{name}: {}", input.escape_ascii());
            }
            // Some go on, so that changes add up.
            if chance.below(16) == 0 {
                if pool.len() < honest + 256 {
                    pool.push(input);
                } else {
                    let at = honest + chance.below(256);
                    pool[at] = input;
                }
            }
        }
        println!("{name}: {rounds} in {} s", began.elapsed().as_secs());
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
