//! Asks replicas for pictures. When the asked one dies, the others that it named are asked, all at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::app::{Subject, Wanted};
use super::picture::Picture;
use super::view::View;
use crate::cli::client::{ANSWER_WITHIN, AdminClient};
use crate::cli::events;
use crate::cli::failure::Failure;
use crate::cli::workers::all_workers;
use crate::shown::{field, rows};

/// Other replicas that are asked at once.
const OTHERS_AT_ONCE: usize = 16;

/// Who is asked, and who could be asked.
pub(super) struct Asker {
    client: AdminClient,
    /// Admin addresses of the cluster's replicas by id, as the latest answer named them: at most as many as it has
    /// replicas.
    others: BTreeMap<String, String>,
    notice: Option<String>,
}

impl Asker {
    pub(super) fn new(client: AdminClient) -> Self {
        Self {
            client,
            others: BTreeMap::new(),
            notice: None,
        }
    }

    /// Asks again and again, and at once when something else is wanted, until nobody reads the answers.
    pub(super) async fn run(
        mut self,
        every: Duration,
        mut wishes: watch::Receiver<Wanted>,
        answers: watch::Sender<Option<Result<Picture, Failure>>>,
    ) {
        loop {
            let wanted = wishes.borrow_and_update().clone();
            // Somebody looks at the screen: what it shows is old from here on, and not when all others were asked, too.
            let silent = |failure: &Failure| drop(answers.send(Some(Err(failure.clone()))));
            let answer = self.ask(&wanted, silent).await;
            if answers.send(Some(answer)).is_err() {
                return;
            }
            tokio::select! {
                () = sleep(every) => {}
                changed = wishes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Asks the replica that answered last; where it is `silent`, which is told at once, the others that are known.
    /// Errors: none of them answers; one refuses.
    pub(super) async fn ask(
        &mut self,
        wanted: &Wanted,
        silent: impl FnOnce(&Failure) + Send,
    ) -> Result<Picture, Failure> {
        let failure = match self.picture(&self.client, wanted).await {
            Ok(picture) => return Ok(self.remember(picture)),
            Err(failure @ Failure::Unreachable(_)) => failure,
            Err(failure) => return Err(failure),
        };
        silent(&failure);
        // Many may name one address: of their own machines alone.
        let mut named: BTreeMap<_, (AdminClient, Vec<&String>)> = BTreeMap::new();
        for (id, admin) in &self.others {
            let other = self.client.elsewhere(admin);
            if let Some(other) = other.filter(|other| other.url() != self.client.url()) {
                let at = named.entry(other.url().clone());
                at.or_insert_with(|| (other, Vec::new())).1.push(id);
            }
        }
        let (mut asking, turns) = (JoinSet::new(), Arc::new(Semaphore::new(OTHERS_AT_ONCE)));
        for (other, ids) in named.into_values() {
            let turns = Arc::clone(&turns);
            let ids: Vec<String> = ids.into_iter().cloned().collect();
            let wanted = wanted.clone();
            asking.spawn(async move {
                let _turn = turns.acquire().await;
                let answer = within(&other, other.get(&["cluster"])).await.ok()?;
                // Whoever else answers there is not asked for more.
                is_one_of(&ids, &answer).then_some(())?;
                let picture = within(&other, answers(&other, &wanted)).await.ok()?;
                is_one_of(&ids, &picture.cluster).then_some((other, picture))
            });
        }
        // Whatever is wrong with one, or whoever else answers there: the next one may be the one that is meant.
        while let Some(answered) = asking.join_next().await {
            let Ok(Some((other, picture))) = answered else {
                continue;
            };
            let (before, url) = (self.client.url(), other.url());
            let id = field(&picture.cluster, "replica");
            self.notice = Some(format!(
                "{before} gives no answer; {id} at {url} is asked instead"
            ));
            self.client = other;
            return Ok(self.remember(picture));
        }
        Err(failure)
    }

    fn remember(&mut self, mut picture: Picture) -> Picture {
        let replicas = rows(&picture.cluster, "replicas").iter();
        let others = replicas.map(|replica| (field(replica, "id"), field(replica, "admin")));
        self.others = others.collect();
        picture.notice.clone_from(&self.notice);
        picture
    }

    async fn picture(&self, client: &AdminClient, wanted: &Wanted) -> Result<Picture, Failure> {
        within(client, answers(client, wanted)).await
    }
}

/// What a replica answers, if it does soon: somebody looks at the screen, and an answer may be several.
async fn within<T>(
    client: &AdminClient,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let answer = timeout(ANSWER_WITHIN, answer).await;
    answer.unwrap_or_else(|_| Err(client.silent(ANSWER_WITHIN)))
}

/// Whether an answer is of one of these replicas.
fn is_one_of(ids: &[String], answer: &Value) -> bool {
    ids.contains(&field(answer, "replica"))
}

/// What a view needs, asked at once.
async fn answers(client: &AdminClient, wanted: &Wanted) -> Result<Picture, Failure> {
    let of = |views: &[View]| views.contains(&wanted.view);
    let get = async |path: &str, is_wanted: bool| match is_wanted {
        true => client.get(&[path]).await,
        false => Ok(Value::Null),
    };
    let links = get("links", of(&[View::Replicas]));
    let rings = get("ring", of(&[View::Rings]));
    let history = async {
        let query: &[(&str, &str)] = match &wanted.of {
            Subject::Cluster => &[],
            Subject::Worker(id) => &[("worker", id)],
            Subject::Replica(id) => &[("replica", id)],
        };
        match of(&[View::Overview, View::Hour, View::Agreement]) {
            true => client.get_with(&["history"], query).await,
            false => Ok(Value::Null),
        }
    };
    let events = async {
        let asked = match of(&[View::Overview, View::Events]) {
            true => events::all(client).await,
            false => Ok((Vec::new(), Vec::new())),
        };
        // They are the least of the picture: it is shown without them.
        Ok(asked.unwrap_or_else(|failure| (Vec::new(), vec![failure.to_string()])))
    };
    let cluster = client.get(&["cluster"]);
    let (cluster, workers, links, rings, history, (events, not_asked)) =
        tokio::try_join!(cluster, all_workers(client), links, rings, history, events)?;
    Ok(Picture {
        cluster,
        workers: rows(&workers, "workers").to_vec(),
        links,
        rings,
        history,
        events,
        not_asked,
        asked: client.url().to_string(),
        notice: None,
        at: Instant::now(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fake_replica::{port, serve};
    use crate::cli::top::app::App;
    use serde_json::json;
    use std::net::SocketAddr;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn when_the_asked_replica_dies_another_one_that_it_named_is_asked() {
        let (first, second, gone) = (port().await, port().await, port().await);
        let at = [first.1, gone.1, second.1];
        drop(gone);
        let replicas = ["r1", "r2", "r3"].iter().zip(at);
        let replicas =
            replicas.map(|(id, at)| json!({ "id": id, "admin": at.to_string(), "live": false }));
        let replicas: Vec<_> = replicas.collect();
        let answer = |replica: &str| json!({ "replica": replica, "replicas": replicas, "workers": [], "events": [] });
        let [of_first, of_second] = ["r1", "r3"].map(answer);
        let first = serve(first.0, move |_| (200, of_first.clone()));
        let _second = serve(second.0, move |_| (200, of_second.clone()));
        let url = format!("http://{}", at[0]).parse().expect("a URL");
        let mut asker = Asker::new(AdminClient::at(url, None).expect("a client"));
        let wanted = App::new(View::Overview, false).wanted();
        let picture = asker.ask(&wanted, |_| {}).await.expect("an answer");
        assert_eq!(
            (field(&picture.cluster, "replica"), picture.notice),
            ("r1".to_owned(), None)
        );
        first.abort();
        // Its port is closed once the task is gone.
        assert!(first.await.expect_err("it was aborted").is_cancelled());
        let picture = asker
            .ask(&wanted, |_| {})
            .await
            .expect("the third one's answer");
        assert_eq!(field(&picture.cluster, "replica"), "r3");
        let notice = format!(
            "http://{}/ gives no answer; r3 at http://{}/ is asked instead",
            at[0], at[2]
        );
        assert_eq!(picture.notice, Some(notice));
        assert_eq!(
            picture.not_asked.len(),
            2,
            "dead ones are named: {:?}",
            picture.not_asked
        );
    }
    /// What is at a replica's loopback address on another machine is another replica.
    #[tokio::test]
    async fn who_answers_at_the_address_of_another_one_is_not_asked_in_its_place() {
        let ((first, at), (other, elsewhere)) = (port().await, port().await);
        let row = |id: &str, at: &dyn ToString| json!({ "id": id, "live": true, "admin": at.to_string() });
        let replicas = [row("r1", &at), row("r2", &elsewhere)];
        let answer = |replica: &str| json!({ "replica": replica, "replicas": replicas, "workers": [], "events": [] });
        let [of_first, of_other] = ["r1", "r9"].map(answer);
        let first = serve(first, move |_| (200, of_first.clone()));
        let _other = serve(other, move |_| (200, of_other.clone()));
        let url = format!("http://{at}").parse().expect("a URL");
        let mut asker = Asker::new(AdminClient::at(url, None).expect("a client"));
        let wanted = App::new(View::Workers, false).wanted();
        asker.ask(&wanted, |_| {}).await.expect("an answer");
        first.abort();
        assert!(first.await.expect_err("it was aborted").is_cancelled());
        let failure = asker
            .ask(&wanted, |_| {})
            .await
            .expect_err("r2 is not there");
        assert!(matches!(failure, Failure::Unreachable(_)), "{failure}");
    }

    /// A replica that takes connections and is stopped must not hide the others.
    #[tokio::test]
    async fn one_that_gives_no_answer_is_named_and_hides_nothing() {
        let ((first, at), (silent, hangs)) = (port().await, port().await);
        let row = |id: &str, at: &dyn ToString| json!({ "id": id, "live": true, "admin": at.to_string() });
        let replicas = [row("r1", &at), row("r2", &hangs)];
        let answer = json!({ "replica": "r1", "replicas": replicas, "workers": [], "events": [] });
        let _first = serve(first, move |_| (200, answer.clone()));
        let url = format!("http://{at}").parse().expect("a URL");
        let mut asker = Asker::new(AdminClient::at(url, None).expect("a client"));
        let wanted = App::new(View::Overview, false).wanted();
        let picture = asker.ask(&wanted, |_| {}).await.expect("r1 answers");
        assert_eq!(picture.not_asked, ["r2: no answer in 2s"]);
        drop(silent);
    }

    /// Nobody answers, and nobody refuses: machines that are frozen, or a network that drops everything.
    #[tokio::test(start_paused = true)]
    async fn that_nobody_answers_is_known_before_all_were_asked() {
        let (first, others) = (port().await, [port().await, port().await]);
        let url = format!("http://{}", first.1).parse().expect("a URL");
        let mut asker = Asker::new(AdminClient::at(url, None).expect("a client"));
        let named =
            |(at, id): (&(TcpListener, SocketAddr), &str)| (id.to_owned(), at.1.to_string());
        asker.others = others.iter().zip(["r2", "r3"]).map(named).collect();
        let (_wanted, wishes) = watch::channel(App::new(View::Overview, false).wanted());
        let (answers, mut told) = watch::channel(None);
        let began = Instant::now();
        let asking = tokio::spawn(asker.run(Duration::from_secs(2), wishes, answers));
        let mut silent = async || {
            told.changed().await.expect("it asks");
            match &*told.borrow() {
                Some(Err(Failure::Unreachable(why))) => {
                    assert!(why.contains("asked with --admin"), "{why}");
                }
                other => panic!("it is silent: {}", other.is_some()),
            }
            began.elapsed()
        };
        assert!(silent().await <= Duration::from_secs(6));
        assert!(
            silent().await <= Duration::from_secs(11),
            "all others at once"
        );
        asking.abort();
    }
}
