//! The smallest use of placement: where prompts go with three workers, and which of them move when one leaves.
//!
//! `cargo run -p grapevine-placement --example three_workers`
//!
//! Nothing is shared between calls: each process that runs this prints the same lines. That is how replicas agree.

use grapevine_placement::{
    Candidate, Key, KeyBuilder, KeySettings, Member, NoWorker, PolicySettings, Ring, RingSettings,
    Weight, decide,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let all = ring(&["worker-a", "worker-b", "worker-c"])?;
    let without_b = ring(&["worker-a", "worker-c"])?;
    let mut moved = 0;
    for number in 1..=9 {
        let prompt = format!("Write a story about {number} sheep.");
        let key = key(&prompt);
        let (before, after) = (place(&all, &key)?, place(&without_b, &key)?);
        let mark = if before == after { "" } else { "  moved" };
        moved += usize::from(before != after);
        println!("{prompt:<33} {before}, without worker-b {after}{mark}");
    }
    println!("{moved} moved: those that were on worker-b, and no others");
    Ok(())
}

/// A ring of workers of equal weight. Every replica builds the same one from the same ids, in whatever order they come.
fn ring(ids: &[&str]) -> Result<Ring, grapevine_placement::RingError> {
    let member = |id: &&str| Member {
        id: (*id).to_owned(),
        weight: Weight::ONE,
    };
    Ring::build(&RingSettings::default(), ids.iter().map(member))
}

/// The key of a chat with one message, for the model `llama` and no tenant.
fn key(prompt: &str) -> Key {
    let mut builder = KeyBuilder::new(&KeySettings::default(), "llama", b"");
    builder.begin_message("user");
    builder.text(prompt);
    builder.finish()
}

/// The worker that the default policy chooses while all are idle.
fn place<'a>(ring: &'a Ring, key: &Key) -> Result<&'a str, NoWorker> {
    let idle = vec![Candidate::default(); ring.len()];
    let decision = decide(&PolicySettings::default(), ring, key, &idle, &[], 0)?;
    Ok(&ring.members()[decision.worker].id)
}
