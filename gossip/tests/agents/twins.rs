//! Two processes under one replica id: named everywhere, one of them not ready, and never taken for a restart.

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::running::{self, Running, authority, until};
use async_trait::async_trait;
use grapevine_gossip::identity::{Authority, Identity};
use grapevine_gossip::twin::Twin;
use grapevine_gossip::{Agent, Network, SystemNetwork};
use quinn::AsyncUdpSocket;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

/// A process of its own, as far as the others can see: it may end without a leave.
struct Process {
    running: Running,
    runtime: Option<Runtime>,
}

impl Deref for Process {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

/// The operating system's, with a wall clock that was read for the first time at some other moment.
#[derive(Debug)]
struct StartedAt(AtomicU64);

#[async_trait]
impl Network for StartedAt {
    async fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        SystemNetwork.bind(address).await
    }

    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        SystemNetwork.resolve(name).await
    }

    fn unix_ms(&self) -> u64 {
        match self.0.swap(0, Ordering::Relaxed) {
            0 => SystemNetwork.unix_ms(),
            started => started,
        }
    }
}

impl Process {
    /// A process whose generation is this time, in milliseconds since 1970.
    async fn start_at(unix_ms: u64, port: u16, identity: Identity, seeds: &[String]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let network = Arc::new(StartedAt(AtomicU64::new(unix_ms)));
        let seeds = seeds.to_vec();
        let started = runtime.spawn(async move {
            let bind = ([127, 0, 0, 1], port).into();
            Running::start_on(network, bind, identity, &seeds).await
        });
        Self {
            running: started.await.expect("it starts"),
            runtime: Some(runtime),
        }
    }

    async fn start(port: u16, identity: Identity, seeds: &[String]) -> Self {
        Self::start_at(SystemNetwork.unix_ms(), port, identity, seeds).await
    }

    /// Ends it as `kill -9` does: nothing more is sent or read.
    fn kill(mut self) -> SocketAddr {
        let address = self.address();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        address
    }

    async fn leave(self) {
        let agent = self.agent.clone();
        let runtime = self.runtime.as_ref().expect("it runs");
        let left = runtime.spawn(async move { agent.shutdown().await });
        left.await.expect("it ends");
    }

    fn is_ready(&self) -> bool {
        *self.agent.ready().borrow() && self.agent.kept_instead().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn issue(authority: &Authority, replica: &str) -> Identity {
    running::issue(authority, "demo", replica)
}

/// `r1`, its identity, and two others, which see each other.
async fn cluster() -> (Process, Identity, [Process; 2]) {
    let authority = authority();
    let mine = issue(&authority, "r1");
    let r2 = Process::start(0, issue(&authority, "r2"), &[]).await;
    let seeds = [r2.seed()];
    let r3 = Process::start(0, issue(&authority, "r3"), &seeds).await;
    let r1 = Process::start(0, mine.clone(), &seeds).await;
    let all = [&r1, &r2, &r3];
    until("a cluster of three", || {
        all.iter().all(|one| one.live() == 3 && one.is_ready())
    })
    .await;
    (r1, mine, [r2, r3])
}

fn is_quiet(all: &[&Process]) -> bool {
    all.iter().all(|one| {
        one.live() == 3
            && one.is_ready()
            && one.agent.twins().is_empty()
            && one.agent.kept_instead().is_none()
            && one.count("gossip_twins ") == 0
    })
}

/// Waits until all name the two, and only the earlier is not ready.
async fn until_named(kept: &Process, cut_off: &Process, others: &[&Process], begun: Instant) {
    let expected = [Twin {
        replica: "r1".parse().expect("valid"),
        kept: kept.address(),
        cut_off: cut_off.address(),
    }];
    until("the earlier one is not ready", || {
        !cut_off.is_ready() && cut_off.agent.kept_instead() == Some(kept.address())
    })
    .await;
    println!("not ready {:?} after the later one began", begun.elapsed());
    let all = || others.iter().chain([&kept, &cut_off]);
    until("all name both", || {
        all().all(|one| one.agent.twins() == expected && one.count("gossip_twins ") == 1)
    })
    .await;
    println!(
        "named by all {:?} after the later one began",
        begun.elapsed()
    );
    until("the later one is ready and seen", || {
        let ready = others.iter().chain([&kept]);
        ready.clone().all(|one| one.is_ready() && one.live() == 3)
    })
    .await;
    assert_eq!(kept.agent.kept_instead(), None);
    let generation = |of: &Process| {
        let view = of.agent.view();
        let own = view.replicas().iter().find(|r| r.id == *of.agent.replica());
        own.expect("itself").generation
    };
    assert!(
        generation(kept) > generation(cut_off),
        "they do not outbid each other"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_is_named_and_the_first_is_not_ready_until_the_second_leaves() {
    let (first, identity, [r2, r3]) = cluster().await;
    let begun = Instant::now();
    let second = Process::start(0, identity.clone(), &[r2.seed()]).await;
    until_named(&second, &first, &[&r2, &r3], begun).await;
    // It stays so: nobody takes turns, and to ask whether somebody lives is no offence.
    for _ in 0..50 {
        sleep(Duration::from_millis(100)).await;
        assert!(!first.is_ready(), "the first");
        let instead = second.agent.kept_instead();
        assert!(second.is_ready(), "the second: {instead:?}");
    }
    for one in [&first, &second, &r2, &r3] {
        assert_eq!(one.count("gossip_refused_total"), 0, "refused messages");
        assert_eq!(one.count("gossip_restarts_total"), 0, "outbid");
    }
    second.leave().await;
    let took = until("healed", || is_quiet(&[&first, &r2, &r3])).await;
    println!("healed {took:?} after the second said goodbye");
    // A third one is named like the second, and killed.
    let begun = Instant::now();
    let third = Process::start(0, identity, &[r3.seed()]).await;
    until_named(&third, &first, &[&r2, &r3], begun).await;
    third.kill();
    let took = until("healed", || is_quiet(&[&first, &r2, &r3])).await;
    println!("healed {took:?} after the third was killed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_goes_on_when_the_first_ends() {
    let (first, identity, [r2, r3]) = cluster().await;
    let second = Process::start(0, identity, &[r2.seed()]).await;
    until_named(&second, &first, &[&r2, &r3], Instant::now()).await;
    first.leave().await;
    until("healed", || is_quiet(&[&second, &r2, &r3])).await;
}

/// The clock of the second is behind: it is the one that is refused, and does not start again above the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_of_an_earlier_generation_is_refused() {
    let (first, identity, [r2, r3]) = cluster().await;
    let begun = Instant::now();
    let an_hour_ago = SystemNetwork.unix_ms() - 3_600_000;
    let second = Process::start_at(an_hour_ago, 0, identity, &[r2.seed()]).await;
    until("refused", || {
        second.agent.kept_instead() == Some(first.address()) && !second.is_ready()
    })
    .await;
    println!("refused {:?} after it began", begun.elapsed());
    until("the others name both", || {
        [&first, &r2, &r3].iter().all(|one| {
            let twins = one.agent.twins();
            twins.len() == 1 && twins[0].cut_off == second.address()
        })
    })
    .await;
    assert!(
        [&first, &r2, &r3]
            .iter()
            .all(|one| one.is_ready() && one.live() == 3)
    );
    assert_eq!(second.count("gossip_restarts_total"), 0);
    first.kill();
    until("healed", || is_quiet(&[&second, &r2, &r3])).await;
    assert!(second.count("gossip_restarts_total") > 0, "above the first");
}

/// Nobody else is there to see them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_meet_each_other_only_know_it_too() {
    let authority = authority();
    let identity = issue(&authority, "r1");
    let now = SystemNetwork.unix_ms();
    let first = Process::start_at(now - 1, 0, identity.clone(), &[]).await;
    let second = Process::start_at(now, 0, identity, &[first.seed()]).await;
    until("the first is not ready", || {
        first.agent.kept_instead() == Some(second.address()) && !first.is_ready()
    })
    .await;
    until("the second is named", || second.agent.twins().len() == 1).await;
    until("the second is ready", || second.is_ready()).await;
    second.kill();
    until("the first is ready again", || {
        first.is_ready() && first.agent.twins().is_empty()
    })
    .await;
}

/// Both have one generation: neither may take the other for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_one_millisecond_that_meet_are_two() {
    let authority = authority();
    let identity = issue(&authority, "r1");
    let now = SystemNetwork.unix_ms();
    let first = Process::start_at(now, 0, identity.clone(), &[]).await;
    let second = Process::start_at(now, 0, identity, &[first.seed()]).await;
    until("the one that dialled is the later one", || {
        first.agent.kept_instead() == Some(second.address()) && second.is_ready()
    })
    .await;
    assert_eq!(second.count("gossip_restarts_total"), 1);
    second.kill();
    until("the first is ready again", || {
        first.is_ready() && first.agent.twins().is_empty()
    })
    .await;
}

/// They do not know of each other: a third one sees both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_one_millisecond_are_told_apart_by_others() {
    let authority = authority();
    let mine = issue(&authority, "r1");
    let r2 = Process::start(0, issue(&authority, "r2"), &[]).await;
    let seeds = [r2.seed()];
    let now = SystemNetwork.unix_ms();
    let first = Process::start_at(now, 0, mine.clone(), &seeds).await;
    until("a cluster of two", || {
        [&first, &r2].iter().all(|one| one.live() == 2)
    })
    .await;
    let second = Process::start_at(now, 0, mine, &seeds).await;
    until("the later one is kept", || {
        first.agent.kept_instead() == Some(second.address()) && !first.is_ready()
    })
    .await;
    until("it is ready", || second.is_ready() && second.live() == 2).await;
    assert_eq!(first.count("gossip_restarts_total"), 0);
    assert_eq!(second.count("gossip_restarts_total"), 1);
    second.leave().await;
    until("healed", || first.is_ready() && first.live() == 2).await;
}

/// Notes every twin that anybody ever names.
fn watch(of: &[&Process]) -> (Arc<AtomicBool>, AbortHandle) {
    let agents: Vec<Agent> = of.iter().map(|one| one.agent.clone()).collect();
    let seen = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&seen);
    let watcher = tokio::spawn(async move {
        loop {
            if agents.iter().any(|agent| !agent.twins().is_empty()) {
                noted.store(true, Ordering::Relaxed);
            }
            sleep(Duration::from_millis(5)).await;
        }
    });
    (seen, watcher.abort_handle())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_no_twin_however_quick() {
    let (mut r1, identity, [r2, r3]) = cluster().await;
    let (seen, watcher) = watch(&[&r2, &r3]);
    let seeds = [r2.seed(), r3.seed()];
    for round in 0..9 {
        // Killed, with connections half open, or ended with a leave; back elsewhere, on its port, with its clock back.
        let port = r1.address().port();
        if round % 3 == 2 {
            r1.leave().await;
        } else {
            r1.kill();
        }
        let (port, behind) = match round % 4 {
            0 | 2 => (0, 0),
            1 => (port, 0),
            _ => (0, 60_000),
        };
        r1 = loop {
            // The former socket is closed a moment after its process.
            let network = SystemNetwork.bind(([127, 0, 0, 1], port).into()).await;
            if network.is_ok() {
                drop(network);
                let at = SystemNetwork.unix_ms() - behind;
                break Process::start_at(at, port, identity.clone(), &seeds).await;
            }
            sleep(Duration::from_millis(5)).await;
        };
        let all = [&r1, &r2, &r3];
        let took = until("back", || {
            all.iter().all(|one| one.live() == 3 && one.is_ready())
        })
        .await;
        println!("round {round}: back after {took:?}");
        assert_eq!(r1.agent.kept_instead(), None);
    }
    assert!(
        !seen.load(Ordering::Relaxed),
        "a restart was taken for a twin"
    );
    assert_eq!(r2.count("gossip_handshakes_total{reason=\"twin\"}"), 0);
    watcher.abort();
}

/// The gossip task of a process starts again, under another generation and at the same address: one process, two lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_own_new_generation_is_no_twin() {
    let (r1, _, [r2, r3]) = cluster().await;
    let (seen, watcher) = watch(&[&r1, &r2, &r3]);
    for restarts in 1..=3 {
        r1.agent.trip();
        until("started again", || {
            r1.count("gossip_restarts_total") >= restarts
        })
        .await;
        until("back", || {
            [&r1, &r2, &r3]
                .iter()
                .all(|one| one.live() == 3 && one.is_ready())
        })
        .await;
    }
    assert!(
        !seen.load(Ordering::Relaxed),
        "it was taken for its own twin"
    );
    watcher.abort();
}
