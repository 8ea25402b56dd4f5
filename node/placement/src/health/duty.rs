//! Which replicas probe a worker: two of them, the others believe their reports.

use std::time::Duration;

use crate::hash::HashAlgorithm;

/// Replicas that probe one worker.
const PROBERS: usize = 2;
/// A result older than so many intervals is not fresh.
const FRESH_INTERVALS: u32 = 3;
/// Results travel at least this often, so younger ones than a few of these cannot be asked for.
const REPORTED_EVERY: Duration = Duration::from_secs(1);

/// Whether replica `me` probes `worker` now.
///
/// `ready`: names of the replicas that take traffic, in any order, `me` included if it does. Two of them have the
/// duty, by rendezvous hash: as replicas come and go, few workers change hands. `best_claim`: age of the youngest
/// result that is known here, own or received. A replica that knows of no fresh one probes: a cut link, an unlucky pair
/// or a replica that starts leaves no worker unwatched. A replica whose own verdict on a worker is
/// bad has to probe it as well; that is the caller's task.
pub fn duty<'a>(
    worker: &str,
    me: &str,
    ready: impl IntoIterator<Item = &'a str>,
    interval: Duration,
    best_claim: Option<Duration>,
) -> bool {
    let fresh = interval.max(REPORTED_EVERY) * FRESH_INTERVALS;
    if best_claim.is_none_or(|age| age > fresh) {
        return true;
    }
    let mine = score(worker, me);
    let mut among = false;
    let mut before_me = 0;
    for replica in ready {
        if replica == me {
            among = true;
        } else if (score(worker, replica), replica) > (mine, me) {
            before_me += 1;
        }
    }
    among && before_me < PROBERS
}

fn score(worker: &str, replica: &str) -> u64 {
    let hash = HashAlgorithm::Xxh3;
    let seed = hash.hash(0, worker.as_bytes());
    // A seed of 0 would be the unseeded hash, the same for every such worker; it is one in 2^64, and harmless.
    hash.hash(seed, replica.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(1);

    fn on_duty(worker: &str, replicas: &[String]) -> Vec<String> {
        let names = || replicas.iter().map(String::as_str);
        let on_duty = |me: &&String| duty(worker, me, names(), INTERVAL, Some(INTERVAL));
        replicas.iter().filter(on_duty).cloned().collect()
    }

    fn replicas(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("r{number}")).collect()
    }

    proptest! {
        #[test]
        fn two_replicas_probe_each_worker(count in 1_usize..12, worker in "[a-z]{1,12}") {
            prop_assert_eq!(on_duty(&worker, &replicas(count)).len(), count.min(2));
        }

        #[test]
        fn a_replica_that_leaves_hands_over_its_own_alone(count in 3_usize..12, worker in "[a-z]{1,12}") {
            let all = replicas(count);
            let before = on_duty(&worker, &all);
            let after = on_duty(&worker, &all[1..]);
            for stays in before.iter().filter(|name| **name != all[0]) {
                prop_assert!(after.contains(stays));
            }
        }
    }

    #[test]
    fn the_work_is_spread() {
        let all = replicas(4);
        let mut duties = [0; 4];
        for worker in 0..400 {
            for name in on_duty(&format!("http://10.0.0.{worker}:8000"), &all) {
                duties[all
                    .iter()
                    .position(|one| *one == name)
                    .expect("one of them")] += 1;
            }
        }
        // 200 each on average.
        assert!(
            duties.iter().all(|count| (120..280).contains(count)),
            "{duties:?}"
        );
    }

    #[test]
    fn without_a_fresh_result_everybody_probes() {
        let all = replicas(5);
        let names = || all.iter().map(String::as_str);
        let probers = |age| {
            all.iter()
                .filter(|me| duty("w", me, names(), INTERVAL, age))
                .count()
        };
        assert_eq!(probers(Some(Duration::from_secs(3))), 2);
        assert_eq!(probers(Some(Duration::from_millis(3_001))), 5);
        assert_eq!(probers(None), 5);
        assert!(
            !duty("w", "starts", names(), INTERVAL, Some(INTERVAL)),
            "not ready yet"
        );
    }
}
