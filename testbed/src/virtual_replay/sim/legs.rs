//! The legs of a request on its workers: the prompt, the transfer, the answer.

use grapevine_gossip::load::Load;

use super::super::contender::Evidence;
use super::super::timed_engine::{Done, Job};
use super::{Event, Leg, Run};
use crate::engine::Kv;

impl Run<'_> {
    /// Sends a request to the worker that computes its prompt.
    pub(super) fn start(&mut self, now_us: u64, index: usize, worker: usize, is_divided: bool) {
        let request = &self.workload.requests[index];
        let job = if is_divided {
            Job {
                request: index,
                blocks: request.blocks.clone(),
                answer: Vec::new(),
                in_tokens: request.in_tokens,
                out_tokens: 1,
                kv: Kv::Kept,
            }
        } else {
            Job {
                request: index,
                blocks: request.blocks.clone(),
                answer: request.answer.clone(),
                in_tokens: request.in_tokens,
                out_tokens: request.out_tokens,
                kv: Kv::Local,
            }
        };
        let next = self.engines[worker].submit(now_us, job);
        self.follow(now_us, worker, next);
    }

    /// The prompt is computed: the decode worker gets the request.
    fn decode(&mut self, now_us: u64, index: usize) {
        let request = &self.workload.requests[index];
        let placed = self.placed[index].as_ref().expect("it was placed");
        let worker = placed.decode.as_ref().expect("it is divided").worker;
        let job = Job {
            request: index,
            blocks: request.blocks.clone(),
            answer: request.answer.clone(),
            in_tokens: request.in_tokens,
            out_tokens: request.out_tokens,
            kv: Kv::Remote,
        };
        let next = self.engines[worker].submit(now_us, job);
        self.follow(now_us, worker, next);
    }

    /// Something changed on a worker, whose step ends at `next` if that changed, too: transfers for which it has blocks
    /// begin.
    pub(super) fn follow(&mut self, now_us: u64, worker: usize, next: Option<u64>) {
        if let Some(next) = next {
            self.push(next, Event::Step(worker));
        }
        if let Some(heard) = &mut self.heard {
            heard.publish(now_us, worker, self.engines[worker].take_changes());
        }
        let Some(split) = self.scenario.split else {
            return;
        };
        for (index, tokens) in self.engines[worker].take_reserved() {
            let placed = self.placed[index].as_ref().expect("it was placed");
            let from = placed.compute.worker;
            let at_us = self
                .ports
                .transfer(now_us, &split.link, from, worker, tokens);
            self.meter.transferred(index, tokens);
            self.push(at_us, Event::Transferred(index));
        }
    }

    /// The decode worker has read the prompt's keys and values.
    pub(super) fn transferred(&mut self, now_us: u64, index: usize) {
        let placed = self.placed[index].as_ref().expect("it was placed");
        let from = placed.compute.worker;
        let to = placed.decode.as_ref().expect("it is divided").worker;
        let next = self.engines[from].free(now_us, index);
        self.follow(now_us, from, next);
        let next = self.engines[to].arrived(now_us, index);
        self.follow(now_us, to, next);
    }

    /// A worker's step is over.
    pub(super) fn step(&mut self, now_us: u64, worker: usize, done: &mut Vec<Done>) {
        let next = self.engines[worker].advance(now_us, done, &mut self.meter.gaps);
        self.follow(now_us, worker, next);
        for done in done.drain(..) {
            match done {
                Done::First { request, cached } => self.first(now_us, worker, request, cached),
                Done::Last { request } => self.last(now_us, worker, request),
            }
        }
    }

    fn first(&mut self, now_us: u64, worker: usize, index: usize, cached: u32) {
        let placed = self.placed[index].as_mut().expect("it was placed");
        let (replica, us) = (placed.replica, now_us - placed.arrived_us);
        let is_prefill = placed.is_prefill(worker);
        if placed.compute.worker == worker {
            let leg = &mut placed.compute;
            leg.cached = cached;
            let waited = Load {
                prefill_tokens: std::mem::take(&mut leg.load.prefill_tokens),
                ..Load::default()
            };
            let before = leg.tokens_before;
            self.pools.answered(replica, worker, before, us);
            let next = self
                .news
                .change(now_us, replica, worker, |cell| cell.subtract(waited));
            self.tick_at(next, replica);
            if let Some(heard) = &mut self.heard {
                heard.computed(now_us, replica, &self.workload.requests[index]);
            }
        }
        if is_prefill || index < self.warm {
            return;
        }
        let placed = self.placed[index].as_mut().expect("it was placed");
        placed.first_us = now_us;
        let request = &self.workload.requests[index];
        let limit_us =
            self.scenario.limit_us + self.scenario.limit_token_us * u64::from(request.in_tokens);
        placed.in_time = us <= limit_us;
        let cached = placed.compute.cached;
        self.meter
            .first_token(us, request.in_tokens, cached, limit_us);
    }

    fn last(&mut self, now_us: u64, worker: usize, index: usize) {
        let placed = self.placed[index].as_ref().expect("it was placed");
        if placed.is_prefill(worker) {
            let (replica, leg) = (placed.replica, placed.compute.clone());
            self.leave(now_us, replica, &leg);
            self.correct(now_us, replica, &leg);
            self.decode(now_us, index);
            return;
        }
        let placed = self.placed[index].take().expect("it was placed");
        let replica = placed.replica;
        if let Some(heard) = &mut self.heard {
            heard.answered(now_us, replica, &self.workload.requests[index]);
        }
        match &placed.decode {
            // What the engine reports as cached there contains what was transferred: nothing to correct by.
            Some(leg) => self.leave(now_us, replica, leg),
            None => {
                self.leave(now_us, replica, &placed.compute);
                self.correct(now_us, replica, &placed.compute);
            }
        }
        if index >= self.warm {
            let tokens = self.workload.requests[index].out_tokens;
            let us = now_us - placed.first_us;
            self.meter.ended(index, us, tokens, placed.in_time);
        }
        if let Some(next) = self.followers[index] {
            let gap_us = self.workload.requests[next].gap_us;
            self.push(now_us + gap_us, Event::Arrive(next));
        }
        self.left -= 1;
    }

    /// A leg ended: its load is gone.
    fn leave(&mut self, now_us: u64, replica: usize, leg: &Leg) {
        let next = self
            .news
            .change(now_us, replica, leg.worker, |cell| cell.subtract(leg.load));
        self.tick_at(next, replica);
    }

    /// The answer says how much of the prompt was cached.
    fn correct(&mut self, now_us: u64, replica: usize, leg: &Leg) {
        if self.shared.evidence == Evidence::Off {
            return;
        }
        let gone =
            self.replicas[replica].correct(leg.worker, &leg.recorded, leg.expected, leg.cached);
        if matches!(self.shared.evidence, Evidence::All | Evidence::Deviating) {
            self.tell(now_us, replica, leg.worker, gone, true);
        }
    }
}
