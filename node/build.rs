//! Tells the program from what it was built: `grapevine --version` prints it.
//!
//! The commit is `GRAPEVINE_COMMIT`, where a builder without a repository sets it, else that of the repository, else
//! "unknown". The date is that of `SOURCE_DATE_EPOCH`, else that of the commit; never that of the build, so that two
//! builds of one source are equal. A debug build asks for neither: each commit would build the replica anew.

use std::path::Path;
use std::process::Command;

fn main() {
    for name in ["GRAPEVINE_COMMIT", "SOURCE_DATE_EPOCH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    let debug = variable("PROFILE").as_deref() == Some("debug");
    if !debug {
        // Written at each commit and each switch of branches. A file that is not there would mean "build always".
        if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
            && Path::new(&log).exists()
        {
            println!("cargo::rerun-if-changed={log}");
        }
    }
    let from_git = |args: &[&str]| if debug { None } else { git(args) };
    let commit = variable("GRAPEVINE_COMMIT")
        .or_else(|| from_git(&["rev-parse", "--short=12", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    let date = variable("SOURCE_DATE_EPOCH")
        .and_then(|seconds| seconds.parse().ok())
        .map(date)
        .or_else(|| from_git(&["log", "-1", "--format=%cs"]));
    let target = variable("TARGET").unwrap_or_default();
    let has = |name: &str, part: &str| variable(name).map(|_| part.to_owned());
    let parts = [
        Some(format!("commit {commit}")),
        date,
        Some(target),
        has("CARGO_FEATURE_JEMALLOC", "jemalloc"),
        has("CARGO_FEATURE_KUBERNETES", "kubernetes"),
        has("CARGO_FEATURE_TESTBED", "testbed"),
        debug.then(|| "debug".to_owned()),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    println!("cargo::rustc-env=GRAPEVINE_REVISION={commit}");
    println!("cargo::rustc-env=GRAPEVINE_BUILD={}", parts.join(", "));
}

fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok()?;
    (!value.trim().is_empty()).then(|| value.trim().to_owned())
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

/// YYYY-MM-DD of seconds since 1970, in the proleptic Gregorian calendar: eras of 400 years begin on 1 March.
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + carry)
}
