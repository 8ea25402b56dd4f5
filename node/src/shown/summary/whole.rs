//! What is wrong beyond single replicas and workers: each kind of it in its words.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::shown::words::{NAMED, count, files_in_words, named, verb};
use crate::shown::{clean, field, rows, seconds};

/// What is wrong beyond single replicas and workers, the gravest first.
pub(super) fn of_the_whole(cluster: &Value) -> Vec<String> {
    let all = [
        twins,
        alone,
        unheard,
        lost_sources,
        certificates,
        data_certificate,
        refused_config,
        refused_keys,
        refused_files,
        quarantined,
        lost_tasks,
    ];
    all.iter().filter_map(|what| what(cluster)).collect()
}

/// Two processes under one id: first, since what either of them sees is not the cluster.
fn twins(cluster: &Value) -> Option<String> {
    let twins = rows(cluster, "twins").iter();
    let twins: Vec<_> = twins.map(|twin| field(twin, "id")).collect();
    let all = twins.join(", ");
    (!twins.is_empty()).then(|| format!("two processes run as {all}; "))
}

/// A replica that nobody answers, or that nobody lets in, knows nothing of the others.
fn alone(cluster: &Value) -> Option<String> {
    let silent = rows(cluster, "silent_seeds");
    if silent.is_empty() {
        return None;
    }
    let lasts = silent
        .iter()
        .filter_map(|seed| seed["for_s"].as_u64())
        .max();
    let lasts = lasts.map_or(String::new(), |for_s| format!(" for {}", seconds(for_s)));
    let named = silent.iter().take(NAMED).map(|seed| match &seed["why"] {
        Value::Null => field(seed, "seed"),
        _ => format!("{} ({})", field(seed, "seed"), field(seed, "why")),
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let what = match silent.iter().any(|seed| !seed["why"].is_null()) {
        true => "no seed could be joined",
        false => "no seed answers",
    };
    Some(format!("this replica is alone, {what}{lasts}: {named}; "))
}

/// Links that work one way or not at all: `r2 does not hear r1; `.
fn unheard(cluster: &Value) -> Option<String> {
    let pairs = rows(cluster, "unheard").iter();
    let mut pairs: Vec<_> = pairs
        .map(|pair| (field(pair, "replica"), field(pair, "other")))
        .collect();
    let all = pairs.clone();
    let is_mutual = |of: &String, other: &String| all.contains(&(other.clone(), of.clone()));
    // Of two that do not hear each other one is enough.
    pairs.retain(|(of, other)| !(is_mutual(of, other) && of > other));
    let named = pairs
        .iter()
        .take(NAMED)
        .map(|(of, other)| match is_mutual(of, other) {
            true => format!("{of} and {other} do not hear each other"),
            false => format!("{of} does not hear {other}"),
        });
    let mut named = named.collect::<Vec<_>>().join(", ");
    if pairs.len() > NAMED {
        named.push_str(&format!(" and {} more links", pairs.len() - NAMED));
    }
    (!pairs.is_empty()).then(|| format!("{named}; "))
}

/// Sources of workers that show nothing: their workers are in use, and may not be for long.
fn lost_sources(cluster: &Value) -> Option<String> {
    let lost = rows(cluster, "lost_sources").iter().map(|lost| {
        let what = match lost["how"].as_str() {
            Some("empty") => "shows no worker any more",
            _ => "cannot be seen",
        };
        format!("source {} {what}; ", field(lost, "source"))
    });
    let lost: String = lost.collect();
    (!lost.is_empty()).then_some(lost)
}

/// Certificates between replicas that have ended, or end within a day: their replicas are let in nowhere any more, and do
/// not start again.
fn certificates(cluster: &Value) -> Option<String> {
    let live = rows(cluster, "replicas")
        .iter()
        .filter(|row| row["live"] == true);
    let ends = live.filter_map(|row| {
        let what = match row["certificate_days"].as_i64()? {
            ..0 => "has ended",
            0 => "ends within a day",
            1.. => return None,
        };
        Some((what, field(row, "id")))
    });
    let mut of_kind: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (what, id) in ends {
        of_kind.entry(what).or_default().push(id);
    }
    let told = of_kind
        .iter()
        .map(|(what, ids)| format!("the certificate of {} {what}; ", named(ids)));
    let told: String = told.collect();
    (!told.is_empty()).then_some(told)
}

/// The certificate that the asked replica shows to clients, which look at its dates.
fn data_certificate(cluster: &Value) -> Option<String> {
    let certificate = &cluster["data_certificate"];
    let what = match (
        certificate["days"].as_i64()?,
        certificate["begins_in_s"].as_u64(),
    ) {
        (..0, _) => "has ended".to_owned(),
        (_, Some(left @ 1..)) => format!("begins in {}, by its replica's clock", seconds(left)),
        // Those of some authorities last for a day, and are renewed before it is over.
        _ => return None,
    };
    let replica = field(cluster, "replica");
    Some(format!(
        "the certificate of the data port of {replica} {what}; "
    ))
}

/// The configuration that the asked replica could not read again.
fn refused_config(cluster: &Value) -> Option<String> {
    let refused = &cluster["refused_config"];
    let ago = seconds(refused["for_s"].as_u64()?);
    Some(format!(
        "{} refused its configuration {ago} ago, and the former one stays: {}; ",
        field(cluster, "replica"),
        first_line(refused["why"].as_str().unwrap_or_default())
    ))
}

/// The keys of clients that it could not read again: one that was revoked lets its client in still.
fn refused_keys(cluster: &Value) -> Option<String> {
    let refused = &cluster["refused_keys"];
    let ago = seconds(refused["for_s"].as_u64()?);
    Some(format!(
        "{} refused its changed keys of clients {ago} ago, and the former ones stay: {}; ",
        field(cluster, "replica"),
        first_line(refused["why"].as_str().unwrap_or_default())
    ))
}

/// Keys and certificates that the asked replica could not read again: what was revoked in them is good still.
fn refused_files(cluster: &Value) -> Option<String> {
    let files = rows(cluster, "refused_files")
        .iter()
        .filter_map(Value::as_str)
        // Told with the mistake.
        .filter(|files| *files != "keys" || cluster["refused_keys"].is_null());
    let files: Vec<_> = files.map(files_in_words).collect();
    (!files.is_empty()).then(|| {
        let replica = field(cluster, "replica");
        let files = files.join(", ");
        format!(
            "{replica} cannot use the changed {files}, and the former ones stay: its log says why; "
        )
    })
}

/// Bodies with which workers ended: for a while no worker gets them.
fn quarantined(cluster: &Value) -> Option<String> {
    let bodies = cluster["quarantined"].as_u64().filter(|count| *count > 0)? as usize;
    Some(format!(
        "workers ended with {}, which {} refused for a while (grapevine quarantine); ",
        count(bodies, "request"),
        verb(bodies, "is", "are")
    ))
}

/// Tasks of the asked replica that a panic ended: what they did is missed until it starts again.
fn lost_tasks(cluster: &Value) -> Option<String> {
    let names = rows(cluster, "lost_tasks").iter().filter_map(Value::as_str);
    let names: Vec<_> = names.map(clean).collect();
    (!names.is_empty()).then(|| {
        let replica = field(cluster, "replica");
        let tasks = if names.len() == 1 { "task" } else { "tasks" };
        let names = names.join(", ");
        format!("a bug ended {tasks} {names} of {replica}: start it again; ")
    })
}

/// The first mistake of several, one a line, shortened.
fn first_line(text: &str) -> String {
    const CHARS_MAX: usize = 200;
    let line = clean(text.lines().next().unwrap_or_default());
    match line.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.into_owned(),
    }
}
