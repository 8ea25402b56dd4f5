//! Making keys, and the hash under which they are known.
//!
//! Keys are long and random, so a plain SHA-256 keeps them: there is nothing to guess that salt or stretching would
//! make slower. A look-up by the hash takes the same time whatever part of a key is right.

use ring::digest::{SHA256, digest};
use ring::error::Unspecified;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::config::KeyHash;

/// First characters of a made key: secret scanners and people know what it is.
const PREFIX: &str = "gv-";
/// Random characters of a made key: 48 of 62 are 285 bits.
const CHARS: usize = 48;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Longest key that is looked up, in bytes; a longer one is unknown.
pub(super) const KEY_BYTES_MAX: usize = 512;

/// A new key. Shown once, kept nowhere.
/// Errors: the system gives no random bytes.
pub fn new_key() -> Result<String, Unspecified> {
    let random = SystemRandom::new();
    let mut key = String::from(PREFIX);
    let mut bytes = [0; 2 * CHARS];
    while key.len() < PREFIX.len() + CHARS {
        random.fill(&mut bytes)?;
        // Bytes from 248 on would make the first characters more likely.
        let fair = bytes.iter().filter(|byte| **byte < 248);
        let chars = fair.map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
        key.extend(chars.take(PREFIX.len() + CHARS - key.len()));
    }
    Ok(key)
}

/// The hash of a key.
pub fn hash_of(key: &[u8]) -> KeyHash {
    let digest = digest(&SHA256, key);
    KeyHash(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

/// A number for a name, the same on every replica and in every release.
pub(super) fn number_of(name: &str) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = hash_of(name.as_bytes()).0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_long_and_differ() {
        let (one, other) = (new_key().expect("random"), new_key().expect("random"));
        assert_eq!(one.len(), 51);
        assert!(
            one.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        );
        assert_ne!(one, other);
    }

    #[test]
    fn the_hash_is_that_of_sha256sum() {
        assert_eq!(
            hash_of(b"abc").to_string(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(number_of("abc"), 0xba78_16bf_8f01_cfea);
    }
}
