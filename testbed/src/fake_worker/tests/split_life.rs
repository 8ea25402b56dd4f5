//! The life of kept blocks: room, expiry, clients that leave, restarts, faults, the log.

use super::split::{CHAT, Pair, config, internal, pair, post, prefill_body, request, with};
use super::*;

#[tokio::test]
async fn blocks_take_room_until_they_expire() {
    let pair = pair(Connector::Nixl).await;
    let fault = Fault::kv(KvFault::ExpireMs(100));
    pair.prefill.add_rule(Rule::next(1, fault)).expect("room");
    let params = pair.prefilled().await;
    let share = pair.usage_of_prefill();
    assert_eq!(share, 16.0 / 16_384.0);
    eventually("expired", || pair.held() == 0).await;
    assert_eq!(pair.usage_of_prefill(), 0.0);
    assert_eq!(pair.prefill.holds()[0].state, HoldState::Expired);
    assert_eq!(pair.decoded(params).await, (500, internal()));
    // By hand, as a whole.
    pair.prefilled().await;
    pair.prefilled().await;
    assert_eq!((pair.held(), pair.prefill.expire_blocks()), (2, 2));
    assert_eq!(pair.held(), 0);
}

#[tokio::test]
async fn a_full_prefill_worker_waits_until_blocks_are_free() {
    let mut small = config(Connector::Nixl, Role::Prefill);
    small.engine.blocks = 20;
    let decode = start(config(Connector::Nixl, Role::Decode)).await;
    let pair = Pair {
        prefill: start(small).await,
        decode,
    };
    let params = pair.prefilled().await;
    let mut second = prefill_body();
    second["messages"][0]["content"] = "8".repeat(1_900).into();
    let mut client = Client::connect(&pair.prefill).await;
    client.post(CHAT, "connection: close\r\n", &second).await;
    assert!(client.is_silent().await, "no room");
    assert_eq!(pair.decoded(params).await.0, 200);
    let (answer, _) = client.rest().await;
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn a_client_that_leaves_the_prefill_leg_frees_its_blocks() {
    let pair = pair(Connector::Nixl).await;
    pair.prefill.freeze(true);
    let mut client = Client::connect(&pair.prefill).await;
    client.post(CHAT, "", &prefill_body()).await;
    eventually("it came", || pair.prefill.stats().in_flight == 1).await;
    drop(client);
    eventually("it left", || pair.prefill.stats().in_flight == 0).await;
    pair.prefill.freeze(false);
    let (status, _) = post(&pair.prefill, &request()).await;
    assert_eq!(status, 200);
    assert_eq!(
        (pair.prefill.holds().len(), pair.usage_of_prefill()),
        (0, 0.0)
    );
}

#[tokio::test]
async fn a_client_that_leaves_a_waiting_decode_leg_gives_the_blocks_back() {
    let pair = pair(Connector::Nixl).await;
    let params = pair.prefilled().await;
    pair.decode.freeze(true);
    let mut client = Client::connect(&pair.decode).await;
    client.post(CHAT, "", &with(request(), params)).await;
    eventually("it came", || pair.decode.stats().in_flight == 1).await;
    drop(client);
    eventually("given back", || pair.held() == 0).await;
    assert_eq!(pair.prefill.holds()[0].state, HoldState::Released);
}

#[tokio::test]
async fn a_client_that_leaves_during_the_transfer_gives_the_blocks_back() {
    let pair = pair(Connector::Nixl).await;
    let params = pair.prefilled().await;
    let slow = Fault::kv(KvFault::SlowMs(60_000));
    pair.decode.add_rule(Rule::next(1, slow)).expect("room");
    let mut client = Client::connect(&pair.decode).await;
    client.post(CHAT, "", &with(request(), params)).await;
    let engine = pair.prefill.engine_id(0).expect("it has one");
    let shelf = &pair
        .decode
        .worker
        .transfer
        .as_ref()
        .expect("it has one")
        .shelf;
    eventually("they know each other", || shelf.knows(&engine)).await;
    assert!(
        pair.decode.worker.ranks[0].pacer.gauges().cache_usage > 0.0,
        "room is taken before the blocks come"
    );
    drop(client);
    eventually("given back", || pair.held() == 0).await;
}

#[tokio::test]
async fn a_restart_changes_the_engine_and_loses_the_blocks() {
    let pair = pair(Connector::Nixl).await;
    let before = pair.prefill.engine_id(0);
    let params = pair.prefilled().await;
    pair.prefill.restart();
    assert_ne!(pair.prefill.engine_id(0), before);
    assert_eq!(pair.prefill.holds()[0].state, HoldState::Lost);
    assert_eq!(pair.usage_of_prefill(), 0.0);
    assert_eq!(pair.decoded(params).await, (500, internal()));
    let params = pair.prefilled().await;
    assert_eq!(pair.decoded(params).await.0, 200);
}

#[tokio::test]
async fn faults_of_the_prefill_leg() {
    let mut pair = pair(Connector::Nixl).await;
    let rule = |fault| Rule::next(1, Fault::kv(fault));
    pair.prefill
        .add_rule(rule(KvFault::NoParams))
        .expect("room");
    assert_eq!(pair.prefilled().await, Value::Null);
    let garbage = json!({"do_remote_prefill": "yes", "remote_block_ids": 7});
    pair.prefill
        .add_rule(rule(KvFault::Params(garbage.clone())))
        .expect("room");
    assert_eq!(pair.prefilled().await, garbage);
    assert_eq!(pair.held(), 2, "computed all the same");

    pair.prefill
        .add_rule(rule(KvFault::HangComputed))
        .expect("room");
    let mut client = Client::connect(&pair.prefill).await;
    client.post(CHAT, "", &prefill_body()).await;
    eventually("computed", || pair.held() == 3).await;
    assert!(client.is_silent().await);

    pair.prefill
        .add_rule(rule(KvFault::ExitComputed))
        .expect("room");
    let mut client = Client::connect(&pair.prefill).await;
    client.post(CHAT, "", &prefill_body()).await;
    assert_eq!(client.rest().await.0, b"");
    timeout(LIMIT, pair.prefill.stopped())
        .await
        .expect("it ends");
    assert_eq!(pair.held(), 4);
}

#[tokio::test]
async fn the_log_says_who_had_which_leg() {
    let pair = pair(Connector::Nixl).await;
    let params = pair.prefilled().await;
    pair.decoded(params.clone()).await;
    let key = params["remote_request_id"].as_str().map(str::to_owned);
    let (prefill, decode) = (pair.prefill.log(), pair.decode.log());
    assert_eq!(
        (
            prefill[0].leg,
            &prefill[0].transfer_key,
            prefill[0].external_tokens
        ),
        (Some(Leg::Prefill), &key, 0)
    );
    assert_eq!(
        (
            decode[0].leg,
            &decode[0].transfer_key,
            decode[0].external_tokens
        ),
        (Some(Leg::Decode), &key, 497)
    );
    let (_, control) = get(&pair.prefill, "/_control/holds").await;
    let control: Value = control.parse().expect("JSON");
    assert_eq!(
        (&control["held"], &control["held_blocks"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(control["holds"][0]["state"], "read");
    assert_eq!(control["holds"][0]["request_id"], "r");
}

#[tokio::test]
async fn every_sequence_of_a_decode_leg_reads_and_the_second_finds_nothing() {
    let pair = pair(Connector::Nixl).await;
    let params = pair.prefilled().await;
    let mut body = with(request(), params);
    body["n"] = 2.into();
    assert_eq!(post(&pair.decode, &body).await, (500, internal()));
}
