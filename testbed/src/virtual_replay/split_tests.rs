//! Laws of prefill and decode pools in the virtual replay.

use std::time::Duration;

use grapevine_placement::Divide;

use super::split::Ports;
use super::tests::{SMALL, STEP, scenario, sessions, workload};
use super::*;
use crate::replay::{Row, Trace};

const LINK: Link = Link {
    token_bytes: 131_072,
    bytes_per_s: 25e9,
    setup_us: 2_000,
};

fn split(short_prompt_tokens: u32) -> Split {
    Split {
        prefill_workers: 2,
        decode_workers: 2,
        divide: Divide {
            short_prompt_tokens,
            wait_for_pair: Duration::MAX,
        },
        link: LINK,
    }
}

fn layout(whole: usize, split: Option<Split>) -> Scenario {
    Scenario {
        workers: whole,
        split,
        ..scenario()
    }
}

fn outcome(workload: &Workload, scenario: &Scenario) -> Outcome {
    run(workload, &Contender::prefix(), scenario, false).expect("to its end")
}

/// Requests of 8,000 tokens that share nothing, `every_ms`, with long answers.
fn long_prompts(count: u64, every_ms: u64) -> Workload {
    let row = |number: u64| Row {
        t_ms: number * every_ms,
        in_tokens: 8_000,
        out_tokens: 200,
        blocks: (0..16).map(|block| number * 100 + block).collect(),
        session: None,
        gap_ms: None,
    };
    let trace = Trace {
        block_tokens: 512,
        system_blocks: 0,
        rows: (0..count).map(row).collect(),
    };
    Workload::of_trace("long", &trace, Form::Plain)
}

#[test]
fn a_port_serves_one_transfer_at_a_time() {
    let mut ports = Ports::new(3);
    // 25,000 tokens are 3.2768 GB: 131,072 us, and 2,000 before them.
    let took = 133_072;
    assert_eq!(ports.transfer(0, &LINK, 0, 1, 25_000), took);
    assert_eq!(ports.transfer(1_000, &LINK, 0, 2, 25_000), 2 * took);
    assert_eq!(ports.transfer(1_000, &LINK, 2, 1, 0), 2 * took + 2_000);
    assert_eq!(ports.transfer(900_000, &LINK, 0, 1, 0), 902_000);
}

#[test]
fn a_divided_request_waits_for_prompt_transfer_and_one_step() {
    let one = long_prompts(1, 1);
    let whole = outcome(&one, &layout(1, None));
    let divided = outcome(&one, &layout(0, Some(split(0))));
    assert_eq!((whole.divided, divided.divided), (0.0, 1.0));
    assert!((divided.transferred - 8_000.0).abs() < 0.5, "{divided:?}");
    // 2 ms, 8,000 tokens at 25 GB/s, and the step that computes the last token: 6.5 ms.
    let later = divided.ttft_p50_ms - whole.ttft_p50_ms;
    assert!((50.0..51.5).contains(&later), "{later} ms later");
}

#[test]
fn every_layout_serves_every_request() {
    let workload = workload();
    // Workers that do both get no prompt of this load, all of which are longer, and so never hold any.
    let table = [
        (0, 0, 0.99..=1.0),
        (0, 600, 0.01..=0.9),
        (0, u32::MAX, 0.0..=0.0),
        (2, 600, 1.0..=1.0),
        (2, u32::MAX, 0.0..=0.0),
    ];
    for (whole, short, divided) in table {
        for loss in [0.0, 0.3, 1.0] {
            let scenario = Scenario {
                loss,
                ..layout(whole, Some(split(short)))
            };
            let outcome = outcome(&workload, &scenario);
            let what = format!("{whole} whole, short {short}, loss {loss}: {outcome:?}");
            assert_eq!(outcome.requests, 360, "{what}");
            assert!(divided.contains(&outcome.divided), "{what}");
            assert!(outcome.between_p50_ms > 0.0, "{what}");
        }
    }
}

#[test]
fn equal_seeds_divide_equally() {
    let text = || format!("{:?}", outcome(&workload(), &layout(1, Some(split(256)))));
    assert_eq!(text(), text());
}

#[test]
fn what_the_decode_worker_holds_stays_there() {
    // Turns come back half a second after the answer: only what is new of them travels.
    let sessions = Workload::of_sessions("closed", sessions(), 1, Form::Chat);
    let outcome = outcome(&sessions, &layout(0, Some(split(0))));
    assert!(outcome.divided > 0.99, "{outcome:?}");
    // Prompts have 2,038 to 3,574 tokens, and each turn adds a block of 512.
    assert!(outcome.transferred < 1_200.0, "{outcome:?}");
    assert!(outcome.agreement > 0.9, "{outcome:?}");
}

#[test]
fn prompts_elsewhere_do_not_delay_answers() {
    let load = long_prompts(200, 150);
    let whole = outcome(&load, &layout(4, None));
    let divided = outcome(&load, &layout(0, Some(split(0))));
    // A prompt is one step of about 200 ms and attention in a worker that does both.
    assert!(whole.gap_p999_ms > 100.0, "{whole:?}");
    assert!(divided.gap_p999_ms < 20.0, "{divided:?}");
    assert!(divided.ttft_p50_ms > whole.ttft_p50_ms, "nothing is free");
}

#[test]
fn layouts_are_compared_at_the_capacity_of_the_first() {
    let whole = Layout {
        whole: 4,
        split: None,
        step_tokens: STEP,
    };
    let divided = Layout {
        whole: 0,
        split: Some(split(64)),
        ..whole
    };
    let base = Scenario {
        cache: SMALL,
        ..scenario()
    };
    let lines = compare_layouts(
        &[workload()],
        &base,
        &[whole, divided],
        &[0.5, 0.9],
        |_, _, _| (),
    );
    let names: Vec<_> = lines.iter().map(|line| line.layout.as_str()).collect();
    assert_eq!(names, ["4 whole", "2P:2D", "4 whole", "2P:2D"]);
    assert!((lines[0].rate / lines[2].rate - 5.0 / 9.0).abs() < 1e-9);
    assert_eq!(split_table(&lines).lines().count(), 2 * 3 + 4);
}
