//! An honest agent that knows nobody but liars: nobody outvotes them.

use std::ops::Range;
use std::sync::Arc;

use grapevine_gossip::identity::{self, Authority};
use grapevine_gossip::wire::Message;
use grapevine_gossip::worker::{Source, WorkerId};
use tokio::time::Instant;

use super::rogue::{Rogue, now_ms};
use super::scene::{CLUSTER, Honest, eventually, pem, worker};

async fn lone() -> (Authority, Honest) {
    let authority = identity::create(CLUSTER).expect("authority");
    let lone = Honest::start(&authority, "h1", Vec::new()).await;
    (authority, lone)
}

fn rogue(authority: &Authority, id: &str) -> Rogue {
    Rogue::start(CLUSTER, id, &pem(authority, id))
}

/// "I keep another process instead of you", then "it has ended, I saw this generation of it", and so on: each time the
/// gossip task would start again. That it is not ready is the price of having no honest peer; it is not to be kept busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_liar_that_keeps_others_instead_starts_nobody_again_all_the_time() {
    const TURNS: u64 = 10;
    let (authority, lone) = lone().await;
    let liar = rogue(&authority, "liar");
    let said = |label: &str| lone.sum("gossip_handshakes_total", label);
    let begun = Instant::now();
    let ahead = now_ms() + 60_000;
    let mut line = None;
    for turn in 0..TURNS {
        let generation = ahead + turn * 1_000_000;
        let before = said("\"twin\"");
        liar.keeps(Some(generation));
        if line.is_none() {
            // It must be dialled to be asked.
            line = Some(liar.dial(lone.address()).await);
        }
        eventually("it is refused", || {
            let is_refused = said("\"twin\"") > before;
            (is_refused && lone.agent.kept_instead().is_some()).then_some(())
        })
        .await;
        let told = || said("\"outrun\"") + said("\"outruns\"");
        let before = told();
        liar.has_seen(generation);
        liar.keeps(None);
        eventually("it is told to start again", || {
            (told() > before).then_some(())
        })
        .await;
    }
    // The report of one peer, that of all peers, and the latter again each ten seconds.
    let most = 2 + begun.elapsed().as_secs() / 10;
    assert!(
        most < TURNS,
        "too slow a machine to tell: {:?}",
        begun.elapsed()
    );
    let restarts = lone.sum("gossip_restarts_total", "");
    assert!(restarts <= most as f64, "{restarts} restarts, not {most}");
}

/// Each of the two has a part of a change, so nobody has the change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_in_pieces_is_confirmed_by_those_who_have_all_of_it() {
    let (authority, lone) = lone().await;
    let (first, second) = (rogue(&authority, "x1"), rogue(&authority, "x2"));
    let mut lines = Vec::new();
    for rogue in [&first, &second] {
        lines.push(rogue.dial(lone.address()).await);
    }
    eventually("both are linked", || {
        (lone.sum("gossip_peers_linked", "") == 2.0).then_some(())
    })
    .await;
    let put = async |ports: Range<u16>| {
        let workers = ports.map(worker).collect();
        let put = lone.agent.put_workers(Source::Admin, workers);
        put.await.expect("room")
    };
    // One takes only the piece with the first worker, the other one only those without it.
    let (marked, _) = worker(10_000);
    takes(&first, &marked, |is_marked| is_marked);
    takes(&second, &marked, |is_marked| !is_marked);
    let ack = put(10_000..10_700).await;
    assert_eq!((ack.confirmed_by, ack.replicated), (0, false));
    takes(&second, &marked, |_| true);
    let ack = put(11_000..11_700).await;
    assert_eq!((ack.confirmed_by, ack.replicated), (1, true));
}

/// Confirms pushed pieces, depending on whether this worker is in them, and answers nothing else.
fn takes(rogue: &Rogue, marked: &WorkerId, is_taken: fn(bool) -> bool) {
    let marked = marked.clone();
    rogue.answers(Arc::new(move |question| match question {
        Message::RegistryPush(entries)
            if is_taken(entries.iter().any(|entry| entry.id == marked)) =>
        {
            Some(vec![Message::PushAck(0)])
        }
        _ => None,
    }));
}
