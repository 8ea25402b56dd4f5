//! What an authenticated liar can send on our own planes: load (S06), registry, peer states, evidence,
//! heat, dry runs, and answers that lie.

use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::dry_run::DryRun;
use grapevine_gossip::evidence::{Batch, Evidence, HEAT_COUNTS_MAX, HeatReport, Mark, Record};
use grapevine_gossip::hlc::Stamp;
use grapevine_gossip::load::{Coverage, Load, LoadFrame, SlotLoad};
use grapevine_gossip::peer_state::{Claim, HealthClaim, TenantUse};
use grapevine_gossip::registry::Entry;
use grapevine_gossip::wire::{Message, Snapshot};
use grapevine_gossip::worker::{Source, WorkerId};
use tokio::time::Instant;

use super::rogue::{LIMIT, now_ms};
use super::scene::{Scene, eventually, resident_kib, until_cut, worker};

fn full(workers_digest: u32, slots: usize, load: Load) -> Message {
    let slot = |slot| SlotLoad { slot, load };
    Message::Load(LoadFrame {
        workers_digest,
        coverage: Coverage::Full,
        slots: (0..slots as u32).map(slot).collect(),
        moment: None,
        earlier: Vec::new(),
    })
}

/// S06 on the plane: numbers are whole on the wire, so there is no NaN; the greatest are scaled down to what
/// is believed of anybody, none is left once it is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poisoned_load_is_bounded_and_ends_with_its_sender() {
    let scene = Scene::new().await;
    let victim = scene.victim();
    let (workers_digest, workers) = {
        let view = victim.agent.view();
        let ids: Vec<WorkerId> = view.workers().iter().map(|w| w.id.clone()).collect();
        (view.workers_digest(), ids)
    };
    let cells: Vec<_> = workers
        .iter()
        .map(|id| victim.agent.load().cell(id))
        .collect();
    let own = Load {
        requests: 5,
        prefill_tokens: 2000,
        context_tokens: 9000,
    };
    for honest in &scene.honest {
        for id in &workers {
            honest.agent.load().cell(id).add(own);
        }
    }
    let rogue = scene.rogue("liar");
    let mut line = rogue.dial(victim.address()).await;
    for (numbers, load) in [
        (
            "2^63",
            Load {
                requests: 1 << 31,
                prefill_tokens: 1 << 63,
                context_tokens: 1 << 63,
            },
        ),
        (
            "the greatest",
            Load {
                requests: u32::MAX,
                prefill_tokens: u64::MAX,
                context_tokens: u64::MAX,
            },
        ),
        ("nothing", Load::default()),
    ] {
        assert!(line.say(&full(workers_digest, workers.len(), load)).await);
        // Two honest ones of 5 each; the liar is believed eight times the greatest, and 64.
        let most = 2.0 * 5.0 + 8.0 * 5.0 + 64.0;
        let is_lie = load != Load::default();
        eventually(numbers, || {
            let others = cells[0].others().requests;
            let is_there = if is_lie {
                others == most
            } else {
                others == 10.0
            };
            is_there.then_some(())
        })
        .await;
        for cell in &cells {
            let others = cell.others();
            assert!(others.requests <= most, "{numbers}: {others:?}");
            assert!(
                others.prefill_tokens <= 10.0 * 2000.0 + 65_536.0,
                "{others:?}"
            );
        }
        let cut = || victim.sum("gossip_load_cut", "");
        eventually("it is shown", || {
            (cut() == f64::from(u8::from(is_lie))).then_some(())
        })
        .await;
    }
    // Out of shape: an offence each.
    let beyond = LoadFrame {
        workers_digest,
        coverage: Coverage::Changes,
        slots: vec![SlotLoad {
            slot: 500,
            load: own,
        }],
        moment: None,
        earlier: Vec::new(),
    };
    let mut times = 0;
    while line.say(&Message::Load(beyond.clone())).await {
        times += 1;
        assert!(times < 1000);
    }
    assert!(line.is_banned().await);
    eventually("ten are counted", || {
        (victim.refused("malformed") >= 10.0).then_some(())
    })
    .await;
    eventually("the liar counts no more", || {
        (cells[0].others().requests == 10.0).then_some(())
    })
    .await;
    scene.unharmed("poisoned load").await;
}

/// More than any honest replica sends, of each kind: refused, counted, cut off; the others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_well_formed_messages_end_in_a_ban() {
    let mut scene = Scene::new().await;
    let victim = scene.victim();
    let view = victim.agent.view();
    let id = view.workers()[0].id.clone();
    let health = HealthClaim {
        worker: id.clone(),
        epoch: 0,
        claim: Claim::Good,
        age: Duration::ZERO,
    };
    let record = Record::Evidence(Evidence {
        worker: id,
        epoch: 0,
        links: (0..256).collect(),
    });
    let batch = Batch {
        number: 0,
        records: vec![record; 30],
    };
    type Maker = Box<dyn Fn(u64) -> Message>;
    let kinds: [(&str, Maker); 5] = [
        (
            "load",
            Box::new(move |_| full(view.workers_digest(), 4, Load::default())),
        ),
        (
            "peer states",
            Box::new(move |_| Message::Health(Arc::new(vec![health.clone()]))),
        ),
        (
            "evidence",
            Box::new(move |number| {
                Message::Evidence(Arc::new(Batch {
                    number,
                    ..batch.clone()
                }))
            }),
        ),
        (
            "heat",
            Box::new(|version| {
                let counts = (0..HEAT_COUNTS_MAX as u64).map(|link| (link, u32::MAX));
                Message::Heat(Arc::new(HeatReport {
                    version,
                    counts: counts.collect(),
                    total: 0,
                }))
            }),
        ),
        (
            "marks",
            Box::new(|next| {
                Message::EvidenceMark(Mark {
                    first: next * 5000,
                    next: next * 5000,
                })
            }),
        ),
    ];
    for (number, (kind, message)) in kinds.iter().enumerate() {
        let rogue = scene.rogue(&format!("flood-{number}"));
        let mut line = rogue.dial(victim.address()).await;
        let (memory, begun) = (resident_kib(), Instant::now());
        let mut sent = 0u64;
        // Without waiting for each: as fast as it goes.
        while !line.is_over() && begun.elapsed() < LIMIT {
            sent += 1;
            let bytes = line.frame(&message(sent));
            if *kind == "load" {
                let _ = line.connection.send_datagram_wait(bytes.into()).await;
                continue;
            }
            let Ok(mut stream) = line.connection.open_uni().await else {
                break;
            };
            let _ = stream.write_all(&bytes).await;
            let _ = stream.finish();
        }
        // What a slow machine can send may be within the limits.
        let allowed = 3000.0 + 600.0 * begun.elapsed().as_secs_f64();
        let is_cut = line.is_over() && line.is_banned().await;
        assert!(is_cut || (sent as f64) < allowed, "{kind}: {sent} sent");
        let grown = resident_kib() - memory;
        println!(
            "{kind}: {sent} sent in {:?}, cut off: {is_cut}; memory {grown:+} KiB",
            begun.elapsed()
        );
        assert!(grown < 64 << 10, "{kind}: {grown} KiB");
        drop(line);
        scene.unharmed(kind).await;
    }
    scene.still_works("floods").await;
}

/// Questions that are asked all the time: each kind has a rate that is below what anybody can ask in a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_questions_are_bounded() {
    let mut scene = Scene::new().await;
    let victim = scene.victim();
    let dry_run = Message::DryRunRequest(Arc::new(DryRun::default()));
    for (kind, question) in [
        ("dry-runs", dry_run),
        ("snapshots", Message::SnapshotRequest),
    ] {
        let rogue = scene.rogue(kind);
        let mut line = rogue.dial(victim.address()).await;
        let begun = Instant::now();
        let (mut asked, mut answered) = (0u32, 0usize);
        let memory = resident_kib();
        while !line.is_over() && begun.elapsed() < LIMIT {
            // Sixteen at once, which is what may be open.
            let frames: Vec<_> = (0..16).map(|_| line.frame(&question)).collect();
            let mut open = Vec::new();
            for bytes in &frames {
                let Ok((mut send, receive)) = line.connection.open_bi().await else {
                    break;
                };
                let _ = send.write_all(bytes).await;
                let _ = send.finish();
                open.push(receive);
            }
            asked += 16;
            for mut receive in open {
                answered += receive.read_to_end(32 << 20).await.map_or(0, |b| b.len());
            }
        }
        println!(
            "{kind}: {asked} asked in {:?}, {answered} bytes of answers, memory {:+} KiB",
            begun.elapsed(),
            resident_kib() - memory
        );
        // What a slow machine can ask may be within the limits.
        let allowed = 200.0 + 200.0 * begun.elapsed().as_secs_f64();
        let is_banned = line.is_over() && line.is_banned().await;
        assert!(
            is_banned || f64::from(asked) < allowed,
            "{kind}: {asked} asked"
        );
        drop(line);
        scene.unharmed(kind).await;
    }
    scene.still_works("questions").await;
}

/// Entries that no honest replica writes: too many in a frame, stamps far ahead; and messages where they
/// do not belong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_entries_that_break_rules_are_not_merged() {
    let mut scene = Scene::new().await;
    let victim = scene.victim();
    let entry = |n: u16, stamp_ms| {
        let (id, spec) = worker(n);
        Entry {
            id,
            source: Source::Admin,
            stamp: Stamp::at_ms(stamp_ms),
            writer: Some("liar".parse().expect("an id")),
            spec: Some(Arc::new(spec)),
            unused_ms: 0,
        }
    };
    let now = now_ms();
    let two_days = 2 * 24 * 60 * 60 * 1000;
    let many: Vec<Entry> = (1..=600).map(|n| entry(n, now)).collect();
    let pushes = [
        (
            "too many in a frame",
            "malformed",
            Message::RegistryPush(many),
        ),
        (
            "two days ahead",
            "implausible",
            Message::RegistryPush(vec![entry(1, now + two_days)]),
        ),
        (
            "the greatest stamp",
            "implausible",
            Message::RegistryPush(vec![entry(1, u64::MAX)]),
        ),
        (
            "an answer that nobody asked for",
            "malformed",
            Message::PushAck(1),
        ),
        ("a goodbye as a question", "malformed", Message::Leave),
    ];
    for (number, (lie, reason, message)) in pushes.iter().enumerate() {
        let rogue = scene.rogue(&format!("writer-{number}"));
        let mut line = rogue.dial(victim.address()).await;
        let before = victim.refused(reason);
        let mut times = 0;
        while !line.is_over() && times < 1000 {
            times += 1;
            let answer = line.ask(message).await;
            assert!(answer.is_none_or(|answer| answer.is_empty()), "{lie}");
        }
        assert!(line.is_banned().await, "{lie}");
        assert!(victim.refused(reason) - before >= 10.0, "{lie}");
        scene.unharmed(lie).await;
    }
    scene.still_works("registry entries").await;
}

/// A peer that answers what it was not asked, or with damaged frames, is scored as one that sends them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_lie_are_offences() {
    let mut scene = Scene::new().await;
    let victim = scene.victim();
    let rogue = scene.rogue("liar");
    let far = now_ms() + 2 * 24 * 60 * 60 * 1000;
    rogue.answers(Arc::new(move |_| {
        // A whole "snapshot" to every question, with an entry from the day after tomorrow.
        let (id, spec) = worker(1);
        let entry = Entry {
            id,
            source: Source::Admin,
            stamp: Stamp::at_ms(far),
            writer: Some("liar".parse().expect("an id")),
            spec: Some(Arc::new(spec)),
            unused_ms: 0,
        };
        let snapshot = Snapshot {
            entries: vec![entry],
            load: None,
            last: true,
            alone: Some(Duration::ZERO),
        };
        Some(vec![Message::Snapshot(snapshot)])
    }));
    let line = rogue.dial(victim.address()).await;
    eventually("the victim dials back", || {
        let linked = victim.sum("gossip_peers_linked", "");
        (linked >= 3.0).then_some(())
    })
    .await;
    let begun = Instant::now();
    // Each change is pushed to the liar, too, which acknowledges with a snapshot.
    let mut changes = 0;
    while !line.is_over() && changes < 100 {
        changes += 1;
        let (id, spec) = worker(7000);
        let put = victim.agent.put_worker(id.clone(), Source::Admin, spec);
        put.await.expect("room");
        let removed = victim.agent.remove_worker(&id, Source::Admin).await;
        removed.expect("it is there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("cut off after {changes} changes, {:?}", begun.elapsed());
    assert!(line.is_banned().await);
    assert!(victim.refused("malformed") >= 10.0);
    scene.settle().await;
    scene.still_works("answers that lie").await;
}

/// Peer states beyond their limits are offences; within them they are what their sender reports, and gone with
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_states_out_of_bounds_are_offences() {
    let mut scene = Scene::new().await;
    let victim = scene.victim();
    let use_of = |tenant| TenantUse {
        tenant,
        in_flight: u32::MAX,
        queued: u32::MAX,
    };
    let rogue = scene.rogue("liar");
    let mut line = rogue.dial(victim.address()).await;
    assert!(line.say(&Message::Usage(Arc::new(vec![use_of(7)]))).await);
    let used = eventually("the lie is heard", || {
        let used = victim.agent.peer_states().others_usage(7);
        (used.in_flight > 0).then_some(used)
    })
    .await;
    assert!(used.in_flight <= 1_000_000, "{used:?}");
    // Two entries about one tenant.
    let twice = line.frame(&Message::Usage(Arc::new(vec![use_of(7), use_of(7)])));
    until_cut(&line, &twice).await;
    eventually("and gone with its sender", || {
        (victim.agent.peer_states().others_usage(7).in_flight == 0).then_some(())
    })
    .await;
    scene.unharmed("peer states").await;
    scene.still_works("peer states").await;
}
