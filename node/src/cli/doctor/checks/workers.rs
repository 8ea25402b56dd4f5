//! Workers: in trouble, with other models than the registry says, without prompt-token details, without KV events.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::cli::doctor::facts::ClusterFacts;
use crate::cli::doctor::finding::Finding;
use crate::shown::trouble::{
    NAMELESS, ON_TRIAL, REFUSING_KEY, RETURNING, awaits_trial, own_trouble, worker_trouble,
};
use crate::shown::words::{count, named, verb};
use crate::shown::{IS_REPLICA, KEY_REFUSED, NAMES_LEFT_OUT, field, rows};

/// So many answers without details say that there never are any: vLLM leaves them out of an answer of whose prompt
/// nothing was cached.
const ANSWERS_MIN: u64 = 20;

pub(super) fn check(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    sources(facts, found);
    let workers = &facts.workers;
    if workers.is_empty() {
        let todo =
            "grapevine workers add URL, or [[worker]] in the file, or a source that finds them";
        found.push(Finding::problem("worker", "there is no worker").todo(todo));
        return;
    }
    troubled(workers, found);
    troubled_elsewhere(facts, found);
    on_trial(workers, found);
    keys_refused(workers, found);
    names_left_out(workers, found);
    unlisted(workers, found);
    without_details(workers, found);
    kv_events(facts, found);
    single(workers, found);
    let drained: Vec<&Value> = workers
        .iter()
        .filter(|row| row["drained"] == true)
        .collect();
    if !drained.is_empty() {
        let what = format!(
            "{} by hand: {}",
            told(&drained, "is drained", "are drained"),
            ids(&drained)
        );
        let todo = "grapevine workers activate URL ends it";
        found.push(of(Finding::info("worker", what), &drained).todo(todo));
    }
}

fn sources(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    for row in &facts.sources {
        let source = field(row, "source");
        let number = |name: &str| row[name].as_u64().unwrap_or(0) as usize;
        if row["up"] == false {
            let why = row["failure"].as_str().unwrap_or("it was not seen yet");
            let what = format!("the source of workers {source} is not seen: {why}");
            let todo =
                "its workers stay as they were; mend what the message names (docs/discovery.md)";
            found.push(Finding::problem("source", what).of([&source]).todo(todo));
        }
        // Those that other replicas still see are told below: they stay for another reason, and another time.
        let missed = number("registered").saturating_sub(number("contested"));
        if row["up"] == true && row["seen"] == 0 && missed > 0 {
            let workers = count(missed, "worker");
            let what = format!(
                "the source of workers {source} names none any more; the {workers} that it had stay in use until \
                 discovery.empty_hold is over"
            );
            let todo = "is the selector, the file or the name still right? (docs/discovery.md)";
            found.push(Finding::problem("source", what).of([&source]).todo(todo));
        }
        if number("contested") > 0 {
            let workers = count(number("contested"), "worker");
            let what =
                format!("replicas see {source} differently: some see {workers} that others do not");
            let todo = "compare the source's settings on all replicas (discovery, workers.allow); grapevine doctor on each";
            found.push(Finding::advice("source", what).of([&source]).todo(todo));
        }
        if number("refused") > 0 {
            let workers = count(number("refused"), "worker");
            let what = format!(
                "{workers} of {source} not taken: workers.allow does not have their addresses"
            );
            let todo = "the log names each; put their network into workers.allow";
            found.push(Finding::advice("source", what).of([&source]).todo(todo));
        }
    }
}

fn told(rows: &[&Value], one: &str, many: &str) -> String {
    format!(
        "{} {}",
        count(rows.len(), "worker"),
        verb(rows.len(), one, many)
    )
}

fn ids(rows: &[&Value]) -> String {
    named(&rows.iter().map(|row| field(row, "id")).collect::<Vec<_>>())
}

fn of(finding: Finding, rows: &[&Value]) -> Finding {
    finding.of(rows.iter().map(|row| field(row, "id")))
}

/// As `grapevine status` has it, with why and what to do.
fn troubled(workers: &[Value], found: &mut Vec<Finding>) {
    let mut kinds: BTreeMap<(&str, &str), Vec<&Value>> = BTreeMap::new();
    for worker in workers {
        if let Some(trouble) = worker_trouble(worker) {
            let why = worker["why"].as_str();
            let remedy = match why.and_then(of_certificate).or(why.and_then(of_replica)) {
                Some(of_why) => of_why,
                None if trouble == NAMELESS && refuses_key(worker) => OF_KEY,
                None => remedy(trouble),
            };
            kinds.entry((trouble, remedy)).or_default().push(worker);
        }
    }
    for ((trouble, remedy), rows) in kinds {
        // That nobody listens is all that there is to say of it.
        let says_more = trouble != "refusing connections";
        let whys: BTreeSet<&str> = rows.iter().filter_map(|row| row["why"].as_str()).collect();
        let first = whys.first().filter(|_| says_more);
        let more = match whys.len() {
            0 | 1 => String::new(),
            all => format!("; {}", count(all - 1, "further reason")),
        };
        let why = first.map_or(String::new(), |why| format!(" ({why}{more})"));
        let what = format!(
            "{} {} {trouble}: {}{why}",
            count(rows.len(), "worker"),
            verb(rows.len(), "is", "are"),
            ids(&rows),
        );
        found.push(of(Finding::problem("worker", what), &rows).todo(remedy));
    }
}

/// What other replicas have found and the asked one has not, such as a way that is closed for one machine alone.
fn troubled_elsewhere(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    let Some((asked, others)) = facts.replicas.split_first() else {
        return;
    };
    let is_well = |row: &&Value| worker_trouble(row).is_none();
    let well = facts.workers.iter().filter(is_well);
    let well: BTreeSet<String> = well.map(|row| field(row, "id")).collect();
    for other in others {
        let mut kinds: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for row in &other.troubled {
            if let Some(trouble) = own_trouble(row)
                && well.contains(&field(row, "id"))
            {
                kinds.entry(trouble).or_default().push(row);
            }
        }
        for (trouble, rows) in kinds {
            let why = rows.iter().find_map(|row| row["why"].as_str());
            let why = why.map_or(String::new(), |why| format!(" ({why})"));
            let what = format!(
                "seen from {} {} {trouble}, and not from {}: {}{why}",
                other.id,
                told(&rows, "is", "are"),
                asked.id,
                ids(&rows)
            );
            let todo = format!(
                "look at the way from the machine of {} to it: firewall, DNS, certificates; and at what its [workers] allow",
                other.id
            );
            found.push(of(Finding::problem("worker", what), &rows).todo(todo));
        }
    }
}

fn on_trial(workers: &[Value], found: &mut Vec<Finding>) {
    let rows: Vec<&Value> = workers.iter().filter(|row| awaits_trial(row)).collect();
    if rows.is_empty() {
        return;
    }
    let what = format!("{} {ON_TRIAL}: {}", told(&rows, "is", "are"), ids(&rows));
    let todo = "the next request that would go there shows how it is; the engine's log says why requests failed";
    found.push(of(Finding::info("worker", what), &rows).todo(todo));
}

/// Those that are in no trouble so far: what they serve is known by other ways, and requests get their refusals.
fn keys_refused(workers: &[Value], found: &mut Vec<Finding>) {
    let is_it = |row: &&Value| refuses_key(row) && worker_trouble(row).is_none();
    let rows: Vec<&Value> = workers.iter().filter(is_it).collect();
    if rows.is_empty() {
        return;
    }
    let verb = verb(rows.len(), "refuses", "refuse");
    let what = format!(
        "{} {verb} the key with which this replica asks for models: {}",
        count(rows.len(), "worker"),
        ids(&rows)
    );
    found.push(of(Finding::problem("worker", what), &rows).todo(OF_KEY));
}

/// What to do about what the TLS library says of a certificate.
fn of_certificate(why: &str) -> Option<&'static str> {
    if !why.contains("invalid peer certificate") {
        return None;
    }
    Some(match why.contains("UnknownIssuer") {
        true => {
            "its certificate is of no authority that is trusted here: set workers.ca to the authority's file"
        }
        false => "its certificate is not good: look at its dates, its names and its use",
    })
}

/// What to do about a worker that is none.
fn of_replica(why: &str) -> Option<&'static str> {
    let todo = "its address is that of a replica, or of a balancer before them: grapevine workers remove URL, and add the \
                engines themselves";
    why.starts_with(IS_REPLICA).then_some(todo)
}

/// What to do about a worker that does not let this replica ask for its models.
const OF_KEY: &str = "set api_key or api_key_file of its [[worker]], or of [workers], to the key that the engine was started with";

fn refuses_key(worker: &Value) -> bool {
    worker["why"]
        .as_str()
        .is_some_and(|why| why.starts_with(KEY_REFUSED))
}

fn remedy(trouble: &str) -> &'static str {
    match trouble {
        "refusing connections" => {
            "no process listens there: start the engine; one that is gone for good leaves with its source, or, where you declared it, by grapevine workers remove URL"
        }
        "without an address" => "its name does not resolve here: look at DNS, or at the spelling",
        "unreachable" | "not answering checks" => {
            "look whether the engine runs, and whether this machine reaches its port (firewall, workers.allow)"
        }
        "failing checks" => "its health path answers with an error: read the engine's log",
        RETURNING => "it is used after a few good checks in a row: look again in some seconds",
        "giving no tokens" => {
            "it takes requests and computes nothing: read the engine's log, most often it must be started anew"
        }
        "left alone after failed requests" => {
            "its answers fail: read the engine's log; after a pause it is tried again, by the next request that would go there"
        }
        NAMELESS => "look what its /v1/models lists",
        REFUSING_KEY => OF_KEY,
        _ => {
            "other replicas speak against it, this one has no sign of its own: grapevine doctor on one of them says why"
        }
    }
}

/// One of which none is left is in trouble, with the same words.
fn names_left_out(workers: &[Value], found: &mut Vec<Finding>) {
    for worker in workers.iter().filter(|row| worker_trouble(row).is_none()) {
        let why = field(worker, "why");
        if why.contains(NAMES_LEFT_OUT) {
            let id = field(worker, "id");
            let what =
                format!("requests for some models that {id} lists are not sent there: {why}");
            let todo = "make its list shorter, or correct the name (--served-model-name); the limits: docs/workers.md";
            found.push(Finding::advice("models", what).of([id]).todo(todo));
        }
    }
}

fn unlisted(workers: &[Value], found: &mut Vec<Finding>) {
    for worker in workers {
        let missing: Vec<String> = rows(worker, "unlisted_models")
            .iter()
            .map(crate::shown::plain)
            .collect();
        if missing.is_empty() {
            continue;
        }
        let id = field(worker, "id");
        let what = format!(
            "{id} is registered for {}, and does not list it at /v1/models",
            named(&missing)
        );
        let todo = "start the engine with that model (--served-model-name), or correct models of the worker in the file";
        found.push(Finding::problem("models", what).of([id]).todo(todo));
    }
}

fn without_details(workers: &[Value], found: &mut Vec<Finding>) {
    let number = |row: &Value, name: &str| row[name].as_u64().unwrap_or(0);
    let is_without = |row: &&Value| {
        number(row, "usage_with_details") == 0
            && number(row, "usage_without_details") >= ANSWERS_MIN
    };
    let rows: Vec<&Value> = workers.iter().filter(is_without).collect();
    if rows.is_empty() {
        return;
    }
    let what = format!(
        "{} not how much of a prompt was cached: {}",
        told(&rows, "says", "say"),
        ids(&rows)
    );
    let todo = "start vLLM with --enable-prompt-tokens-details: hit rates are then known, and wrong expectations of its \
                cache are corrected";
    found.push(of(Finding::advice("usage", what), &rows).todo(todo));
}

fn kv_events(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    let asked = facts.replicas.first();
    let listens = asked.is_some_and(|replica| replica.about["kv_events"] == true);
    let publishes = |row: &&Value| !rows(row, "kv_caches").is_empty();
    let active = |row: &&Value| row["state"] == "active";
    let (with, without): (Vec<&Value>, Vec<&Value>) =
        facts.workers.iter().filter(active).partition(publishes);
    let todo =
        "start vLLM with --kv-events-config and give the worker its address (docs/kv-events.md)";
    if listens && !without.is_empty() {
        let what = format!(
            "{} no KV events: {}",
            told(&without, "publishes", "publish"),
            ids(&without)
        );
        let finding = match with.is_empty() {
            // Then what replicas remember of their own requests is as good for all.
            true => Finding::info("kv_events", format!("{what}; what is cached is estimated")),
            false => Finding::advice("kv_events", format!("{what}; the others do")),
        };
        found.push(of(finding, &without).todo(todo));
    }
    let has = |wanted: fn(&Value) -> bool| {
        let any = |row: &&Value| rows(row, "kv_caches").iter().any(wanted);
        with.iter()
            .copied()
            .filter(|row| any(row))
            .collect::<Vec<_>>()
    };
    let cut_off = has(|engine| engine["connected"] == false);
    if !cut_off.is_empty() {
        let what = format!(
            "the subscription to KV events of {} does not stand: {}",
            count(cut_off.len(), "worker"),
            ids(&cut_off)
        );
        let todo =
            "look at the port of its events: is it open to the replicas, and is the address right?";
        found.push(of(Finding::advice("kv_events", what), &cut_off).todo(todo));
    }
    let contradicted = has(|engine| engine["believed"] == false && engine["connected"] == true);
    if !contradicted.is_empty() {
        let what = format!(
            "KV events of {} are not believed: {}",
            count(contradicted.len(), "worker"),
            ids(&contradicted)
        );
        let todo = "answers contradict them, or nothing bears them out yet; the log says which (docs/kv-events.md)";
        found.push(of(Finding::info("kv_events", what), &contradicted).todo(todo));
    }
}

/// Models that one worker alone serves.
fn single(workers: &[Value], found: &mut Vec<Finding>) {
    let mut of_model: BTreeMap<&str, usize> = BTreeMap::new();
    for worker in workers {
        for model in rows(worker, "models").iter().filter_map(Value::as_str) {
            *of_model.entry(model).or_default() += 1;
        }
    }
    let single: Vec<&str> = of_model
        .into_iter()
        .filter_map(|(model, workers)| (workers == 1).then_some(model))
        .collect();
    if !single.is_empty() {
        let what = format!(
            "one worker alone serves {}: {}",
            count(single.len(), "model"),
            named(&single)
        );
        found.push(Finding::info("models", what).of(single));
    }
}
