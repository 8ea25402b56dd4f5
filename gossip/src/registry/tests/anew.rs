//! What is left of a map that begins anew, and what is named.

use super::*;

#[test]
fn starting_over_keeps_configuration() {
    let mut one = registry("r");
    one.configure(id("c"), spec(1)).expect("room");
    one.put(id("w"), Source::Admin, spec(1), NOW).expect("room");
    one.start_over();
    assert_eq!(set(&one), [("c".into(), 1)]);
    // Its clock remembers: a write now is later than the one that was dropped.
    let entry = one
        .put(id("w"), Source::Admin, spec(1), 0)
        .expect("room")
        .expect("new");
    assert!(entry.stamp > Stamp::at_ms(NOW));
}

/// The worker left that replica's file while this one was away, and that it did is remembered nowhere any more.
#[test]
fn starting_over_keeps_nothing_of_anothers_configuration() {
    let (mut one, mut other) = (registry("r"), registry("other"));
    for configured in [&mut one, &mut other] {
        configured.configure(id("both"), spec(1)).expect("room");
    }
    other.configure(id("theirs"), spec(1)).expect("room");
    one.configure(id("former"), spec(1)).expect("room");
    sync(&mut one, &mut other);
    let away = one.clone();
    // Both files lose what they had alone.
    for (replica, worker) in [(&mut one, "former"), (&mut other, "theirs")] {
        let removed = replica.remove(&id(worker), Source::Config, NOW);
        assert_eq!(removed.expect("it has it").len(), 1);
    }
    sync(&mut one, &mut other);
    for replica in [&mut one, &mut other] {
        replica.advance(2 * RETENTION);
        assert_eq!(set(replica), [("both".into(), 1)]);
    }
    // Somebody who was away brings the entries back to one that started over.
    one.merge(everything(&away), NOW).expect("no drift");
    one.start_over();
    sync(&mut one, &mut other);
    for replica in [&one, &other] {
        assert_eq!(set(replica), [("both".into(), 1)]);
    }
    let mut away = away;
    away.start_over();
    assert_eq!(set(&away), [("both".into(), 1), ("former".into(), 1)]);
}

/// The file got it by a reload, when another replica's had it already: nothing was written, and it is this file's all the same.
#[test]
fn starting_over_keeps_what_a_reload_repeated() {
    let (mut one, mut other) = (registry("r"), registry("other"));
    other.configure(id("both"), spec(1)).expect("room");
    sync(&mut one, &mut other);
    let written = one.put(id("both"), Source::Config, spec(1), NOW);
    assert!(written.expect("room").is_none());
    one.start_over();
    assert_eq!(set(&one), [("both".into(), 1)]);
}

#[test]
fn starting_over_names_what_was_written_here() {
    let (mut one, mut cluster) = (registry("r"), registry("cluster"));
    one.configure(id("file"), spec(1)).expect("room");
    for worker in ["known", "removed", "drained", "later"] {
        one.put(id(worker), Source::Admin, spec(1), NOW)
            .expect("room");
    }
    one.put(id("pod"), provider("kubernetes"), spec(1), NOW)
        .expect("room");
    sync(&mut cluster, &mut one);
    // Meanwhile each goes on by itself.
    one.put(id("added"), Source::Admin, spec(1), NOW)
        .expect("room");
    one.put(id("new-pod"), provider("kubernetes"), spec(1), NOW)
        .expect("room");
    one.remove(&id("removed"), Source::Admin, NOW)
        .expect("known");
    one.drain(&id("drained"), NOW).expect("known");
    one.put(id("later"), Source::Admin, spec(2), NOW)
        .expect("room");
    cluster
        .put(id("later"), Source::Admin, spec(3), NOW + 1)
        .expect("room");
    let former = one.clone();
    one.start_over();
    one.merge(everything(&cluster), NOW).expect("no drift");
    let lost = one.lost_since(&former);
    assert_eq!(lost, [id("added"), id("drained"), id("removed")]);
}

/// It wrote beside and over what all have, 30 hours ahead, and took part of that over from another such replica.
#[test]
fn a_clock_that_was_far_ahead_begins_anew() {
    let ahead = NOW + 30 * 60 * 60 * 1000;
    let (mut one, mut other) = (registry("r"), registry("other"));
    one.configure(id("file"), spec(1)).expect("room");
    for worker in ["kept", "removed"] {
        one.put(id(worker), Source::Admin, spec(1), NOW)
            .expect("room");
    }
    let mut cluster = registry("cluster");
    sync(&mut cluster, &mut one);
    assert!(!one.leads_too_far(NOW));
    other
        .put(id("theirs"), Source::Admin, spec(1), ahead)
        .expect("room");
    one.merge(everything(&other), ahead).expect("no drift");
    one.put(id("added"), Source::Admin, spec(1), ahead)
        .expect("room");
    one.remove(&id("removed"), Source::Admin, ahead)
        .expect("known");
    let former = one.clone();
    assert!(!one.leads_too_far(ahead), "it is ahead itself");
    assert!(one.leads_too_far(NOW));
    one.begin_anew(NOW);
    assert!(!one.leads_too_far(NOW));
    assert_eq!(set(&one), [("file".into(), 1), ("kept".into(), 1)]);
    assert_eq!(one.lost_since(&former), [id("added"), id("removed")]);
    sync(&mut one, &mut cluster);
    assert_eq!(one.digest(), cluster.digest());
    assert_eq!(one.workers().len(), 3, "as the cluster has it");
    let entry = one.put(id("added"), Source::Admin, spec(1), NOW + 5);
    assert_eq!(entry.expect("room").expect("new").stamp.ms(), NOW + 5);
}
