//! Requests to replicas and workers over HTTP: change the registry, freeze or slow down an engine.

use std::time::Duration;

use anyhow::Context;
use hyper::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::TOKEN;
use grapevine_bench::client::{Client, Target};

/// Limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for a started container to answer.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits for a 2xx.
pub(super) async fn answers(target: Target, path: &str) -> anyhow::Result<()> {
    let client = Client::one(target);
    let begun = Instant::now();
    loop {
        match client.text(Method::GET, path, "", REQUEST_TIMEOUT).await {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > START_TIMEOUT => return Err(error),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Adds a worker to the registry. Its model is not given: the replica asks the worker.
pub(super) async fn register(admin: &Target, id: &str, port: u16) -> anyhow::Result<()> {
    let body = json!({ "id": id, "url": format!("http://{id}:{port}") });
    ask(admin, Method::POST, "/workers", &body).await
}

/// Removes a worker from the registry.
pub(super) async fn unregister(admin: &Target, id: &str) -> anyhow::Result<()> {
    ask(
        admin,
        Method::DELETE,
        &format!("/workers/{id}"),
        &Value::Null,
    )
    .await
}

/// Ids of the workers in the registry.
pub(super) async fn registered(admin: &Target) -> anyhow::Result<Vec<String>> {
    let client = Client::one(admin.clone()).with_token(TOKEN)?;
    let workers: Value = client.json("/workers", REQUEST_TIMEOUT).await?;
    let ids = workers["workers"]
        .as_array()
        .context("GET /workers has no list")?;
    let id = |worker: &Value| worker["id"].as_str().map(str::to_owned);
    Ok(ids.iter().filter_map(id).collect())
}

/// Stops or resumes a worker's engine behind its healthy HTTP server.
pub(super) async fn freeze(worker: &Target, frozen: bool) -> anyhow::Result<()> {
    let path = if frozen { "freeze" } else { "unfreeze" };
    ask(
        worker,
        Method::POST,
        &format!("/_control/{path}"),
        &Value::Null,
    )
    .await
}

/// Makes the worker answer each request later by `delay`; zero removes all scripted faults.
pub(super) async fn slow_down(worker: &Target, delay: Duration) -> anyhow::Result<()> {
    let faults = "/_control/faults";
    ask(worker, Method::DELETE, faults, &Value::Null).await?;
    if delay.is_zero() {
        return Ok(());
    }
    let rule = json!({ "fault": { "delay_ms": u64::try_from(delay.as_millis())? } });
    ask(worker, Method::POST, faults, &rule).await
}

async fn ask(target: &Target, method: Method, path: &str, body: &Value) -> anyhow::Result<()> {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    // A worker's control API asks for no token and ignores one.
    let client = Client::one(target.clone()).with_token(TOKEN)?;
    client
        .text(method, path, body, REQUEST_TIMEOUT)
        .await
        .map(drop)
}
