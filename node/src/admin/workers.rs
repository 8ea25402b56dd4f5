//! Adding, changing, draining and removing workers, through any replica, for all of them.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use grapevine_gossip::view::View;
use grapevine_gossip::worker::{Labels, RawWorker, Source, State, WorkerId, WorkerSpec};
use grapevine_gossip::{Ack, ChangeError};
use http::StatusCode;
use serde::Serialize;

use super::answer::{Answer, json, not_found};
use super::page::Page;
use super::since::Since;
use super::taken_away::taken_away;
use super::wanted::{New, Wanted, WantedState, wrong_worker};
use super::{Admin, body};
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::cluster::{refuse_own_metrics, refuse_replica};
use crate::upstream::address::Address;
use crate::warmup::WARMED_TOGETHER_MAX;

/// Longest wait for a fleet that has all workers of the registry; one is made within a third of it.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(1);

/// What became of a list of new workers.
#[derive(Debug, Serialize)]
struct Added {
    #[serde(flatten)]
    reach: Reach,
    workers: Vec<AddedWorker>,
}

#[derive(Debug, Serialize)]
struct AddedWorker {
    id: String,
    state: &'static str,
    #[serde(flatten)]
    since: Since,
}

/// What became of a change.
#[derive(Debug, Serialize)]
struct Changed {
    id: String,
    #[serde(flatten)]
    reach: Reach,
    /// `active`, `draining`, or `warming` until its warm-up has ended; absent for a removed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(flatten)]
    since: Since,
}

/// How far a change went; nothing where there was nothing to send, since the registry had it.
#[derive(Debug, Serialize)]
struct Reach {
    /// Live peers that have all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed_by: Option<usize>,
    /// False: this replica alone knows it, because it is alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    replicated: Option<bool>,
}

impl From<&Ack> for Reach {
    fn from(ack: &Ack) -> Self {
        Self {
            confirmed_by: ack.written.then_some(ack.confirmed_by),
            replicated: ack.written.then_some(ack.replicated),
        }
    }
}

/// How new workers join.
#[derive(Debug, Clone, Copy)]
struct Joins {
    /// The caller leaves a warm-up to us.
    warm_up: bool,
    /// They are few enough for it. Those whose warm-up goes on already are none more.
    may_begin: bool,
}

pub(super) fn wrong_change(error: &ChangeError) -> ApiError {
    let kind = if error.is_temporary() {
        ErrorKind::Overloaded
    } else {
        ErrorKind::NotFound
    };
    ApiError::new(kind, error.to_string())
}

fn changed(
    status: StatusCode,
    id: &WorkerId,
    ack: &Ack,
    state: Option<State>,
    since: Since,
) -> Answer {
    let body = Changed {
        id: id.to_string(),
        reach: Reach::from(ack),
        state: state.map(State::as_str),
        since,
    };
    json(status, &body)
}

impl Admin {
    /// One worker, or a list of them: all are added, or none.
    pub(super) async fn add_worker(&self, warm_up: bool, body: &[u8]) -> Result<Answer, ApiError> {
        if body.trim_ascii_start().starts_with(b"[") {
            return self.add_workers(warm_up, body).await;
        }
        let new = body::parse::<Wanted>(body)?.into_new()?;
        self.put(StatusCode::CREATED, new, warm_up).await
    }

    /// One change for all of them, so that they cost every replica one ring and not one each.
    async fn add_workers(&self, warm_up: bool, body: &[u8]) -> Result<Answer, ApiError> {
        let wanted: Vec<Wanted> = body::parse(body)?;
        if wanted.is_empty() {
            return Err(ApiError::invalid("workers", "the list has no workers"));
        }
        let joins = Joins {
            warm_up,
            may_begin: wanted.len() <= WARMED_TOGETHER_MAX,
        };
        let (mut workers, mut ids) = (Vec::with_capacity(wanted.len()), BTreeSet::new());
        let mut labelled = Vec::new();
        for (index, wanted) in wanted.into_iter().enumerate() {
            let of_item = |error: ApiError| error.within(&format!("workers[{index}]"));
            let New { id, raw, labels } = wanted.into_new().map_err(of_item)?;
            let (id, spec) = self.prepared(id, raw).map_err(of_item)?;
            self.may_have(&id, &labels).map_err(of_item)?;
            if !ids.insert(id.clone()) {
                let twice = ApiError::invalid("id", format!("{id} is in the list twice"));
                return Err(of_item(twice));
            }
            if !labels.is_empty() {
                labelled.push((id.clone(), labels));
            }
            workers.push((id, spec));
        }
        let _turns = self.turns.of(&ids).await;
        for (id, spec) in &mut workers {
            *spec = self.joining(id, spec.clone(), joins)?;
        }
        let written: Vec<(WorkerId, State)> = workers
            .iter()
            .map(|(id, spec)| (id.clone(), spec.state()))
            .collect();
        let before = self.as_it_is(&ids);
        let ack = self.declare(workers, labelled).await?;
        self.catches_up().await;
        let added = written.into_iter().map(|(id, written)| AddedWorker {
            since: self.since(&before, &id),
            state: self.state_of(&id).unwrap_or(written).as_str(),
            id: id.to_string(),
        });
        let added: Vec<_> = added.collect();
        tracing::info!(
            workers = added.len(),
            confirmed_by = ack.confirmed_by,
            "workers added or changed"
        );
        let body = Added {
            reach: Reach::from(&ack),
            workers: added,
        };
        Ok(json(StatusCode::CREATED, &body))
    }

    /// vllm-router's way: a URL and nothing else.
    pub(super) async fn add_worker_at(
        &self,
        warm_up: bool,
        url: String,
    ) -> Result<Answer, ApiError> {
        let new = New {
            id: None,
            raw: RawWorker::at(url),
            labels: Labels::default(),
        };
        self.put(StatusCode::OK, new, warm_up).await
    }

    async fn put(&self, status: StatusCode, new: New, warm_up: bool) -> Result<Answer, ApiError> {
        let New { id, raw, labels } = new;
        let (id, spec) = self.prepared(id, raw)?;
        let _turn = self.turns.of([&id]).await;
        let joins = Joins {
            warm_up,
            may_begin: true,
        };
        let spec = self.joining(&id, spec, joins)?;
        self.write(status, id, spec, labels).await
    }

    /// Of a worker whose turn it is.
    async fn write(
        &self,
        status: StatusCode,
        id: WorkerId,
        spec: WorkerSpec,
        labels: Labels,
    ) -> Result<Answer, ApiError> {
        self.may_have(&id, &labels)?;
        let written = spec.state();
        let before = self.as_it_is([&id]);
        let labels = Some((id.clone(), labels)).filter(|(_, labels)| !labels.is_empty());
        let ack = self
            .declare(vec![(id.clone(), spec)], labels.into_iter().collect())
            .await?;
        self.catches_up().await;
        let since = self.since(&before, &id);
        let state = self.state_of(&id).unwrap_or(written);
        // A change that changes nothing is not logged.
        if !since.unchanged {
            tracing::info!(
                worker = id.as_str(),
                confirmed_by = ack.confirmed_by,
                state = state.as_str(),
                changes = since.changes.join("; "),
                "worker added or changed"
            );
        }
        Ok(changed(status, &id, &ack, Some(state), since))
    }

    /// In which state it is now, be it by somebody else's change.
    fn state_of(&self, id: &WorkerId) -> Option<State> {
        let view = self.agent.view();
        view.worker(id).map(|worker| worker.spec.state())
    }

    /// Whether these labels fit beside those that the worker has.
    pub(super) fn may_have(&self, id: &WorkerId, labels: &Labels) -> Result<(), ApiError> {
        let view = self.agent.view();
        let Some(worker) = view.worker(id) else {
            return Ok(());
        };
        let fit = worker.labels.overlaid_with(labels);
        fit.map(drop).map_err(|error| wrong_worker(&error))
    }

    /// What an administrator has declared of a worker whose warm-up goes on.
    fn being_warmed(&self, view: &View, id: &WorkerId) -> Option<WorkerSpec> {
        let known = view.worker(id)?;
        let is_warming = matches!(known.spec.state(), State::Warming { .. });
        let is_admins = self.agent.sources_of(id).first() == Some(&Source::Admin);
        let mut raw = known.spec.to_raw();
        if known.models_are_learned {
            raw.models.clear();
        }
        WorkerSpec::new(raw)
            .ok()
            .filter(|_| is_warming && is_admins)
    }

    async fn declare(
        &self,
        mut workers: Vec<(WorkerId, WorkerSpec)>,
        labels: Vec<(WorkerId, Labels)>,
    ) -> Result<Ack, ApiError> {
        // Said again, as by a script that tries again, it would be another description, and end the warm-up.
        let view = self.agent.view();
        workers.retain(|(id, spec)| {
            let known = self.being_warmed(&view, id);
            known.as_ref() != Some(spec)
        });
        let declared = self.agent.declare(Source::Admin, workers, labels).await;
        let declared = declared.map_err(|error| wrong_change(&error))?;
        match declared.unlabelled.first() {
            None => Ok(declared.ack),
            Some((_, error)) => Err(wrong_change(error)),
        }
    }

    /// A worker as it is to be written: checked, and allowed here.
    pub(super) fn prepared(
        &self,
        id: Option<String>,
        raw: RawWorker,
    ) -> Result<(WorkerId, WorkerSpec), ApiError> {
        let spec = WorkerSpec::new(raw).map_err(|error| wrong_worker(&error))?;
        let wrong_url = |error: &dyn Display| ApiError::invalid("url", error.to_string());
        Address::of(&spec).map_err(|error| wrong_url(&error))?;
        let id = match id {
            Some(id) => id.parse().map_err(|error| wrong_worker(&error))?,
            None => spec.default_id(),
        };
        // A worker that another replica allows can still be drained or changed here.
        let view = self.agent.view();
        let known = view.worker(&id).is_some_and(|w| w.spec.url() == spec.url());
        if !known {
            let allowed = self.connector.allow().host(spec.url().host());
            allowed.map_err(|error| wrong_url(&error))?;
            let metrics = self.configured.now().metrics_at.clone();
            refuse_replica(&view, &spec)
                .and_then(|()| refuse_own_metrics(self.agent.replica(), metrics.as_deref(), &spec))
                .map_err(|error| wrong_url(&error))?;
        }
        Ok((id, spec))
    }

    /// The worker, whose turn it is, with the state in which it joins.
    fn joining(
        &self,
        id: &WorkerId,
        spec: WorkerSpec,
        joins: Joins,
    ) -> Result<WorkerSpec, ApiError> {
        if !joins.warm_up {
            return Ok(spec);
        }
        let known = self.being_warmed(&self.agent.view(), id);
        if let Some(known) = known.filter(|known| known.is_as_wanted(&spec)) {
            return Ok(known);
        }
        if !joins.may_begin {
            return Ok(spec);
        }
        let mut raw = spec.to_raw();
        raw.state = self.warm_ups.joining_state(id, &spec);
        WorkerSpec::new(raw).map_err(|error| wrong_worker(&error))
    }

    /// `?limit=` of them after the id `?after=`, in order of their ids.
    pub(super) async fn list_workers(&self, page: &Page) -> Answer {
        self.catches_up().await;
        json(StatusCode::OK, &self.describe_workers(page))
    }

    /// Fleets are made a moment after the registry has changed: a client that was answered finds its change, and
    /// whoever drained a worker here sees no later choice of it.
    async fn catches_up(&self) {
        let latest = || self.agent.view();
        self.cluster.catches_up(latest, FOLLOWS_WITHIN).await;
    }

    pub(super) async fn show_worker(&self, id: &str) -> Result<Answer, ApiError> {
        self.catches_up().await;
        let fleet = self.cluster.fleet();
        let worker = fleet.workers().find(|worker| worker.id.as_str() == id);
        worker
            .and_then(|worker| {
                let mut described = self.describe_worker(worker)?;
                let open = self.agent.in_flight_at(&worker.id).into_iter();
                described.in_flight_at =
                    Some(open.map(|(id, count)| (id.to_string(), count)).collect());
                Some(json(StatusCode::OK, &described))
            })
            .ok_or_else(|| not_found("no worker with this id; GET /workers lists them"))
    }

    pub(super) async fn change_worker(&self, id: &str, body: &[u8]) -> Result<Answer, ApiError> {
        let id: WorkerId = id.parse().map_err(|error| wrong_worker(&error))?;
        // Of one that is not there nothing is wrong with the body.
        self.registered(&id)?;
        let mut wanted: Wanted = body::parse(body)?;
        if wanted.id.as_deref().is_some_and(|new| new != id.as_str()) {
            return Err(ApiError::invalid(
                "id",
                "an id cannot change; add a new worker",
            ));
        }
        let taken_away = taken_away(body)?;
        let labels = wanted.take_labels()?;
        if !wanted.describes() && taken_away.is_empty() {
            return self.note(&id, wanted.state, labels).await;
        }
        let _turn = self.turns.of([&id]).await;
        let mut raw = self.registered(&id)?;
        for take_away in taken_away {
            take_away(&mut raw);
        }
        wanted.apply(&mut raw)?;
        let (id, spec) = self.prepared(Some(id.to_string()), raw)?;
        self.write(StatusCode::OK, id, spec, labels).await
    }

    pub(super) async fn drain_worker(&self, id: &str) -> Result<Answer, ApiError> {
        let id: WorkerId = id.parse().map_err(|error| wrong_worker(&error))?;
        let state = Some(WantedState::Draining);
        self.note(&id, state, Labels::default()).await
    }

    /// What stands beside the description of a worker, so that it does not become the administrator's own: it still
    /// leaves when its sources let go of it.
    async fn note(
        &self,
        id: &WorkerId,
        state: Option<WantedState>,
        labels: Labels,
    ) -> Result<Answer, ApiError> {
        self.may_have(id, &labels)?;
        let _turn = self.turns.of([id]).await;
        let before = self.as_it_is([id]);
        let labelled = self.agent.label_worker(id, labels).await;
        let labelled = labelled.map_err(|error| wrong_change(&error))?;
        let noted = match state {
            Some(WantedState::Draining) => self.agent.drain_worker(id).await,
            Some(WantedState::Active) => self.agent.activate_worker(id).await,
            None => Ok(labelled),
        };
        let noted = noted.map_err(|error| wrong_change(&error))?;
        let ack = if noted.written { noted } else { labelled };
        self.catches_up().await;
        let state = self.state_of(id);
        let since = self.since(&before, id);
        if !since.unchanged {
            tracing::info!(
                worker = id.as_str(),
                confirmed_by = ack.confirmed_by,
                state = state.map_or("removed", State::as_str),
                "worker drained, activated or labelled"
            );
        }
        Ok(changed(StatusCode::OK, id, &ack, state, since))
    }

    /// The id of the worker that a path names: by its id, or by its URL in any spelling where no other has it.
    pub(super) fn named(&self, text: &str) -> String {
        let view = self.agent.view();
        let is_known = |id: &WorkerId| view.worker(id).is_some();
        let given = text.parse().ok().filter(is_known);
        let spelled = || WorkerId::from_url(text).ok().filter(is_known);
        let at_url = || {
            let url = WorkerId::from_url(text).ok()?;
            if self.agent.taken_out(&url).is_some() {
                // What was removed once is not another worker the next time.
                return None;
            }
            let all = view.workers().iter();
            let mut there = all.filter(|worker| worker.spec.default_id() == url);
            let only = there.next()?;
            there.next().is_none().then(|| only.id.clone())
        };
        given
            .or_else(spelled)
            .or_else(at_url)
            .map_or_else(|| text.to_owned(), |id: WorkerId| id.to_string())
    }

    /// The description of a worker, to be changed and declared by an administrator.
    fn registered(&self, id: &WorkerId) -> Result<RawWorker, ApiError> {
        let view = self.agent.view();
        let worker = view
            .worker(id)
            .ok_or_else(|| not_found("no worker with this id; GET /workers lists them"))?;
        let mut raw = worker.spec.to_raw();
        if worker.models_are_learned {
            // Declared, they would stay when its engine serves others.
            raw.models.clear();
        }
        if raw.state == State::Draining && !worker.is_drained {
            // A source drains it for a time, and could not take back what the administrator declares.
            raw.state = State::Active;
        }
        Ok(raw)
    }

    pub(super) async fn remove_worker(&self, id: &str) -> Result<Answer, ApiError> {
        let id: WorkerId = id.parse().map_err(|error| wrong_worker(&error))?;
        let _turn = self.turns.of([&id]).await;
        let removed = self.agent.remove_worker(&id, Source::Admin).await;
        let ack = removed.map_err(|error| wrong_change(&error))?;
        self.catches_up().await;
        tracing::info!(
            worker = id.as_str(),
            confirmed_by = ack.confirmed_by,
            "worker removed"
        );
        Ok(changed(StatusCode::OK, &id, &ack, None, Since::default()))
    }

    pub(super) async fn remove_worker_at(&self, url: String) -> Result<Answer, ApiError> {
        WorkerId::from_url(&url).map_err(|error| wrong_worker(&error))?;
        self.remove_worker(&self.named(&url)).await
    }

    /// vllm-router's answer, `{"urls": [...]}`, in pages as those of `GET /workers`.
    pub(super) fn list_urls(&self, page: &Page) -> Answer {
        #[derive(Serialize)]
        struct Urls {
            urls: Vec<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next: Option<String>,
        }
        let view = self.agent.view();
        let (workers, last) = page.cut(view.workers(), |worker| worker.id.as_str());
        let urls = workers.iter().map(|worker| worker.spec.url().to_string());
        let body = Urls {
            urls: urls.collect(),
            next: last.map(|worker| worker.id.to_string()),
        };
        json(StatusCode::OK, &body)
    }
}
