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
        worker: Worker::new(&args.worker).expect("an address"),
        lease: Lease::new(&"w".parse().expect("an id"), &args).expect("addresses"),
        drain: Duration::from_secs(args.drain),
    }
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
