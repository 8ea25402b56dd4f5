//! Choosing a pair: a prefill worker by what it holds of the prompt, then a decode worker that can talk with it.

use std::borrow::Cow;
use std::sync::Arc;

use grapevine_gossip::worker::Role;
use grapevine_placement::NoWorker;
use grapevine_transfer::Half;
use tokio::time::Instant;

use super::computed::Computed;
use crate::cluster::{Cluster, Halves, Pool, RecordedPlacement};
use crate::proxy::dispatch::Dispatch;
use crate::proxy::division::blame::{self, Fault};
use crate::proxy::stages::asked::Asked;
use crate::proxy::stages::placed::Placed;
use crate::upstream::failure::Failure;
use crate::upstream::{InFlight, Worker};

/// Workers that an attempt is not to have, by index in the pools of the halves.
#[derive(Debug, Default)]
pub(super) struct Tried {
    pub(super) prefill: Vec<usize>,
    pub(super) decode: Vec<usize>,
}

/// One half of a request on its worker, before anything is sent there.
#[derive(Debug)]
pub(super) struct PlacedHalf {
    pub(super) placed: Box<Placed>,
    pub(super) recorded: Unsent,
    pub(super) half: Arc<Half>,
    /// Its place in the pool of its half.
    pub(super) index: usize,
}

/// What placement recorded of a half to which nothing is sent yet. It is taken back where nothing will be, also where the
/// client leaves while the prompt is computed: other replicas would believe that the decode worker has it.
#[derive(Debug)]
pub(super) struct Unsent {
    cluster: Arc<Cluster>,
    recorded: Option<RecordedPlacement>,
}

/// A request on a pair of workers.
#[derive(Debug)]
pub(in crate::proxy) struct Pair {
    pub(super) first: First,
    pub(super) decode: PlacedHalf,
}

/// The half that computes the prompt.
#[derive(Debug)]
pub(super) enum First {
    /// It is to be sent.
    ToSend(PlacedHalf),
    /// An attempt before has its answer, which no decode worker has seen.
    Computed(Computed),
}

/// A pair whose decode leg is on its way, by worker and index in its pool.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) prefill: (Arc<Worker>, usize),
    pub(super) decode: (Arc<Worker>, usize),
    pub(super) begun: Instant,
    /// See [`Evidence::before`](super::evidence::Evidence::before).
    pub(super) before: Option<bool>,
    /// The decode worker looks the blocks up in a store, and computes what is not there.
    pub(super) by_store: bool,
}

impl UnderWay {
    /// Whose fault it is if the KV does not come, as far as is known now.
    pub(super) fn fault(&self) -> Fault {
        match self.by_store {
            true => Fault::Decode,
            false => blame::of(&self.prefill.0, &self.decode.0, self.before),
        }
    }

    /// Whether a failure of its decode leg may be one of the transfer.
    pub(super) fn may_be_transfer(&self, failure: &Failure) -> bool {
        !self.by_store && blame::may_be_transfer(failure)
    }
}

impl PlacedHalf {
    pub(super) fn worker(&self) -> &Arc<Worker> {
        self.placed.worker()
    }
}

impl Unsent {
    /// Its leg is on its way.
    pub(super) fn sent(&mut self) -> Option<RecordedPlacement> {
        self.recorded.take()
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(recorded) = self.recorded.take() {
            self.cluster.cache_view().retract(recorded);
        }
    }
}

/// Chooses both. `kept`: a decode worker, by index, that is to have it again where it can.
/// Errors: no worker is left for this half, and why; nothing is held then.
pub(super) fn choose(
    asked: &Asked,
    dispatch: &Dispatch,
    halves: &Halves,
    tried: &mut Tried,
    kept: Option<usize>,
) -> Result<Pair, (Role, NoWorker)> {
    let mut without = Cow::Borrowed(halves.pairs.silent());
    let mut nobody = without_partner(asked, dispatch, halves, tried, &mut without);
    loop {
        let chosen = asked.choose_but(
            dispatch,
            &halves.prefill,
            &mut tried.prefill,
            &without,
            InFlight::begin,
        );
        let (placed, recorded) = match (chosen, nobody) {
            (Ok(chosen), _) => chosen,
            // One that has a partner may have room in a moment.
            (Err(NoWorker::Full), _) => return Err((Role::Prefill, NoWorker::Full)),
            (Err(_), Some(no_partner)) => {
                // The half that lacks a worker whatever its partners do is named first.
                let silent = halves.pairs.silent();
                let (cluster, prefill) = (&dispatch.cluster, &halves.prefill);
                let alone = cluster.preview(prefill, asked.key(), &tried.prefill, silent, true);
                return Err(match alone {
                    Ok(_) => (Role::Decode, no_partner),
                    Err(nobody) => (Role::Prefill, nobody),
                });
            }
            (Err(nobody), None) => return Err((Role::Prefill, nobody)),
        };
        let first = placed_half(dispatch, &halves.prefill, placed, recorded);
        let tried_decode = &mut tried.decode;
        match choose_decode(asked, dispatch, halves, (first.index, kept), tried_decode) {
            Ok(decode) => {
                let first = First::ToSend(first);
                return Ok(Pair { first, decode });
            }
            Err(no_partner) => {
                // It was not sent anything. Those with other partners may have one that is well.
                tried.prefill.pop();
                without.to_mut().extend(halves.pairs.alike(first.index));
                nobody = Some(nobody.map_or(no_partner, |before| before.and(no_partner)));
            }
        }
    }
}

/// Adds the prefill workers for which no decode worker is left, and says why there is none: for the first of them, unless
/// one may have room in a moment. So nothing is placed, counted and told to others that would be taken back at once, each
/// time that a request which waits for a decode worker looks for one.
fn without_partner(
    asked: &Asked,
    dispatch: &Dispatch,
    halves: &Halves,
    tried: &Tried,
    without: &mut Cow<'_, [usize]>,
) -> Option<NoWorker> {
    let (cluster, decode) = (&dispatch.cluster, &halves.decode);
    let other_ranks = asked.other_ranks(decode);
    let mut nobody = None;
    for &index in halves.pairs.classes() {
        if without.contains(&index) {
            continue;
        }
        let strangers = halves.pairs.passed_over(index).last().unwrap_or_default();
        let strangers = [strangers, &other_ranks].concat();
        let passed_over = [tried.decode.as_slice(), &strangers].concat();
        // Mostly the first one that is looked at is well and has room. Else a decision says whether one is used all the same.
        if cluster.has_another(decode, &passed_over) {
            continue;
        }
        if let Err(why) = cluster.preview(decode, asked.key(), &tried.decode, &strangers, true) {
            without.to_mut().extend(halves.pairs.alike(index));
            nobody = Some(nobody.map_or(why, |before: NoWorker| before.and(why)));
        }
    }
    nobody
}

/// Chooses the second half for a first one: in the same zone if there is one that is well and has room. A near one that is
/// a last resort is asked after those of other zones. Where its client names a rank, it is the rank that answers. The one
/// that is `kept` goes before all others, if it is well, has room and can talk to the first half.
/// Errors: no worker is left.
pub(super) fn choose_decode(
    asked: &Asked,
    dispatch: &Dispatch,
    halves: &Halves,
    (prefill, kept): (usize, Option<usize>),
    tried: &mut Vec<usize>,
) -> Result<PlacedHalf, NoWorker> {
    let (decode, before) = (&halves.decode, tried.len());
    let other_ranks = asked.other_ranks(decode);
    let mut choose = |strangers: &[usize]| {
        let strangers = match other_ranks.is_empty() {
            true => Cow::Borrowed(strangers),
            false => Cow::Owned([strangers, &other_ranks].concat()),
        };
        // One that a choice before this one has passed over or given back may be chosen again.
        tried.truncate(before);
        let begin = InFlight::begin_arriving;
        let chosen = asked.choose_but(dispatch, decode, tried, &strangers, begin);
        chosen.map(|(placed, recorded)| placed_half(dispatch, decode, placed, recorded))
    };
    if let Some(kept) = kept
        && !is_stranger(halves, prefill, kept)
    {
        let others = (0..decode.members().len()).filter(|index| *index != kept);
        let again = choose(&others.collect::<Vec<_>>());
        if again
            .as_ref()
            .is_ok_and(|again| !again.placed.is_last_resort())
        {
            return again;
        }
    }
    let mut passed_over = halves.pairs.passed_over(prefill);
    let near = choose(passed_over.next().unwrap_or_default());
    let Some(strangers) = passed_over.next() else {
        return near;
    };
    match near {
        Ok(near) if !near.placed.is_last_resort() => Ok(near),
        // Whatever was chosen is given back before the others are looked at.
        not_well => {
            drop(not_well);
            choose(strangers)
        }
    }
}

/// Whether a decode worker may be in no pair with this prefill worker.
fn is_stranger(halves: &Halves, prefill: usize, decode: usize) -> bool {
    let strangers = halves.pairs.passed_over(prefill).last();
    strangers.is_some_and(|strangers| strangers.contains(&decode))
}

fn placed_half(
    dispatch: &Dispatch,
    pool: &Pool,
    placed: Box<Placed>,
    recorded: Option<RecordedPlacement>,
) -> PlacedHalf {
    let index = placed.index();
    let half = pool.members()[index].half();
    PlacedHalf {
        half: Arc::clone(half.expect("a member of a half has facts of its own")),
        placed,
        recorded: Unsent {
            cluster: Arc::clone(&dispatch.cluster),
            recorded,
        },
        index,
    }
}
