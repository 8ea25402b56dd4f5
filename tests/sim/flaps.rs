//! A link that fails and recovers again and again: G06.

use crate::invariants::nobody_offended;
use crate::probe::{LIMIT, SECOND, Watch, joined, spread, whole};

/// One second up, one second down, for two minutes.
const FLAPS: usize = 60;
const CHANGES_MAX: usize = 10;

/// The ring never changes; no replica changes a peer's liveness more than ten times; three seconds after the
/// last flap all is as before.
#[test]
fn a_flapping_replica_is_not_followed() {
    for seed in [301, 302, 303] {
        let mut cluster = joined(3, seed);
        spread(&mut cluster, 0, 8000);
        let mut watch = Watch::new(&cluster);
        for _ in 0..FLAPS {
            cluster.cut(&[2], &[0, 1]);
            watch.run(&mut cluster, SECOND);
            cluster.heal();
            watch.run(&mut cluster, SECOND);
        }
        let taken = cluster.until("stable again", LIMIT, whole);
        println!(
            "G06: ring changes {}, liveness changes at most {} of one peer: {:?}; stable after {taken:?}",
            watch.rings,
            watch.liveness_most(),
            watch.liveness
        );
        assert_eq!(watch.rings, 0);
        assert!(watch.liveness_most() <= CHANGES_MAX, "{:?}", watch.liveness);
        assert!(taken <= 3 * SECOND, "{taken:?}");
        watch.run(&mut cluster, 20 * SECOND);
        assert!(whole(&cluster), "it stays so");
        nobody_offended(&cluster);
    }
}
