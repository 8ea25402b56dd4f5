//! Inputs near the kept ones hold the laws as well: a bounded search on any toolchain, without libFuzzer.
//!
//! `FUZZ_RUNS` (inputs of each law) and `FUZZ_SEED` change what is tried; `FUZZ_LAW` names one law.

use std::path::Path;
use std::str::FromStr;

use grapevine_fuzz::LAWS;

/// Laws whose inputs are cheap, and made of lines that mean more in another order.
const USUAL: [&str; 3] = ["answer", "head", "requests"];
const USUAL_RUNS: u64 = 2_000;
/// What HTTP gives a meaning to.
const WORDS: [&[u8]; 16] = [
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"transfer-encoding: chunked\r\n",
    b"content-length: 3\r\n",
    b"content-length: 0\r\n",
    b"connection: close\r\n",
    b"connection: keep-alive\r\n",
    b"expect: 100-continue\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
    b"HTTP/1.0",
    b"HEAD",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b" ",
    b"5\r\n",
];

fn setting<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Xorshift: the same inputs for the same seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let (one, other) = (self.below(length + 1), self.below(length + 1));
        one.min(other)..one.max(other)
    }

    /// One kept input, changed a few times.
    fn near(&mut self, kept: &[Vec<u8>]) -> Vec<u8> {
        let mut input = kept[self.below(kept.len())].clone();
        for _ in 0..1 + self.below(4) {
            let at = self.below(input.len() + 1);
            match self.below(7) {
                0 if at < input.len() => input[at] = self.below(256) as u8,
                1 if at < input.len() => input[at] ^= 1 << self.below(8),
                2 => {
                    let range = self.range(input.len());
                    input.drain(range);
                }
                3 => input.truncate(at),
                4 => {
                    let other = &kept[self.below(kept.len())];
                    let part = other[self.range(other.len())].to_vec();
                    input.splice(at..at, part);
                }
                5 => {
                    let range = self.range(input.len());
                    let part = input[range].to_vec();
                    input.splice(at..at, part);
                }
                _ => {
                    let word = WORDS[self.below(WORDS.len())];
                    input.splice(at..at, word.iter().copied());
                }
            }
            input.truncate(16 * 1024);
        }
        input
    }
}

#[test]
fn what_is_near_a_kept_input_holds_its_law() {
    let runs = setting("FUZZ_RUNS").unwrap_or(USUAL_RUNS);
    let asked: Option<String> = setting("FUZZ_LAW");
    let mut tried = 0;
    for (name, law) in LAWS {
        let is_wanted = match &asked {
            Some(asked) => asked == name,
            None => USUAL.contains(&name),
        };
        if !is_wanted {
            continue;
        }
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("corpus")
            .join(name);
        let mut files: Vec<_> = std::fs::read_dir(&corpus)
            .expect("a corpus")
            .map(|file| file.expect("a directory entry").path())
            .collect();
        files.sort();
        let kept: Vec<_> = files
            .iter()
            .map(|file| std::fs::read(file).expect("a kept input"))
            .collect();
        let mut draws = Draws(setting("FUZZ_SEED").unwrap_or(0x9e37_79b9_7f4a_7c15));
        for _ in 0..runs {
            let input = draws.near(&kept);
            let shown = input.clone();
            if let Err(panic) = std::panic::catch_unwind(|| law(&input)) {
                println!("{name}: b\"{}\"", shown.escape_ascii());
                std::panic::resume_unwind(panic);
            }
            tried += 1;
        }
    }
    assert!(tried >= runs, "there is such a law, and it was tried");
}
