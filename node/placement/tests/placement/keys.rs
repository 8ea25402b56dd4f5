//! Invariants of keys.

use grapevine_placement::{Key, KeyBuilder, KeySettings, Link};
use proptest::{prelude::*, sample::Index};

use crate::common::{chat, prompt};

fn hashes(key: &Key) -> Vec<u64> {
    key.links().iter().map(|link| link.hash).collect()
}

fn shared_links(a: &Key, b: &Key) -> usize {
    a.links()
        .iter()
        .zip(b.links())
        .take_while(|(a, b)| a == b)
        .count()
}

fn messages() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let role = prop::sample::select(vec!["system", "user", "assistant", "tool"]);
    prop::collection::vec((role, "[a-z ]{0,600}"), 1..8)
}

fn borrowed<'a>(messages: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    messages
        .iter()
        .map(|(role, text)| (*role, text.as_str()))
        .collect()
}

proptest! {
    #[test]
    fn chain_is_independent_of_split(
        text in prop::collection::vec(any::<u8>(), 0..3_000),
        cuts in prop::collection::vec(any::<Index>(), 0..12),
        in_message in any::<bool>(),
    ) {
        let build = |pieces: &[&[u8]]| {
            let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"t");
            if in_message {
                builder.begin_message("user");
            }
            builder.text("");
            for piece in pieces {
                builder.text(piece);
            }
            builder.finish()
        };
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
        prop_assert_eq!(build(&pieces), build(&[&text]));
    }

    #[test]
    fn token_ids_are_independent_of_split(
        ids in prop::collection::vec(any::<u32>(), 0..900),
        cut in any::<Index>(),
    ) {
        let build = |pieces: [&[u32]; 2]| {
            let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
            builder.token_ids(&[]);
            pieces.iter().for_each(|ids| builder.token_ids(ids));
            builder.finish()
        };
        let (head, tail) = ids.split_at(cut.index(ids.len() + 1));
        let whole = build([&ids, &[]]);
        prop_assert_eq!(whole.prompt_tokens() as usize, ids.len());
        prop_assert_eq!(build([head, tail]), whole);
    }

    #[test]
    fn histories_only_grow_share_links(history in messages(), newer in messages()) {
        let longer = [history.clone(), newer].concat();
        let (before, after) = (chat(&borrowed(&history)), chat(&borrowed(&longer)));
        prop_assert_eq!(shared_links(&before, &after), before.links().len());
        if history.iter().any(|(role, _)| *role == "user") {
            prop_assert_eq!(before.home(), after.home(), "the session anchor stays");
        }
        prop_assert!(after.stable_tokens() >= before.stable_tokens());
    }

    #[test]
    fn links_reach_as_far_as_the_texts_agree(
        text in prop::collection::vec(any::<u8>(), 1..3_000),
        place in any::<Index>(),
    ) {
        let place = place.index(text.len());
        let mut other = text.clone();
        other[place] ^= 1;
        prop_assert_eq!(shared_links(&prompt(&text), &prompt(&other)), place / 256);
    }

    #[test]
    fn tokens_never_shrink_along_the_chain(messages in messages()) {
        let key = chat(&borrowed(&messages));
        prop_assert!(key.links().is_sorted_by_key(|link| link.tokens));
        prop_assert_eq!(key.links().last().map(|link| link.tokens), Some(key.prompt_tokens()));
        prop_assert!(key.stable_tokens() <= key.prompt_tokens());
        let bytes: usize = messages.iter().map(|(_, text)| text.len()).sum();
        prop_assert_eq!(key.prompt_tokens() as usize, bytes / 4);
    }
}

#[test]
fn fields_do_not_run_into_each_other() {
    let variants = [
        chat(&[("user", "ab")]),
        chat(&[("user", "a"), ("user", "b")]),
        chat(&[("user", "ab"), ("user", "")]),
        chat(&[("user", ""), ("user", "ab")]),
        chat(&[("usera", "b")]),
        chat(&[("use", "rab")]),
        prompt(b"ab"),
        prompt(b"userab"),
        prompt(&[b"ab".as_slice(), &[0; 254]].concat()),
        prompt(b""),
    ];
    for (index, key) in variants.iter().enumerate() {
        for other in &variants[..index] {
            assert_ne!(hashes(key), hashes(other), "{key:?}");
        }
    }
    let ids = |ids: &[u32]| {
        let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
        builder.token_ids(ids);
        builder.finish()
    };
    assert_ne!(
        hashes(&ids(&[0x6261])),
        hashes(&prompt(b"ab\0\0")),
        "ids are not their bytes"
    );
}

#[test]
fn models_and_tenants_have_their_own_keys() {
    let key = |model: &str, tenant: &str| {
        let mut builder = KeyBuilder::new(&KeySettings::default(), model, tenant.as_bytes());
        builder.session("s");
        builder.user("u");
        builder.text("the same text");
        builder.finish()
    };
    let keys = [
        key("m", ""),
        key("m2", ""),
        key("m", "2"),
        key("", "m"),
        key("m", "t"),
    ];
    for (index, key) in keys.iter().enumerate() {
        for other in &keys[..index] {
            assert_ne!(key.home(), other.home());
            assert_ne!(key.session(), other.session());
            assert_ne!(hashes(key), hashes(other));
        }
    }
}

#[test]
fn seeds_have_their_own_keys() {
    let key = |seed| {
        KeyBuilder::new(
            &KeySettings {
                seed,
                ..KeySettings::default()
            },
            "m",
            b"",
        )
        .finish()
    };
    assert_ne!(key(0).home(), key(1).home());
}

/// What names the home, and how far the key is stable (in bytes of text).
#[test]
fn home_is_named_by_the_stable_part() {
    let system = ("system", "x".repeat(400));
    let check = |name: &str, messages: &[(&str, &str)], home_link: usize, stable_bytes: u32| {
        let key = chat(messages);
        assert_eq!(key.home(), key.links()[home_link].hash, "{name}");
        assert_eq!(key.stable_tokens(), stable_bytes / 4, "{name}");
    };
    // Links of the system message: one chunk, one end.
    let system = (system.0, system.1.as_str());
    check("first turn", &[system, ("user", "12345678")], 2, 400);
    check(
        "second turn",
        &[
            system,
            ("user", "12345678"),
            ("assistant", "abcd"),
            ("user", "next"),
        ],
        2,
        412,
    );
    check(
        "greeting first",
        &[("assistant", "abcd"), ("user", "12345678")],
        1,
        4,
    );
    check(
        "developer is system",
        &[("developer", "abcd"), ("user", "1234")],
        1,
        4,
    );
    check(
        "no user message",
        &[system, ("human", "1234"), ("bot", "1234")],
        2,
        404,
    );
    check("system only", &[system], 1, 400);
    check("empty user message", &[("user", "")], 0, 0);
}

#[test]
fn group_ends_with_tools_and_leading_system_messages() {
    let build = |tools: &[u8], messages: &[(&str, &str)]| {
        let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
        builder.tools(tools);
        for (role, text) in messages {
            builder.begin_message(role);
            builder.text(text);
        }
        builder.finish()
    };
    let group = |key: &Key| {
        key.group()
            .and_then(|group| key.links().iter().position(|link| *link == group))
    };
    assert_eq!(group(&build(b"", &[("user", "a")])), None);
    assert_eq!(group(&build(b"[]", &[("user", "a")])), Some(0));
    assert_eq!(
        group(&build(
            b"[]",
            &[("system", "s"), ("developer", "d"), ("user", "a")]
        )),
        Some(2)
    );
    assert_eq!(
        group(&build(
            b"",
            &[("system", "s"), ("user", "a"), ("system", "later")]
        )),
        Some(0)
    );
    assert_ne!(
        build(b"[]", &[("user", "a")]).home(),
        build(b"[1]", &[("user", "a")]).home(),
        "tools are part of the key"
    );
}

#[test]
fn text_is_keyed_by_its_first_bytes() {
    let text = |length: usize, last: u8| [vec![b'a'; length - 1], vec![last]].concat();
    assert_eq!(
        prompt(&text(8_193, b'x')).home(),
        prompt(&text(8_193, b'y')).home(),
        "behind the first 8 KiB"
    );
    assert_eq!(
        prompt(&text(8_192, b'a')).home(),
        prompt(&text(20_000, b'y')).home(),
        "ends there or goes on"
    );
    assert_ne!(
        prompt(&text(8_192, b'x')).home(),
        prompt(&text(8_192, b'y')).home(),
        "within them"
    );
    assert_ne!(
        prompt(&text(100, b'x')).home(),
        prompt(&text(100, b'y')).home(),
        "short texts"
    );
    assert_eq!(prompt(&text(20_000, b'x')).stable_tokens(), 2_048);
    assert_eq!(prompt(&text(100, b'x')).stable_tokens(), 25);

    let settings = KeySettings {
        text_key_bytes: 300.try_into().unwrap(),
        ..KeySettings::default()
    };
    let rounded_up = |text: &[u8]| {
        let mut builder = KeyBuilder::new(&settings, "m", b"");
        builder.text(text);
        builder.finish()
    };
    assert_eq!(
        rounded_up(&text(513, b'x')).home(),
        rounded_up(&text(513, b'y')).home()
    );
    assert_ne!(
        rounded_up(&text(512, b'x')).home(),
        rounded_up(&text(512, b'y')).home()
    );
}

#[test]
fn explicit_session_replaces_the_anchor() {
    let build = |session: Option<&str>, user: Option<&str>, text: &str| {
        let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
        session
            .into_iter()
            .for_each(|session| builder.session(session));
        user.into_iter().for_each(|user| builder.user(user));
        builder.text(text);
        builder.finish()
    };
    let named = build(Some("s"), Some("u"), "a");
    assert_eq!(named.home(), build(Some("s"), None, "b").home());
    assert_eq!(Some(named.home()), named.session());
    assert_eq!(named.consistent(), named.home(), "session before user");
    assert_ne!(named.home(), build(Some("s2"), None, "a").home());

    let user = build(None, Some("u"), "a");
    assert_eq!(
        user.home(),
        build(None, None, "a").home(),
        "a user is no session"
    );
    assert_eq!(user.consistent(), build(None, Some("u"), "b").consistent());
    assert_ne!(user.consistent(), user.home());
    assert_ne!(
        user.consistent(),
        build(Some("u"), None, "a").consistent(),
        "nor is it the session of that name"
    );
    assert_eq!(
        build(Some("s"), None, &"x".repeat(40_000)).stable_tokens(),
        10_000,
        "a session vouches for all of it"
    );
}

#[test]
fn prompts_with_a_common_opening_stay_together_without_a_session() {
    let user = |text: &str| chat(&[("system", "Be brief."), ("user", text)]).consistent();
    let template = "t".repeat(1_500);
    let asked = |question: &str| user(&format!("{template} {question}"));
    assert_eq!(
        asked("why?"),
        asked("and how long does it take, on the average?")
    );
    assert_ne!(asked("why?"), user(&"u".repeat(1_500)));
    // All of the conversation's later turns are where its first one was.
    let turn = chat(&[
        ("system", "Be brief."),
        ("user", &template),
        ("assistant", "a"),
        ("user", &"next".repeat(500)),
    ]);
    assert_eq!(turn.consistent(), user(&template));
    // Another system message is another group.
    let other = chat(&[("system", "Be long."), ("user", template.as_str())]);
    assert_ne!(other.consistent(), user(&template));
    // Too short for a chunk: the whole message.
    assert_ne!(user("short"), user("other"));
    assert_eq!(
        user("short"),
        chat(&[("system", "Be brief."), ("user", "short")]).home()
    );
    // Texts without messages alike.
    let text = |question: &str| prompt(format!("{template} {question}").as_bytes()).consistent();
    assert_eq!(text("why?"), text("how?"));
}

#[test]
fn links_are_bounded_and_memory_is_reused() {
    let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
    for _ in 0..20_000 {
        builder.begin_message("user");
    }
    builder.text("1234");
    let key = builder.finish();
    assert_eq!((key.links().len(), key.prompt_tokens()), (16_384, 1));

    let links = key.into_links();
    let place = links.as_ptr();
    let mut builder = KeyBuilder::reusing(links, &KeySettings::default(), "m", b"");
    builder.text("a");
    let key = builder.finish();
    assert_eq!(key, prompt(b"a"), "nothing is left of the earlier key");
    assert_eq!(std::ptr::from_ref::<Link>(&key.links()[0]), place);
}
