//! What a leg of a split pair does besides answering: its rank, its name in the log, and its ends without an answer.

use crate::engine::{Kv, Progress};
use crate::fake_worker::config::StopMode;
use crate::fake_worker::connection::Request;
use crate::fake_worker::fault::KvFault;
use crate::fake_worker::ledger::{Leg, Open};
use crate::fake_worker::pacer::Ticket;
use crate::fake_worker::reply::{Ended, Reply};
use crate::fake_worker::request::{ApiError, Generation};
use crate::fake_worker::split::NoBlocks;
use crate::fake_worker::transfer::Plan;
use crate::fake_worker::worker::Worker;

use super::Exchange;

/// The data-parallel rank that the request names, or else the idlest. A header that is no number is ignored (captured).
pub(super) fn rank(
    worker: &Worker,
    request: &Request,
    parsed: &Generation,
) -> Result<u32, ApiError> {
    let named = request.header("x-data-parallel-rank");
    let ranks = worker.ranks.len();
    let Some(named) = named.and_then(|text| text.trim().parse::<i64>().ok()) else {
        let room = parsed.bootstrap[2].as_u64();
        return Ok(match room.filter(|_| worker.follows_rooms()) {
            Some(room) => (room % ranks as u64) as u32,
            None => worker.idlest_rank(),
        });
    };
    match u32::try_from(named) {
        Ok(rank) if (rank as usize) < ranks => Ok(rank),
        _ => Err(ApiError::invalid(
            format!("data_parallel_rank {named} is out of range [0, {ranks})."),
            None,
        )),
    }
}

impl Exchange<'_> {
    pub(super) fn name_leg(&self, kv: Kv, entry: &Open) {
        entry.update(|entry| {
            entry.transfer_key = self.split.key().map(str::to_owned);
            entry.leg = match (&self.split.plan, kv) {
                (Plan::Give(_), _) => Some(Leg::Prefill),
                (Plan::Stored, _) if self.split.only_gives() => Some(Leg::Prefill),
                (_, Kv::Remote | Kv::Stored(1..)) => Some(Leg::Decode),
                _ => None,
            };
        });
    }

    /// The blocks of the other side did not come, or nobody took those of this side.
    pub(super) async fn no_blocks(
        &self,
        NoBlocks(why): NoBlocks,
        reply: &mut Reply<'_>,
        entry: &Open,
    ) -> Result<(), Ended> {
        entry.update(|entry| entry.transfer_error = Some(why));
        let error = ApiError::internal("Internal server error");
        self.fail(&error, reply).await
    }

    /// Sequences that got the keys and values of another prompt say something else.
    pub(super) fn garble(&mut self, own: &[bool]) {
        for (answer, own) in self.answers.iter_mut().zip(own) {
            if !own {
                *answer = answer.clone().garbled();
            }
        }
    }

    /// A check inside the engine failed: the request gets its error, and the engine ends, and with it the process.
    pub(super) async fn crash(
        &self,
        why: &'static str,
        reply: &mut Reply<'_>,
        entry: &Open,
    ) -> Result<(), Ended> {
        tracing::warn!("the engine ends: {why}");
        entry.update(|entry| entry.transfer_error = Some(why.to_owned()));
        let error = ApiError::engine_dead();
        let sent = self.fail(&error, reply).await;
        self.worker.terminate(StopMode::Exit);
        sent
    }

    /// Keeps the blocks of a prefill leg; what its answer says of them.
    pub(super) async fn give(
        &self,
        reply: &mut Reply<'_>,
        ticket: &mut Ticket,
        done: &[Progress],
    ) -> Result<Result<String, NoBlocks>, Ended> {
        let at_length = self.finish_reason() == "length";
        let params = self.split.give(ticket, done, at_length);
        match self.kv_fault {
            Some(KvFault::ExitComputed) => {
                self.worker.terminate(StopMode::Exit);
                // The connection ends with the worker.
                return std::future::pending().await;
            }
            Some(KvFault::HangComputed) => {
                return reply.unless_gone(std::future::pending()).await;
            }
            _ => {}
        }
        let read = reply.unless_gone(self.split.until_read()).await?;
        Ok(read.map(|()| params))
    }
}
