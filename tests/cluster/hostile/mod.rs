//! A peer with a valid certificate that lies, against a cluster of three real processes under load.
//!
//! The peer is that of `gossip/tests/hostile`, which tests each of its lies alone.

#[path = "../../../gossip/tests/hostile/chitchat.rs"]
#[allow(dead_code, reason = "the tests of gossip use the rest")]
mod chitchat;
#[path = "../../../gossip/tests/hostile/rogue.rs"]
#[allow(dead_code, reason = "the tests of gossip use the rest")]
mod rogue;
mod scene;

use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::dry_run::DryRun;
use grapevine_gossip::evidence::{Batch, Evidence, HeatReport, Record};
use grapevine_gossip::load::{Coverage, Load, LoadFrame, SlotLoad};
use grapevine_gossip::peer_state::{Claim, HealthClaim, TenantUse};
use grapevine_gossip::wire::Message;
use grapevine_tests::cluster::Replica;
use grapevine_tests::invariants;
use grapevine_tests::wait::LIMIT;
use tokio::time::Instant;

use scene::{Known, Scene, WORKERS, changed, gossip_address, known, lines, refused, repeat};

/// Greatest change of a worker's share that one peer's messages may cause.
const SHARE_CHANGE_MAX: f64 = 0.10;

/// S06: one peer reports every worker as empty, or as full as the format allows: the shares of workers stay,
/// none is left out, no request fails. The same lie about one worker alone: shares are printed, and no
/// request fails.
#[tokio::test(flavor = "multi_thread")]
async fn one_liar_about_load_moves_no_share_and_fails_no_request() {
    let scene = Scene::new().await;
    let rogue = scene.rogue("liar").await;
    let mut lines = lines(&scene, &rogue).await;
    let Known {
        workers_digest,
        workers,
    } = known(&mut lines[0]).await;
    assert_eq!(workers.len(), WORKERS);
    // The first round teaches homes; the comparison begins after it.
    scene.shares().await;
    let before = scene.shares().await;
    let greatest = Load {
        requests: u32::MAX,
        prefill_tokens: u64::MAX,
        context_tokens: 1 << 63,
    };
    for (lie, slots, load, all) in [
        ("all empty", WORKERS, Load::default(), true),
        ("all as full as can be", WORKERS, greatest, true),
        ("one as full as can be", 1, greatest, false),
    ] {
        let say = || {
            let slot = |slot| SlotLoad { slot, load };
            Message::Load(LoadFrame {
                workers_digest,
                coverage: Coverage::Full,
                slots: (0..slots as u32).map(slot).collect(),
                moment: None,
                earlier: Vec::new(),
            })
        };
        let during = tokio::select! {
            during = scene.shares() => during,
            () = repeat(&mut lines, Duration::from_millis(50), say) => unreachable!("it goes on"),
        };
        let change = changed(&before, &during);
        println!("{lie}: greatest change of a share {change:.3}; {during:.3?} after {before:.3?}");
        if all {
            assert!(change <= SHARE_CHANGE_MAX, "{lie}: {change}");
            assert_eq!(during.len(), WORKERS, "{lie}: nobody is left out");
        }
    }
    drop(lines);
    scene.unharmed("lies about load").await;
    invariants::hold(&scene.cluster, &scene.workers, &[]).await;
}

/// One peer reports workers as ejected. If it reports all of them, replicas ignore it. If it reports half of
/// them, these are skipped until they deliver a token, no request fails, and the effect ends with the peer.
#[tokio::test(flavor = "multi_thread")]
async fn one_liar_about_health_fails_no_request() {
    let scene = Scene::new().await;
    let rogue = scene.rogue("liar").await;
    let mut lines = lines(&scene, &rogue).await;
    let Known { workers, .. } = known(&mut lines[0]).await;
    scene.shares().await;
    let before = scene.shares().await;
    for (lie, accused) in [("all ejected", WORKERS), ("half ejected", WORKERS / 2)] {
        let claims: Vec<HealthClaim> = workers[..accused]
            .iter()
            .map(|(worker, epoch)| HealthClaim {
                worker: worker.clone(),
                epoch: *epoch,
                claim: Claim::Ejected,
                age: Duration::ZERO,
            })
            .collect();
        let say = || Message::Health(Arc::new(claims.clone()));
        let during = tokio::select! {
            during = scene.shares() => during,
            () = repeat(&mut lines, Duration::from_millis(200), say) => unreachable!("it goes on"),
        };
        let change = changed(&before, &during);
        println!("{lie}: greatest change of a share {change:.3}; {during:.3?} after {before:.3?}");
        assert_eq!(during.len(), WORKERS, "{lie}: nobody is left out");
        if accused == WORKERS {
            assert!(change <= SHARE_CHANGE_MAX, "{lie}: {change}");
        }
    }
    drop(lines);
    scene.unharmed("lies about health").await;
    invariants::hold(&scene.cluster, &scene.workers, &[]).await;
}

/// Lies of every other kind, one peer each, while clients go on: counted, cut off at the tenth offence,
/// memory bounded, and the cluster as before.
#[tokio::test(flavor = "multi_thread")]
async fn liars_are_cut_off_while_the_cluster_serves() {
    let scene = Scene::new().await;
    let serving = async {
        loop {
            scene.shares().await;
        }
    };
    tokio::select! {
        () = attack(&scene) => {}
        () = serving => unreachable!("it goes on"),
    }
    let expected = ["cut off a replica that keeps sending refused messages"];
    invariants::hold(&scene.cluster, &scene.workers, &expected).await;
}

async fn attack(scene: &Scene) {
    let victim = scene.victim();
    let address = gossip_address(victim);
    let me = chitchat::Node {
        id: victim.name.clone(),
        generation: 1,
        address,
    };
    let poison = chitchat::Change {
        node: me.clone(),
        values: (0..200)
            .map(|n| (format!("k{n}"), "x".into(), n + 1))
            .collect(),
        version: None,
    };
    let forged = chitchat::Standing {
        node: me,
        heartbeat: u64::MAX,
        version: 1,
    };
    let raw: Vec<(&str, &str, Vec<u8>)> = vec![
        ("a bomb", "inflated", chitchat::bomb()),
        (
            "heartbeat 2^64-1",
            "implausible",
            chitchat::syn("grapevine", &[forged]),
        ),
        ("too many keys", "too_many", chitchat::ack(&[poison])),
        (
            "another cluster",
            "other_cluster",
            chitchat::syn("prod", &[]),
        ),
        ("noise", "malformed", vec![0x53; 900]),
    ];
    for (number, (lie, reason, bytes)) in raw.iter().enumerate() {
        let rogue = scene.rogue(&format!("liar-{number}")).await;
        let line = rogue.dial(address).await;
        let (before, memory) = (
            refused(victim, reason).await,
            victim.process().resident_kib(),
        );
        let begun = Instant::now();
        while !line.is_over() && line.send(bytes).await {
            assert!(begun.elapsed() < LIMIT, "{lie}: never cut off");
        }
        assert!(line.is_banned().await, "{lie}");
        let counted = refused(victim, reason).await - before;
        assert!(counted >= 10.0, "{lie}: {counted}");
        println!(
            "{lie}: cut off after {:?}, memory {}",
            begun.elapsed(),
            grown(victim, memory)
        );
        scene.unharmed(lie).await;
    }

    let rogue = scene.rogue("reader").await;
    let Known {
        workers_digest,
        workers,
    } = known(&mut rogue.dial(address).await).await;
    let worker = workers[0].clone();
    let evidence = move |number: u64| {
        let record = |n: u64| {
            let hash =
                |link: u64| (number * 7919 + n * 257 + link).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            Record::Evidence(Evidence {
                worker: worker.0.clone(),
                epoch: worker.1,
                links: (0..256).map(hash).collect(),
            })
        };
        let records = (0..25).map(record).collect();
        Message::Evidence(Arc::new(Batch { number, records }))
    };
    type Maker = Box<dyn Fn(u64) -> Message + Send>;
    // Name, whether the message is a request, and the message.
    let floods: Vec<(&str, bool, Maker)> = vec![
        ("evidence of made-up prefixes", false, Box::new(evidence)),
        (
            "heat of made-up prefixes",
            false,
            Box::new(|version| {
                let counts = (0..512).map(|link| (link * 1_000_003 + version, u32::MAX));
                let counts = counts.collect();
                Message::Heat(Arc::new(HeatReport {
                    version,
                    counts,
                    total: 1,
                }))
            }),
        ),
        (
            "tenants with a million requests",
            false,
            Box::new(|_| {
                let used = |tenant| TenantUse {
                    tenant,
                    in_flight: u32::MAX,
                    queued: u32::MAX,
                };
                Message::Usage(Arc::new((0..1024).map(used).collect()))
            }),
        ),
        (
            "load",
            false,
            Box::new(move |_| {
                Message::Load(LoadFrame {
                    workers_digest,
                    coverage: Coverage::Full,
                    slots: Vec::new(),
                    moment: None,
                    earlier: Vec::new(),
                })
            }),
        ),
        (
            "dry runs",
            true,
            Box::new(|_| Message::DryRunRequest(Arc::new(DryRun::default()))),
        ),
    ];
    for (number, (flood, asks, message)) in floods.iter().enumerate() {
        let rogue = scene.rogue(&format!("flood-{number}")).await;
        let mut line = rogue.dial(address).await;
        let memory = victim.process().resident_kib();
        let begun = Instant::now();
        let mut sent = 0;
        while !line.is_over() && begun.elapsed() < LIMIT / 2 {
            sent += 1;
            if *asks {
                let _ = line.ask(&message(sent)).await;
                continue;
            }
            let bytes = line.frame(&message(sent));
            if *flood == "load" {
                let _ = line.connection.send_datagram_wait(bytes.into()).await;
                continue;
            }
            let Ok(mut stream) = line.connection.open_uni().await else {
                break;
            };
            let _ = stream.write_all(&bytes).await;
            let _ = stream.finish();
        }
        // A slow machine may send too little to exceed the limits.
        let allowed = if *asks { 200.0 } else { 600.0 };
        let allowed = 3000.0 + allowed * begun.elapsed().as_secs_f64();
        let is_cut = line.is_over() && line.is_banned().await;
        assert!(is_cut || (sent as f64) < allowed, "{flood}: {sent} sent");
        println!(
            "{flood}: {sent} sent in {:?}, cut off: {}; memory {}",
            begun.elapsed(),
            is_cut,
            grown(victim, memory)
        );
        scene.unharmed(flood).await;
    }
}

fn grown(replica: &Replica, before: u64) -> String {
    let now = replica.process().resident_kib();
    format!("{:+} KiB", now.cast_signed() - before.cast_signed())
}
