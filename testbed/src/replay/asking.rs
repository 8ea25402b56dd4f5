//! Asks two replicas where they would send a request, right before it is sent, and counts whether they agree.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::Method;
use serde::Deserialize;

use grapevine_bench::client::{Ask, Client, Spread, Target};

/// Limit of one question: a replica that takes longer counts as silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Which replicas to ask, and how often.
#[derive(Debug, Clone)]
pub struct Asking {
    /// Admin addresses of the replicas; with fewer than two, none is asked.
    pub admins: Vec<Target>,
    /// Share of the requests about which replicas are asked, 0 to 1.
    pub share: f64,
}

#[derive(Deserialize)]
struct Explained {
    worker: Option<String>,
}

/// Asks replicas, and counts their answers.
pub(super) struct Asker {
    replicas: Vec<Client>,
    share: f64,
    asked: AtomicU64,
    agreed: AtomicU64,
}

impl Asker {
    pub(super) fn new(asking: Option<&Asking>) -> Self {
        let admins = asking.map_or(&[][..], |asking| &asking.admins);
        let client = |admin: &Target| Client::new(vec![admin.clone()], Spread::RoundRobin).ok();
        Self {
            replicas: admins.iter().filter_map(client).collect(),
            share: asking.map_or(0.0, |asking| asking.share),
            asked: AtomicU64::new(0),
            agreed: AtomicU64::new(0),
        }
    }

    /// Asks two random replicas about a request. A replica that does not answer is not counted.
    pub(super) async fn ask(&self, ask: &Ask) {
        let count = self.replicas.len();
        if count < 2 || rand::random::<f64>() >= self.share {
            return;
        }
        let first = rand::random_range(0..count);
        let second = (first + rand::random_range(1..count)) % count;
        let (a, b) = tokio::join!(self.one(first, ask), self.one(second, ask));
        if let (Some(a), Some(b)) = (a, b) {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.agreed.fetch_add(u64::from(a == b), Ordering::Relaxed);
        }
    }

    async fn one(&self, replica: usize, ask: &Ask) -> Option<String> {
        let path = format!("/explain?path={}", ask.path);
        let body = ask.body.clone();
        let answer = self.replicas[replica].text(Method::POST, &path, body, ANSWER_TIMEOUT);
        let explained: Explained = serde_json::from_str(&answer.await.ok()?).ok()?;
        explained.worker
    }

    /// Requests asked about, and of those the ones on which both agreed.
    pub(super) fn counted(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.asked), of(&self.agreed))
    }
}
