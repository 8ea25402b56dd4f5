//! The source at work: list, watch, and begin anew whenever something is not as it should be.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Client, Error};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::KubernetesSettings;
use super::board::Board;
use super::client::connect;
use super::failure::Failure;
use super::labels::Problem;
use super::mapping::Defaults;
use super::pod::{Facts, Pod};
use super::settings::{Namespace, Scope};
use crate::feed::Feed;

/// Events that are taken together when they came together.
const CHUNK: usize = 256;
/// How often in a row a watch may be lost at once before that is a failure.
const LOST_MAX: u32 = 3;
/// Shortest time from one watch to the next: a server that ends them at once is not asked in a loop.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Problems of pods that are remembered, so that each is told once.
const TOLD_MAX: usize = 1_000;

/// Reports the workers that pods are, until nobody reads. Ends early only if the settings cannot work.
pub async fn run(settings: KubernetesSettings, feed: Feed) {
    if let Err(error) = settings.check() {
        feed.fail(error.to_string());
        return feed.closed().await;
    }
    let scopes = settings.scopes();
    let told = Mutex::default();
    let mut pause = settings.retry_after;
    loop {
        let begun = Instant::now();
        let failure = tokio::select! {
            () = feed.closed() => return,
            failure = follow(&settings, &scopes, &feed, &told) => failure,
        };
        feed.fail(failure.to_string());
        if begun.elapsed() > settings.retry_at_most {
            pause = settings.retry_after;
        }
        let wait = jittered(pause.max(failure.pause()));
        pause = (pause * 2).min(settings.retry_at_most);
        tokio::select! {
            () = feed.closed() => return,
            () = sleep(wait) => {}
        }
    }
}

/// Up to a quarter more, so that replicas that failed together do not ask together.
fn jittered(pause: Duration) -> Duration {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let share = now.unwrap_or_default().subsec_nanos() % 1_000;
    pause + pause * share / 4_000
}

/// Everything that the watches of all scopes share.
struct Follower<'a> {
    settings: &'a KubernetesSettings,
    feed: &'a Feed,
    board: Mutex<Board>,
    /// Problems that were told.
    told: &'a Mutex<BTreeSet<Problem>>,
}

/// Lists and watches all scopes over new connections until the first failure.
async fn follow(
    settings: &KubernetesSettings,
    scopes: &[Scope],
    feed: &Feed,
    told: &Mutex<BTreeSet<Problem>>,
) -> Failure {
    let client = match connect(settings).await {
        Ok(client) => client,
        Err(failure) => return failure,
    };
    let defaults = Defaults {
        port: settings.port,
        https: settings.https,
    };
    let follower = Follower {
        settings,
        feed,
        board: Mutex::new(Board::new(scopes, defaults)),
        told,
    };
    let watches = scopes.iter().enumerate().map(|(index, scope)| {
        let watch = Watch {
            follower: &follower,
            pods: pods(&client, scope),
            scope,
            index,
        };
        watch.run()
    });
    match try_join_all(watches).await {
        Ok(never) => match never.into_iter().next() {
            Some(never) => match never {},
            None => Failure::from(super::SettingsError::NoSelector),
        },
        Err(failure) => failure,
    }
}

fn pods(client: &Client, scope: &Scope) -> Api<Pod> {
    let client = client.clone();
    match &scope.namespace {
        Namespace::Own => Api::default_namespaced(client),
        Namespace::Named(name) => Api::namespaced(client, name),
        Namespace::All => Api::all(client),
    }
}

impl Follower<'_> {
    /// Changes the board, and reports the picture that it shows then.
    fn change(&self, change: impl FnOnce(&mut Board)) -> Result<(), Failure> {
        let picture = {
            let mut board = self.board.lock();
            change(&mut board);
            board.picture()
        };
        let Some((picture, problems)) = picture else {
            return Ok(());
        };
        self.tell(problems);
        self.feed.see(picture?);
        Ok(())
    }

    /// A scope is as it was; the picture is true once all scopes are.
    fn confirm(&self, scope: usize) {
        let mut board = self.board.lock();
        if board.confirm(scope) {
            self.feed.confirm();
        }
    }

    /// Logs problems that are new.
    fn tell(&self, problems: Vec<Problem>) {
        let mut told = self.told.lock();
        let problems: BTreeSet<Problem> = problems.into_iter().take(TOLD_MAX).collect();
        for problem in problems.difference(&told) {
            tracing::warn!("{problem}");
        }
        *told = problems;
    }
}

/// One scope.
struct Watch<'a> {
    follower: &'a Follower<'a>,
    pods: Api<Pod>,
    scope: &'a Scope,
    index: usize,
}

/// How a watch ended that did not fail.
enum End {
    /// At its time; the next one goes on from this revision.
    Timely(String),
    /// Its revision is too old, or its connection broke, as it does when a server or a balancer before it starts anew: a
    /// list heals it. A server that is away fails that.
    Lost(Failure),
}

impl Watch<'_> {
    async fn run(self) -> Result<Infallible, Failure> {
        let mut in_a_row = 0;
        loop {
            // None if a page was asked for too late.
            let mut revision = self.list().await?;
            let mut lost = self.expired();
            while let Some(from) = revision {
                let begun = Instant::now();
                let end = self.watch(from).await?;
                if begun.elapsed() >= WATCH_EVERY {
                    in_a_row = 0;
                }
                revision = match end {
                    End::Timely(next) => {
                        in_a_row = 0;
                        self.follower.confirm(self.index);
                        sleep_until(begun + WATCH_EVERY).await;
                        Some(next)
                    }
                    End::Lost(why) => {
                        lost = why;
                        None
                    }
                };
            }
            in_a_row += 1;
            if in_a_row > LOST_MAX {
                return Err(lost);
            }
        }
    }

    /// Reports all pods, and returns the revision of their list; none if it expired between two pages.
    async fn list(&self) -> Result<Option<String>, Failure> {
        let settings = self.follower.settings;
        let mut pods = Vec::new();
        let mut query = ListParams::default()
            .labels(&self.scope.selector)
            .limit(settings.page_size);
        loop {
            let page = timeout(settings.answer_within, self.pods.list(&query)).await;
            let page = match page {
                Ok(Ok(page)) => page,
                Ok(Err(Error::Api(status))) if status.code == 410 => return Ok(None),
                Ok(Err(error)) => return Err(Failure::of("list", self.scope, &error)),
                Err(_) => return Err(self.silent("list", settings.answer_within)),
            };
            pods.extend(page.items.iter().map(Facts::from));
            query.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if query.continue_token.is_none() {
                self.follower
                    .change(|board| board.replace(self.index, pods))?;
                self.follower.confirm(self.index);
                return Ok(Some(page.metadata.resource_version.unwrap_or_default()));
            }
        }
    }

    /// Follows changes until the server ends the watch, which it has to do at the time that it is given.
    async fn watch(&self, mut revision: String) -> Result<End, Failure> {
        let settings = self.follower.settings;
        let lasts = u32::try_from(settings.watch_for.as_secs()).unwrap_or(u32::MAX);
        let query = WatchParams::default()
            .labels(&self.scope.selector)
            .timeout(lasts);
        let lasts = settings.watch_for + settings.idle_margin;
        let ends = Instant::now() + lasts;
        let open = timeout(settings.answer_within, self.pods.watch(&query, &revision)).await;
        let events = match open {
            Ok(Ok(events)) => events,
            Ok(Err(Error::Api(status))) if status.code == 410 => {
                return Ok(End::Lost(self.expired()));
            }
            Ok(Err(error)) => {
                let failure = Failure::of("watch", self.scope, &error);
                return match error {
                    Error::Api(_) => Err(failure),
                    _ => Ok(End::Lost(failure)),
                };
            }
            Err(_) => return Err(self.silent("watch", settings.answer_within)),
        };
        let mut chunks = std::pin::pin!(events.ready_chunks(CHUNK));
        loop {
            let Ok(chunk) = timeout_at(ends, chunks.next()).await else {
                return Err(self.silent("watch", lasts));
            };
            let Some(chunk) = chunk else {
                return Ok(End::Timely(revision));
            };
            if let Some(end) = self.take(chunk, &mut revision)? {
                return Ok(end);
            }
        }
    }

    /// Takes events that came together; an end if they are the last ones.
    fn take(
        &self,
        chunk: Vec<Result<WatchEvent<Pod>, Error>>,
        revision: &mut String,
    ) -> Result<Option<End>, Failure> {
        let mut end = Ok(None);
        let mut changes = Vec::new();
        for event in chunk {
            let (pod, is_gone) = match event {
                Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => (pod, false),
                Ok(WatchEvent::Deleted(pod)) => (pod, true),
                Ok(WatchEvent::Bookmark(mark)) => {
                    revision.clone_from(&mark.metadata.resource_version);
                    continue;
                }
                Ok(WatchEvent::Error(status)) if status.code == 410 => {
                    end = Ok(Some(End::Lost(self.expired())));
                    break;
                }
                Err(error @ Error::ReadEvents(_)) => {
                    let broken = Failure::of("watch", self.scope, &error);
                    end = Ok(Some(End::Lost(broken)));
                    break;
                }
                Ok(WatchEvent::Error(status)) => {
                    end = Err(Failure::refused("watch", self.scope, &status));
                    break;
                }
                Err(error) => {
                    end = Err(Failure::of("watch", self.scope, &error));
                    break;
                }
            };
            if let Some(now) = &pod.metadata.resource_version {
                revision.clone_from(now);
            }
            changes.push((Facts::from(&pod), is_gone));
        }
        if changes.is_empty() {
            // A bookmark is a sign of life.
            if matches!(end, Ok(None)) {
                self.follower.confirm(self.index);
            }
        } else {
            self.follower.change(|board| {
                for (pod, is_gone) in changes {
                    if is_gone {
                        board.remove(self.index, &pod);
                    } else {
                        board.put(self.index, pod);
                    }
                }
            })?;
        }
        end
    }

    fn expired(&self) -> Failure {
        Failure::Expired(self.scope.place())
    }

    fn silent(&self, verb: &'static str, silent: Duration) -> Failure {
        Failure::Silent {
            verb,
            place: self.scope.place(),
            silent,
        }
    }
}
