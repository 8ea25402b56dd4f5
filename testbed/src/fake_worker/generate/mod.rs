//! Chat, completions and embeddings: from a request body to the last byte of its reply.

mod leg;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::timeout;

use crate::engine::{Progress, Refusal, Sequence};
use crate::fake_worker::body::{self, Bodies, Usage};
use crate::fake_worker::connection::Request;
use crate::fake_worker::fault::KvFault;
use crate::fake_worker::ledger::Open;
use crate::fake_worker::messages;
use crate::fake_worker::pacer::Ticket;
use crate::fake_worker::prompt::Answer;
use crate::fake_worker::reply::{Ended, JSON, Reply};
use crate::fake_worker::request::{ApiError, Generation, Kind, Rules};
use crate::fake_worker::split::Split;
use crate::fake_worker::transfer::{Give, Plan};
use crate::fake_worker::worker::{Rank, Worker};

/// Serves one inference request.
pub(super) async fn serve(
    worker: &Arc<Worker>,
    kind: Kind,
    request: &Request,
    reply: &mut Reply<'_>,
    entry: &Open,
) -> Result<(), Ended> {
    if worker.is_stopping() {
        let error = ApiError::internal("cannot schedule new futures after shutdown");
        return refuse(reply, &error).await;
    }
    let rules = Rules {
        models: &worker.config.models,
        model_len: worker.config.model_len(),
        answer_tokens: worker.config.answer_tokens,
    };
    let content_type = request.header("content-type");
    let parsed = match Generation::parse(kind, content_type, &request.body, &rules) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(reply, &error).await,
    };
    entry.update(|entry| {
        entry.prompt_tokens = u64::from(parsed.prompt_tokens()) * u64::from(parsed.choices);
    });
    let rank = match leg::rank(worker, request, &parsed) {
        Ok(rank) => rank,
        Err(error) => return refuse(reply, &error).await,
    };
    entry.update(|entry| entry.rank = rank);
    let fault = reply.fault().kv.clone();
    Exchange::new(worker, &parsed, request, rank, fault)
        .run(reply, entry)
        .await
}

async fn refuse(reply: &mut Reply<'_>, error: &ApiError) -> Result<(), Ended> {
    reply
        .plain(error.status, JSON, body::error(error).as_bytes())
        .await
}

/// What a client hears of a full engine.
pub(super) fn overloaded(refusal: Refusal) -> ApiError {
    ApiError::unavailable(match refusal {
        Refusal::Requests => {
            "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
        }
        Refusal::Tokens => {
            "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."
        }
    })
}

/// One accepted request while it is being answered.
struct Exchange<'a> {
    worker: &'a Arc<Worker>,
    request: &'a Generation,
    id: String,
    created: u64,
    /// One for each sequence: prompts in order, choices of a prompt next to each other.
    answers: Vec<Answer>,
    /// Length of each answer.
    answer_tokens: u32,
    /// Wanted form of the `endpoint-load-metrics` header.
    load_format: Option<&'a str>,
    /// What its KV events are to say.
    session: Option<&'a str>,
    rank: &'a Rank,
    split: Split<'a>,
    kv_fault: Option<KvFault>,
}

/// What was sent of one choice, and the rest of its answer.
struct Sent {
    tokens: u32,
    rest: Answer,
}

impl Sent {
    fn nothing(answer: &Answer) -> Self {
        Self {
            tokens: 0,
            rest: answer.clone(),
        }
    }
}

impl<'a> Exchange<'a> {
    fn new(
        worker: &'a Arc<Worker>,
        parsed: &'a Generation,
        request: &'a Request,
        rank: u32,
        kv_fault: Option<KvFault>,
    ) -> Self {
        let prefix = match parsed.kind {
            Kind::Chat | Kind::Messages => "chatcmpl",
            Kind::Completion => "cmpl",
            Kind::Embedding => "embd",
        };
        let id = match request.header("x-request-id") {
            Some(id) => format!("{prefix}-{id}"),
            None => format!("{prefix}-{:016x}", rand::random::<u64>()),
        };
        let mut answers: Vec<Answer> = parsed
            .prompts
            .iter()
            .flat_map(|prompt| (0..parsed.choices).map(|choice| prompt.answer(choice)))
            .collect();
        if let Some(first) = answers.first_mut() {
            *first = first.clone().beginning_with(&parsed.given_answer);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let named = request.header("x-request-id");
        let engine_id = format!("{id}-{:08x}", rand::random::<u32>());
        let split = Split::new(worker, rank, parsed, named, engine_id, kv_fault.clone());
        // SGLang's prefill stops by itself after one token.
        let stops = matches!(
            split.plan,
            Plan::Give(Give {
                until_read: true,
                ..
            })
        );
        Self {
            answer_tokens: if stops { 1 } else { parsed.answer_tokens },
            rank: &worker.ranks[rank as usize],
            split,
            kv_fault,
            worker,
            request: parsed,
            id,
            created: now.unwrap_or_default().as_secs(),
            answers,
            load_format: request.header("endpoint-load-metrics-format"),
            session: request.header("x-session-id"),
        }
    }

    fn bodies(&self) -> Bodies<'_> {
        Bodies {
            request: self.request,
            id: &self.id,
            created: self.created,
        }
    }

    async fn run(mut self, reply: &mut Reply<'_>, entry: &Open) -> Result<(), Ended> {
        // As in vLLM: the head of a stream is sent before the request is admitted.
        if self.request.stream {
            reply.begin_stream().await?;
        }
        match &self.split.plan {
            Plan::Crash(why) => return self.crash(why, reply, entry).await,
            Plan::Refused(why) => {
                return self
                    .fail(&ApiError::invalid(why.clone(), None), reply)
                    .await;
            }
            _ => {}
        }
        let sequences = self.sequences();
        let kv = self.split.kv(&sequences);
        let ticket = self
            .rank
            .pacer
            .submit_of(self.session, sequences.clone(), kv);
        let mut ticket = match ticket {
            Ok(ticket) => ticket,
            Err(refusal) => return self.overloaded(refusal, reply).await,
        };
        self.name_leg(kv, entry);
        // Made here: of a client that is gone already nothing below is begun.
        let unclaimed = self.split.unclaimed();
        let received = self.split.receive(&mut ticket, unclaimed);
        match reply.unless_gone(received).await? {
            Ok(own) => self.garble(&own),
            Err(why) => return self.no_blocks(why, reply, entry).await,
        }
        let outcome = if self.request.stream {
            self.stream(reply, &mut ticket, entry).await
        } else {
            self.plain(reply, &mut ticket, entry).await
        };
        self.split.save(&sequences);
        let progress = ticket.now();
        entry.update(|entry| {
            entry.tokens = progress.iter().map(|p| u64::from(p.produced)).sum();
            entry.cached_tokens = progress.iter().map(|p| u64::from(p.cached_tokens)).sum();
            entry.external_tokens = progress.iter().map(|p| u64::from(p.external_tokens)).sum();
        });
        outcome
    }

    /// An error after the head of a stream is an event.
    async fn fail(&self, error: &ApiError, reply: &mut Reply<'_>) -> Result<(), Ended> {
        if !self.request.stream {
            return refuse(reply, error).await;
        }
        if self.request.kind == Kind::Messages {
            let (name, data) = messages::error_event(error);
            reply.named_event(name, &data).await?;
            return reply.end_named().await;
        }
        reply.event(&body::error_event(error)).await?;
        reply.end_stream().await
    }

    fn sequences(&self) -> Vec<Sequence> {
        let block_tokens = self.worker.config.engine.block_tokens;
        let answer_tokens = self.answer_tokens;
        let sequence = |(index, answer): (usize, &Answer)| {
            let prompt = &self.request.prompts[index / self.request.choices as usize];
            Sequence {
                id: 0,
                chain: prompt.chain(
                    &self.request.salt,
                    answer.clone(),
                    answer_tokens,
                    block_tokens,
                ),
                prompt_tokens: prompt.tokens(),
                answer_tokens,
            }
        };
        self.answers.iter().enumerate().map(sequence).collect()
    }

    async fn overloaded(&self, refusal: Refusal, reply: &mut Reply<'_>) -> Result<(), Ended> {
        self.fail(&overloaded(refusal), reply).await
    }

    async fn plain(
        &self,
        reply: &mut Reply<'_>,
        ticket: &mut Ticket,
        entry: &Open,
    ) -> Result<(), Ended> {
        let done = reply.unless_gone(ticket.done()).await?;
        self.finished();
        let params = match self.give(reply, ticket, &done).await? {
            Ok(params) => params,
            Err(why) => return self.no_blocks(why, reply, entry).await,
        };
        let usage = self.usage(&done);
        let body = if self.request.kind == Kind::Embedding {
            self.bodies().embeddings(usage)
        } else {
            let texts = self.answers.iter().zip(&done);
            let texts: Vec<String> = texts
                .map(|(answer, p)| answer.clone().text(p.produced))
                .collect();
            let (bodies, finish) = (self.bodies(), self.finish_reason());
            match self.request.kind {
                Kind::Messages => bodies.whole_message(&texts.concat(), finish, usage, &params),
                _ => bodies.plain(&texts, finish, usage, &params),
            }
        };
        if let Some(format) = self.load_format {
            reply.header("endpoint-load-metrics", &self.load_report(format));
        }
        reply.plain(200, JSON, body.as_bytes()).await
    }

    async fn stream(
        &self,
        reply: &mut Reply<'_>,
        ticket: &mut Ticket,
        entry: &Open,
    ) -> Result<(), Ended> {
        let mut sent: Vec<Sent> = self.answers.iter().map(Sent::nothing).collect();
        let mut open = self.answers.len();
        let mut now = Vec::new();
        while open > 0 {
            self.next_progress(reply, ticket).await?;
            now = ticket.now();
            for (index, progress) in now.iter().enumerate() {
                open -= self
                    .catch_up(reply, index, progress, &mut sent[index])
                    .await?;
            }
        }
        self.finished();
        if let Err(why) = self.give(reply, ticket, &now).await? {
            return self.no_blocks(why, reply, entry).await;
        }
        if self.request.kind == Kind::Messages {
            for (name, data) in messages::end(self.finish_reason(), self.usage(&now)) {
                reply.named_event(name, &data).await?;
            }
            return reply.end_named().await;
        }
        if self.request.include_usage {
            reply
                .event(&self.bodies().usage_event(self.usage(&now)))
                .await?;
        }
        reply.end_stream().await
    }

    /// Waits for progress; sends keep-alive comments meanwhile if so configured.
    async fn next_progress(&self, reply: &mut Reply<'_>, ticket: &mut Ticket) -> Result<(), Ended> {
        let silence = self.worker.config.sse_keep_alive.unwrap_or(Duration::MAX);
        loop {
            let changed = timeout(silence, ticket.changed());
            match reply.unless_gone(changed).await? {
                Ok(()) => return Ok(()),
                Err(_) => reply.comment().await?,
            }
        }
    }

    /// Sends the tokens of one choice that are new; returns 1 when it ended with them.
    async fn catch_up(
        &self,
        reply: &mut Reply<'_>,
        index: usize,
        progress: &Progress,
        sent: &mut Sent,
    ) -> Result<usize, Ended> {
        let before = sent.tokens;
        while sent.tokens < progress.produced {
            let usage = |completion| Usage {
                completion,
                ..self.usage(std::slice::from_ref(progress))
            };
            if sent.tokens == 0 {
                self.begin(reply, index, usage(0)).await?;
            }
            let last = sent.tokens + 1 == self.answer_tokens;
            let finish = last.then(|| self.finish_reason());
            let token = sent.rest.next_token();
            if self.request.kind == Kind::Messages {
                let (name, data) = messages::delta(&token);
                reply.named_event(name, &data).await?;
            } else {
                let usage = usage(sent.tokens + 1);
                let event = self.bodies().token_event(index, &token, finish, usage);
                reply.event(&event).await?;
            }
            reply.token_sent();
            sent.tokens += 1;
        }
        Ok(usize::from(progress.done && sent.tokens > before))
    }

    /// What comes before the first token of a choice.
    async fn begin(&self, reply: &mut Reply<'_>, index: usize, usage: Usage) -> Result<(), Ended> {
        match self.request.kind {
            Kind::Chat => reply.event(&self.bodies().role_event(index, usage)).await,
            Kind::Messages => {
                for (name, data) in self.bodies().message_begins(usage.prompt) {
                    reply.named_event(name, &data).await?;
                }
                Ok(())
            }
            Kind::Completion | Kind::Embedding => Ok(()),
        }
    }

    fn finish_reason(&self) -> &'static str {
        if self.request.cut_by_length {
            "length"
        } else {
            "stop"
        }
    }

    fn finished(&self) {
        let counter = match self.finish_reason() {
            "length" => &self.rank.finished_by_length,
            _ => &self.rank.finished_by_stop,
        };
        counter.fetch_add(self.answers.len() as u64, Ordering::Relaxed);
    }

    fn usage(&self, progress: &[Progress]) -> Usage {
        let block = self.worker.config.engine.block_tokens;
        let whole = |tokens: u32| tokens / block * block;
        let prompts = &self.request.prompts;
        let cached = progress.iter().map(|p| p.cached_tokens + p.external_tokens);
        let cached: u32 = cached.sum();
        Usage {
            prompt: self.request.prompt_tokens(),
            completion: progress.iter().map(|p| p.produced).sum(),
            cached: self.split.prefill_cached().unwrap_or(cached),
            created: prompts
                .iter()
                .map(|prompt| whole(prompt.tokens()))
                .sum::<u32>()
                .saturating_sub(cached),
        }
    }

    /// The reply header that vLLM adds on request (JSON or TEXT).
    fn load_report(&self, format: &str) -> String {
        let gauges = self.rank.pacer.gauges();
        let (waiting, usage) = (gauges.waiting as f64, gauges.cache_usage);
        if format.eq_ignore_ascii_case("json") {
            format!(
                r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting:?}, "kv_cache_usage_perc": {usage:?}}}}}"#
            )
        } else {
            format!(
                "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
            )
        }
    }
}
