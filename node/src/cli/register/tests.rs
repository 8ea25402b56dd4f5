//! The end of a registration, against replicas that answer what the test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser as _;
use serde_json::json;

use super::*;
use crate::cli::fake_replica::{port, serve};
use crate::cli::{Cli, Command};

fn registration(to: &str) -> Registration {
    let words = [
        "grapevine",
        "register",
        "--worker",
        "http://127.0.0.1:1",
        "--to",
        to,
        "--credential",
        "gvw1_x",
    ];
    let Ok(Command::Register(args)) = Cli::try_parse_from(words).map(|cli| cli.command) else {
        panic!("not register");
    };
    Registration {
        worker: Worker::new(&args.worker, &args.health_path).expect("an address"),
        lease: Lease::new(&"w".parse().expect("an id"), &args).expect("addresses"),
        drain: Duration::from_secs(args.drain),
    }
}

/// As `--seed` and `--worker-urls` take them.
#[test]
fn addresses_of_replicas_are_parted_by_blanks_or_commas() {
    let (a, b, c) = ("http://a:1", "http://b:1", "http://c:1");
    for to in [
        &["--to", a, b, c][..],
        &["--to", "http://a:1,http://b:1,http://c:1"],
        &["--to", "http://a:1,http://b:1", c],
        &["--to", a, b, "--to", c],
    ] {
        let before = ["grapevine", "register", "--worker", "http://w:1"];
        let words = [
            &before[..],
            to,
            &["--drain", "1", "--", "vllm", "--to", "x"],
        ]
        .concat();
        let Ok(Command::Register(args)) = Cli::try_parse_from(words).map(|cli| cli.command) else {
            panic!("{to:?} is refused");
        };
        let found: Vec<&str> = args.to.iter().map(Url::as_str).collect();
        assert_eq!(found, ["http://a:1/", "http://b:1/", "http://c:1/"]);
        assert_eq!(args.command, ["vllm", "--to", "x"]);
    }
}

/// Of the shortest lease that the settings allow.
#[tokio::test(start_paused = true)]
async fn a_worker_that_takes_its_time_delays_no_renewal() {
    let ttl = Duration::from_secs(5);
    let renewed = AtomicUsize::new(0);
    let renew = async || {
        renewed.fetch_add(1, Ordering::SeqCst);
        ttl / 6
    };
    let silent = async || {
        sleep(ttl).await;
        true
    };
    let kept = timeout(ttl, renew_while_there(renew, silent)).await;
    assert!(kept.is_err(), "it is there");
    let renewed = renewed.load(Ordering::SeqCst);
    assert!((5..=7).contains(&renewed), "{renewed} renewals");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_not_there_for_a_minute_is_let_go() {
    let renew = async || Duration::from_millis(800);
    let begun = Instant::now();
    // It was there once, and each look takes longer than from one renewal to the next.
    let gone = async || {
        sleep(Duration::from_secs(3)).await;
        begun.elapsed() < Duration::from_secs(10)
    };
    renew_while_there(renew, gone).await;
    let lasted = begun.elapsed();
    let expected = GONE_AFTER + Duration::from_secs(5)..GONE_AFTER + Duration::from_secs(20);
    assert!(expected.contains(&lasted), "{lasted:?}");
}

/// Each replica knows of its own streams to it, and its command must not end before the last of them.
#[tokio::test]
async fn streams_at_a_worker_that_an_operator_removed_end_before_its_command() {
    let (first, second) = (port().await, port().await);
    let to = format!("http://{},http://{}", first.1, second.1);
    let left = Arc::new(AtomicUsize::new(3));
    let removed = |open: usize| {
        (
            200,
            json!({ "state": "removed", "ttl_s": 30, "in_flight": open }),
        )
    };
    let idle = serve(first.0, move |_| removed(0));
    let counted = Arc::clone(&left);
    let busy = serve(second.0, move |line| {
        assert!(line.starts_with("PUT"), "{line}");
        let before = counted.load(Ordering::SeqCst);
        counted.store(before.saturating_sub(1), Ordering::SeqCst);
        removed(before)
    });
    let mut registration = registration(&to);
    let renewed = registration.lease.renew("active").await;
    assert!(matches!(renewed, Renewed::Until(_)));
    let mut none = Wrapped::start(&[]).expect("nothing is started");
    registration.leave(&mut none).await;
    assert_eq!(left.load(Ordering::SeqCst), 0, "the last stream has ended");
    assert_eq!(registration.lease.in_flight(), Some(0));
    idle.abort();
    busy.abort();
}

/// As an engine that crashes while it drains, and leaves the processes of its GPUs.
#[tokio::test]
async fn a_command_that_ends_meanwhile_keeps_its_exit_code_and_its_group_is_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let pid = folder.path().join("pid");
    let script = format!(
        "sleep 600 & echo $! > {0}.new; mv {0}.new {0}; exit 7",
        pid.display()
    );
    let words = ["sh", "-c", &script].map(OsString::from);
    let mut wrapped = Wrapped::start(&words).expect("a shell");
    let ended = timeout(Duration::from_secs(60), async {
        while !wrapped.has_ended() {
            tokio::task::yield_now().await;
        }
    });
    ended.await.expect("it ends");
    assert_eq!(wrapped.end().await, ExitCode::from(7));
    let left = std::fs::read_to_string(&pid).expect("written");
    let left: i32 = left.trim().parse().expect("a number");
    // Ended, and perhaps not yet taken leave of by whoever is its parent now.
    let state = Process::new(left).and_then(|process| process.stat());
    assert!(state.is_err() || state.is_ok_and(|stat| stat.state == 'Z'));
}
