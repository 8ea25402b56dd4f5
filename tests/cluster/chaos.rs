//! `grapevine chaos` itself: two scenarios against processes, as CI and users run them.

use std::path::Path;
use std::process::Output;

use grapevine_tests::binary::grapevine;
use serde_json::Value;
use tokio::process::Command;

async fn chaos(arguments: &[&str]) -> Output {
    let mut chaos = Command::new(grapevine());
    chaos.arg("chaos").args(arguments).kill_on_drop(true);
    chaos.output().await.expect("grapevine can be started")
}

/// Each promise: its text, whether it held, and what was seen.
fn promises(record: &Value) -> impl Iterator<Item = (&str, bool, &str)> {
    let all = record["promises"].as_array().expect("promises").iter();
    all.map(|promise| {
        let text = |key: &str| promise[key].as_str().expect("text");
        (text("text"), promise["held"] == true, text("seen"))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_and_a_kill_break_no_promise() {
    let reports = tempfile::tempdir().expect("a temporary directory can be made");
    let dir = reports.path().to_str().expect("UTF-8");
    // Little load: the machine may be busy with other tests.
    let asked = [
        "run",
        "partition",
        "worker-kill",
        "--quick",
        "--rate",
        "4",
        "--json",
        "--report",
        dir,
    ];
    let output = chaos(&asked).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let records: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON line a run"))
        .collect();
    for record in &records {
        for (text, held, seen) in promises(record) {
            println!("{} {text}: {seen}", if held { "ok    " } else { "BROKEN" });
        }
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let names: Vec<_> = records.iter().map(|record| &record["scenario"]).collect();
    assert_eq!(names, ["partition", "worker-kill"]);
    for record in &records {
        assert!(promises(record).count() >= 8 && promises(record).all(|(_, held, _)| held));
        assert!(record["totals"]["succeeded"].as_u64() > Some(0), "{record}");
    }
    let texts = |record| promises(record).map(|(text, ..)| text).collect::<Vec<_>>();
    let has = |record, part: &str| texts(record).iter().any(|text| text.contains(part));
    assert!(has(&records[0], "both sides hold different rings"));
    assert!(has(&records[1], "no ring changes"));
    for page in ["index.html", "partition.html", "worker-kill.json"] {
        assert!(Path::new(dir).join(page).exists(), "{page}");
    }
}

#[tokio::test]
async fn what_does_not_exist_is_a_usage_error() {
    for wrong in [
        &["run", "nothing"][..],
        &["run", "one-way", "--replicas", "2"],
    ] {
        let output = chaos(wrong).await;
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty());
    }
    let list = chaos(&["list"]).await;
    let text = String::from_utf8_lossy(&list.stdout);
    assert!(
        ["partition", "soak", "random"]
            .iter()
            .all(|name| text.contains(name))
    );
}
