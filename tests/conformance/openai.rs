//! The official `openai` Python client against one replica; see `openai_client.py`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use grapevine_testbed::fake_worker::Config;
use grapevine_tests::cluster::Plan;
use tokio::process::Command;
use tokio::time::timeout;

use crate::house::{House, quick};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance");
/// The first time it downloads the client.
const SETUP_WITHIN: Duration = Duration::from_secs(300);
const RUN_WITHIN: Duration = Duration::from_secs(60);

/// Runs a command; unless it succeeds, panics with its output.
async fn run(command: &mut Command, within: Duration, what: &str) -> String {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(within, output).await;
    let output = output.unwrap_or_else(|_| panic!("{what} took more than {within:?}"));
    let output = output.unwrap_or_else(|error| panic!("{what} cannot be run: {error}"));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{what} failed:\n{said}");
    said
}

/// The interpreter of the environment that `setup.sh` makes, in the target directory of this test.
async fn python() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let target = test
        .ancestors()
        .nth(3)
        .expect("cargo puts tests three deep");
    let environment = target.join("openai-python");
    let setup = Path::new(FOLDER).join("setup.sh");
    let what = "making the Python environment (tests/conformance/setup.sh)";
    run(Command::new(setup).arg(&environment), SETUP_WITHIN, what).await;
    environment.join("bin/python")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_python_client_is_content() {
    let other = Config {
        models: vec!["org/other".to_owned()],
        ..quick()
    };
    let house = House::of(Plan::default(), vec![quick(), quick(), other]).await;
    let script = Path::new(FOLDER).join("openai_client.py");
    let mut client = Command::new(python().await);
    let client = client
        .arg(script)
        .arg(format!("http://{}/v1", house.data()));
    let said = run(client, RUN_WITHIN, "the Python client").await;
    print!("{said}");
    house.close().await;
}
