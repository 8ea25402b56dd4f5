//! `grapevine events`: what became of replicas and workers, as every replica saw it, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::{AdminArgs, AdminClient, NO_ADMIN_ADDRESS};
use super::failure::Failure;
use super::show::{field, pause, print_json, print_line, rows};
use crate::shown::words::moment;

/// Shows faults, repairs and changes of the last hour, as the replicas saw them.
///
/// The replica that is asked names the others, which are asked, too, with the same token. What several of them saw
/// within seconds is one line that names them all.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine events
  grapevine events --follow                # and what happens from now on, until Ctrl-C
  grapevine events --only --json           # of the asked replica alone")]
pub struct EventsArgs {
    /// Goes on with what happens.
    #[arg(long, conflicts_with = "json")]
    follow: bool,
    /// Asks this replica alone.
    #[arg(long)]
    only: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Between two looks of `--follow`.
const EVERY: Duration = Duration::from_secs(2);
/// How long each other replica may take: one that hangs must not keep back what all others saw.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// What two replicas saw within this time is the same: one notices a death seconds after the other.
const SAME_S: u64 = 10;

/// What happened, and who saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    /// Seconds since 1970, of the first who saw it.
    pub(super) at_s: u64,
    /// `fault`, `repair` or `change`.
    pub(super) kind: String,
    pub(super) who: String,
    pub(super) text: String,
    pub(super) seen_by: Vec<String>,
}

/// What a replica has noted, by its own time and words: a clock that is set changes nothing.
type Noted = BTreeSet<(u64, String)>;

/// Answers of the replicas, and which of them gave none.
#[derive(Default)]
struct Asked {
    answers: Vec<Value>,
    silent: Vec<String>,
}

/// Prints them, oldest first.
/// Errors: the replica does not answer, or refuses.
pub async fn events(args: EventsArgs) -> Result<(), Failure> {
    let client = AdminClient::new(&args.admin)?;
    let (mut shown, mut silent) = (BTreeMap::new(), Vec::new());
    loop {
        let asked = ask_all(&client, args.only).await;
        let asked = match args.follow && !shown.is_empty() {
            true => or_silence(asked)?,
            false => asked?,
        };
        let found = in_order(&asked.answers, &mut shown);
        if args.admin.json {
            let list: Vec<_> = found.iter().map(Event::to_json).collect();
            return print_json(&json!({ "events": list, "not_asked": asked.silent }));
        }
        for event in &found {
            print_line(&event.line())?;
        }
        if asked.silent != silent {
            silent = asked.silent;
            for why in &silent {
                print_line(&format!("not asked: {why}"))?;
            }
        }
        if !args.follow {
            return Ok(());
        }
        if !pause(EVERY).await {
            return Ok(());
        }
    }
}

/// Where nobody answers, that is said, and asked again: the replica may come back.
fn or_silence(asked: Result<Asked, Failure>) -> Result<Asked, Failure> {
    match asked {
        Err(Failure::Unreachable(why)) => Ok(Asked {
            silent: vec![why],
            ..Asked::default()
        }),
        asked => asked,
    }
}

/// What all replicas that answer have noted, in order; and which gave no answer, with the reason.
pub(super) async fn all(client: &AdminClient) -> Result<(Vec<Event>, Vec<String>), Failure> {
    let asked = ask_all(client, false).await?;
    Ok((in_order(&asked.answers, &mut BTreeMap::new()), asked.silent))
}

/// What each replica that answers has noted; all are asked at once, since one that hangs answers late.
async fn ask_all(client: &AdminClient, only: bool) -> Result<Asked, Failure> {
    let mut asked = Asked {
        answers: vec![client.get(&["events"]).await?],
        ..Asked::default()
    };
    if only {
        return Ok(asked);
    }
    let cluster = client.get(&["cluster"]).await?;
    let own = field(&asked.answers[0], "replica");
    asked.silent = lost(&cluster);
    let others = rows(&cluster, "replicas").iter();
    let others = others.filter(|replica| field(replica, "id") != own);
    let mut asking = JoinSet::new();
    for other in others {
        let (id, address) = (field(other, "id"), field(other, "admin"));
        if other["live"] != true {
            asked.silent.push(format!("{id}: it is dead"));
            continue;
        }
        let Some(other) = client.elsewhere(&address) else {
            asked.silent.push(format!("{id}: {NO_ADMIN_ADDRESS}"));
            continue;
        };
        // Who answers there is known: with admin ports open to their own machines alone each names the same address.
        if other.url() == client.url() {
            let is_it = other.must_be(&id, &asked.answers[0]);
            asked
                .silent
                .extend(is_it.err().map(|not_it| format!("{id}: {not_it}")));
            continue;
        }
        asking.spawn(async move {
            let asked = timeout(ANSWER_WITHIN, noted_at(&other, &id)).await;
            let late = |_| {
                Err(Failure::Unreachable(format!(
                    "no answer in {ANSWER_WITHIN:?}"
                )))
            };
            (id, asked.unwrap_or_else(late))
        });
    }
    while let Some(answered) = asking.join_next().await {
        match answered {
            Ok((_, Ok(answer))) => asked.answers.push(answer),
            // Its port may be open to its own machine alone.
            Ok((id, Err(failure))) => asked.silent.push(format!("{id}: {failure}")),
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }
    asked.silent.sort();
    Ok(asked)
}

/// What the replica of this id has noted.
async fn noted_at(client: &AdminClient, id: &str) -> Result<Value, Failure> {
    let answer = client.get(&["events"]).await?;
    client.must_be(id, &answer)?;
    Ok(answer)
}

/// Replicas that died without a word, and that nobody knows any more: what they saw is lost.
fn lost(cluster: &Value) -> Vec<String> {
    let lost = rows(cluster, "lost").iter();
    lost.map(|lost| format!("{}: it is gone", field(lost, "id")))
        .collect()
}

/// Of answers of several replicas: what was not `shown` before, in order of time. Of each replica its latest answer is
/// remembered, which is bounded.
fn in_order(answers: &[Value], shown: &mut BTreeMap<String, Noted>) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    for answer in answers {
        let replica = field(answer, "replica");
        let before = shown.remove(&replica).unwrap_or_default();
        let mut now = Noted::new();
        for row in rows(answer, "events") {
            let (who, text) = (field(row, "who"), field(row, "text"));
            let noted = (
                row["noted_ms"].as_u64().unwrap_or(0),
                format!("{who} {text}"),
            );
            if !before.contains(&noted) && !now.contains(&noted) {
                events.push(Event {
                    at_s: row["at_s"].as_u64().unwrap_or(0),
                    kind: field(row, "kind"),
                    who,
                    text,
                    seen_by: vec![replica.clone()],
                });
            }
            now.insert(noted);
        }
        shown.insert(replica, now);
    }
    events.sort_by(|a, b| (a.at_s, &a.seen_by).cmp(&(b.at_s, &b.seen_by)));
    let mut merged: Vec<Event> = Vec::new();
    for event in events {
        let same = merged.iter_mut().rev().find(|of| {
            event.at_s.saturating_sub(of.at_s) < SAME_S
                && (&of.kind, &of.who, &of.text) == (&event.kind, &event.who, &event.text)
                && !of.seen_by.contains(&event.seen_by[0])
        });
        match same {
            Some(same) => same.seen_by.extend(event.seen_by),
            None => merged.push(event),
        }
    }
    merged
}

impl Event {
    fn line(&self) -> String {
        let time = humantime::format_rfc3339_seconds(moment(self.at_s));
        let seen_by = self.seen_by.join(", ");
        format!(
            "{time}  {:6}  {} {} (seen by {seen_by})",
            self.kind, self.who, self.text
        )
    }

    fn to_json(&self) -> Value {
        json!({
            "at_s": self.at_s, "kind": self.kind, "who": self.who, "text": self.text, "seen_by": self.seen_by,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fake_replica::{port, serve};

    /// Each machine's own replica is at the same loopback address, as it is by default: whoever answers there is not
    /// the one that was meant.
    #[tokio::test]
    async fn a_replica_that_answers_at_anothers_address_is_not_taken_for_it() {
        let ((listener, at), (silent, hangs)) = (port().await, port().await);
        let row = |id: &str, at: &dyn ToString| json!({ "id": id, "live": true, "admin": at.to_string() });
        let replicas = [row("r1", &at), row("r2", &at), row("r3", &hangs)];
        let noted =
            [json!({ "at_s": 1, "noted_ms": 1, "kind": "fault", "who": "w", "text": "is dead" })];
        let answer = json!({ "replica": "r1", "replicas": replicas, "events": noted });
        let _replica = serve(listener, move |_| (200, answer.clone()));
        let client = format!("http://{at}").parse().expect("a URL");
        let client = AdminClient::at(client, None).expect("a client");
        let (events, not_asked) = all(&client).await.expect("r1 answers");
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].seen_by, ["r1"]);
        let why = format!(
            "r2: r1 answers at http://{at}/, where it says to be: an address of its own machine alone"
        );
        assert_eq!(not_asked, [why, "r3: no answer in 2s".to_owned()]);
        drop(silent);
    }

    #[test]
    fn a_follower_is_told_that_its_replica_is_silent() {
        let silent = or_silence(Err(Failure::Unreachable("no answer".to_owned())));
        assert_eq!(silent.expect("it is asked again").silent, ["no answer"]);
        let refused = or_silence(Err(Failure::Refused("a token is needed".to_owned())));
        assert!(refused.is_err());
    }

    fn answer(replica: &str, events: &[(u64, &str, &str)]) -> Value {
        let events = events.iter().map(|(at_s, who, text)| {
            json!({ "at_s": at_s, "noted_ms": at_s * 1_000, "kind": "fault", "who": who, "text": text })
        });
        json!({ "replica": replica, "events": events.collect::<Vec<_>>() })
    }

    #[test]
    fn a_time_that_no_calendar_has_is_its_last_one() {
        let events = [
            (253_402_300_800, "a", "is late"),
            (u64::MAX, "b", "is later"),
        ];
        let events = events.map(|(at_s, who, text)| {
            json!({ "at_s": at_s, "noted_ms": 1, "kind": "fault", "who": who, "text": text })
        });
        let answer = json!({ "replica": "r1", "events": events });
        for event in in_order(&[answer], &mut BTreeMap::new()) {
            assert!(event.line().starts_with("9999-12-31T23:59:59Z "));
        }
    }

    #[test]
    fn what_several_saw_is_one_line_in_order_and_is_shown_once() {
        let answers = [
            answer(
                "r1",
                &[(100, "r3", "is dead"), (150, "w1", "fails its checks")],
            ),
            answer(
                "r2",
                &[
                    (90, "w9", "is unreachable"),
                    (103, "r3", "is dead"),
                    (140, "r3", "is dead"),
                ],
            ),
        ];
        let mut shown = BTreeMap::new();
        let found = in_order(&answers, &mut shown);
        let lines: Vec<_> = found.iter().map(Event::line).collect();
        assert_eq!(
            lines,
            [
                "1970-01-01T00:01:30Z  fault   w9 is unreachable (seen by r2)",
                "1970-01-01T00:01:40Z  fault   r3 is dead (seen by r1, r2)",
                "1970-01-01T00:02:20Z  fault   r3 is dead (seen by r2)",
                "1970-01-01T00:02:30Z  fault   w1 fails its checks (seen by r1)",
            ]
        );
        assert_eq!(in_order(&answers, &mut shown), [], "all of it was shown");
    }
}
