//! The runs of `grapevine chaos`: one after the other, each with a folder of its own.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use crate::chaos::scenario::Scenario;

/// Runs the scenarios one after the other until a stop. One that cannot be run does not keep the others from it. Returned
/// are the names of those that were not run: of these, and of what would have come behind a stop.
pub(super) async fn in_turn(
    scenarios: &[&'static Scenario],
    stop: &CancellationToken,
    mut run: impl AsyncFnMut(&'static Scenario) -> anyhow::Result<()>,
) -> Vec<&'static str> {
    let mut not_run = Vec::new();
    for scenario in scenarios {
        if stop.is_cancelled() {
            not_run.push(scenario.name);
            continue;
        }
        eprintln!("== {}: {}", scenario.name, scenario.title);
        if let Err(error) = run(scenario).await {
            eprintln!("error: {}: {error:#}", scenario.name);
            not_run.push(scenario.name);
        }
    }
    not_run
}

/// Makes a folder for a run in `within`: `name`, or the first of `name-2`, `name-3`, ... that is not there. An earlier
/// run's certificates are never written over, so a run needs a folder of its own.
pub(super) fn make_dir(within: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let cannot = |dir: &Path| format!("cannot make {}", dir.display());
    std::fs::create_dir_all(within).with_context(|| cannot(within))?;
    let mut dir = within.join(name);
    for number in 2_u64.. {
        match std::fs::create_dir(&dir) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                dir = within.join(format!("{name}-{number}"));
            }
            made => {
                made.with_context(|| cannot(&dir))?;
                break;
            }
        }
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::scenarios::named;

    #[tokio::test]
    async fn a_scenario_that_cannot_be_run_does_not_keep_the_others_from_it() {
        let scenarios = ["clock", "lossy", "scale"].map(|name| named(name).expect("there is one"));
        let stop = CancellationToken::new();
        let mut begun = Vec::new();
        let not_run = in_turn(&scenarios, &stop, async |scenario| {
            begun.push(scenario.name);
            anyhow::ensure!(scenario.name != "clock", "clocks need libfaketime");
            stop.cancel();
            Ok(())
        });
        assert_eq!(not_run.await, ["clock", "scale"]);
        assert_eq!(begun, ["clock", "lossy"], "until it is stopped");
    }

    #[test]
    fn each_run_has_a_folder_of_its_own() {
        let temporary = tempfile::tempdir().expect("a folder");
        let within = temporary.path().join("kept");
        let make = || make_dir(&within, "lossy").expect("it can be written");
        let made = [make(), make(), make()];
        let expected = ["lossy", "lossy-2", "lossy-3"].map(|name| within.join(name));
        assert_eq!(made, expected);
        assert!(made.iter().all(|dir| dir.is_dir()));
        std::fs::write(within.join("file"), "").expect("it can be written");
        assert!(make_dir(&within.join("file"), "lossy").is_err());
    }
}
