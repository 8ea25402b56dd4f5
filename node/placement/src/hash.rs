//! The stable hashes: explicit bytes and a seed in, 64 bits out, the same for ever.
//!
//! Never `std::hash`: its result may change with the compiler. Vectors of the published
//! algorithms are in the tests below; what the crate builds from them is in `golden/`.

use std::{fmt, str::FromStr};

named! {
    /// Hash under ring and keys. Cluster-wide: replicas with different ones place differently.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum HashAlgorithm {
        /// XXH3, 64 bits. The fastest on short fields and on prompts.
        #[default]
        Xxh3 = "xxh3",
        /// MurmurHash3 x64 128, low 64 bits. Its seed has 32 bits: ours is folded into them.
        Murmur3 = "murmur3",
        /// CityHash64 1.1, seeded variant.
        City = "cityhash",
    }
}

impl HashAlgorithm {
    /// Hashes `bytes` under `seed`.
    #[inline]
    pub fn hash(self, seed: u64, bytes: &[u8]) -> u64 {
        match self {
            // The unseeded entry skips deriving a secret, which costs more than hashing a link.
            Self::Xxh3 if seed == 0 => xxhash_rust::xxh3::xxh3_64(bytes),
            Self::Xxh3 => xxhash_rust::xxh3::xxh3_64_with_seed(bytes, seed),
            Self::Murmur3 => murmur3(seed, bytes),
            Self::City => cityhasher::hash_with_seed(bytes, seed),
        }
    }
}

/// Low half of the 128 bits, under both halves of the seed.
fn murmur3(seed: u64, mut bytes: &[u8]) -> u64 {
    let folded = (seed ^ (seed >> 32)) as u32;
    murmur3::murmur3_x64_128(&mut bytes, folded).expect("reading from a slice cannot fail") as u64
}

impl fmt::Display for HashAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for HashAlgorithm {
    type Err = UnknownHash;

    fn from_str(name: &str) -> Result<Self, UnknownHash> {
        Self::ALL
            .into_iter()
            .find(|hash| hash.as_str() == name)
            .ok_or_else(|| UnknownHash(name.to_owned()))
    }
}

/// A name in configuration that is none of the hash algorithms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownHash(pub String);

impl fmt::Display for UnknownHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown hash `{}`: one of xxh3, murmur3, cityhash",
            self.0
        )
    }
}

impl std::error::Error for UnknownHash {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published vectors: the dependencies compute the algorithms that their names promise.
    #[test]
    fn agrees_with_the_published_algorithms() {
        let table = [
            (HashAlgorithm::Xxh3, "", 0x2d06_8005_38d3_94c2),
            (HashAlgorithm::Murmur3, "", 0),
            (HashAlgorithm::Murmur3, "hello", 0xcbd8_a7b3_41bd_9b02),
        ];
        for (hash, text, vector) in table {
            assert_eq!(hash.hash(0, text.as_bytes()), vector, "{hash} of {text:?}");
        }
        assert_eq!(cityhasher::hash::<u64>(""), 0x9ae1_6a3b_2f90_404f);
    }

    #[test]
    fn seed_and_every_byte_count() {
        let text: Vec<u8> = (0..=255).collect();
        for hash in HashAlgorithm::ALL {
            for length in [0, 1, 8, 16, 17, 64, 240, 241, 256] {
                let plain = hash.hash(1, &text[..length]);
                assert_ne!(
                    plain,
                    hash.hash(2, &text[..length]),
                    "{hash}: seed, {length} bytes"
                );
                assert_ne!(
                    plain,
                    hash.hash(1 << 33, &text[..length]),
                    "{hash}: high half of the seed, {length} bytes"
                );
                for place in 0..length {
                    let mut other = text.clone();
                    other[place] ^= 0x80;
                    assert_ne!(
                        plain,
                        hash.hash(1, &other[..length]),
                        "{hash}: byte {place} of {length}"
                    );
                }
            }
        }
    }

    #[test]
    fn names_read_back() {
        for hash in HashAlgorithm::ALL {
            assert_eq!(hash.to_string().parse(), Ok(hash));
        }
        let refused = "md5".parse::<HashAlgorithm>().expect_err("not one of ours");
        assert!(
            refused.to_string().contains("`md5`") && refused.to_string().contains("xxh3"),
            "{refused}"
        );
    }
}
