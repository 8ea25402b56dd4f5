//! The command from its words to its exit code, against fake workers.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use grapevine_bench::cli::{BenchArgs, BenchError, bench};
use grapevine_testbed::fake_worker::{Config, FakeWorker, Fault, Rule};
use serde_json::json;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: BenchArgs,
}

async fn worker() -> FakeWorker {
    let config = Config {
        speed: 1_000.0,
        ..Config::default()
    };
    FakeWorker::start(config).await.expect("port 0")
}

async fn run(line: &str) -> Result<ExitCode, BenchError> {
    let words = ["bench"].into_iter().chain(line.split_whitespace());
    let line = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    bench(line.args).await
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}

#[tokio::test]
async fn own_bodies_go_out_with_the_key_and_the_key_into_no_page() {
    let worker = worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let key = write(folder.path(), "key", "sk-hush\n");
    let body =
        r#"{"model":"fake-model","messages":[{"role":"user","content":"hi"}],"max_tokens":2}"#;
    let bodies = write(folder.path(), "bodies.jsonl", body);
    let page = folder.path().join("page.html");
    let line = format!(
        "--url {}/v1 --requests 7 --concurrency 2 --bodies {bodies} --api-key-file {key} --html {}",
        worker.url(),
        page.display()
    );
    let code = run(&line).await.expect("it ran");
    assert_eq!(code, ExitCode::SUCCESS);
    let log = worker.log();
    let with_key = log.iter().filter(|entry| {
        let mut headers = entry.headers.iter();
        headers.any(|(_, value)| value == "Bearer sk-hush")
    });
    assert_eq!(with_key.count(), 7);
    let page = std::fs::read_to_string(page).expect("written");
    assert!(page.contains("bodies of a file") && !page.contains("hush"));
}

#[tokio::test]
async fn exit_codes_say_whether_all_some_or_none_could_be_asked() {
    let worker = worker().await;
    let url = worker.url();
    // The model is asked for.
    let line = format!("--url {url} --requests 4 --max-tokens 2 --json");
    assert_eq!(run(&line).await.expect("it ran"), ExitCode::SUCCESS);
    worker
        .add_rule(Rule::next(1, Fault::status(500)))
        .expect("room");
    assert_eq!(run(&line).await.expect("it ran"), ExitCode::from(1));
    worker.kill().await;
    let named = format!("{line} --model m");
    assert_eq!(run(&named).await.expect("it ran"), ExitCode::from(3));
    let refused = run(&line).await.expect_err("nobody lists models");
    assert!(matches!(refused, BenchError::Unreachable(_)), "{refused}");
}

#[tokio::test]
async fn requests_that_were_shed_were_not_answered() {
    let worker = worker().await;
    worker
        .add_rule(Rule::always(Fault::delay_ms(100)))
        .expect("room");
    let line = format!(
        "--url {} --model fake-model --requests 50 --rate 5000 --max-tokens 2 --json",
        worker.url()
    );
    let all = run(&line).await.expect("it ran");
    assert_eq!(all, ExitCode::SUCCESS);
    let few = format!("{line} --in-flight-max 1");
    assert_eq!(run(&few).await.expect("it ran"), ExitCode::from(1));
    let none = format!("{line} --duration 1ns");
    assert_eq!(run(&none).await.expect("it ran"), ExitCode::from(1));
}

#[tokio::test]
async fn an_endpoint_that_refuses_to_list_its_models_is_not_out_of_reach() {
    for (status, body, expected) in [
        (
            401,
            "no\u{1b}[2J ",
            "status 401 Unauthorized: no\u{fffd}[2J no",
        ),
        (200, "\"sk-hush\"", "reply of /v1/models: invalid type"),
    ] {
        let worker = worker().await;
        let folder = tempfile::tempdir().expect("a folder");
        let key = write(folder.path(), "key", "sk-hush\n");
        let repeat = if status == 401 { 1_000_000 } else { 1 };
        let reply = json!({"status": status, "body": body, "repeat": repeat});
        let rule = json!({"when": {"path": "/v1/models"}, "fault": {"reply": reply}});
        worker
            .add_rule(serde_json::from_value(rule).expect("a rule"))
            .expect("room");
        let line = format!("--url {} --requests 4 --api-key-file {key}", worker.url());
        let refused = run(&line).await.expect_err("no model is known");
        assert!(matches!(refused, BenchError::Refused(_)), "{refused:?}");
        let said = refused.to_string();
        assert!(
            said.contains(expected) && said.contains("--model"),
            "{said}"
        );
        assert!(said.len() < 1_000 && !said.contains("hush") && !said.contains('\u{1b}'));
    }
}

#[tokio::test]
async fn a_command_line_that_cannot_be_followed_sends_nothing() {
    let worker = worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let empty = write(folder.path(), "empty", "\n");
    for (wrong, expected) in [
        ("--rate 0".to_owned(), "--rate"),
        ("--rate nan".to_owned(), "--rate"),
        (format!("--api-key-file {empty}"), "no key is in"),
        (
            "--api-key-env GRAPEVINE_NO_SUCH_KEY".to_owned(),
            "no key is in",
        ),
        (format!("--bodies {empty}"), "no body is in it"),
        (
            format!("--ca {empty} --against https://127.0.0.1:1"),
            "no certificates",
        ),
    ] {
        let refused = run(&format!("--url {} {wrong}", worker.url())).await;
        let refused = refused.expect_err(&wrong);
        assert!(
            matches!(refused, BenchError::Usage(_)),
            "{wrong}: {refused}"
        );
        assert!(refused.to_string().contains(expected), "{wrong}: {refused}");
    }
    assert_eq!(worker.stats().requests, 0);
    let page = write(folder.path(), "page.html", "of yesterday");
    let refused = run(&format!("--url {} --rate 0 --html {page}", worker.url())).await;
    assert!(matches!(refused, Err(BenchError::Usage(_))));
    let kept = std::fs::read_to_string(&page).expect("it is there");
    assert_eq!(kept, "of yesterday", "a report that is there stays");
    for wrong in [
        "--concurrency 0",
        "--duration 0s",
        "--timeout 31d",
        "--rounds 0",
        "--url ftp://x",
    ] {
        let words = ["bench", "--url", "http://x"]
            .into_iter()
            .chain(wrong.split_whitespace());
        assert!(Line::try_parse_from(words).is_err(), "{wrong}");
    }
}
