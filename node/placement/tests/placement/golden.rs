//! Golden vectors: keys, rings and digests stay what they are, across releases and platforms.
//!
//! A release that changes one moves every prefix of every cluster once. To do that on purpose:
//! `GRAPEVINE_GOLDEN=write cargo test -p grapevine-placement golden`, and say so in the changelog.

use std::{fmt::Write, fs, path::Path};

use grapevine_placement::{
    ClusterSettings, HashAlgorithm, KeyBuilder, KeySettings, Ring, RingSettings, total_digest,
};

use crate::common::members;

fn compare(name: &str, built: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(name);
    if std::env::var_os("GRAPEVINE_GOLDEN").is_some_and(|value| value == "write") {
        fs::write(&path, built).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    for (line, (golden, built)) in golden.lines().zip(built.lines()).enumerate() {
        assert_eq!(golden, built, "golden/{name}, line {}", line + 1);
    }
    assert_eq!(
        golden.lines().count(),
        built.lines().count(),
        "golden/{name}: number of lines"
    );
}

/// Fills a builder with one request.
type Request = fn(&mut KeyBuilder);

const REQUESTS: [(&str, Request); 7] = [
    ("empty", |_| ()),
    ("chat", |key| {
        key.tools(br#"[{"type":"function"}]"#);
        for (role, text) in [
            ("system", "Be brief."),
            ("user", "What is a grapevine?"),
            ("assistant", "A plant."),
            ("user", "Where?"),
        ] {
            key.begin_message(role);
            key.text(text);
            key.end_message();
        }
    }),
    ("chat-long", |key| {
        key.begin_message("user");
        key.text("grapes ".repeat(200));
    }),
    ("session", |key| {
        key.session("s-1");
        key.text("a prompt");
    }),
    ("user", |key| {
        key.user("bob");
        key.text("a prompt");
    }),
    ("text-long", |key| {
        key.text("0123456789abcdef".repeat(1_024))
    }),
    ("tokens", |key| {
        key.token_ids(&(0..4_096).collect::<Vec<_>>())
    }),
];

#[test]
fn golden_keys() {
    let mut built = String::from(
        "# hash request: home consistent group links last-link stable-tokens prompt-tokens\n",
    );
    for hash in HashAlgorithm::ALL {
        for (name, fill) in REQUESTS {
            let settings = KeySettings {
                hash,
                ..KeySettings::default()
            };
            let mut builder = KeyBuilder::new(&settings, "llama-3", b"tenant");
            fill(&mut builder);
            let key = builder.finish();
            let hex =
                |hash: Option<u64>| hash.map_or("-".to_owned(), |hash| format!("{hash:016x}"));
            writeln!(
                built,
                "{hash} {name}: {:016x} {:016x} {} {} {} {} {}",
                key.home(),
                key.consistent(),
                hex(key.group().map(|link| link.hash)),
                key.links().len(),
                hex(key.links().last().map(|link| link.hash)),
                key.stable_tokens(),
                key.prompt_tokens(),
            )
            .unwrap();
        }
    }
    compare("keys.txt", &built);
}

#[test]
fn golden_rings() {
    let mut built = String::from("# hash workers seed digest; then key: order (first 12)\n");
    let pools: [(&str, Vec<u32>); 4] = [
        ("1", vec![1_000]),
        ("8", vec![1_000; 8]),
        ("5-weighted", vec![1, 500, 1_000, 2_500, 7_000]),
        ("1200", vec![1_000; 1_200]),
    ];
    for hash in HashAlgorithm::ALL {
        for (name, weights) in &pools {
            for seed in [0, 7] {
                let settings = RingSettings {
                    hash,
                    seed,
                    ..RingSettings::default()
                };
                let ring = Ring::build(&settings, members(weights)).unwrap();
                writeln!(built, "{hash} {name} {seed} {}", ring.digest()).unwrap();
                for key in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX / 2, u64::MAX] {
                    let order = ring.order(key).unwrap().to_vec();
                    let first: Vec<_> = order.iter().take(12).map(ToString::to_string).collect();
                    writeln!(built, "  {key:016x}: {}", first.join(" ")).unwrap();
                }
            }
        }
    }
    compare("rings.txt", &built);
}

#[test]
fn golden_digests() {
    let settings = ClusterSettings::default();
    let cluster = settings.canonical_bytes();
    let empty = Ring::build(&settings.ring, []).unwrap().digest();
    let eight = Ring::build(&settings.ring, members(&[1_000; 8]))
        .unwrap()
        .digest();
    let mut built = String::new();
    writeln!(built, "default settings {}", settings.fingerprint()).unwrap();
    writeln!(built, "empty ring {empty}").unwrap();
    writeln!(built, "eight workers {eight}").unwrap();
    writeln!(
        built,
        "total of nothing {}",
        total_digest(&[], &[], &cluster)
    )
    .unwrap();
    let urls = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"];
    writeln!(
        built,
        "total of two pools {}",
        total_digest(&[("a", eight), ("b", empty)], &urls, &cluster)
    )
    .unwrap();
    compare("digests.txt", &built);
}
