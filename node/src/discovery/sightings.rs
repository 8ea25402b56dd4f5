//! Statements about sources as they travel between replicas: one sighting for the source, and one for each objection.

use grapevine_discovery::{Believed, Objection, PeerStatement, Statement, What};
use grapevine_gossip::peer_state::{PeerStates, Sighting};

/// What a sighting is about. Numbers are only ever added.
mod what {
    pub(super) const SEES: u8 = 0;
    pub(super) const MISSING: u8 = 1;
    pub(super) const REMOVED: u8 = 2;
    pub(super) const DIFFERS: u8 = 3;
}

/// A statement about the source with this hash; nothing while the source is not seen.
pub(super) fn encode(source: u64, statement: &Statement) -> Vec<Sighting> {
    if !statement.is_seeing {
        return Vec::new();
    }
    let sighting = |worker, what, seen| Sighting {
        source,
        worker,
        what,
        seen,
    };
    let objection = |objection: &Objection| match objection.what {
        What::Missing => sighting(objection.worker, what::MISSING, 0),
        What::Removed => sighting(objection.worker, what::REMOVED, 0),
        What::Differs(seen) => sighting(objection.worker, what::DIFFERS, seen),
    };
    let sees = sighting(0, what::SEES, 0);
    let objections = statement.objections.iter().map(objection);
    std::iter::once(sees).chain(objections).collect()
}

/// What the other replicas state, by source.
pub(super) fn decode(states: &PeerStates) -> Believed {
    let mut believed = Believed::default();
    for peer in states.peers() {
        for of_source in peer.sightings.chunk_by(|a, b| a.source == b.source) {
            let mut statement = Statement::default();
            for sighting in of_source {
                let objection = match sighting.what {
                    what::SEES => {
                        statement.is_seeing = true;
                        continue;
                    }
                    what::MISSING => What::Missing,
                    what::REMOVED => What::Removed,
                    what::DIFFERS => What::Differs(sighting.seen),
                    // Of a later release: an objection that is not understood is none.
                    _ => continue,
                };
                statement.objections.push(Objection {
                    worker: sighting.worker,
                    what: objection,
                });
            }
            let replica = peer.replica.clone();
            let peer = PeerStatement { replica, statement };
            believed.add(of_source[0].source, peer);
        }
    }
    believed
}

#[cfg(test)]
mod tests {

    use grapevine_discovery::source_hash;
    use grapevine_gossip::peer_state::ReceivedState;

    use super::*;

    #[test]
    fn what_one_replica_states_the_others_read() {
        let objection = |worker, what| Objection { worker, what };
        let statement = Statement {
            is_seeing: true,
            objections: vec![
                objection(1, What::Missing),
                objection(2, What::Removed),
                objection(u64::MAX, What::Differs(7)),
            ],
        };
        let mut sightings = encode(source_hash("dns"), &statement);
        sightings.extend(encode(source_hash("files"), &Statement::default()));
        let later = Sighting {
            source: source_hash("dns"),
            worker: 3,
            what: 200,
            seen: 0,
        };
        sightings.push(later);
        sightings.sort();
        let now = tokio::time::Instant::now().into_std();
        let states = PeerStates::from_iter([ReceivedState {
            sightings,
            ..ReceivedState::silent("r2".parse().expect("an id"), now)
        }]);
        let believed = decode(&states);
        assert_eq!(believed.about("files"), []);
        assert_eq!(believed.about("dns").len(), 1);
        assert_eq!(believed.about("dns")[0].statement, statement);
    }
}
