//! `grapevine doctor`: looks at a configuration, at a running cluster, or at both, as an experienced operator would.
//!
//! `gather` collects facts, `checks` makes findings of them, this file prints them. It changes nothing.

mod checks;
mod facts;
mod finding;
mod gather;

use std::path::PathBuf;

use clap::builder::styling::AnsiColor;
use serde_json::{Value, json};
use url::Url;

use self::facts::Facts;
use self::finding::{Finding, Severity};
use super::client::{ADMIN_URL, AdminClient, CA, CaArg, DEFAULT_ADMIN, TOKEN, admin_url};
use super::failure::Failure;
use super::show::{in_colour, print_json, print_line};
use crate::config::Layers;
use crate::shown::clean;
use crate::shown::words::count;

/// Raised when a field of `--json` leaves or changes its meaning; new fields do not raise it.
const SCHEMA: u32 = 1;

/// Looks at a running cluster or a configuration as an experienced operator would, and says what to do.
///
/// Of a cluster: replicas, settings that differ and by what, clocks, paths between replicas, workers, certificates,
/// files, processors, memory. Of a file (--config): its mistakes, what it names, ports, seeds, workers, limits of this
/// machine. The worst comes first. Nothing is changed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine doctor                                  # the cluster of the replica on this machine
  grapevine doctor --admin http://10.0.0.2:30001
  grapevine doctor --config grapevine.toml          # before a start: nothing needs to run
  grapevine doctor --config grapevine.toml --admin http://10.0.0.2:30001   # and what runs
  grapevine doctor --json --fail-on advice

Exit codes: 0 nothing of the severity of --fail-on, or worse, was found; 1 a replica refuses; 2 the file cannot be
read; 3 no replica answers; 4 something was found.")]
pub struct DoctorArgs {
    /// Look at this configuration file, on this machine; no replica needs to run.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Look at the cluster of the replica with this admin address. Without --config: that of the variable
    /// GRAPEVINE_ADMIN_URL, or http://127.0.0.1:30001.
    #[arg(long, value_name = "URL", value_parser = admin_url)]
    admin: Option<Url>,
    #[command(flatten)]
    ca: CaArg,
    /// Admin token, needed beyond loopback.
    #[arg(long, env = TOKEN, hide_env_values = true)]
    token: Option<String>,
    /// From which severity on the exit code is 4.
    #[arg(long, value_name = "SEVERITY", default_value = "problem")]
    fail_on: Severity,
    /// Write JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Prints what was found. `environment`: variables that lie over the file.
/// Errors: the file cannot be read; no replica answers, or it refuses; something was found that is as bad as was asked
/// for.
pub async fn doctor(
    args: DoctorArgs,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<(), Failure> {
    let environment: Vec<(String, String)> = environment.collect();
    let mut facts = Facts::default();
    let admin = admin(&args, &environment)?;
    if admin.is_none() {
        is_for_nobody(&args, &environment)?;
    }
    if let Some(path) = &args.config {
        let mut layers = Layers {
            environment,
            ..Layers::default()
        };
        layers.read_file(path)?;
        facts.config = Some(gather::config::gather(path, &layers).await);
    }
    let mut not_asked = Ok(());
    if let Some(admin) = admin {
        let client = AdminClient::trusting(admin, args.token.clone(), &args.ca)?;
        match gather::cluster::gather(&client).await {
            Ok(cluster) => facts.cluster = Some(cluster),
            // What was found of the file is told all the same.
            Err(failure) if facts.config.is_some() => not_asked = Err(failure),
            Err(failure) => return Err(failure),
        }
    }
    let findings = checks::all(&facts);
    match args.json {
        true => print_json(&as_json(&facts, &findings))?,
        false => print_text(&facts, &findings)?,
    }
    not_asked?;
    match findings
        .iter()
        .any(|finding| finding.severity >= args.fail_on)
    {
        true => Err(Failure::NotWell),
        false => Ok(()),
    }
}

/// The replica that is to be asked. The variable stands for a default: that it is set does not mean that a replica must run
/// for a look at a file.
fn admin(args: &DoctorArgs, environment: &[(String, String)]) -> Result<Option<Url>, Failure> {
    if args.config.is_some() || args.admin.is_some() {
        return Ok(args.admin.clone());
    }
    let variable = environment.iter().find(|(name, _)| name == ADMIN_URL);
    let address = variable.map_or(DEFAULT_ADMIN, |(_, value)| value);
    let wrong = |why| Failure::Usage(format!("{ADMIN_URL}: {why}"));
    admin_url(address).map(Some).map_err(wrong)
}

/// Nobody is asked; the variables of what is for a replica may be set for good.
fn is_for_nobody(args: &DoctorArgs, environment: &[(String, String)]) -> Result<(), Failure> {
    let is_of_variable = |name: &str, value: &str| {
        let mut variables = environment.iter();
        variables.any(|(variable, set)| variable == name && set == value)
    };
    let token = args.token.as_deref().map(|token| ("--token", TOKEN, token));
    let ca = args.ca.path().and_then(|path| path.to_str());
    let ca = ca.map(|path| ("--ca", CA, path));
    let mut given = token.into_iter().chain(ca);
    match given.find(|(_, variable, value)| !is_of_variable(variable, value)) {
        Some((flag, ..)) => Err(Failure::Usage(format!(
            "{flag} is for a replica, and with --config none is asked: add --admin URL, or leave it out"
        ))),
        None => Ok(()),
    }
}

fn as_json(facts: &Facts, findings: &[Finding]) -> Value {
    let cluster = facts.cluster.as_ref();
    json!({
        "schema": SCHEMA,
        "config": facts.config.as_ref().map(|config| &config.path),
        "asked": cluster.map(|cluster| cluster.replicas.iter().map(|replica| &replica.id).collect::<Vec<_>>()),
        "not_asked": cluster.map(|cluster| {
            let not_asked = cluster.not_asked.iter();
            not_asked.map(|(id, why)| json!({ "replica": id, "why": why })).collect::<Vec<_>>()
        }),
        "findings": findings.iter().map(Finding::to_json).collect::<Vec<_>>(),
    })
}

fn print_text(facts: &Facts, findings: &[Finding]) -> Result<(), Failure> {
    print_line(&clean(&headline(facts, findings)))?;
    for finding in findings {
        let todo = match finding.todo.as_str() {
            "" => String::new(),
            todo => format!(" → {todo}"),
        };
        let severity = coloured(finding.severity);
        let (what, todo) = (clean(&finding.what), clean(&todo));
        print_line(&format!("{severity} {:<12} {what}{todo}", finding.check))?;
    }
    Ok(())
}

/// What was looked at, and how much was found.
fn headline(facts: &Facts, findings: &[Finding]) -> String {
    let mut looked = Vec::new();
    if let Some(cluster) = &facts.cluster {
        let known = crate::shown::rows(&cluster.cluster, "replicas").len();
        looked.push(format!(
            "{} ({} asked) and {}",
            count(known, "replica"),
            cluster.replicas.len(),
            count(cluster.workers.len(), "worker")
        ));
    }
    if let Some(config) = &facts.config {
        looked.push(config.path.clone());
    }
    let of = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let found = match (of(Severity::Problem), of(Severity::Advice)) {
        (0, 0) => "nothing that needs to be done".to_owned(),
        (0, advice) => format!("no problem, {advice} to do better"),
        (problems, 0) => count(problems, "problem"),
        (problems, advice) => format!("{}, {advice} to do better", count(problems, "problem")),
    };
    format!("looked at {}: {found}", looked.join(" and at "))
}

fn coloured(severity: Severity) -> String {
    let (sign, colour) = match severity {
        Severity::Problem => ("✖ problem", AnsiColor::Red),
        Severity::Advice => ("▲ advice ", AnsiColor::Yellow),
        Severity::Info => ("  info   ", AnsiColor::Cyan),
    };
    in_colour(sign, colour)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    async fn run(words: &[&str]) -> Result<(), Failure> {
        // As `main` does; another test of this process may have.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let words = ["grapevine", "doctor"].iter().chain(words);
        let Ok(Command::Doctor(args)) = Cli::try_parse_from(words).map(|cli| cli.command) else {
            panic!("not doctor");
        };
        let nobody = (ADMIN_URL.to_owned(), "http://127.0.0.1:1".to_owned());
        doctor(args, [nobody].into_iter()).await
    }

    /// The variable is set for good on machines where no replica may run yet.
    #[tokio::test]
    async fn a_file_is_looked_at_whether_a_replica_runs_or_not() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let file = file.path().to_str().expect("UTF-8");
        let looked = run(&["--config", file, "--fail-on", "problem"]).await;
        // A port of the defaults may be taken here.
        assert!(
            matches!(looked, Ok(()) | Err(Failure::NotWell)),
            "{looked:?}"
        );
        for flag in ["--token", "--ca"] {
            let failure = run(&["--config", file, flag, "x"]).await.expect_err(flag);
            let is_told = matches!(&failure, Failure::Usage(why) if why.starts_with(flag));
            assert!(is_told, "{failure}");
        }
        for words in [
            &[][..],
            &["--config", file, "--admin", "http://127.0.0.1:1"],
        ] {
            let failure = run(words).await.expect_err("nobody is there");
            let is_unreachable =
                matches!(&failure, Failure::Unreachable(why) if why.contains("127.0.0.1:1"));
            assert!(is_unreachable, "{words:?}: {failure}");
        }
    }

    #[test]
    fn the_first_line_says_what_was_looked_at_and_found() {
        let facts = Facts {
            config: Some(facts::ConfigFacts {
                path: "g.toml".to_owned(),
                ..Default::default()
            }),
            cluster: None,
        };
        let problem = || Finding::problem("port", "a");
        let advice = || Finding::advice("port", "b");
        let check = |found: &[Finding], expected: &str| {
            assert_eq!(
                headline(&facts, found),
                format!("looked at g.toml: {expected}")
            );
        };
        check(&[], "nothing that needs to be done");
        check(
            &[Finding::info("port", "c")],
            "nothing that needs to be done",
        );
        check(&[advice()], "no problem, 1 to do better");
        check(&[problem(), advice()], "1 problem, 1 to do better");
        check(&[problem(), problem()], "2 problems");
    }
}
