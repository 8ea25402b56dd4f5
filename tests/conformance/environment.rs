//! Programs that are not ours, in the environment that `setup.sh` makes: the official client, ZeroMQ,
//! and `kubectl`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// This folder.
pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance");
/// The first time it downloads what it needs.
const SETUP_WITHIN: Duration = Duration::from_secs(300);

/// Runs a command; unless it succeeds, panics with its output.
pub(crate) async fn run(command: &mut Command, within: Duration, what: &str) -> String {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(within, output).await;
    let output = output.unwrap_or_else(|_| panic!("{what} took more than {within:?}"));
    let output = output.unwrap_or_else(|error| panic!("{what} cannot be run: {error}"));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{what} failed:\n{said}");
    said
}

/// A program of the environment, which is in the target directory of this test.
pub(crate) async fn program(name: &str) -> PathBuf {
    static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _guard = ONE_AT_A_TIME.lock().await;
    let test = std::env::current_exe().expect("a test knows its own path");
    let target = test
        .ancestors()
        .nth(3)
        .expect("cargo puts tests three deep");
    let environment = target.join("openai-python");
    let setup = Path::new(FOLDER).join("setup.sh");
    let what = "making the Python environment (tests/conformance/setup.sh)";
    run(Command::new(setup).arg(&environment), SETUP_WITHIN, what).await;
    environment.join("bin").join(name)
}
