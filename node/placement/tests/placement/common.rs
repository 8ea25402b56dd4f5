//! Small builders that the tests share.

use grapevine_placement::{
    Candidate, Key, KeyBuilder, KeySettings, Load, Member, Ring, RingSettings, Standing, Weight,
};

/// A repeatable stream of well-mixed numbers (SplitMix64).
pub(crate) fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// Members `w000`, `w001`, ... of these weights, in thousandths.
pub(crate) fn members(weights: &[u32]) -> Vec<Member> {
    let member = |(index, &weight): (usize, &u32)| Member {
        id: format!("w{index:03}"),
        weight: Weight::from_thousandths(weight).unwrap(),
    };
    weights.iter().enumerate().map(member).collect()
}

pub(crate) fn ring_of(members: &[Member]) -> Ring {
    Ring::build(&RingSettings::default(), members.to_vec()).unwrap()
}

pub(crate) fn equal_ring(workers: usize) -> Ring {
    ring_of(&members(&vec![1_000; workers]))
}

/// Key of a conversation: (role, text) of each message.
pub(crate) fn chat(messages: &[(&str, &str)]) -> Key {
    let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
    for (role, text) in messages {
        builder.begin_message(role);
        builder.text(text);
        builder.end_message();
    }
    builder.finish()
}

/// Key of a completion prompt.
pub(crate) fn prompt(text: &[u8]) -> Key {
    let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
    builder.text(text);
    builder.finish()
}

pub(crate) fn idle(workers: usize) -> Vec<Candidate> {
    vec![Candidate::default(); workers]
}

pub(crate) fn standing(standing: Standing) -> Candidate {
    Candidate {
        standing,
        ..Candidate::default()
    }
}

/// A usable worker with so many requests in flight, long past their prefill.
pub(crate) fn busy(requests: f64) -> Candidate {
    Candidate {
        load: Load {
            requests,
            ..Load::default()
        },
        exact_requests: requests,
        surge_requests: requests,
        ..Candidate::default()
    }
}
