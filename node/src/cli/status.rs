//! `grapevine status`: the cluster as one replica sees it.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::builder::styling::AnsiColor;
use serde_json::Value;
use tokio::time::sleep;

use super::client::{AdminArgs, AdminClient};
use super::failure::Failure;
use super::show::{
    Column, field, in_colour, pause, print_aligned, print_json, print_line, print_table, rows,
    with_age,
};
use crate::shown::links::{Cell, Matrix};
use crate::shown::summary::summary;
use crate::shown::trouble::{replica_rank, worker_rank};

/// Shows the cluster: what is wrong, replicas, workers, and whether all hold the same ring.
///
/// The first line says what is wrong, and for how long; the worst rows come first. Exit code 4 where something is wrong.
/// Rings that differ count once they have differed for a second, which the news of a change may take.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine status
  grapevine status --watch                # again each two seconds, until Ctrl-C
  grapevine status --links                # and which replica hears which
  grapevine status > /dev/null || page-somebody
  grapevine status --admin http://10.0.0.2:30001 --json

Exit codes: 0 all is well; 3 no replica answers; 4 something is wrong.")]
pub struct StatusArgs {
    /// Show it again and again, each two seconds or as many as are given.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", conflicts_with = "json",
          value_parser = clap::value_parser!(u64).range(1..=3_600))]
    watch: Option<u64>,
    /// Show which replica hears which, too.
    #[arg(long)]
    links: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const REPLICAS: &[Column] = &[
    Column("REPLICA", "id"),
    Column("LIVE", "live"),
    Column("READY", "ready"),
    Column("LEAVING", "leaving"),
    Column("FOR", "for"),
    Column("DATA", "data"),
    Column("ADMIN", "admin"),
    Column("GOSSIP", "gossip"),
    Column("VERSION", "version"),
    Column("RING", "ring"),
];

/// Prints the view of one replica.
/// Errors: no replica answers, or it refuses; something is wrong with the cluster.
pub async fn status(args: StatusArgs) -> Result<(), Failure> {
    let client = AdminClient::new(&args.admin)?;
    let Some(every) = args.watch else {
        return look(&client, &args).await;
    };
    loop {
        print_line(before_each(std::io::stdout().is_terminal()))?;
        match look(&client, &args).await {
            Ok(()) | Err(Failure::NotWell) => {}
            // It may come back.
            Err(Failure::Unreachable(why)) => print_line(&why)?,
            Err(failure) => return Err(failure),
        }
        if !pause(Duration::from_secs(every)).await {
            return Ok(());
        }
    }
}

/// What parts one look from the one before: on a terminal it takes its place, elsewhere it stands below it.
fn before_each(is_terminal: bool) -> &'static str {
    match is_terminal {
        // Home, and everything below it away.
        true => "\x1b[H\x1b[2J\x1b[H",
        false => "",
    }
}

/// Right behind a change replicas have other rings for as long as the news takes: they are looked at again so many times.
const SECOND_LOOKS: u32 = 10;
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// The cluster; where the rings of live replicas differ, once they agree or have had a second for it.
async fn settled(client: &AdminClient) -> Result<Value, Failure> {
    let mut cluster = client.get(&["cluster"]).await?;
    for _ in 0..SECOND_LOOKS {
        if cluster["agreeing"].as_u64() >= cluster["live"].as_u64() {
            break;
        }
        sleep(SECOND_LOOK).await;
        cluster = client.get(&["cluster"]).await?;
    }
    Ok(cluster)
}

async fn look(client: &AdminClient, args: &StatusArgs) -> Result<(), Failure> {
    let cluster = settled(client).await?;
    let workers = super::workers::all_workers(client).await?;
    let links = match args.links {
        true => Some(client.get(&["links"]).await?),
        false => None,
    };
    let found = summary(&cluster, rows(&workers, "workers"));
    if args.admin.json {
        let mut all = serde_json::json!({ "cluster": cluster, "workers": workers });
        if let Some(links) = links {
            all["links"] = links;
        }
        print_json(&all)?;
    } else {
        print_line(&coloured(&found.text, found.is_wrong))?;
        print_tables(&cluster, &workers)?;
        links.as_ref().map_or(Ok(()), print_links)?;
    }
    if found.is_wrong {
        Err(Failure::NotWell)
    } else {
        Ok(())
    }
}

fn coloured(text: &str, is_wrong: bool) -> String {
    let colour = if is_wrong {
        AnsiColor::Red
    } else {
        AnsiColor::Green
    };
    in_colour(text, colour)
}

fn print_tables(cluster: &Value, workers: &Value) -> Result<(), Failure> {
    print_line(&format!(
        "seen by {}: ring {}, {} of {} live replicas agree",
        field(cluster, "replica"),
        field(cluster, "digest"),
        field(cluster, "agreeing"),
        field(cluster, "live"),
    ))?;
    for twin in rows(cluster, "twins") {
        print_line(&format!(
            "TWO PROCESSES run as {}: {} counts, {} is cut off and not ready; end one of them",
            field(twin, "id"),
            field(twin, "kept"),
            field(twin, "cut_off"),
        ))?;
    }
    if let Some(agreement) = cluster["agreement"].as_f64() {
        print_line(&format!(
            "of the last {} requests compared, a peer chose the same worker for {:.1} %",
            field(cluster, "agreement_samples"),
            agreement * 100.0,
        ))?;
    }
    if let Some(line) = minute(&cluster["minute"]) {
        print_line(&line)?;
    }
    print_line("")?;
    let mut replicas = rows(cluster, "replicas").to_vec();
    replicas.sort_by_key(|replica| replica_rank(cluster, replica));
    replicas.iter_mut().for_each(with_age);
    print_table(REPLICAS, &replicas)?;
    print_line("")?;
    let mut workers = rows(workers, "workers").to_vec();
    workers.sort_by_key(worker_rank);
    workers.iter_mut().for_each(with_age);
    print_table(super::workers::COLUMNS, &workers)
}

/// A row for each live replica: whom it hears, as it tells by itself.
fn print_links(links: &Value) -> Result<(), Failure> {
    let matrix = Matrix::of(links, usize::MAX);
    let heads = std::iter::once("HEARS".to_owned()).chain(matrix.ids.clone());
    let row = |(id, cells): (&String, &Vec<Cell>)| {
        let cells = cells.iter().map(|cell| cell.word().to_owned());
        std::iter::once(id.clone()).chain(cells).collect()
    };
    let rows = matrix.ids.iter().zip(&matrix.rows).map(row);
    let lines: Vec<_> = std::iter::once(heads.collect()).chain(rows).collect();
    print_line("")?;
    print_aligned(&lines)?;
    let cells = || matrix.rows.iter().flatten();
    if cells().any(|cell| *cell == Cell::Untold) {
        print_line("?: it is not heard by the asked replica, or its release does not tell")?;
    }
    Ok(())
}

/// How it went at this replica lately.
pub(super) fn minute(minute: &Value) -> Option<String> {
    let number = |name: &str| minute[name].as_f64();
    let mut line = format!(
        "last minute: {:.1} requests/s here, {} failed, {:.0} at workers, {:.0} waiting",
        number("requests_per_s")?,
        field(minute, "failed"),
        number("in_flight")?,
        number("waiting")?,
    );
    // Reckoned from the steps of a histogram.
    if let (Some(p50), Some(p99)) = (number("first_token_p50_ms"), number("first_token_p99_ms")) {
        line.push_str(&format!(
            "; first token about {p50:.0} ms, 99 of 100 within {p99:.0} ms"
        ));
    }
    if let Some(share) = number("hit_rate") {
        let percent = share * 100.0;
        line.push_str(&format!("; {percent:.0} % of prompt tokens from caches"));
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_terminal_gets_its_codes() {
        assert_eq!(before_each(false), "");
        assert!(before_each(true).contains('\x1b'));
    }

    #[test]
    fn the_last_minute_is_one_line_and_says_what_there_is() {
        let mut found = json!({
            "requests_per_s": 12.34, "failed": 1, "in_flight": 3.2, "waiting": 0.0, "hit_rate": null,
            "first_token_p50_ms": null, "first_token_p99_ms": null,
        });
        let line = "last minute: 12.3 requests/s here, 1 failed, 3 at workers, 0 waiting";
        assert_eq!(minute(&found).as_deref(), Some(line));
        found["first_token_p50_ms"] = 23.4.into();
        found["first_token_p99_ms"] = 61.0.into();
        found["hit_rate"] = 0.784.into();
        let line = format!(
            "{line}; first token about 23 ms, 99 of 100 within 61 ms; 78 % of prompt tokens from caches"
        );
        assert_eq!(minute(&found), Some(line));
        assert_eq!(minute(&Value::Null), None, "a release that does not say");
    }
}
