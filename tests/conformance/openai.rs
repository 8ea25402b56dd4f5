//! The official `openai` Python client against one replica; see `openai_client.py`.

use std::path::Path;
use std::time::Duration;

use grapevine_testbed::fake_worker::Config;
use grapevine_tests::cluster::Plan;
use tokio::process::Command;

use crate::environment::{FOLDER, program, run};
use crate::house::{House, quick};

const RUN_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn the_official_python_client_is_content() {
    let other = Config {
        models: vec!["org/other".to_owned()],
        ..quick()
    };
    let house = House::of(Plan::default(), vec![quick(), quick(), other]).await;
    let script = Path::new(FOLDER).join("openai_client.py");
    let mut client = Command::new(program("python").await);
    let client = client
        .arg(script)
        .arg(format!("http://{}/v1", house.data()));
    let said = run(client, RUN_WITHIN, "the Python client").await;
    print!("{said}");
    house.close().await;
}
