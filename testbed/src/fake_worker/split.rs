//! A request's part in a split pair: keeping its blocks for another worker, or getting those of another one.

use std::sync::Arc;
use std::time::Duration;

use super::fault::KvFault;
use super::pacer::Ticket;
use super::request::Generation;
use super::transfer::{
    self, Asked, Give, Hold, HoldState, Parcel, Plan, Reader, Source, Store, plan,
};
use super::worker::{Rank, Transfer, Worker};
use crate::engine::{Kv, Progress, Sequence};

/// What one request does in the transfer.
pub(super) struct Split<'a> {
    worker: &'a Arc<Worker>,
    parsed: &'a Generation,
    rank: u32,
    pub(super) plan: Plan,
    engine_request_id: String,
    /// `x-request-id`.
    request_id: Option<&'a str>,
    fault: Option<KvFault>,
    /// Hashes of the prompts, one a sequence.
    contents: Vec<u64>,
}

/// Why a request that waited for blocks cannot go on.
pub(super) struct NoBlocks(pub(super) String);

/// What came for one sequence.
struct Arrived {
    content: u64,
    bytes: u64,
    seconds: f64,
}

impl<'a> Split<'a> {
    /// `engine_request_id` is the engine's name of the request.
    pub(super) fn new(
        worker: &'a Arc<Worker>,
        rank: u32,
        parsed: &'a Generation,
        request_id: Option<&'a str>,
        engine_request_id: String,
        fault: Option<KvFault>,
    ) -> Self {
        let asked = Asked {
            params: parsed.kv_transfer_params.as_ref(),
            bootstrap: &parsed.bootstrap,
            request_id: &engine_request_id,
        };
        let transfer = worker.transfer.as_ref();
        let plan = transfer.map_or(Plan::Alone, |transfer| plan(&transfer.config, &asked));
        Self {
            worker,
            parsed,
            rank,
            plan,
            engine_request_id,
            request_id,
            fault,
            contents: parsed.contents(),
        }
    }

    /// How the engine has to run these sequences.
    pub(super) fn kv(&self, sequences: &[Sequence]) -> Kv {
        match &self.plan {
            Plan::Give(Give { send_to: None, .. }) => Kv::Kept,
            Plan::Take(_) | Plan::Await(_) | Plan::Garbage | Plan::Hang => Kv::Remote,
            Plan::Stored => {
                let blocks = sequences.first().map_or(0, |first| self.stored(first));
                Kv::Stored(u32::try_from(blocks).unwrap_or(u32::MAX))
            }
            Plan::Give(_) | Plan::Alone | Plan::Crash(_) | Plan::Refused(_) => Kv::Local,
        }
    }

    /// It computes prompts for others and answers nobody.
    pub(super) fn only_gives(&self) -> bool {
        !self.transfer().config.role.takes()
    }

    /// Leading blocks of a prompt in the shared store, if this worker reads from it.
    fn stored(&self, sequence: &Sequence) -> usize {
        let config = &self.transfer().config;
        if !config.role.takes() {
            return 0;
        }
        self.store().matched(self.prompt_blocks(sequence))
    }

    fn store(&self) -> Store {
        Store::new(self.transfer().config.store.clone())
    }

    fn prompt_blocks<'s>(&self, sequence: &'s Sequence) -> &'s [u64] {
        let whole = sequence.prompt_tokens / self.worker.config.engine.block_tokens;
        &sequence.chain[..sequence.chain.len().min(whole as usize)]
    }

    /// Puts computed prompts into the shared store, if this worker writes to it.
    pub(super) fn save(&self, sequences: &[Sequence]) {
        if self.plan != Plan::Stored || !self.transfer().config.role.gives() {
            return;
        }
        for sequence in sequences {
            if let Err(e) = self.store().save(self.prompt_blocks(sequence)) {
                tracing::warn!("cannot write to the store: {e}");
            }
        }
    }

    /// Name under which the blocks of the pair are asked for.
    pub(super) fn key(&self) -> Option<&str> {
        match &self.plan {
            Plan::Give(Give { key, .. }) | Plan::Await(key) => Some(key),
            Plan::Take(source) => Some(&source.key),
            _ => None,
        }
    }

    /// Cached tokens that the answer reports in place of its own count.
    pub(super) fn prefill_cached(&self) -> Option<u32> {
        match &self.plan {
            Plan::Take(source) => source.prefill_cached,
            _ => None,
        }
    }

    fn transfer(&self) -> &'a Transfer {
        let transfer = self.worker.transfer.as_ref();
        transfer.expect("without a transfer every plan is to compute alone")
    }

    /// What a request that was admitted has to give back if its client leaves before it asks.
    pub(super) fn unclaimed(&self) -> Unclaimed {
        Unclaimed {
            worker: Arc::clone(self.worker),
            source: match &self.plan {
                Plan::Take(source) => Some(source.clone()),
                _ => None,
            },
        }
    }

    /// Waits until the keys and values of all sequences are here; returns at once if they are computed here. For each
    /// sequence, whether they are those of its own prompt.
    pub(super) async fn receive(
        &self,
        ticket: &mut Ticket,
        mut unclaimed: Unclaimed,
    ) -> Result<Vec<bool>, NoBlocks> {
        match &self.plan {
            Plan::Hang => std::future::pending().await,
            Plan::Take(_) | Plan::Await(_) | Plan::Garbage => {}
            _ => return Ok(vec![true; self.contents.len()]),
        }
        let rank: &Rank = &self.worker.ranks[self.rank as usize];
        let mut own = Vec::with_capacity(self.contents.len());
        for (index, content) in self.contents.iter().enumerate() {
            ticket.reserved(index).await;
            let arrived = self.arrive(&mut unclaimed).await;
            let mut received = rank.received();
            let arrived = arrived
                .inspect_err(|_| received.failed += 1)
                .map_err(NoBlocks)?;
            received.count += 1;
            received.bytes += arrived.bytes;
            received.seconds += arrived.seconds;
            own.push(arrived.content == *content);
            drop(received);
            ticket.arrived(index);
        }
        Ok(own)
    }

    /// One transfer, as the plan says.
    async fn arrive(&self, unclaimed: &mut Unclaimed) -> Result<Arrived, String> {
        let delay = match self.fault {
            Some(KvFault::SlowMs(ms)) => Duration::from_millis(ms),
            _ => Duration::ZERO,
        };
        let reader = reader(self.worker, self.transfer(), delay);
        let (content, fetched) = match &self.plan {
            Plan::Take(source) => {
                let asked = reader.ask(source).await;
                unclaimed.source = None;
                let fetch = asked?;
                (fetch.content, reader.receive(fetch).await?)
            }
            Plan::Await(key) => {
                let (parcel, fetched) = reader.await_parcel(key).await;
                (parcel.content, fetched)
            }
            // Whatever was in the blocks before: no prompt has this hash.
            _ => {
                return Ok(Arrived {
                    content: !self.contents[0],
                    bytes: 0,
                    seconds: 0.0,
                });
            }
        };
        Ok(Arrived {
            content,
            bytes: fetched.bytes,
            seconds: fetched.seconds,
        })
    }

    /// Keeps or sends the blocks of the ended sequences, if another worker is to have them; the JSON of the answer's
    /// `kv_transfer_params`. `at_length`: the answer ended by `max_tokens`.
    pub(super) fn give(&self, ticket: &mut Ticket, done: &[Progress], at_length: bool) -> String {
        let none = || "null".to_owned();
        let Plan::Give(give) = &self.plan else {
            return none();
        };
        if let Some(address) = &give.send_to {
            self.send(give, address);
            return none();
        }
        if give.at_length_only && !at_length {
            return none();
        }
        let answer = self.keep(give, ticket, done);
        let answer = match &self.fault {
            Some(KvFault::NoParams) => None,
            Some(KvFault::Params(json)) => Some(json.to_string()),
            _ => answer,
        };
        answer.unwrap_or_else(none)
    }

    fn keep(&self, give: &Give, ticket: &mut Ticket, done: &[Progress]) -> Option<String> {
        let transfer = self.transfer();
        let limit = match self.fault {
            Some(KvFault::ExpireMs(ms)) => Duration::from_millis(ms),
            _ => transfer.config.block_hold,
        };
        let mut answer = None;
        for (index, kept) in ticket.take_kept().into_iter().enumerate() {
            let hold = self.hold(give, index);
            if index == 0 {
                answer = transfer::answer(
                    &transfer.config,
                    transfer.side_channel.addr(),
                    &hold,
                    self.worker.config.data_parallel,
                    &self.engine_request_id,
                    done[0].cached_tokens,
                );
            }
            transfer.shelf.keep(hold, kept, limit);
        }
        answer
    }

    fn hold(&self, give: &Give, index: usize) -> Hold {
        let shelf = &self.transfer().shelf;
        let (tokens, blocks) = self.size(index);
        Hold {
            // Children of one request have ids of their own, which nobody is told.
            key: match index {
                0 => give.key.clone(),
                _ => format!("{index}_{}", give.key),
            },
            request_id: self.request_id.map(str::to_owned),
            engine_id: shelf.engine_id(self.rank),
            rank: self.rank,
            blocks: shelf.block_ids(blocks),
            tokens,
            content: self.contents[index],
            reader: give.reader.clone(),
            state: HoldState::Held,
        }
    }

    /// Tokens and blocks of the prompt of a sequence.
    fn size(&self, index: usize) -> (u32, u32) {
        let prompt = &self.parsed.prompts[index / self.parsed.choices as usize];
        let tokens = prompt.tokens();
        (
            tokens,
            tokens.div_ceil(self.worker.config.engine.block_tokens),
        )
    }

    fn send(&self, give: &Give, address: &str) {
        let parcel = Parcel {
            blocks: self.size(0).1,
            content: self.contents[0],
        };
        let limit = self.transfer().config.block_hold;
        let sent = transfer::send(address.to_owned(), give.key.clone(), parcel, limit);
        drop(tokio::spawn(sent));
    }

    /// Waits until the kept blocks were read, if the leg is answered only then.
    pub(super) async fn until_read(&self) -> Result<(), NoBlocks> {
        let Plan::Give(Give {
            key,
            until_read: true,
            ..
        }) = &self.plan
        else {
            return Ok(());
        };
        match self.transfer().shelf.gone(key).await {
            Some(HoldState::Read) => Ok(()),
            other => Err(NoBlocks(format!("nobody read the blocks: {other:?}"))),
        }
    }
}

fn reader<'a>(worker: &'a Worker, transfer: &'a Transfer, delay: Duration) -> Reader<'a> {
    Reader {
        config: &transfer.config,
        shelf: &transfer.shelf,
        address: transfer.side_channel.addr(),
        data_parallel: worker.config.data_parallel,
        block_tokens: worker.config.engine.block_tokens,
        speed: worker.config.speed,
        delay,
    }
}

/// Blocks that a request was told of and has not asked for. Dropped so, as when the client leaves while the request
/// waits, it tells the other side to free them: vLLM's decode side does that for a request that it never scheduled.
pub(super) struct Unclaimed {
    worker: Arc<Worker>,
    source: Option<Source>,
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let Some(source) = self.source.take() else {
            return;
        };
        let worker = Arc::clone(&self.worker);
        tokio::spawn(async move {
            if let Some(transfer) = &worker.transfer
                && let Err(why) = reader(&worker, transfer, Duration::ZERO).ask(&source).await
            {
                tracing::debug!("nobody to give blocks back to: {why}");
            }
        });
    }
}
