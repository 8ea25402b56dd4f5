//! Keys taken apart and put together again: another replica decides the same.

use std::time::Duration;

use grapevine_placement::key::MARKS_MAX;
use grapevine_placement::{
    Candidate, HeatReport, HotSet, Key, KeyBuilder, KeyPartsError, KeySettings, Link, Load, Policy,
    PolicySettings, PrefixIndex, PrefixIndexSettings, View, decide,
};
use proptest::prelude::*;

use crate::common::{equal_ring, idle};

/// A request of any shape: messages or a plain text, with or without a session and a user.
fn key(texts: &[(u8, usize)], is_chat: bool, session: bool, user: bool) -> Key {
    let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"t");
    if session {
        builder.session("s");
    }
    if user {
        builder.user("u");
    }
    for (turn, (letter, length)) in texts.iter().enumerate() {
        if is_chat {
            builder.begin_message(["system", "user", "assistant"][turn.min(2)]);
        }
        builder.text([*letter].repeat(*length));
        builder.end_message();
    }
    builder.finish()
}

fn again(key: &Key) -> Key {
    Key::from_parts(key.parts()).expect("a built key keeps the rules")
}

proptest! {
    /// Every policy answers the same for a key and for its parts, with heat, evidence and load.
    #[test]
    fn a_decision_needs_the_parts_only(
        texts in prop::collection::vec((b'a'..=b'd', 0..6_000usize), 0..5),
        (is_chat, session, user) in any::<(bool, bool, bool)>(),
        requests in prop::collection::vec(0..20u32, 5),
        (holder, draw) in (0..5usize, any::<u64>()),
    ) {
        let key = key(&texts, is_chat, session, user);
        let rebuilt = again(&key);
        prop_assert!(rebuilt.links().is_empty());
        prop_assert_eq!(rebuilt.parts(), key.parts());
        prop_assert_eq!(rebuilt.consistent(), key.consistent());

        let ring = equal_ring(5);
        let ids: Vec<String> = (0..5).map(|n| format!("w{n:03}")).collect();
        let mut prefix_index = PrefixIndex::new(PrefixIndexSettings::default());
        let slots: Vec<_> = ids.iter().map(|id| prefix_index.slot(id, 1)).collect();
        let now = Duration::from_secs(9);
        prefix_index.record(slots[holder], key.marks(), now);
        let candidates = |key: &Key| {
            let mut all: Vec<Candidate> = idle(5);
            for (candidate, requests) in all.iter_mut().zip(&requests) {
                let requests = f64::from(*requests);
                candidate.load = Load { requests, prefill_tokens: 100.0 * requests, ..Load::default() };
            }
            prefix_index.fill(key, &slots.iter().copied().collect(), now, &mut all);
            all
        };
        let mut counts: Vec<(u64, u32)> = key.marks().iter().take(2).map(|mark| (mark.hash, 900)).collect();
        counts.push((key.model(), 1_000));
        counts.sort_unstable();
        let report = HeatReport { version: 1, counts, total: 1_000 };
        let hot = HotSet::sum([&report]);
        for policy in Policy::ALL {
            let settings = PolicySettings { policy, ..PolicySettings::default() };
            let view = View { ring: &ring, hot: &hot };
            prop_assert_eq!(
                decide(&settings, view, &key, &candidates(&key), &[], draw),
                decide(&settings, view, &rebuilt, &candidates(&rebuilt), &[], draw),
                "{}", policy
            );
        }
    }
}

#[test]
fn parts_that_no_key_has_are_refused() {
    let good = key(
        &[(b'a', 9_000), (b'b', 9_000), (b'c', 9_000)],
        true,
        true,
        true,
    )
    .parts();
    assert!(good.marks.len() > 3 && good.group.is_some());
    let refused = |change: fn(&mut grapevine_placement::KeyParts)| {
        let mut parts = good.clone();
        change(&mut parts);
        Key::from_parts(parts).expect_err("broken")
    };
    assert_eq!(
        refused(|parts| {
            parts.prompt_tokens = u32::MAX;
            parts.marks = (0..=MARKS_MAX as u32)
                .map(|n| Link { hash: 1, tokens: n })
                .collect();
        }),
        KeyPartsError::TooManyMarks(MARKS_MAX + 1)
    );
    assert_eq!(
        refused(|parts| parts.marks.swap(1, 2)),
        KeyPartsError::MarksNotRising(2)
    );
    assert_eq!(
        refused(|parts| parts.marks[2].tokens = parts.marks[1].tokens),
        KeyPartsError::MarksNotRising(2)
    );
    for beyond in [
        refused(|parts| parts.stable_tokens = parts.prompt_tokens + 1),
        refused(|parts| parts.prompt_tokens = parts.marks.last().unwrap().tokens - 1),
        refused(|parts| parts.group.as_mut().unwrap().tokens = u32::MAX),
    ] {
        assert_eq!(beyond, KeyPartsError::BeyondPrompt);
    }
}
