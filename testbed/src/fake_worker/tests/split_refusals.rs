//! What a decode worker answers when the blocks do not come, and how the engine treats wrong parameters.

use super::split::{CHAT, Pair, config, internal, pair, post, prefill_body, request, text, with};
use super::*;

#[tokio::test]
async fn wrong_parameters_are_refused_as_captured() {
    let pair = pair(Connector::Nixl).await;
    let params = pair.prefilled().await;
    for (field, wrong) in [
        (
            "remote_engine_id",
            json!("d16eca8c-8032-4f61-8d84-f843d8ae8db1"),
        ),
        ("remote_request_id", json!("chatcmpl-r-00000000")),
        ("remote_block_ids", json!([[1, 2, 3]])),
        ("tp_size", json!(2)),
    ] {
        let mut params = params.clone();
        params[field] = wrong;
        assert_eq!(pair.decoded(params).await, (500, internal()), "{field}");
    }
    assert_eq!(pair.held(), 1, "none of them freed anything");
    assert_eq!(pair.decoded(params.clone()).await.0, 200);
    assert_eq!(pair.decoded(params).await, (500, internal()), "freed");
    let errors: Vec<Option<String>> = pair
        .decode
        .log()
        .into_iter()
        .map(|e| e.transfer_error)
        .collect();
    assert!(
        errors[0]
            .as_ref()
            .is_some_and(|why| why.starts_with("unknown engine"))
    );
    assert_eq!(errors[4], None);
}

#[tokio::test]
async fn blocks_of_another_size_do_not_fit() {
    let prefill = start(config(Connector::Nixl, Role::Prefill)).await;
    let mut other = config(Connector::Nixl, Role::Decode);
    other.engine.block_tokens = 16;
    let pair = Pair {
        prefill,
        decode: start(other).await,
    };
    let params = pair.prefilled().await;
    assert_eq!(pair.decoded(params).await, (500, internal()));
}

#[tokio::test]
async fn blocks_of_another_prompt_give_another_text() {
    let pair = pair(Connector::Nixl).await;
    let params = pair.prefilled().await;
    let mut other = with(request(), params);
    other["messages"][0]["content"] = "9".repeat(1_900).into();
    let (status, answer) = post(&pair.decode, &other).await;
    other["kv_transfer_params"] = Value::Null;
    let (_, right) = post(&pair.prefill, &other).await;
    assert_eq!(status, 200);
    assert_ne!(text(&answer), text(&right));
}

#[tokio::test]
async fn a_field_that_the_connector_asserts_ends_the_engine() {
    let mut pair = pair(Connector::Nixl).await;
    let mut params = pair.prefilled().await;
    params["remote_block_ids"] = Value::Null;
    let (status, _) = pair.decoded(params).await;
    assert_eq!(status, 500);
    timeout(LIMIT, pair.decode.stopped())
        .await
        .expect("it ends");
}

#[tokio::test]
async fn a_request_without_the_other_sides_address_waits_for_ever() {
    let pair = pair(Connector::Nixl).await;
    let mut params = pair.prefilled().await;
    params["remote_host"] = Value::Null;
    let mut client = Client::connect(&pair.decode).await;
    client.post(CHAT, "", &with(request(), params)).await;
    let deferred = || pair.decode.worker.ranks[0].pacer.gauges().deferred == 1;
    eventually("it waits", deferred).await;
    assert!(client.is_silent().await);
    drop(client);
    eventually("it left", || {
        pair.decode.worker.ranks[0].pacer.gauges().deferred == 0
    })
    .await;
}

#[tokio::test]
async fn a_dead_prefill_worker_is_noticed_at_once_if_it_was_known() {
    let Pair { prefill, decode } = pair(Connector::Nixl).await;
    let (_, first) = post(&prefill, &prefill_body()).await;
    let (_, second) = post(&prefill, &prefill_body()).await;
    let body = |answer: &Value| with(request(), answer["kv_transfer_params"].clone());
    assert_eq!(post(&decode, &body(&first)).await.0, 200);
    prefill.kill().await;
    let start = tokio::time::Instant::now();
    assert_eq!(post(&decode, &body(&second)).await, (500, internal()));
    assert!(
        start.elapsed() < Duration::from_millis(250),
        "{:?}",
        start.elapsed()
    );
    // An engine that it never met takes the whole limit.
    let stranger = start_and_kill().await;
    let start = tokio::time::Instant::now();
    assert_eq!(post(&decode, &body(&stranger)).await, (500, internal()));
    assert!(start.elapsed() >= Duration::from_millis(300));
    // The same request without parameters goes well.
    assert_eq!(post(&decode, &request()).await.0, 200);
}

/// The answer of a prefill worker that is gone.
async fn start_and_kill() -> Value {
    let worker = start(config(Connector::Nixl, Role::Prefill)).await;
    let (_, answer) = post(&worker, &prefill_body()).await;
    worker.kill().await;
    answer
}

#[tokio::test]
async fn a_side_channel_that_is_closed_or_silent_fails_after_its_limit_and_recovers() {
    let pair = pair(Connector::Nixl).await;
    let params = pair.prefilled().await;
    for state in [SideChannelState::Closed, SideChannelState::Silent] {
        pair.prefill.set_side_channel(state);
        let start = tokio::time::Instant::now();
        assert_eq!(pair.decoded(params.clone()).await, (500, internal()));
        assert!(start.elapsed() >= Duration::from_millis(300), "{state:?}");
        assert_eq!(pair.held(), 1);
    }
    pair.prefill.set_side_channel(SideChannelState::Open);
    assert_eq!(pair.decoded(params).await.0, 200);
}
