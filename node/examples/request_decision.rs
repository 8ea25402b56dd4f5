//! Percentiles of a whole decision where workers publish KV events: 240 workers, a million blocks, bodies of 8,192 tokens.
//!
//! `cargo run --profile dist -p grapevine --example request_decision [decisions] [workers]`
//!
//! Conversations that all begin with the same 2,048 tokens, which every worker holds; the rest of each is at one worker.
//! Each decision is for the next turn of one of them: its key is made from the bytes of a body, then a worker is chosen, and
//! what is remembered of the choice; both together are what the metric `grapevine_decision_seconds` has. Workers have
//! random loads.

#![allow(
    clippy::disallowed_methods,
    reason = "it measures time, on a thread of its own"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use grapevine::alone::{Alone, worker};
use grapevine::api::Endpoint;
use grapevine::cluster::Cluster;
use grapevine::config::KvEventsConfig;
use grapevine::kv_events::{Caches, Engine, Source, name_of};
use grapevine::proxy::caller::Caller;
use grapevine::proxy::routing_query::{RoutingInput, RoutingQuery};
use grapevine_gossip::load::Load;
use grapevine_kv_events::batch::{Batch, Event, Stored};
use grapevine_kv_events::stream::Mark;
use grapevine_kv_events::texts::TextName;
use grapevine_kv_events::{BlockHash, Tier};
use http::HeaderMap;
use serde_json::json;

const WORKERS: usize = 240;
const DECISIONS: usize = 100_000;
const BLOCK_TOKENS: u32 = 16;
const TOKEN_BYTES: usize = 4;
/// Blocks of a prompt's known part: 8,000 of 8,192 tokens.
const BLOCKS: usize = 500;
/// Those that all prompts begin with.
const SHARED: usize = 128;
/// Blocks in the index.
const ALL_BLOCKS: usize = 1_000_000;

fn main() {
    let argument = |at, default| {
        let text = std::env::args().nth(at);
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (decisions, workers) = (argument(1, DECISIONS), argument(2, WORKERS));
    let conversations = ALL_BLOCKS / (BLOCKS - SHARED);
    let bodies: Vec<Vec<u8>> = (0..conversations).map(|at| body(at, true)).collect();
    println!(
        "{workers} workers, {conversations} conversations of {BLOCKS} blocks, {decisions} decisions; microseconds"
    );
    println!(
        "{:<28} {:>7} {:>7} {:>7} {:>7}",
        "", "mean", "p50", "p99", "p99.9"
    );
    for (name, with_events) in [("evidence alone", false), ("with KV events", true)] {
        let Alone {
            cluster, caches, ..
        } = cluster(workers);
        if with_events {
            fill(&cluster, &caches, conversations);
        }
        let [mut keys, mut choices, mut both] = [(); 3].map(|()| Vec::with_capacity(decisions));
        let mut held = 0;
        let mut numbers = 1;
        for turn in 0..decisions {
            let body = &bodies[turn * 367 % conversations];
            vary_loads(&cluster, &mut numbers);
            let begun = Instant::now();
            let query = ask(&cluster, black_box(body));
            let read = begun.elapsed();
            let placed = cluster.place(&query.pool, &query.key, &[], &[]);
            let took = begun.elapsed();
            keys.push(read);
            choices.push(took - read);
            both.push(took);
            let placed = placed.expect("every worker is usable");
            let told = placed.decision.told.unwrap_or_default();
            held += usize::from(told.held_tokens > query.key.prompt_tokens() / 2);
        }
        println!(
            "{name}, {:.1} % at a holder",
            100.0 * held as f64 / decisions as f64
        );
        print("  body to key", keys);
        print("  key to worker", choices);
        print("  both", both);
    }
}

fn print(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let at = |share: f64| micros(times[((times.len() - 1) as f64 * share) as usize]);
    let mean = micros(times.iter().sum::<Duration>()) / times.len() as f64;
    println!(
        "{name:<28} {mean:>7.1} {:>7.1} {:>7.1} {:>7.1}",
        at(0.5),
        at(0.99),
        at(0.999),
    );
}

/// A text of so many tokens that no other number has.
fn text(number: usize, tokens: usize) -> String {
    let line = format!("{number:08} {}\n", "the lazy dog sleeps on ".repeat(4));
    let bytes = tokens * TOKEN_BYTES;
    line.repeat(bytes / line.len() + 1)[..bytes].to_owned()
}

/// A conversation, with its next turn or as far as it has come.
fn body(number: usize, with_next: bool) -> Vec<u8> {
    let tokens = BLOCKS * BLOCK_TOKENS as usize;
    let system = SHARED * BLOCK_TOKENS as usize;
    let each = (tokens - system) / 3;
    let message = |role, part, tokens| json!({"role": role, "content": text(part, tokens)});
    let mut messages = vec![
        message("system", usize::MAX >> 16, system),
        message("user", number * 4, each),
        message("assistant", number * 4 + 1, each),
        message("user", number * 4 + 2, each),
    ];
    if with_next {
        messages.push(message("user", number * 4 + 3, 192));
    }
    let body = json!({"model": "m", "stream": true, "messages": messages});
    serde_json::to_vec(&body).expect("JSON")
}

fn ask(cluster: &Cluster, body: &[u8]) -> RoutingQuery {
    let input = RoutingInput {
        endpoint: Endpoint::Chat,
        path: "/v1/chat/completions",
        headers: &HeaderMap::new(),
        body,
        upload: None,
        caller: Caller::Anybody,
    };
    RoutingQuery::of(cluster, &input).expect("a good body")
}

/// Some worker begins a request, and some ends one.
fn vary_loads(cluster: &Cluster, numbers: &mut u64) {
    let fleet = cluster.fleet();
    let pool = fleet.pool("m").expect("a model");
    let members = pool.members();
    *numbers = numbers
        .wrapping_mul(0xd129_0d3b_36ea_8d6b)
        .wrapping_add(0x9e37_79b9);
    let cell = &members[(*numbers >> 32) as usize % members.len()]
        .worker
        .load;
    let load = Load {
        requests: 1,
        prefill_tokens: *numbers >> 52,
        context_tokens: *numbers >> 50,
    };
    if cell.own().requests < 8 {
        cell.add(load);
    } else {
        cell.subtract(cell.own());
    }
}

/// Engines of all workers tell of the conversations: each holds what all begin with, and its share of the rest.
fn fill(cluster: &Cluster, caches: &Caches, conversations: usize) {
    let fleet = cluster.fleet();
    let pool = fleet.pool("m").expect("a model");
    let members = pool.members().iter().zip(1_u16..);
    let engines: Vec<_> = members
        .map(|(member, port)| {
            let address = format!("tcp://127.0.0.1:{port}");
            let source = Source {
                rank: 0,
                events: address.parse().expect("an address"),
                replay: None,
                topic: String::new(),
            };
            let engine = caches.begin(&member.worker, source);
            engine.begin(true);
            engine
        })
        .collect();
    let mark = Mark {
        sequence: 0,
        fingerprint: 0,
    };
    let tell = |engine: &Engine, text: Option<TextName>, parent, hashes: Vec<BlockHash>| {
        let stored = Stored {
            tokens: vec![0; hashes.len() * BLOCK_TOKENS as usize],
            hashes,
            parent,
            block_tokens: BLOCK_TOKENS,
            tier: Tier::Gpu,
            lora: None,
            group: 0,
            text,
            is_full_attention: true,
        };
        let batch = Batch {
            time: 0.0,
            events: vec![Event::Stored(stored)],
            rank: None,
            unknown_events: 0,
        };
        caches.apply_batch(engine, mark, &batch);
    };
    let shared: Vec<_> = (0..SHARED).map(block).collect();
    for engine in &engines {
        tell(engine, None, None, shared.clone());
        engine.stands(true, true, Some(0));
    }
    for number in 0..conversations {
        let key = ask(cluster, &body(number, false)).key;
        let whole = name_of(key.links().last().expect("a text").hash);
        let own = (0..BLOCKS - SHARED).map(|at| block((number + 1) << 16 | at));
        let name = TextName {
            whole,
            common: None,
        };
        tell(
            &engines[number % engines.len()],
            Some(name),
            shared.last().copied(),
            own.collect(),
        );
    }
    println!("{} blocks in the index", caches.index().blocks());
}

/// A block's name, as even as a hash.
fn block(number: usize) -> BlockHash {
    let mut x = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    BlockHash(x ^ (x >> 31))
}

/// A replica alone, without workers behind their addresses.
fn cluster(workers: usize) -> Alone {
    let config = KvEventsConfig {
        text_blocks: (2 * ALL_BLOCKS) as u32,
        ..KvEventsConfig::default()
    };
    let workers = (0..workers).map(|number| worker(number, "m"));
    Alone::new("r1", workers, &config, 100)
}
