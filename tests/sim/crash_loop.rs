//! Crash loops: R10.

use crate::invariants::nobody_offended;
use crate::probe::{LIMIT, SECOND, count, joined, spread, whole};

/// R10: 200 restarts in ten minutes. No replica's tables or messages grow, and no other replica is lost.
#[test]
fn two_hundred_restarts_leave_nothing_behind() {
    let mut cluster = joined(3, 501);
    spread(&mut cluster, 0, 8000);
    let gossip = "gossip_bytes_total{direction=\"out\",plane=\"gossip\"";
    let mut rates = Vec::new();
    let mut replicas_most = 0;
    for minute in 0..10 {
        let before = count(&cluster, 0, gossip);
        for restart in 0..20 {
            cluster.kill(2);
            // Long enough to be seen as dead now and then, short enough that this stays rare.
            let down = SECOND * (1 + restart % 2) / 2;
            cluster.run(down);
            cluster.restart(2);
            cluster.run(3 * SECOND - down);
            for at in [0, 1] {
                let view = cluster.view(at);
                replicas_most = replicas_most.max(view.replicas().len());
                let mut others = view.replicas().iter();
                assert!(
                    others.all(|seen| seen.live || seen.id.as_str() == "r2"),
                    "minute {minute}: r{at} lost somebody else"
                );
            }
        }
        rates.push((count(&cluster, 0, gossip) - before) / 60);
    }
    println!(
        "R10: most replicas listed {replicas_most}, membership bytes a second by minute {rates:?}"
    );
    assert_eq!(replicas_most, 3);
    // Generations of the last minute stay in the digests; earlier ones are gone.
    let (early, late) = (rates[1], rates[9]);
    assert!(early > 0, "nothing was counted: {rates:?}");
    assert!(late <= early + early / 4, "digests grow: {rates:?}");
    cluster.until("whole again", LIMIT, |cluster| {
        cluster.running().len() == 3 && whole(cluster)
    });
    nobody_offended(&cluster);
}
