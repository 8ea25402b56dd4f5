//! The rules of the module's table, one test each. The laws of merging: `laws.rs`.

mod anew;
mod laws;

use super::*;
use crate::hlc::{DRIFT_MAX, DRIFT_QUARANTINE};
use crate::made::{registry, spec_with, worker as id};

const NOW: u64 = 1_700_000_000_000;

fn spec(weight_milli: u32) -> WorkerSpec {
    spec_with(|raw| raw.weight_milli = weight_milli)
}

fn provider(name: &str) -> Source {
    Source::provider(name).expect("valid")
}

/// Ids and weights of the worker set.
fn set(registry: &Registry) -> Vec<(String, u32)> {
    let pair = |worker: Worker| (worker.id.to_string(), worker.spec.weight_milli());
    registry.workers().into_iter().map(pair).collect()
}

fn weights(registry: &Registry) -> Vec<u32> {
    registry
        .workers()
        .iter()
        .map(|worker| worker.spec.weight_milli())
        .collect()
}

fn everything(registry: &Registry) -> Vec<Entry> {
    registry.entries().cloned().collect()
}

/// One sync over a perfect link: summary out; summary and entries back; the rest out.
fn sync(asking: &mut Registry, answering: &mut Registry) {
    let (question, answer) = (asking.summary(), answering.summary());
    asking
        .merge(answering.differing(&question), NOW)
        .expect("no drift");
    answering
        .merge(asking.differing(&answer), NOW)
        .expect("no drift");
}

#[test]
fn merge_order() {
    let entry = |stamp, writer: &str, spec: Option<WorkerSpec>| Entry {
        id: id("w"),
        source: Source::Admin,
        stamp: Stamp::from_bits(stamp),
        writer: Some(writer.parse().expect("valid")),
        spec: spec.map(Arc::new),
        unused_ms: 0,
    };
    let rising = [
        entry(1, "b", None),
        entry(2, "a", Some(spec(1))),
        entry(2, "a", Some(spec(2))),
        entry(2, "b", Some(spec(1))),
        entry(2, "a", None),
        entry(2, "b", None),
        entry(3, "a", Some(spec(1))),
    ];
    for (low, high) in rising.iter().zip(&rising[1..]) {
        for order in [[low, high], [high, low]] {
            let mut one = registry("r");
            for entry in order {
                one.merge(vec![entry.clone()], NOW).expect("no drift");
            }
            let kept = one.entries().next().expect("one key");
            assert!(kept.order(high).is_eq(), "{low:?} < {high:?}");
        }
    }
}

#[test]
fn any_source_is_enough() {
    for source in [Source::Admin, Source::Config, provider("dns")] {
        let mut one = registry("r");
        one.put(id("w"), source, spec(1), NOW).expect("room");
        assert_eq!(set(&one), [("w".into(), 1)]);
    }
}

#[test]
fn admin_removal_masks() {
    let mut one = registry("r");
    one.configure(id("w"), spec(1)).expect("room");
    one.put(id("w"), provider("dns"), spec(2), NOW)
        .expect("room");
    assert_eq!(
        one.remove(&id("w"), Source::Admin, NOW)
            .expect("known")
            .len(),
        1
    );
    assert_eq!(set(&one), []);
    // The provider goes on declaring what it declared: still masked.
    one.put(id("w"), provider("dns"), spec(3), NOW)
        .expect("room");
    assert_eq!(set(&one), []);
    let again = one.remove(&id("w"), Source::Admin, NOW);
    assert_eq!(
        again.map(|_| ()),
        Err(RegistryError::UnknownWorker(id("w")))
    );
}

#[test]
fn whoever_took_a_worker_out_is_known() {
    let mut registry = registry("r1");
    let id = id("w");
    assert_eq!(registry.taken_out(&id), None);
    registry.configure(id.clone(), spec(1000)).expect("room");
    assert_eq!(registry.taken_out(&id), None);
    registry.remove(&id, Source::Config, 5).expect("known");
    assert_eq!(registry.taken_out(&id), Some(TakenOut::ByReload));
    registry.configure(id.clone(), spec(1000)).expect("room");
    assert_eq!(
        registry.taken_out(&id),
        Some(TakenOut::ByReload),
        "a start says nothing new"
    );
    registry
        .put(id.clone(), Source::Admin, spec(1000), 6)
        .expect("room");
    assert_eq!(registry.taken_out(&id), None);
    registry.remove(&id, Source::Admin, 7).expect("known");
    assert_eq!(registry.taken_out(&id), Some(TakenOut::ByAdmin));
}

#[test]
fn admin_add_lifts_the_mask() {
    let mut one = registry("r");
    one.configure(id("w"), spec(1)).expect("room");
    one.remove(&id("w"), Source::Admin, NOW).expect("known");
    // The wall clock went back meanwhile; the order of writes stays.
    one.put(id("w"), Source::Admin, spec(2), NOW - 60_000)
        .expect("room");
    assert_eq!(set(&one), [("w".into(), 2)]);
}

#[test]
fn configuration_loses_to_anything_explicit() {
    let mut old = registry("old");
    old.configure(id("w"), spec(1)).expect("room");
    old.remove(&id("w"), Source::Config, NOW).expect("known");
    // A replica that starts later with an old file changes nothing, in either direction.
    let mut new = registry("new");
    assert!(new.configure(id("w"), spec(1)).expect("room").is_some());
    sync(&mut new, &mut old);
    assert_eq!((set(&old), set(&new)), (vec![], vec![]));
    assert!(new.configure(id("w"), spec(1)).expect("room").is_none());

    // The same file on two replicas gives the same map.
    let (mut a, mut b) = (registry("a"), registry("b"));
    a.configure(id("w"), spec(1)).expect("room");
    b.configure(id("w"), spec(1)).expect("room");
    assert_eq!(a.digest(), b.digest());
}

#[test]
fn a_source_retracts_only_itself() {
    let mut one = registry("r");
    one.put(id("w"), Source::Config, spec(1), NOW)
        .expect("room");
    one.put(id("w"), provider("dns"), spec(2), NOW)
        .expect("room");
    assert_eq!(
        one.remove(&id("w"), provider("file"), NOW)
            .expect("allowed")
            .len(),
        0
    );
    assert_eq!(
        one.remove(&id("w"), Source::Config, NOW)
            .expect("allowed")
            .len(),
        1
    );
    assert_eq!(set(&one), [("w".into(), 2)]);
    one.remove(&id("w"), provider("dns"), NOW).expect("allowed");
    assert_eq!(set(&one), []);
}

#[test]
fn who_answers_for_a_worker_is_its_writer() {
    let (mut one, mut two) = (registry("r1"), registry("r2"));
    let lease = || provider("lease");
    let held = one.hold(id("w"), lease(), spec(1), NOW).expect("room");
    two.merge(held, NOW).expect("no drift");
    let renewed = one.hold(id("w"), lease(), spec(1), NOW + 1).expect("room");
    assert!(renewed.is_empty());
    let moved = two.hold(id("w"), lease(), spec(1), NOW + 1).expect("room");
    one.merge(moved, NOW).expect("no drift");
    for registry in [&one, &two] {
        let source = lease();
        let entries: Vec<_> = registry.of_source(&source).collect();
        let writer = entries[0].writer.as_ref().map(ToString::to_string);
        assert_eq!((entries.len(), writer.as_deref()), (1, Some("r2")));
    }
}

#[test]
fn admin_describes_first() {
    let mut one = registry("r");
    let sources = [provider("b"), provider("a"), Source::Config, Source::Admin];
    for (source, weight) in sources.into_iter().zip(1..) {
        one.put(id("w"), source, spec(weight), NOW).expect("room");
        assert_eq!(weights(&one), [weight]);
    }
}

#[test]
fn learned_facts_fill_gaps_only() {
    let with_models = |names: &[&str]| {
        spec_with(|raw| raw.models = names.iter().map(|&name| name.to_owned()).collect())
    };
    let models = |one: &Registry| one.workers()[0].spec.models().to_vec();
    let mut one = registry("r");
    let early = one.learn(id("w"), with_models(&["m"]), NOW);
    assert_eq!(
        early.map(|_| ()),
        Err(RegistryError::UnknownWorker(id("w")))
    );

    one.put(id("w"), Source::Admin, spec(5), NOW).expect("room");
    assert!(
        one.learn(id("w"), with_models(&["m"]), NOW)
            .expect("known")
            .is_some()
    );
    assert!(
        one.learn(id("w"), with_models(&["m"]), NOW)
            .expect("known")
            .is_none()
    );
    assert_eq!(
        (models(&one), weights(&one)),
        (vec!["m".to_owned()], vec![5])
    );

    one.put(id("w"), Source::Admin, with_models(&["given"]), NOW)
        .expect("room");
    assert_eq!(models(&one), ["given"]);

    // They end with the worker: added again, it is asked again.
    assert_eq!(
        one.remove(&id("w"), Source::Admin, NOW)
            .expect("known")
            .len(),
        2
    );
    one.put(id("w"), Source::Admin, spec(5), NOW).expect("room");
    assert_eq!(models(&one), [""; 0]);
}

#[test]
fn equal_words_of_a_provider_write_nothing() {
    let mut one = registry("r");
    assert!(
        one.put(id("w"), provider("dns"), spec(1), NOW)
            .expect("room")
            .is_some()
    );
    assert!(
        one.put(id("w"), provider("dns"), spec(1), NOW)
            .expect("room")
            .is_none()
    );
    assert!(
        one.put(id("w"), provider("dns"), spec(2), NOW)
            .expect("room")
            .is_some()
    );
    // An admin's declaration must win over a removal that is still on its way.
    assert!(
        one.put(id("w"), Source::Admin, spec(1), NOW)
            .expect("room")
            .is_some()
    );
    assert!(
        one.put(id("w"), Source::Admin, spec(1), NOW)
            .expect("room")
            .is_some()
    );
}

#[test]
fn tombstones_live_by_contact() {
    let mut one = registry("r");
    one.put(id("w"), Source::Admin, spec(1), NOW).expect("room");
    one.put(id("kept"), Source::Admin, spec(1), NOW)
        .expect("room");
    one.remove(&id("w"), Source::Admin, NOW).expect("known");
    assert_eq!(one.advance(RETENTION - Duration::from_millis(1)), 0);
    assert_eq!(one.advance(Duration::ZERO), 0);
    assert_eq!(one.digest().count, 2);
    assert_eq!(one.advance(Duration::from_millis(1)), 1);
    assert_eq!(set(&one), [("kept".into(), 1)]);
    assert_eq!(one.digest().count, 1);
}

#[test]
fn a_masking_removal_stays() {
    let mut one = registry("r");
    one.configure(id("w"), spec(1)).expect("room");
    one.remove(&id("w"), Source::Admin, NOW).expect("known");
    for _ in 0..3 {
        assert_eq!(one.advance(RETENTION), 0);
    }
    assert_eq!(set(&one), []);
    // Once the file does not name it either, both removals age from then on.
    one.remove(&id("w"), Source::Config, NOW).expect("allowed");
    assert_eq!(one.advance(RETENTION), 2);
    assert_eq!(one.digest(), Digest::default());
}

#[test]
fn facts_about_nobody_are_dropped() {
    let mut one = registry("r");
    one.put(id("w"), Source::Admin, spec(1), NOW).expect("room");
    let fact = one
        .learn(id("w"), spec(1), NOW)
        .expect("known")
        .expect("new");
    let mut two = registry("s");
    two.merge(vec![fact], NOW).expect("no drift");
    assert_eq!(set(&two), []);
    assert_eq!(two.advance(RETENTION), 1);
    assert_eq!(one.advance(RETENTION), 0);
}

#[test]
fn a_tombstone_is_given_up_together() {
    let (mut fast, mut slow) = (registry("fast"), registry("slow"));
    fast.put(id("w"), Source::Admin, spec(1), NOW)
        .expect("room");
    fast.remove(&id("w"), Source::Admin, NOW).expect("known");
    sync(&mut fast, &mut slow);
    fast.advance(RETENTION);
    slow.advance(Duration::from_secs(60));
    assert_eq!((fast.digest().count, slow.digest().count), (0, 1));
    sync(&mut slow, &mut fast);
    assert_eq!((fast.digest().count, slow.digest().count), (0, 0));
    // Parting is over for one of them: it does not take back what the other still remembers.
    fast.advance(PARTING);
    sync(&mut fast, &mut slow);
    assert_eq!((fast.entries.len(), slow.entries.len()), (0, 1));

    // A replica that still holds the worker takes it all the same.
    let mut stale = registry("stale");
    let entry = stale
        .put(id("v"), Source::Admin, spec(1), NOW)
        .expect("room")
        .expect("new");
    let mut other = registry("other");
    other.merge(vec![entry], NOW).expect("no drift");
    let mut removal = other.remove(&id("v"), Source::Admin, NOW).expect("known");
    removal[0].unused_ms = millis(RETENTION);
    assert_eq!(
        stale.merge(removal.clone(), NOW).expect("no drift").changed,
        1
    );
    assert_eq!(
        registry("empty")
            .merge(removal, NOW)
            .expect("no drift")
            .changed,
        0
    );
}

/// One replica with a worker of now and one stamped a day ahead.
fn a_day_ahead() -> Registry {
    let day = DRIFT_MAX.as_millis() as u64;
    let mut ahead = registry("ahead");
    for (name, at) in [("v", NOW), ("w", NOW + day)] {
        let put = ahead.put(id(name), Source::Admin, spec(1), at);
        put.expect("room");
    }
    ahead
}

#[test]
fn far_future_is_left_out() {
    let ahead = a_day_ahead();
    let mut one = registry("r");
    let merged = one.merge(everything(&ahead), NOW).expect("24 h is allowed");
    assert_eq!((merged.changed, merged.drift), (2, Some(DRIFT_MAX)));
    // What was taken over is exceeded by the next own write, wherever our clock stands.
    one.remove(&id("w"), Source::Admin, NOW).expect("known");
    assert_eq!(set(&one), [("v".into(), 1)]);

    let mut two = registry("s");
    let merged = two.merge(everything(&ahead), NOW - 1).expect("no liar");
    let lead = DRIFT_MAX + Duration::from_millis(1);
    assert_eq!((merged.changed, merged.too_far), (1, 1));
    assert_eq!(merged.drift, Some(lead));
    assert_eq!(set(&two), [("v".into(), 1)]);
    let own = two.put(id("x"), Source::Admin, spec(1), NOW).expect("room");
    assert_eq!(own.expect("new").stamp.ms(), NOW, "no clock follows it");
}

#[test]
fn far_future_is_quarantined_whole() {
    let ahead = a_day_ahead();
    let hour = (DRIFT_QUARANTINE - DRIFT_MAX).as_millis() as u64;
    let mut one = registry("r");
    let merged = one.merge(everything(&ahead), NOW - hour).expect("clocks");
    assert_eq!((merged.changed, merged.too_far), (1, 1));
    let mut two = registry("s");
    let refused = two.merge(everything(&ahead), NOW - hour - 1);
    let lead = DRIFT_QUARANTINE + Duration::from_millis(1);
    assert_eq!(
        refused,
        Err(RegistryError::Quarantine { id: id("w"), lead })
    );
    assert_eq!(two.digest(), Digest::default());
}

#[test]
fn the_map_is_bounded() {
    let mut one = registry("r");
    for n in 0..ENTRIES_MAX {
        one.put(id(&format!("a{n}")), Source::Admin, spec(1), NOW)
            .expect("room");
    }
    let refused = one.put(id("one-more"), Source::Admin, spec(1), NOW);
    assert_eq!(refused.map(|_| ()), Err(RegistryError::Full));
    assert!(
        one.put(id("a0"), Source::Admin, spec(2), NOW).is_ok(),
        "a known key has its place"
    );

    let mut two = registry("s");
    for n in 0..ENTRIES_MAX {
        two.put(id(&format!("b{n}")), Source::Admin, spec(1), NOW)
            .expect("room");
    }
    assert_eq!(
        one.merge(everything(&two), NOW).expect("no drift").refused,
        0
    );
    assert_eq!(one.digest().count as usize, MERGED_ENTRIES_MAX);
    let mut three = registry("t");
    three
        .put(id("c"), Source::Admin, spec(1), NOW)
        .expect("room");
    assert_eq!(
        one.merge(everything(&three), NOW)
            .expect("no drift")
            .refused,
        1
    );

    // Too many tombstones: the oldest go first.
    for worker in one.workers() {
        one.remove(&worker.id, Source::Admin, NOW).expect("known");
    }
    assert_eq!(one.advance(Duration::ZERO), MERGED_ENTRIES_MAX - UNUSED_MAX);
    assert!(
        one.entries()
            .all(|entry| entry.id.as_str().starts_with('b'))
    );
}

/// Addresses that come and go, as those of pods do, beside a fleet that stays.
#[test]
fn what_was_removed_leaves_room_for_new_workers() {
    let facts = |registry: &mut Registry, worker: &WorkerId, at: u64| {
        let kubernetes = provider("kubernetes");
        registry.put(worker.clone(), kubernetes, spec(1), at)?;
        registry.learn(worker.clone(), spec(1), at)?;
        registry.restarted(worker, at / 1000, at)?;
        let labels = Labels::new([("runtime", "vllm")]).expect("valid");
        registry.label(worker, &labels, at).map(drop)
    };
    for fleet in [100, 5_000] {
        let mut one = registry("r");
        for n in 0..fleet {
            facts(&mut one, &id(&format!("stays{n}")), NOW).expect("room");
        }
        for n in 0..9_000_u64 {
            let worker = id(&format!("pod{n}"));
            let written = facts(&mut one, &worker, NOW + n);
            written.unwrap_or_else(|error| panic!("{fleet} stay, the {n}th: {error}"));
            one.remove(&worker, provider("kubernetes"), NOW + n)
                .expect("declared");
            if n % 300 == 0 {
                one.advance(Duration::from_secs(1));
            }
        }
        one.advance(Duration::from_secs(1));
        assert_eq!(one.workers().len(), fleet);
        let of_pod = |entry: &&Entry| entry.id.as_str().starts_with("pod") && entry.is_removed();
        let newest = one.entries().filter(of_pod).count();
        assert!(newest > 500, "{newest} removals are remembered");
        assert!(one.entry(&id("pod8999"), &provider("kubernetes")).is_some());
        assert!(one.entry(&id("pod0"), &provider("kubernetes")).is_none());
    }
}

#[test]
fn a_sync_sends_only_parts_that_differ() {
    let (mut a, mut b) = (registry("a"), registry("b"));
    for n in 0..1000 {
        a.put(id(&format!("w{n}")), Source::Admin, spec(1), NOW)
            .expect("room");
    }
    b.merge(everything(&a), NOW).expect("no drift");
    assert_eq!(a.differing(&b.summary()).len(), 0);
    a.remove(&id("w7"), Source::Admin, NOW).expect("known");
    let sent = a.differing(&b.summary());
    assert!(sent.iter().any(|entry| entry.id == id("w7")));
    assert!(sent.len() < 100, "{} entries for one change", sent.len());
    sync(&mut b, &mut a);
    assert_eq!(a.summary(), b.summary());
}

#[test]
fn what_a_later_release_said_is_carried() {
    use crate::worker::{Role, State};

    let (mut a, mut b) = (registry("a"), registry("b"));
    a.put(id("w"), Source::Admin, spec(2), NOW).expect("room");
    let said = |source: &Source, spec: WorkerSpec, at: u64| Entry {
        id: id("w"),
        source: source.clone(),
        stamp: Stamp::from_bits(at),
        writer: Some("later".parse().expect("valid")),
        spec: Some(Arc::new(spec)),
        unused_ms: 0,
    };
    let unknown = Source::later(9, "kubernetes").expect("valid");
    a.merge(vec![said(&unknown, spec(7), 77)], NOW)
        .expect("no drift");
    sync(&mut b, &mut a);
    assert_eq!(a.digest(), b.digest());
    assert_eq!(a.digest().count, 2, "it is counted");
    assert_eq!(weights(&b), [2], "and not read");
    // The later declaration wins, as for every source.
    b.merge(vec![said(&unknown, spec(7), 78)], NOW)
        .expect("no drift");
    sync(&mut a, &mut b);
    let newest = b.digest();
    b.merge(vec![said(&unknown, spec(7), 77)], NOW)
        .expect("no drift");
    assert_eq!((a.digest(), b.digest()), (newest, newest));
    // By itself it makes no worker present, and it goes as learned facts do.
    b.remove(&id("w"), Source::Admin, NOW).expect("known");
    assert_eq!(weights(&b), [0; 0]);
    assert_eq!(b.advance(RETENTION), 2);
    assert_eq!(b.digest().count, 0);

    // Roles and states that only a later release knows: the worker is there, and keeps them.
    let odd = spec_with(|raw| raw.role = Role::Later(9)).in_later_state(7, 123);
    let later = (NOW + 1) << 16;
    b.merge(vec![said(&Source::Admin, odd.clone(), later)], NOW)
        .expect("no drift");
    let worker = b.workers().remove(0);
    assert_eq!(
        (worker.spec.role(), worker.spec.state()),
        (Role::Later(9), State::Active)
    );
    let mut c = registry("c");
    sync(&mut c, &mut b);
    assert_eq!(c.digest(), b.digest());
    let entry = everything(&c).remove(0);
    assert_eq!(entry.spec.as_deref(), Some(&odd));
    assert!(!entry.is_read());
}
