//! `grapevine workers`: list, add, drain, activate and remove workers, through any replica.

use std::time::Duration;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::client::{AdminArgs, AdminClient};
use super::description::Description;
use super::failure::Failure;
use super::show::{Column, field, print_json, print_line, print_table, rows};

/// Lists and changes the cluster's workers. A change made through one replica reaches all.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine workers list
  grapevine workers add http://10.0.0.7:8000 --weight 2
  grapevine workers add http://10.0.0.8:8000 --role prefill \\
    --kv-connector mooncake --bootstrap-port 8998
  grapevine workers add --file workers.txt          # one address a line
  grapevine workers add http://10.0.0.7:8000 --no-warm-up   # requests at once, cold cache
  grapevine workers drain http://10.0.0.7:8000 --wait   # ends when nothing is open there
  grapevine workers drain w1 w2 w3                  # of several, each by its id or its address
  grapevine workers activate http://10.0.0.7:8000   # undoes it
  grapevine workers remove http://10.0.0.7:8000   # everywhere, for as long as any replica lives")]
pub struct WorkersArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Shows every worker with its health and load.
    List {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Adds workers, or brings back removed ones.
    ///
    /// In a cluster with traffic it is warmed up first: the hottest prompts that will move to it are computed there.
    /// It takes requests when that is done, at the latest after `warmup.limit` (30 s). Of more than 64 that are added
    /// together none is warmed up: all take requests at once.
    Add(Add),
    /// Gives a worker nothing new, so that it can be removed: no new prefixes, and sessions move with their next
    /// request.
    ///
    /// What is open there goes on to its end; no stream is cut. Responses that it stores (`previous_response_id`) cannot
    /// be continued while it is drained. Its keys stay its own: `workers activate` brings
    /// them back. A worker that was found (file, DNS, pod, lease) still leaves when its source lets go of it, and the
    /// drain ends with it.
    Drain(Drain),
    /// Takes a drain back, or ends a warm-up: the worker gets requests again, unless its own source drains it.
    Activate {
        /// Ids or addresses of the workers.
        #[arg(value_name = "WORKER", required = true)]
        workers: Vec<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Removes a worker from every replica; only adding it again brings it back.
    ///
    /// Replicas that start learn it from those that live. Nothing is on a disk: where all of them end at once, a worker of
    /// the configuration, or one that a source sees, is back.
    Remove {
        /// Id or address of the worker.
        worker: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

// Plain comments: clap would show doc comments in place of the action's.
#[derive(clap::Args)]
struct Add {
    /// Addresses, as http://host:port or https://host:port. The options below hold for all of them.
    #[arg(value_name = "URL", required_unless_present = "file")]
    urls: Vec<String>,
    /// File with one address a line, besides; `#` begins a comment, `-` is standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    description: Description,
    /// Let it take requests at once, with a cold cache.
    #[arg(long)]
    no_warm_up: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

// As above.
#[derive(clap::Args)]
struct Drain {
    /// Ids or addresses of the workers.
    #[arg(value_name = "WORKER", required = true)]
    workers: Vec<String>,
    /// Wait until no replica has a request open at them, and show what is.
    #[arg(long)]
    wait: bool,
    /// With --wait: give up on what is open after so many seconds; the drains go on [default: never].
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    timeout: Option<u64>,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) const COLUMNS: &[Column] = &[
    Column("WORKER", "id"),
    Column("URL", "url"),
    Column("ROLE", "role"),
    Column("STATE", "state"),
    Column("SOURCES", "sources"),
    Column("HEALTH", "health"),
    Column("VERDICT", "verdict"),
    Column("FOR", "for"),
    Column("DOUBTED", "doubted"),
    Column("BREAKER", "breaker"),
    Column("IN-FLIGHT", "in_flight"),
    Column("WEIGHT", "weight"),
    Column("ZONE", "zone"),
    Column("MODELS", "models"),
];

/// Does what was asked and prints what the cluster answered.
/// Errors: no replica answers, or it refuses.
pub async fn workers(args: WorkersArgs) -> Result<(), Failure> {
    match args.action {
        Action::List { admin } => {
            let answer = all_workers(&AdminClient::new(&admin)?).await?;
            if admin.json {
                print_json(&answer)
            } else {
                let mut workers = rows(&answer, "workers").to_vec();
                workers.iter_mut().for_each(super::show::with_age);
                print_table(COLUMNS, &workers)
            }
        }
        Action::Add(args) => add(args).await,
        Action::Drain(args) => drain(args).await,
        Action::Activate { workers, admin } => {
            let client = AdminClient::new(&admin)?;
            change_each(Change::Activate, &client, &workers, &admin).await
        }
        Action::Remove { worker, admin } => {
            let client = AdminClient::new(&admin)?;
            let path = ["workers", &worker];
            let answer = client.call(Method::DELETE, &path, &[], Vec::new()).await?;
            report("removed", &answer, &admin)
        }
    }
}

/// Workers that are added with one request.
const ADDED_AT_ONCE: usize = 1_000;

async fn add(args: Add) -> Result<(), Failure> {
    args.description.check()?;
    let urls = all_urls(args.urls, args.file.as_deref())?;
    if args.description.id.is_some() && urls.len() > 1 {
        let why = "--id names one worker, and there are several".to_owned();
        return Err(Failure::Usage(why));
    }
    let worker = |url: &String| {
        let mut worker = args.description.of(url);
        if let Some(id) = &args.description.id {
            worker.insert("id".to_owned(), Value::from(id.as_str()));
        }
        Value::Object(worker)
    };
    let client = AdminClient::new(&args.admin)?;
    let query: &[_] = match args.no_warm_up {
        true => &[("warmup", "false")],
        false => &[],
    };
    let post = async |workers: Value| {
        let body = workers.to_string().into_bytes();
        client.call(Method::POST, &["workers"], query, body).await
    };
    if let [url] = urls.as_slice() {
        return report("added", &post(worker(url)).await?, &args.admin);
    }
    let (mut added, mut failed) = (Value::Null, Ok(()));
    for urls in urls.chunks(ADDED_AT_ONCE) {
        let workers: Vec<Value> = urls.iter().map(worker).collect();
        match post(workers.into()).await {
            Ok(answer) => join(&mut added, answer),
            Err(failure) => {
                failed = Err(failure);
                break;
            }
        }
    }
    // Those that were added before stay so, and are told.
    if !added.is_null() {
        report_all(&added, &args.admin)?;
    }
    failed
}

/// Makes one answer about added workers of two: what holds for all of them is the worse of both.
fn join(added: &mut Value, more: Value) {
    if added.is_null() {
        *added = more;
        return;
    }
    let is_worse = match (&added["replicated"], &more["replicated"]) {
        // There was nothing to send.
        (_, Value::Null) => false,
        (Value::Null, _) => true,
        _ => more["confirmed_by"].as_u64() < added["confirmed_by"].as_u64(),
    };
    if is_worse {
        for part in ["confirmed_by", "replicated"] {
            added[part] = more[part].clone();
        }
    }
    if let Some(workers) = added["workers"].as_array_mut() {
        workers.extend_from_slice(rows(&more, "workers"));
    }
}

async fn drain(args: Drain) -> Result<(), Failure> {
    let Drain {
        workers,
        wait,
        timeout,
        admin,
    } = args;
    let client = AdminClient::new(&admin)?;
    // All of them first: a worker that empties must not send its sessions to one that is to be drained next.
    change_each(Change::Drain, &client, &workers, &admin).await?;
    if !wait {
        return Ok(());
    }
    let limit = timeout.map(Duration::from_secs);
    super::drain::wait(&client, &workers, limit, admin.json).await
}

/// What is done with one worker after another.
#[derive(Clone, Copy)]
enum Change {
    Drain,
    Activate,
}

impl Change {
    async fn ask(self, client: &AdminClient, worker: &str) -> Result<Value, Failure> {
        let (method, path, body) = match self {
            Self::Drain => (Method::POST, &["workers", worker, "drain"][..], Vec::new()),
            Self::Activate => {
                let body = json!({ "state": "active" }).to_string().into_bytes();
                (Method::PATCH, &["workers", worker][..], body)
            }
        };
        client.call(method, path, &[], body).await
    }

    /// Why it was not done, though the replica took it.
    fn undone(self, answer: &Value) -> Option<Failure> {
        let still_drains = matches!(self, Self::Activate) && answer["state"] == "draining";
        still_drains.then(|| {
            Failure::Refused(format!(
                "not active: {} still drains, because its source says so (a pod that is not ready, a lease that \
                 expired); `grapevine workers list` names the source",
                field(answer, "id")
            ))
        })
    }

    async fn report(
        self,
        client: &AdminClient,
        answer: &Value,
        admin: &AdminArgs,
    ) -> Result<(), Failure> {
        match self {
            Self::Drain => {
                report("draining", answer, admin)?;
                super::cache::say_what_goes_with(client, answer).await
            }
            Self::Activate => report("active:", answer, admin),
        }
    }
}

/// One worker after the other, up to the first that fails; what the cluster answers is printed.
async fn change_each(
    change: Change,
    client: &AdminClient,
    workers: &[String],
    admin: &AdminArgs,
) -> Result<(), Failure> {
    let mut answers = Vec::new();
    let changed = change_up_to(change, client, workers, admin, &mut answers).await;
    if admin.json {
        // What was changed stays so, whatever became of the others.
        match answers.as_slice() {
            [] => {}
            [answer] if workers.len() == 1 => print_json(answer)?,
            answers => print_json(&json!({ "workers": answers }))?,
        }
    }
    changed
}

/// The same; gathers the answers.
async fn change_up_to(
    change: Change,
    client: &AdminClient,
    workers: &[String],
    admin: &AdminArgs,
    answers: &mut Vec<Value>,
) -> Result<(), Failure> {
    for worker in workers {
        // What was changed before stays so: the message must say which one was not.
        let answer = change.ask(client, worker).await;
        let answer = answer.map_err(|failure| failure.about(worker))?;
        let undone = change.undone(&answer);
        if undone.is_none() && !admin.json {
            change.report(client, &answer, admin).await?;
        }
        answers.push(answer);
        if let Some(failure) = undone {
            return Err(failure);
        }
    }
    Ok(())
}

fn all_urls(mut urls: Vec<String>, file: Option<&Path>) -> Result<Vec<String>, Failure> {
    let Some(file) = file else {
        return Ok(urls);
    };
    let text = match file.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(file),
    };
    let text = text.map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
    // Editors and shells of Windows begin a text with a mark of its encoding, which is no part of an address.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    urls.extend(lines.filter(|line| !line.is_empty()).map(str::to_owned));
    if urls.is_empty() {
        let why = format!("{} names no worker", file.display());
        return Err(Failure::Usage(why));
    }
    Ok(urls)
}

/// Every worker, page by page, in one answer.
pub(super) async fn all_workers(client: &AdminClient) -> Result<Value, Failure> {
    let workers = workers_that(client, |_| true).await?;
    Ok(json!({ "workers": workers }))
}

/// Workers for which this is so. No more than a page of others is held: a cluster may have thousands of them.
pub(super) async fn workers_that(
    client: &AdminClient,
    is_so: impl Fn(&Value) -> bool,
) -> Result<Vec<Value>, Failure> {
    let mut workers = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let query = after.as_deref().map(|after| ("after", after));
        let path = ["workers"];
        let mut page = client
            .call(Method::GET, &path, query.as_slice(), Vec::new())
            .await?;
        if let Some(Value::Array(more)) = page.get_mut("workers").map(Value::take) {
            workers.extend(more.into_iter().filter(&is_so));
        }
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            return Ok(workers);
        }
    }
}

/// Prints how far a list of new workers went.
fn report_all(answer: &Value, admin: &AdminArgs) -> Result<(), Failure> {
    if admin.json {
        return print_json(answer);
    }
    let changed = |worker: &&Value| !rows(worker, "changes").is_empty();
    let workers = rows(answer, "workers");
    let known: Vec<&Value> = workers.iter().filter(changed).collect();
    let same = workers.iter().filter(|worker| worker["unchanged"] == true);
    let of_them = match (known.len(), same.count()) {
        (0, 0) => String::new(),
        (known, 0) => format!(", of which {known} were known and are changed"),
        (0, same) => format!(", of which {same} were known and are as they were"),
        (known, same) => format!(
            ", of which {known} were known and are changed, and {same} were known and are as they were"
        ),
    };
    let (count, reach) = (workers.len(), reach(answer));
    print_line(&format!("added {count} workers{of_them}{reach}"))?;
    let mut known = known.into_iter();
    known.try_for_each(|worker| {
        print_line(&format!("{}: {}", field(worker, "id"), changes_of(worker)))
    })
}

/// What became otherwise of a worker that was known: `add` replaces all of its description.
fn changes_of(worker: &Value) -> String {
    // Names of models are whatever somebody chose.
    let changes = rows(worker, "changes").iter().map(crate::shown::plain);
    changes.collect::<Vec<_>>().join("; ")
}

/// Prints how far a change went: a replica that is alone keeps it, but no other has it yet.
fn report(done: &str, answer: &Value, admin: &AdminArgs) -> Result<(), Failure> {
    if admin.json {
        return print_json(answer);
    }
    let reach = reach(answer);
    let warming = match answer.get("state").and_then(Value::as_str) {
        Some("warming") => "; it is being warmed up and takes requests soon, see `workers list`",
        _ => "",
    };
    let id = field(answer, "id");
    match changes_of(answer).as_str() {
        changes if done == "added" && !changes.is_empty() => print_line(&format!(
            "{id} was known, and is changed: {changes}{reach}{warming}"
        )),
        _ if done == "added" && answer["unchanged"] == true => {
            print_line(&format!("{id} was known, and is as it was{reach}{warming}"))
        }
        _ => print_line(&format!("{done} {id}{reach}{warming}")),
    }
}

fn reach(answer: &Value) -> String {
    match answer.get("replicated").and_then(Value::as_bool) {
        Some(true) => format!(
            ", confirmed by {} other replica(s)",
            field(answer, "confirmed_by")
        ),
        Some(false) => ", known to this replica alone so far".to_owned(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::fake_replica::{port, serve};
    use crate::cli::{Cli, Command};

    async fn run(words: &[&str]) -> Result<(), Failure> {
        let words = ["grapevine", "workers"].iter().chain(words);
        match Cli::try_parse_from(words).map(|cli| cli.command) {
            Ok(Command::Workers(args)) => workers(args).await,
            _ => panic!("not workers"),
        }
    }

    #[tokio::test]
    async fn a_worker_that_stays_drained_was_not_activated() {
        let (listener, at) = port().await;
        let _replica = serve(listener, |_| {
            (200, json!({ "id": "w", "state": "draining" }))
        });
        let admin = format!("http://{at}");
        for more in [&[][..], &["--json"]] {
            let words = [&["activate", "w", "--admin", &admin], more].concat();
            let failure = run(&words).await.expect_err("it drains");
            let is_refused =
                matches!(&failure, Failure::Refused(why) if why.contains("w still drains"));
            assert!(is_refused, "{failure}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_sent_is_a_mistake_of_the_command_line() {
        let empty = tempfile::NamedTempFile::new().expect("a file");
        let empty = empty.path().to_str().expect("UTF-8");
        for words in [
            &["add", "http://a:1", "http://b:1", "--id", "w"][..],
            &["add", "--file", "/no/such/file"],
            &["add", "--file", empty],
            &["drain", "."],
        ] {
            let failure = run(words).await.expect_err("nothing was sent");
            assert!(matches!(failure, Failure::Usage(_)), "{words:?}: {failure}");
        }
    }

    #[test]
    fn a_list_of_addresses_may_begin_with_a_mark_of_its_encoding() {
        let list = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(list.path(), "\u{feff}http://a:1\n# b\nhttp://b:1\n").expect("written");
        let urls = all_urls(Vec::new(), Some(list.path())).expect("two addresses");
        assert_eq!(urls, ["http://a:1", "http://b:1"]);
    }

    #[test]
    fn what_changed_cannot_command_a_terminal() {
        let worker = json!({ "changes": ["models: a -> b\u{202e}\u{1b}[2J", "weight: 1 -> 2"] });
        let expected = "models: a -> b\u{fffd}\u{fffd}[2J; weight: 1 -> 2";
        assert_eq!(changes_of(&worker), expected);
    }

    #[test]
    fn of_two_answers_about_added_workers_the_worse_holds_for_all() {
        let answer = |id: &str, confirmed: u64, is_replicated: bool| json!({ "confirmed_by": confirmed, "replicated": is_replicated, "workers": [{ "id": id }] });
        let mut added = Value::Null;
        join(&mut added, answer("a", 2, true));
        assert_eq!(added, answer("a", 2, true));
        join(&mut added, answer("b", 1, false));
        let both = json!({ "confirmed_by": 1, "replicated": false, "workers": [{ "id": "a" }, { "id": "b" }] });
        assert_eq!(added, both);
        // Nothing was to be sent of the third, and nothing is said of how far it went.
        let nothing = || json!({ "workers": [{ "id": "c", "unchanged": true }] });
        join(&mut added, nothing());
        assert_eq!(added["replicated"], false);
        let mut added = nothing();
        join(&mut added, answer("b", 1, true));
        assert_eq!(added["confirmed_by"], 1);
        assert_eq!(added["replicated"], true);
    }
}
