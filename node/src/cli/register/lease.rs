//! The lease of one worker: renewed at whichever replica answers, the last one first; where that one is alone, at others,
//! too, until one is not.

use std::path::PathBuf;
use std::time::Duration;

use grapevine_gossip::worker::WorkerId;
use reqwest::Method;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};
use url::Url;

use super::{RegisterArgs, report};
use crate::cli::client::AdminClient;
use crate::cli::failure::Failure;
use crate::shown::add_command::add_command;

/// How long one replica may take: far less than a lease lasts, so that a stalled one costs no lease.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long a lease lasts, until a replica has said.
const TTL: Duration = Duration::from_secs(30);
/// For so many terms after a replica was alone it may hear from the others of what was renewed there meanwhile.
const TERMS_APART: u32 = 2;

/// What became of a renewal.
pub(super) enum Renewed {
    /// It lasts so long.
    Until(Duration),
    /// No replica answered.
    Unreachable,
    /// No replica that answers will have this worker; it would refuse it again.
    Refused(Failure),
}

/// A worker's lease.
pub(super) struct Lease {
    id: WorkerId,
    replicas: Vec<AdminClient>,
    /// The replica that answered last, the first of them where several were asked.
    at: usize,
    body: Map<String, Value>,
    credential: Option<String>,
    credential_file: Option<PathBuf>,
    /// Distinguishes this process from another one that registers the same worker.
    process: String,
    /// Requests that it sent, so that it is known for one process whichever replica has them.
    sent: u64,
    /// When a replica last said that it is alone, and for how long that matters.
    apart: Option<(Instant, Duration)>,
    in_flight: Option<u64>,
    /// A renewal was taken, and nothing has ended it since.
    is_held: bool,
    /// An operator took the worker out; what it had in hand goes on.
    is_removed: bool,
    /// When it was renewed last, and how long that lasts.
    renewed: Option<(Instant, Duration)>,
    /// A renewal was sent, and its answer not heard.
    is_asked_for: bool,
    /// What was last reported, so that it is reported once.
    reported: Option<String>,
}

impl Lease {
    /// Errors: an address is none of an admin port.
    pub(super) fn new(id: &WorkerId, args: &RegisterArgs) -> Result<Self, Failure> {
        let client = |url: &Url| AdminClient::at(url.clone(), None);
        let replicas: Result<_, Failure> = args.to.iter().map(client).collect();
        Ok(Self {
            id: id.clone(),
            replicas: replicas?,
            at: 0,
            body: args.description.of(&args.worker),
            credential: args.credential.clone(),
            credential_file: args.credential_file.clone(),
            process: format!("{:016x}", rand::random::<u64>()),
            sent: 0,
            apart: None,
            in_flight: None,
            is_held: false,
            is_removed: false,
            renewed: None,
            is_asked_for: false,
            reported: None,
        })
    }

    /// Requests that the worker has from the whole cluster, as the last renewal said.
    pub(super) fn in_flight(&self) -> Option<u64> {
        self.in_flight
    }

    /// Whether an operator took the worker out. Then each replica knows of its own requests there alone.
    pub(super) fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// How many replicas there are to ask.
    pub(super) fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// The next renewal goes to another replica.
    pub(super) fn turn(&mut self) {
        self.at = (self.at + 1) % self.replicas.len();
    }

    /// Whether the worker is registered by this process, or may be: it was about to hear that.
    pub(super) fn is_held(&self) -> bool {
        self.is_held || self.is_asked_for
    }

    /// Registers the worker in this state, or renews its lease.
    pub(super) async fn renew(&mut self, asked: &str) -> Renewed {
        self.body.insert("state".into(), asked.into());
        let body = Value::Object(self.body.clone()).to_string();
        self.in_flight = None;
        // Stays so if nobody waits for the answer any more, or it is late: a replica that takes its time takes the worker.
        self.is_asked_for = true;
        let (answer, is_late) = self.call(Method::PUT, body.into_bytes()).await;
        self.is_asked_for = is_late && answer.is_err();
        match answer {
            Ok(Taken {
                answer: lease,
                note,
            }) => {
                let state = lease["state"].as_str().unwrap_or("unknown");
                if let Some(late) = self.late_by() {
                    self.report(format!(
                        "the lease of {} had ended {late} s before it was renewed: this process did not run, or no replica \
                         answered",
                        self.id
                    ));
                }
                self.report(match state {
                    "removed" => format!(
                        "an operator removed {}; `{}` brings it back",
                        self.id,
                        add_command(Some(self.id.as_str()), &self.body)
                    ),
                    _ if lease["is_renewed_twice"] == true => format!(
                        "another process registers {}, too: what the two say of it replaces each other, and when one \
                         ends it takes the worker out; end one of them",
                        self.id
                    ),
                    // What an operator or the configuration describes goes before what a lease says.
                    "active" if asked == "draining" => format!(
                        "{1} says that {0} is there, too, so it stays in use when its lease ends; `grapevine workers drain \
                         {0}` or `grapevine workers remove {0}` take it out",
                        self.id,
                        who(&also_by(&lease))
                    ),
                    "draining" if asked == "draining" => {
                        "draining: the worker gets nothing new".to_owned()
                    }
                    _ => format!("registered as {}: {state}{note}", self.id),
                });
                self.is_removed = state == "removed";
                self.is_held = !self.is_removed;
                self.in_flight = lease["in_flight"].as_u64();
                let ttl = lease["ttl_s"]
                    .as_f64()
                    .filter(|ttl| (1.0..=86_400.0).contains(ttl));
                let ttl = ttl.map_or(TTL, Duration::from_secs_f64);
                self.renewed = self.is_held.then(|| (Instant::now(), ttl));
                Renewed::Until(ttl)
            }
            Err(failure @ Failure::Unreachable(_)) => {
                self.report(format!("{failure}; tried again every second"));
                Renewed::Unreachable
            }
            Err(failure) => Renewed::Refused(failure),
        }
    }

    /// Whole seconds, at least one, since the lease that is renewed now has ended.
    fn late_by(&self) -> Option<u64> {
        let (at, ttl) = self.renewed?;
        let late = at.elapsed().checked_sub(ttl)?.as_secs();
        (late > 0).then_some(late)
    }

    /// Ends it: the worker is removed, unless somebody else says that it is there. What became of it, in words.
    /// Errors: no replica answered, or the cluster refused.
    pub(super) async fn release(&mut self) -> Result<String, Failure> {
        let Taken { answer, note } = self.call(Method::DELETE, Vec::new()).await.0?;
        self.is_held = false;
        self.is_asked_for = false;
        let others = also_by(&answer);
        Ok(match others.is_empty() {
            true => format!("the worker is taken out of the cluster{note}"),
            false => format!(
                "the lease has ended; the worker stays in the cluster: {} says that it is there",
                who(&others)
            ),
        })
    }

    /// Asks one replica after the other, and returns the first answer; where that replica is alone, the others do not hear of
    /// it, and are asked until one is not alone. A refusal counts when nobody accepts: while a secret is changed, replica by
    /// replica, some have the former one. And whether an answer was not waited for.
    async fn call(&mut self, method: Method, body: Vec<u8>) -> (Result<Taken, Failure>, bool) {
        let mut is_late = false;
        let answer = self.call_each(method, body, &mut is_late).await;
        (answer, is_late)
    }

    async fn call_each(
        &mut self,
        method: Method,
        body: Vec<u8>,
        is_late: &mut bool,
    ) -> Result<Taken, Failure> {
        let credential = self.credential()?;
        let (mut unreachable, mut refused, mut full) = (Vec::new(), None, None);
        let (mut answers, mut first) = (Answers::default(), None);
        for _ in 0..self.replicas.len() {
            let client = self.replicas[self.at].with_token(credential.clone())?;
            let url = client.url();
            let path = ["leases", self.id.as_str()];
            let number = self.sent.to_string();
            self.sent += self.step();
            let query = [("process", self.process.as_str()), ("number", &number)];
            let call = client.call(method.clone(), &path, &query, body.clone());
            match timeout(ANSWER_WITHIN, call).await {
                Ok(Err(Failure::Unreachable(_))) => unreachable.push(url.to_string()),
                // As where its registry is full. Another one may take it.
                Ok(Err(Failure::Overloaded(why))) if why.starts_with("503 ") => {
                    full.get_or_insert(Failure::Refused(why));
                }
                // Of a proxy before it, which may have passed the request on.
                Ok(Err(Failure::Overloaded(_))) => {
                    *is_late = true;
                    unreachable.push(url.to_string());
                }
                Err(_) => {
                    *is_late = true;
                    unreachable.push(format!("{url} (no answer in 2 s)"));
                }
                Ok(Err(Failure::Unauthorized(_))) => {
                    refused.get_or_insert_with(|| self.unauthorized(url));
                }
                Ok(Err(failure)) => {
                    refused.get_or_insert(failure);
                }
                Ok(Ok(answer)) => {
                    first.get_or_insert(self.at);
                    if answers.take(url.as_str(), answer) {
                        break;
                    }
                    self.apart = Some((Instant::now(), self.ttl() * TERMS_APART));
                }
            }
            self.turn();
        }
        if let Some(first) = first {
            // Nobody else renews it at the one that is alone.
            self.at = first;
        }
        if let Some(taken) = answers.together() {
            return Ok(taken);
        }
        let all = unreachable.join(", ");
        let unreachable = || Failure::Unreachable(format!("no replica answers at {all}"));
        Err(refused.or(full).unwrap_or_else(unreachable))
    }

    /// By how much the number of requests grows. Numbers that follow each other show a replica at which it was renewed
    /// elsewhere in between that another process did so; here it is this one that went to several.
    fn step(&self) -> u64 {
        match self.apart {
            Some((at, lasts)) if at.elapsed() < lasts => 2,
            _ => 1,
        }
    }

    fn ttl(&self) -> Duration {
        self.renewed.map_or(TTL, |(_, ttl)| ttl)
    }

    fn credential(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.credential_file else {
            return Ok(self.credential.clone());
        };
        let text = std::fs::read_to_string(path);
        let text =
            text.map_err(|error| Failure::Refused(format!("{}: {error}", path.display())))?;
        let text = text.trim();
        if text.is_empty() {
            let what = format!(
                "{} is empty: write the worker's credential into it, as `grapevine register --show-credential` prints it",
                path.display()
            );
            return Err(Failure::Refused(what));
        }
        Ok(Some(text.to_owned()))
    }

    fn unauthorized(&self, url: &Url) -> Failure {
        Failure::Refused(format!(
            "{url} refuses the credential for {}: it is good for one id, and for the secret (leases.secret) that it was made \
             with; give it by --credential, --credential-file or GRAPEVINE_REGISTER_CREDENTIAL",
            self.id
        ))
    }

    /// Reports a line, unless it was the last one, too.
    pub(super) fn report(&mut self, line: String) {
        if self.reported.as_ref() != Some(&line) {
            report(&line);
            self.reported = Some(line);
        }
    }
}

/// What the replicas that took one request answered together.
struct Taken {
    answer: Value,
    /// Which of them are alone, to be added to a report; mostly nothing.
    note: String,
}

/// Answers to one request, of which all but the last are of replicas that are alone.
#[derive(Default)]
struct Answers {
    alone: Vec<String>,
    /// The replica that is not.
    among_others: Option<String>,
    in_flight: u64,
    last: Option<Value>,
}

impl Answers {
    /// Takes in one. Whether no further one is needed: the other replicas hear of the request from this one. Releases before
    /// do not say that they are alone.
    fn take(&mut self, url: &str, answer: Value) -> bool {
        let is_alone = answer["is_alone"] == true;
        match is_alone {
            true => self.alone.push(url.to_owned()),
            false => self.among_others = Some(url.to_owned()),
        }
        self.in_flight += answer["in_flight"].as_u64().unwrap_or(0);
        self.last = Some(answer);
        !is_alone
    }

    /// What the last one says, of the requests of all; none if nobody answered.
    fn together(self) -> Option<Taken> {
        let mut answer = self.last?;
        if let Some(in_flight) = answer.get_mut("in_flight") {
            *in_flight = self.in_flight.into();
        }
        let alone = self.alone.join(", ");
        let note = match self.among_others {
            _ if alone.is_empty() => String::new(),
            Some(other) => {
                format!("; no other replica lives for {alone}, so {other} was told, too")
            }
            None => format!("; no other replica lives for {alone}, and none was told"),
        };
        Some(Taken { answer, note })
    }
}

/// Who else says that the worker is there, as an answer about its lease tells; releases before do not.
fn also_by(answer: &Value) -> Vec<&str> {
    let names = answer["also_by"].as_array().into_iter().flatten();
    names.filter_map(Value::as_str).collect()
}

/// The first of them, in words: its description counts.
fn who(sources: &[&str]) -> String {
    match sources.first() {
        Some(&"config") => "the configuration".to_owned(),
        Some(&"admin") => "an operator".to_owned(),
        Some(source) => format!("source {source}"),
        None => "somebody else".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::fake_replica::{port, serve};
    use crate::cli::{Cli, Command};

    fn lease(credential: &[&str]) -> Lease {
        lease_at("http://r:1", credential)
    }

    fn lease_at(replica: &str, credential: &[&str]) -> Lease {
        // As `main` does; another test may have.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let words = [
            "grapevine",
            "register",
            "--worker",
            "http://w:1",
            "--to",
            replica,
        ];
        match Cli::try_parse_from(words.iter().chain(credential)).map(|cli| cli.command) {
            Ok(Command::Register(args)) => Lease::new(&"w".parse().expect("an id"), &args),
            _ => panic!("not register: {credential:?}"),
        }
        .unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// A signal may come between the registration and its answer; the worker must be taken out all the same.
    #[tokio::test]
    async fn a_lease_whose_answer_was_not_waited_for_may_be_held() {
        let replica = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let replica = replica.expect("a port");
        let address = replica.local_addr().expect("bound");
        let mut lease = lease_at(&format!("http://{address}"), &["--credential", "gvw1_x"]);
        assert!(!lease.is_held());
        let asked = async {
            let (stream, _) = replica.accept().await.expect("it is asked");
            stream.readable().await.expect("a request");
        };
        tokio::select! {
            _ = lease.renew("active") => panic!("nobody has answered"),
            () = asked => {}
        }
        assert!(lease.is_held());
        drop(replica);
        assert!(matches!(lease.renew("active").await, Renewed::Unreachable));
        assert!(!lease.is_held(), "it was not taken");
    }

    /// Nor does one that is held end by that.
    #[tokio::test]
    async fn a_lease_whose_answer_is_late_may_be_held() {
        let (replica, address) = port().await;
        let mut lease = lease_at(&format!("http://{address}"), &["--credential", "gvw1_x"]);
        let says_nothing = async {
            let (stream, _) = replica.accept().await.expect("it is asked");
            stream.readable().await.expect("a request");
            // The answer is waited for in vain from here on, in no time.
            tokio::time::pause();
            stream
        };
        let (renewed, stream) = tokio::join!(lease.renew("active"), says_nothing);
        assert!(matches!(renewed, Renewed::Unreachable));
        assert!(lease.is_held());
        tokio::time::resume();
        drop((stream, replica));
        assert!(matches!(lease.renew("active").await, Renewed::Unreachable));
        assert!(!lease.is_held(), "it was not taken");
    }

    /// As while the secret of leases is changed, one replica after the other.
    #[tokio::test]
    async fn a_replica_that_refuses_is_left_for_one_that_accepts() {
        let (first, second) = (port().await, port().await);
        let to = format!("http://{},http://{}", first.1, second.1);
        let error = json!({ "error": { "message": "no" } });
        let refuses = serve(first.0, move |_| (401, error.clone()));
        let accepted = json!({ "state": "active", "ttl_s": 30 });
        let accepts = serve(second.0, move |_| (200, accepted.clone()));
        let mut lease = lease_at(&to, &["--credential", "gvw1_x"]);
        for _ in 0..2 {
            let renewed = lease.renew("active").await;
            assert!(matches!(renewed, Renewed::Until(_)));
        }
        // Nobody is left who accepts: what was refused is said, not that somebody is away.
        accepts.abort();
        assert!(accepts.await.expect_err("it was aborted").is_cancelled());
        let Renewed::Refused(failure) = lease.renew("active").await else {
            panic!("it was not refused");
        };
        let said = format!("http://{}/ refuses the credential", first.1);
        assert!(failure.to_string().starts_with(&said), "{failure}");
        refuses.abort();
    }

    /// Such as one with a full registry: that is no replica that is away.
    #[tokio::test]
    async fn a_replica_that_has_no_room_is_left_for_one_that_has_and_says_why() {
        let (first, second) = (port().await, port().await);
        let to = format!("http://{},http://{}", first.1, second.1);
        let error = json!({ "error": { "message": "the registry is full with 9 entries" } });
        let is_full = serve(first.0, move |_| (503, error.clone()));
        let accepted = json!({ "state": "active", "ttl_s": 30 });
        let accepts = serve(second.0, move |_| (200, accepted.clone()));
        let mut lease = lease_at(&to, &["--credential", "gvw1_x"]);
        assert!(matches!(lease.renew("active").await, Renewed::Until(_)));
        accepts.abort();
        assert!(accepts.await.expect_err("it was aborted").is_cancelled());
        let Renewed::Refused(failure) = lease.renew("active").await else {
            panic!("it was not refused");
        };
        assert!(
            failure.to_string().contains("the registry is full"),
            "{failure}"
        );
        is_full.abort();
    }

    /// The others would not hear of it, and it would end for them.
    #[tokio::test]
    async fn where_a_replica_is_alone_others_are_asked_too() {
        let ports = [port().await, port().await, port().await];
        let to = ports.each_ref().map(|(_, at)| format!("http://{at}"));
        let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut replicas = Vec::new();
        for (name, (listener, _)) in ports.into_iter().enumerate() {
            let asked = std::sync::Arc::clone(&asked);
            replicas.push(serve(listener, move |line| {
                let number = line.rsplit(['=', ' ']).nth(1).expect("a number");
                let number: u64 = number.parse().expect("a number");
                asked.lock().expect("whole").push((name, number));
                let answer = json!({
                    "state": "active", "ttl_s": 30, "in_flight": name + 1, "is_alone": name == 0,
                    "also_by": [],
                });
                (200, answer)
            }));
        }
        let mut lease = lease_at(&to.join(","), &["--credential", "gvw1_x"]);
        for _ in 0..2 {
            let renewed = lease.renew("active").await;
            assert!(matches!(renewed, Renewed::Until(_)));
            assert_eq!(lease.in_flight(), Some(3), "at both of them");
        }
        lease.release().await.expect("an answer");
        // The first one each time: what was renewed there ends there by itself.
        let of = |asked: &[(usize, u64)]| asked.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let asked = asked.lock().expect("whole").clone();
        assert_eq!(of(&asked), [0, 1, 0, 1, 0, 1]);
        let of_first = asked.iter().filter(|(name, _)| *name == 0);
        let of_first: Vec<u64> = of_first.map(|(_, number)| *number).collect();
        let follow = of_first.windows(2).any(|pair| pair[0] + 1 == pair[1]);
        assert!(!follow, "it would take two for two processes: {of_first:?}");
        let said = lease.reported.unwrap_or_default();
        let note = format!(
            "no other replica lives for {}/, so {}/ was told",
            to[0], to[1]
        );
        assert!(said.contains(&note), "{said}");
        for replica in replicas {
            replica.abort();
        }
    }

    /// Beside a worker of the configuration nothing is drained and nothing taken out.
    #[tokio::test]
    async fn a_worker_that_others_describe_is_not_said_to_leave() {
        let table = [
            (json!(["config"]), "active", "the configuration says that w"),
            (json!(["admin", "dns"]), "active", "an operator says that w"),
            (json!(["dns"]), "draining", "draining: the worker"),
            (json!([]), "draining", "draining: the worker"),
        ];
        for (others, state, said) in table {
            let (replica, address) = port().await;
            let answer =
                json!({ "state": state, "ttl_s": 30, "in_flight": 0, "also_by": others.clone() });
            let replica = serve(replica, move |_| (200, answer.clone()));
            let mut lease = lease_at(&format!("http://{address}"), &[]);
            let renewed = lease.renew("draining").await;
            assert!(matches!(renewed, Renewed::Until(_)));
            let reported = lease.reported.clone().unwrap_or_default();
            assert!(reported.starts_with(said), "{reported}");
            let left = lease.release().await.expect("an answer");
            let stays = left.contains("stays in the cluster");
            assert_eq!(stays, others != json!([]), "{left}");
            replica.abort();
        }
    }

    #[test]
    fn a_credential_file_is_read_anew_each_time_and_named_when_it_cannot_be_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("credential");
        let name = path.to_str().expect("UTF-8");
        let lease = lease(&["--credential-file", name]);
        let refused = || match lease.credential() {
            Err(Failure::Refused(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(
            refused().starts_with(name),
            "it is not there: {}",
            refused()
        );
        for text in ["gvw1_first\n", "  gvw1_second  \n"] {
            std::fs::write(&path, text).expect("written");
            let read = lease.credential().expect("a credential");
            assert_eq!(read.as_deref(), Some(text.trim()));
        }
        std::fs::write(&path, " \n").expect("written");
        let why = refused();
        assert!(why.contains(name) && why.contains("is empty"), "{why}");
    }

    #[test]
    fn without_a_credential_file_the_credential_is_that_of_the_command_line() {
        let given = lease(&["--credential", "gvw1_x"]).credential();
        assert_eq!(given.expect("nothing is read").as_deref(), Some("gvw1_x"));
    }
}
