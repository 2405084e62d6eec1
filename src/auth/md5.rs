//! The MD5 exchange: `md5` and hex of MD5 over (hex of MD5 over password and user) and a salt.

use ::md5::{Digest, Md5};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

fn hex(bytes: &[u8]) -> Zeroizing<String> {
    use std::fmt::Write;
    let mut hex = Zeroizing::new(String::with_capacity(3 + 2 * bytes.len()));
    hex.push_str("md5");
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// What `pg_authid` stores: `md5` and hex of MD5 over password and user.
pub fn stored(user: &str, password: &str) -> Zeroizing<String> {
    let digest = Md5::new().chain_update(password).chain_update(user).finalize();
    hex(digest.as_slice())
}

/// `md5` and 32 hex digits?
pub fn is_well_formed(stored: &str) -> bool {
    stored
        .strip_prefix("md5")
        .is_some_and(|hex| hex.len() == 32 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The answer to a salt, from what is stored.
pub fn answer(stored: &str, salt: [u8; 4]) -> Zeroizing<String> {
    let inner = stored.strip_prefix("md5").unwrap_or(stored).to_ascii_lowercase();
    let digest = Md5::new().chain_update(inner).chain_update(salt).finalize();
    hex(digest.as_slice())
}

/// Is `given` the right answer? In constant time.
pub fn verify(stored: &str, salt: [u8; 4], given: &[u8]) -> bool {
    answer(stored, salt).as_bytes().ct_eq(given).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_library_from_the_password_on() {
        let salt = [0x2a, 0x3d, 0x8f, 0xe0];
        let theirs = postgres_protocol::authentication::md5_hash(b"md5_user", b"password", salt);
        let stored = stored("md5_user", "password");
        assert_eq!(*answer(&stored, salt), theirs);
        assert!(verify(&stored, salt, theirs.as_bytes()));
        assert!(!verify(&stored, [0; 4], theirs.as_bytes()));
        assert!(!verify(&stored, salt, b""));
    }

    #[test]
    fn upper_case_hex_in_a_stored_hash_is_the_same_hash() {
        let stored = stored("u", "p");
        let upper = format!("md5{}", stored[3..].to_ascii_uppercase());
        assert_eq!(answer(&stored, [1; 4]), answer(&upper, [1; 4]));
    }
}
