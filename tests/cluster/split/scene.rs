//! A cluster with workers in both roles, and what its clients and its workers saw.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_testbed::fake_worker::{
    Config, Connector, Entry, FakeWorker, Fault, HoldState, Leg, Role, Rule, TransferConfig,
};
use grapevine_tests::chat::{self, EXPLAIN, MODEL};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1::{self, Response};
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::Value;

pub(super) const CHATS: &str = "/v1/chat/completions";

/// A worker of a scene.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// Both: it takes whole requests.
    role: Role,
    pub(super) config: Config,
    /// Further lines of its section.
    lines: String,
}

impl Member {
    /// One that is quick, over NIXL where it has a role.
    pub(super) fn new(role: Role) -> Self {
        let transfer = (role != Role::Both).then(|| TransferConfig {
            role,
            // A closed side channel is noticed after this time.
            closed_side_channel: Duration::from_secs(2),
            ..TransferConfig::default()
        });
        Self {
            role,
            config: Config {
                transfer,
                ..chat::paced(Duration::from_millis(2))
            },
            lines: String::new(),
        }
    }

    /// One that is told of a prompt's other half all along: both legs begin at once.
    pub(super) fn at_once(role: Role) -> Self {
        let member = Self::new(role).connector(Connector::Sglang);
        let member = member.line("kv_connector = \"sglang\"");
        member.line("bootstrap_port = {side}")
    }

    /// With this line in its section; `{side}` stands for the port of its side channel.
    pub(super) fn line(mut self, line: &str) -> Self {
        self.lines += line;
        self.lines.push('\n');
        self
    }

    /// With this time for each token.
    pub(super) fn step(mut self, step: Duration) -> Self {
        self.config.engine.step_base = step;
        self
    }

    /// With another way for its blocks.
    pub(super) fn connector(mut self, connector: Connector) -> Self {
        if let Some(transfer) = &mut self.config.transfer {
            transfer.connector = connector;
        }
        self
    }

    pub(super) async fn start(&self) -> FakeWorker {
        chat::worker(self.config.clone()).await
    }
}

/// So many of each role.
pub(super) fn halves(prefill: usize, decode: usize) -> Vec<Member> {
    let prefill = vec![Member::new(Role::Prefill); prefill];
    let decode = vec![Member::new(Role::Decode); decode];
    [prefill, decode].concat()
}

/// A cluster in front of workers with roles.
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    pub(super) workers: Vec<FakeWorker>,
    roles: Vec<Role>,
}

/// What the client of a plain request saw.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) response: Response,
    pub(super) body: Value,
}

impl Seen {
    fn of(response: Response) -> Self {
        Self {
            body: serde_json::from_slice(&response.body).unwrap_or_default(),
            response,
        }
    }

    pub(super) fn status(&self) -> u16 {
        self.response.head.status
    }

    /// The workers that computed the prompt and that answered.
    pub(super) fn pair(&self) -> (Option<&str>, Option<&str>) {
        let head = &self.response.head;
        (
            head.header("x-grapevine-prefill"),
            head.header("x-grapevine-worker"),
        )
    }

    /// Fails the test unless it is a 200.
    pub(super) fn good(self) -> Self {
        assert_eq!(self.status(), 200, "{}", self.response.text());
        self
    }
}

/// Chats from which a test takes those that go where it wants them.
const FEW: usize = 120;

/// Starts workers and a cluster that has them in its configuration.
pub(super) async fn scene(plan: Plan, replicas: usize, members: &[Member]) -> Scene {
    let mut workers = Vec::with_capacity(members.len());
    for member in members {
        workers.push(member.start().await);
    }
    // The prompts of tests are short.
    let plan = plan.set_if_absent("transfer.short_prompt_tokens", "0");
    let plan = workers
        .iter()
        .zip(members)
        .fold(plan, |plan, (worker, member)| {
            let role = match member.role {
                Role::Both => "any".to_owned(),
                role => role.to_string(),
            };
            let side = worker.side_channel().map_or(0, |side| side.port());
            let lines = member.lines.replace("{side}", &side.to_string());
            let lines = format!("role = \"{role}\"\n{lines}");
            plan.worker_with(&worker.url(), &[MODEL], &lines)
        });
    Scene {
        cluster: plan.start(replicas).await,
        workers,
        roles: members.iter().map(|member| member.role).collect(),
    }
}

/// Quick checks, and first tokens that are not waited for long.
pub(super) fn impatient() -> Plan {
    Plan::default()
        .set("timeouts.first_token", "\"700ms\"")
        .set("timeouts.first_token_per_1k", "\"0s\"")
}

/// Health checks that come too late to find anything: requests find it.
pub(super) fn unchecked() -> Plan {
    Plan::default().set("health.interval", "\"10s\"")
}

impl Scene {
    /// The data port of a replica.
    pub(super) fn data(&self, replica: usize) -> SocketAddr {
        self.cluster.replicas[replica].data()
    }

    /// The workers of a role, in order.
    pub(super) fn of(&self, role: Role) -> Vec<&FakeWorker> {
        let with_role = self.workers.iter().zip(&self.roles);
        let chosen = with_role.filter(|(_, is)| **is == role);
        chosen.map(|(worker, _)| worker).collect()
    }

    pub(super) fn prefill(&self) -> Vec<&FakeWorker> {
        self.of(Role::Prefill)
    }

    pub(super) fn decode(&self) -> Vec<&FakeWorker> {
        self.of(Role::Decode)
    }

    /// Waits until every replica has a pair for a prompt: what pairs need to know is learned after the start.
    pub(super) async fn talks(&self) {
        let chat = short(chat::distinct(1).swap_remove(0));
        for replica in &self.cluster.replicas {
            eventually(LIMIT, "a pair can talk", async || {
                let explained = replica.admin().explain(std::slice::from_ref(&chat)).await;
                match explained[0].pair() {
                    (Some(_), Some(_)) => Ok(()),
                    _ => Err(format!("{explained:?}")),
                }
            })
            .await;
        }
    }

    /// Sends a plain request.
    pub(super) async fn ask_at(&self, replica: usize, path: &str, body: &Value) -> Seen {
        self.ask_with(replica, path, &[], body).await
    }

    /// The same with these headers.
    pub(super) async fn ask_with(
        &self,
        replica: usize,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Seen {
        let headers = [&[EXPLAIN], headers].concat();
        let body = body.to_string();
        let data = self.data(replica);
        Seen::of(http1::exchange(data, "POST", path, &headers, body.as_bytes()).await)
    }

    /// Sends a plain chat to the first replica.
    pub(super) async fn ask(&self, chat: &Value) -> Seen {
        self.ask_at(0, CHATS, chat).await
    }

    /// Chats that no worker has seen, one after the other; others than those of the two methods below.
    pub(super) fn unseen() -> impl Iterator<Item = Value> {
        chat::distinct(4_000).into_iter().skip(FEW).map(short)
    }

    /// New chats whose prompts a worker would compute, by the first replica.
    pub(super) async fn prompts_at(&self, prefill: &FakeWorker) -> Vec<Value> {
        self.prompts(|pair| pair.0 == Some(&*prefill.url())).await
    }

    /// New chats that a worker would answer, by the first replica.
    pub(super) async fn answers_at(&self, decode: &FakeWorker) -> Vec<Value> {
        self.prompts(|pair| pair.1 == Some(&*decode.url())).await
    }

    async fn prompts(
        &self,
        is_wanted: impl Fn((Option<&str>, Option<&str>)) -> bool,
    ) -> Vec<Value> {
        let chats: Vec<Value> = chat::distinct(FEW).into_iter().map(short).collect();
        let explained = self.cluster.replicas[0].admin().explain(&chats).await;
        let both = chats.into_iter().zip(&explained);
        let chosen: Vec<Value> = both
            .filter(|(_, explained)| is_wanted(explained.pair()))
            .map(|(chat, _)| chat)
            .collect();
        assert!(chosen.len() > 8, "{} prompts", chosen.len());
        chosen
    }

    /// Sum over the series of a replica's metric whose labels contain this.
    pub(super) async fn metric(&self, replica: usize, name: &str, label: &str) -> f64 {
        let admin = self.cluster.replicas[replica].admin();
        admin.metrics().await.count(name, label)
    }

    /// Requests of the first replica that took this way.
    pub(super) async fn ways(&self, reason: &str) -> f64 {
        let label = format!("reason=\"{reason}\"");
        self.metric(0, "grapevine_split_requests_total", &label)
            .await
    }

    /// Waits until the metric of a replica has this value.
    pub(super) async fn metric_is(&self, replica: usize, name: &str, label: &str, value: f64) {
        eventually(LIMIT, name, async || {
            let is = self.metric(replica, name, label).await;
            so(is == value, || format!("{is}"))
        })
        .await;
    }

    /// Every invariant holds, and no worker keeps blocks for anybody.
    pub(super) async fn ends(&self) {
        self.ends_with(0).await;
    }

    /// The same with so many prompts whose blocks nobody fetched.
    pub(super) async fn ends_with(&self, held: usize) {
        eventually(LIMIT, "blocks are given back", async || {
            let found = self.workers.iter().map(held_at).sum::<usize>();
            so(found == held, || {
                format!("blocks of {found} prompts are kept, not of {held}")
            })
        })
        .await;
        invariants::hold(&self.cluster, &self.workers, &[]).await;
    }
}

/// A chat with a short answer.
pub(super) fn short(mut chat: Value) -> Value {
    chat["max_tokens"] = 5.into();
    chat
}

/// The same as a stream.
pub(super) fn as_stream(chat: &Value, tokens: u32) -> Value {
    let mut chat = chat.clone();
    chat["stream"] = true.into();
    chat["max_tokens"] = tokens.into();
    chat
}

/// Prompts whose blocks a worker keeps.
pub(super) fn held_at(worker: &FakeWorker) -> usize {
    let holds = worker.holds();
    let held = holds.iter().filter(|hold| hold.state == HoldState::Held);
    held.count()
}

/// Requests that a worker got as this half of a pair.
pub(super) fn legs(worker: &FakeWorker, leg: Leg) -> Vec<Entry> {
    let mut entries = worker.log();
    entries.retain(|entry| entry.leg == Some(leg));
    entries
}

/// Requests that these workers got, whatever became of them.
pub(super) fn seen(workers: &[&FakeWorker]) -> usize {
    workers.iter().map(|worker| worker.log().len()).sum()
}

/// The next request to a worker meets a fault.
pub(super) fn next(worker: &FakeWorker, fault: Fault) {
    let added = worker.add_rule(Rule::next(1, fault));
    added.expect("there is room for a rule");
}

/// Every request to a worker meets a fault.
pub(super) fn always(worker: &FakeWorker, fault: Fault) {
    let added = worker.add_rule(Rule::always(fault));
    added.expect("there is room for a rule");
}

/// Waits until something holds.
pub(super) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    eventually(LIMIT, what, async || {
        so(holds().await, || "not yet".to_owned())
    })
    .await;
}

/// The only value of a header that a worker saw.
pub(super) fn header<'a>(entry: &'a Entry, name: &str) -> Option<&'a str> {
    let named = |(n, _): &&(String, String)| n.eq_ignore_ascii_case(name);
    let mut values = entry.headers.iter().filter(named);
    let value = values.next().map(|(_, value)| value.as_str());
    assert!(values.next().is_none(), "{name} is there twice");
    value
}
