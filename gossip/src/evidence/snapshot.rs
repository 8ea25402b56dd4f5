//! What a starting replica is told of workers' caches: what fits an answer, of every worker its newest.
//!
//! Pure.

use std::collections::BTreeMap;

use super::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Evidence, LINKS_MAX, pieces, wire_len};
use crate::worker::{ID_BYTES_MAX, WorkerId};

/// Greatest number of frames in a snapshot, 64 KiB each.
pub(crate) const SNAPSHOT_FRAMES_MAX: usize = 60;

/// Bytes of records that fit a snapshot in any order. A frame that is full may lack one record, and the last one may be
/// nearly empty.
const BYTES_MAX: usize = (SNAPSHOT_FRAMES_MAX - 1) * (BATCH_BYTES_MAX - RECORD_BYTES_MAX);
/// Bytes of the longest record.
const RECORD_BYTES_MAX: usize = wire_len(ID_BYTES_MAX, LINKS_MAX);
/// So many bytes of a frame the shortest record takes: there is room for [`BATCH_RECORDS_MAX`] in it.
const RECORD_BYTES_MIN: usize = BATCH_BYTES_MAX / BATCH_RECORDS_MAX;

/// Cuts a snapshot, each worker's records in order of their age, into pieces of one frame each, at least one. Leaves out,
/// and counts, what does not fit.
pub(crate) fn snapshot_pieces(mut evidence: Vec<Evidence>) -> (Vec<Vec<Evidence>>, usize) {
    let cut = fit(&mut evidence);
    let mut pieces = pieces(evidence, Evidence::wire_len);
    if pieces.is_empty() {
        pieces.push(Vec::new());
    }
    (pieces, cut)
}

/// Leaves what fits a snapshot, and returns how many records do not. All workers have the same share, and what some leave
/// of theirs the others have; of each the oldest goes, since the newest is what its cache holds for longest.
fn fit(evidence: &mut Vec<Evidence>) -> usize {
    let mut wanted: BTreeMap<&WorkerId, usize> = BTreeMap::new();
    for claim in &*evidence {
        *wanted.entry(&claim.worker).or_default() += frame_bytes(claim);
    }
    let Some(share) = share(wanted.into_values().collect()) else {
        return 0;
    };
    let mut left: BTreeMap<WorkerId, usize> = BTreeMap::new();
    let before = evidence.len();
    let newest_first = std::mem::take(evidence).into_iter().rev();
    evidence.extend(newest_first.filter(|claim| {
        let left = left.entry(claim.worker.clone()).or_insert(share);
        let kept = left.checked_sub(frame_bytes(claim));
        // Nor anything older than what does not fit.
        *left = kept.unwrap_or_default();
        kept.is_some()
    }));
    evidence.reverse();
    before - evidence.len()
}

/// The greatest share, the same for all, of which no more than [`BYTES_MAX`] are used by those that want so much each;
/// `None` if each can have all that it wants.
fn share(mut wanted: Vec<usize>) -> Option<usize> {
    wanted.sort_unstable();
    let (mut left, count) = (BYTES_MAX, wanted.len());
    for (at, wants) in wanted.into_iter().enumerate() {
        let share = left / (count - at);
        if wants > share {
            return Some(share);
        }
        left -= wants;
    }
    None
}

/// How much of the room of frames a record takes.
fn frame_bytes(claim: &Evidence) -> usize {
    claim.wire_len().max(RECORD_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(worker: usize, links: Vec<u64>) -> Evidence {
        Evidence {
            worker: format!("w{worker:03}").parse().expect("valid"),
            epoch: 1,
            links,
        }
    }

    /// Records of each worker, the oldest first, each named by its only, or its last, link.
    fn all(counts: &[u64], links: impl Fn(u64) -> Vec<u64>) -> Vec<Evidence> {
        let workers = counts.iter().enumerate();
        let of_one = |(worker, &count): (usize, &u64)| -> Vec<Evidence> {
            (0..count).map(|age| record(worker, links(age))).collect()
        };
        workers.flat_map(of_one).collect()
    }

    /// What is left of each worker: its oldest and its newest record, and how many.
    fn left(pieces: &[Vec<Evidence>]) -> Vec<(u64, u64, usize)> {
        let mut left: BTreeMap<&WorkerId, Vec<u64>> = BTreeMap::new();
        for claim in pieces.iter().flatten() {
            let name = claim.links.last().expect("one");
            left.entry(&claim.worker).or_default().push(*name);
        }
        let told = |names: Vec<u64>| {
            assert!(names.is_sorted(), "in order of age");
            (names[0], names[names.len() - 1], names.len())
        };
        left.into_values().map(told).collect()
    }

    #[test]
    fn every_worker_keeps_its_newest() {
        // 60,000 chains of two marks, twice as many as there is room for.
        let (pieces, cut) = snapshot_pieces(all(&[1_000; 60], |age| vec![1 << 40, age]));
        assert!(pieces.len() <= SNAPSHOT_FRAMES_MAX, "{}", pieces.len());
        let left = left(&pieces);
        assert_eq!(left.len(), 60);
        let kept = left[0].2;
        assert!(kept > 450, "{kept}");
        for of_one in left {
            assert_eq!(of_one, (1_000 - kept as u64, 999, kept));
        }
        assert_eq!(cut, 60 * (1_000 - kept));
    }

    #[test]
    fn what_quiet_workers_leave_of_their_share_busy_ones_have() {
        let (pieces, cut) = snapshot_pieces(all(&[30_000, 10, 0, 30_000], |age| vec![age]));
        let left = left(&pieces);
        assert_eq!(left[1], (0, 9, 10));
        assert_eq!(left[0], left[2]);
        assert!(left[0].1 == 29_999 && left[0].2 > 14_000, "{left:?}");
        assert_eq!(cut, 60_000 - 2 * left[0].2);
    }

    #[test]
    fn what_fits_is_told_whole() {
        let evidence = all(&[100, 0, 7_000, 1], |age| vec![age]);
        let (pieces, cut) = snapshot_pieces(evidence.clone());
        assert_eq!((pieces.concat(), cut), (evidence, 0));
        assert_eq!(snapshot_pieces(Vec::new()), (vec![Vec::new()], 0));
    }

    /// In whatever order long and short records come.
    #[test]
    fn the_share_fits_the_frames() {
        for short in [1, 20, LINKS_MAX] {
            let links = |age: u64| {
                vec![
                    age;
                    if age.is_multiple_of(2) {
                        LINKS_MAX
                    } else {
                        short
                    }
                ]
            };
            let evidence = all(&[3_000; 20], links);
            let (pieces, cut) = snapshot_pieces(evidence);
            assert!(
                cut > 0 && pieces.len() <= SNAPSHOT_FRAMES_MAX,
                "{short}: {}",
                pieces.len()
            );
            assert!(
                pieces.len() > SNAPSHOT_FRAMES_MAX * 4 / 5,
                "{short}: {}",
                pieces.len()
            );
            assert_eq!(left(&pieces).len(), 20);
        }
    }
}
