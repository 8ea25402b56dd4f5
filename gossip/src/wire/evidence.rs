//! Evidence and heat as they travel.
//!
//! Workers are named once a frame. Hashes fill all their bits, so they take eight bytes, not the nine
//! of a long variable-length integer.

use super::body::{Body, replica};
use crate::evidence::{
    BATCH_RECORDS_MAX, Batch, Evidence, EvidenceSnapshot, Gap, HEADS_MAX, Head, HeatReport,
    LINKS_MAX, Lack, Mark, PULL_BATCHES_MAX, Record, Retraction,
};
use crate::frame::{Decode, Encode, FrameError};
use crate::worker::WorkerId;

type WireLink = [u8; 8];

#[derive(Encode, Decode)]
pub(super) struct WireBatch {
    number: u64,
    records: WireRecords,
}

/// Records of a batch, or of a piece of a snapshot.
#[derive(Encode, Decode)]
struct WireRecords {
    /// Id and epoch.
    workers: Vec<(String, u64)>,
    /// Position in `workers`, what is claimed, and of which prefixes.
    records: Vec<(u32, u8, Vec<WireLink>)>,
}

/// What is claimed, as a number: one that a later release adds costs a record, not the frame.
mod claim {
    pub(super) const HOLDS: u8 = 0;
    pub(super) const FORGOT: u8 = 1;
    pub(super) const NOT_COMPUTED: u8 = 2;
}

#[derive(Encode, Decode)]
pub(super) struct WireMark {
    first: u64,
    next: u64,
}

/// Start and length of each gap.
#[derive(Encode, Decode)]
pub(super) struct WirePull(Vec<(u64, u32)>);

#[derive(Encode, Decode)]
pub(super) struct WireSnapshot {
    records: WireRecords,
    /// Replica, generation, number of the next batch.
    heads: Vec<(String, u64, u64)>,
    last: bool,
}

#[derive(Encode, Decode)]
pub(super) struct WireHeat {
    version: u64,
    total: u32,
    counts: Vec<(WireLink, u32)>,
}

impl Body for Batch {
    type Wire = WireBatch;

    fn to_wire(&self) -> WireBatch {
        let records = self.records.iter().map(|record| {
            let (worker, epoch) = record.about();
            let claim = match record {
                Record::Evidence(_) => claim::HOLDS,
                Record::Retraction(said) => match said.lack {
                    Lack::Forgotten => claim::FORGOT,
                    Lack::NotComputed => claim::NOT_COMPUTED,
                },
            };
            (worker, epoch, claim, record.links())
        });
        WireBatch {
            number: self.number,
            records: WireRecords::collect(records),
        }
    }

    fn from_wire(wire: WireBatch, refused: &mut usize) -> Result<Self, FrameError> {
        Ok(Self {
            number: number(wire.number)?,
            records: wire.records.checked(refused)?,
        })
    }
}

impl WireRecords {
    fn collect<'a>(records: impl Iterator<Item = (&'a WorkerId, u64, u8, &'a [u64])>) -> Self {
        let mut names: Vec<(&WorkerId, u64)> = Vec::new();
        let mut wire = Vec::new();
        for (worker, epoch, claim, links) in records {
            // A frame is about a few workers, mostly the one of the record before.
            let at = names.iter().rposition(|known| *known == (worker, epoch));
            let at = at.unwrap_or_else(|| {
                names.push((worker, epoch));
                names.len() - 1
            });
            let links = links.iter().map(|link| link.to_le_bytes()).collect();
            wire.push((at as u32, claim, links));
        }
        let name = |(worker, epoch): (&WorkerId, u64)| (worker.to_string(), epoch);
        Self {
            workers: names.into_iter().map(name).collect(),
            records: wire,
        }
    }

    fn checked(self, refused: &mut usize) -> Result<Vec<Record>, FrameError> {
        if self.records.len() > BATCH_RECORDS_MAX || self.workers.len() > self.records.len() {
            return Err(FrameError::Value("number of evidence records"));
        }
        let workers = self.workers.into_iter().map(|(worker, epoch)| {
            let worker = worker.parse::<WorkerId>();
            Ok((worker.map_err(|_| FrameError::Value("worker id"))?, epoch))
        });
        let workers = workers.collect::<Result<Vec<_>, FrameError>>()?;
        let mut records = Vec::with_capacity(self.records.len());
        for (at, claim, links) in self.records {
            let named = workers.get(at as usize);
            let (worker, epoch) = named.ok_or(FrameError::Value("position of a worker"))?;
            if !(1..=LINKS_MAX).contains(&links.len()) {
                return Err(FrameError::Value("number of links"));
            }
            let (worker, epoch) = (worker.clone(), *epoch);
            let links = links.into_iter().map(u64::from_le_bytes).collect();
            let lack = match claim {
                claim::HOLDS => None,
                claim::FORGOT => Some(Lack::Forgotten),
                claim::NOT_COMPUTED => Some(Lack::NotComputed),
                _ => {
                    *refused += 1;
                    continue;
                }
            };
            records.push(match lack {
                None => Record::Evidence(Evidence {
                    worker,
                    epoch,
                    links,
                }),
                Some(lack) => Record::Retraction(Retraction {
                    worker,
                    epoch,
                    links,
                    lack,
                }),
            });
        }
        Ok(records)
    }
}

impl Body for Mark {
    type Wire = WireMark;

    fn to_wire(&self) -> WireMark {
        WireMark {
            first: self.first,
            next: self.next,
        }
    }

    fn from_wire(wire: WireMark, _: &mut usize) -> Result<Self, FrameError> {
        if wire.first > wire.next {
            return Err(FrameError::Value("mark"));
        }
        Ok(Self {
            first: wire.first,
            next: number(wire.next)?,
        })
    }
}

impl Body for Vec<Gap> {
    type Wire = WirePull;

    fn to_wire(&self) -> WirePull {
        let wire = |gap: &Gap| (gap.start, (gap.end - gap.start) as u32);
        WirePull(self.iter().map(wire).collect())
    }

    fn from_wire(WirePull(wire): WirePull, _: &mut usize) -> Result<Self, FrameError> {
        let wanted: u64 = wire.iter().map(|(_, len)| u64::from(*len)).sum();
        if wire.len() > PULL_BATCHES_MAX || wanted > PULL_BATCHES_MAX as u64 {
            return Err(FrameError::Value("number of batches asked for"));
        }
        let gap = |(start, len): (u64, u32)| {
            let start = number(start)?;
            Ok(Gap {
                start,
                end: start + u64::from(len),
            })
        };
        wire.into_iter().map(gap).collect()
    }
}

impl Body for EvidenceSnapshot {
    type Wire = WireSnapshot;

    fn to_wire(&self) -> WireSnapshot {
        let records = self.evidence.iter().map(|said| {
            (
                &said.worker,
                said.epoch,
                claim::HOLDS,
                said.links.as_slice(),
            )
        });
        let head = |head: &Head| (head.replica.to_string(), head.generation, head.next);
        WireSnapshot {
            records: WireRecords::collect(records),
            heads: self.heads.iter().map(head).collect(),
            last: self.last,
        }
    }

    fn from_wire(wire: WireSnapshot, refused: &mut usize) -> Result<Self, FrameError> {
        if wire.heads.len() > HEADS_MAX {
            return Err(FrameError::Value("number of heads"));
        }
        let head = |(id, generation, next): (String, u64, u64)| {
            Ok(Head {
                replica: replica(&id)?,
                generation,
                next: number(next)?,
            })
        };
        let heads = wire.heads.into_iter().map(head);
        let mut evidence = Vec::new();
        for record in wire.records.checked(refused)? {
            match record {
                Record::Evidence(said) => evidence.push(said),
                // A snapshot holds what workers have, not what they lack.
                Record::Retraction(_) => *refused += 1,
            }
        }
        Ok(Self {
            evidence,
            heads: heads.collect::<Result<_, FrameError>>()?,
            last: wire.last,
        })
    }
}

impl Body for HeatReport {
    type Wire = WireHeat;

    fn to_wire(&self) -> WireHeat {
        let count = |(link, count): &(u64, u32)| (link.to_le_bytes(), *count);
        WireHeat {
            version: self.version,
            total: self.total,
            counts: self.counts.iter().map(count).collect(),
        }
    }

    fn from_wire(wire: WireHeat, _: &mut usize) -> Result<Self, FrameError> {
        let count = |(link, count)| (u64::from_le_bytes(link), count);
        let report = Self {
            version: wire.version,
            counts: wire.counts.into_iter().map(count).collect(),
            total: wire.total,
        };
        if report.is_valid() {
            Ok(report)
        } else {
            Err(FrameError::Value("heat report"))
        }
    }
}

/// Batches are counted from 0: no honest replica gets beyond this, and sums stay in range.
fn number(number: u64) -> Result<u64, FrameError> {
    const NUMBER_MAX: u64 = 1 << 48;
    if number <= NUMBER_MAX {
        Ok(number)
    } else {
        Err(FrameError::Value("batch number"))
    }
}
