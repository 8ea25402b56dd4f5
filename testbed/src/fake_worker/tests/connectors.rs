//! Each way of a split pair but NIXL's pull: a pair that works, and what the engine refuses.

use super::split::{CHAT, Pair, config, pair, post_as, request, text, with};
use super::*;

const UUID: &str = "0123456789abcdef0123456789abcdef";

fn one_token(params: Value) -> Value {
    let mut body = with(request(), params);
    body["max_tokens"] = 1.into();
    body
}

fn give() -> Value {
    json!({
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null,
    })
}

fn side(worker: &FakeWorker) -> SocketAddr {
    worker.side_channel().expect("it has one")
}

fn engine(worker: &FakeWorker, rank: u32) -> String {
    worker.engine_id(rank).expect("it has one")
}

/// A decode leg that waits, while `then` goes on.
async fn waiting(worker: &FakeWorker, id: &str, body: &Value) -> Client {
    let mut client = Client::connect(worker).await;
    let headers = format!("connection: close\r\nx-request-id: {id}\r\n");
    client.post(CHAT, &headers, body).await;
    eventually("it waits", || {
        worker.worker.ranks[0].pacer.gauges().deferred == 1
    })
    .await;
    client
}

async fn answer(mut client: Client) -> (u16, Value) {
    let (head, text) = split(client.rest().await.0);
    (
        head[9..12].parse().expect("a status"),
        text.parse().expect("JSON"),
    )
}

#[tokio::test]
async fn a_push_may_begin_with_the_decode_leg() {
    let pair = pair(Connector::NixlPush).await;
    let side = side(&pair.prefill);
    let params = json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": engine(&pair.prefill, 0),
        "remote_host": side.ip(), "remote_port": side.port(), "tp_size": 1, "remote_request_id": "r",
    });
    let decode = waiting(&pair.decode, "r", &with(request(), params)).await;
    let (status, prefilled) = post_as(&pair.prefill, "r", &one_token(give())).await;
    assert_eq!(status, 200);
    let told = &prefilled["kv_transfer_params"];
    assert_eq!(told["transfer_mode"], "push");
    assert_eq!(told["remote_engine_id"], engine(&pair.prefill, 0).as_str());
    let (status, decoded) = answer(decode).await;
    assert_eq!((status, text(&decoded)), (200, &pair.alone().await));
    eventually("freed", || pair.held() == 0).await;
}

#[tokio::test]
async fn a_push_needs_one_request_id_and_the_engine_of_now() {
    let pair = pair(Connector::NixlPush).await;
    let (_, prefilled) = post_as(&pair.prefill, "a", &one_token(give())).await;
    let params = prefilled["kv_transfer_params"].clone();
    let decode = waiting(&pair.decode, "b", &with(request(), params.clone())).await;
    assert_eq!(pair.held(), 1, "other id, no blocks");
    drop(decode);
    assert_eq!(
        post_as(&pair.decode, "a", &with(request(), params.clone()))
            .await
            .0,
        200
    );
    pair.prefill.restart();
    assert_eq!(
        post_as(&pair.decode, "a", &with(request(), params)).await.0,
        500
    );
}

#[tokio::test]
async fn a_push_without_a_size_ends_the_engine() {
    let mut pair = pair(Connector::NixlPush).await;
    let params = json!({"do_remote_prefill": true, "remote_engine_id": "e", "remote_host": "127.0.0.1", "remote_port": 1});
    assert_eq!(
        post_as(&pair.decode, "r", &with(request(), params)).await.0,
        500
    );
    timeout(LIMIT, pair.decode.stopped())
        .await
        .expect("it ends");
}

fn mooncake_give(id: &str) -> Value {
    json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": id})
}

fn mooncake_take(pair: &Pair, id: &str) -> Value {
    json!({
        "do_remote_decode": false, "do_remote_prefill": true, "transfer_id": id,
        "remote_bootstrap_addr": format!("http://{}", side(&pair.prefill)),
        "remote_engine_id": engine(&pair.prefill, 0),
    })
}

#[tokio::test]
async fn mooncake_meets_by_its_bootstrap_server() {
    let pair = pair(Connector::Mooncake).await;
    let mut client = Client(
        TcpStream::connect(side(&pair.prefill))
            .await
            .expect("listening"),
    );
    client.send(b"GET /query HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let (head, body) = split(client.rest().await.0);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let body: Value = body.parse().expect("JSON");
    assert_eq!(body["0"]["engine_id"], engine(&pair.prefill, 0).as_str());

    let (_, prefilled) = post_as(&pair.prefill, "r", &one_token(mooncake_give("xfer-1"))).await;
    assert_eq!(prefilled["kv_transfer_params"], Value::Null);
    assert_eq!(pair.held(), 1);
    let body = with(request(), mooncake_take(&pair, "xfer-1"));
    let (status, decoded) = post_as(&pair.decode, "r", &body).await;
    assert_eq!((status, text(&decoded)), (200, &pair.alone().await));
    assert_eq!(pair.held(), 0);
    // The decode leg may be first.
    let body = with(request(), mooncake_take(&pair, "xfer-2"));
    let decode = waiting(&pair.decode, "r", &body).await;
    post_as(&pair.prefill, "r", &one_token(mooncake_give("xfer-2"))).await;
    assert_eq!(answer(decode).await.0, 200);
}

#[tokio::test]
async fn mooncake_refuses_an_engine_that_is_gone_and_other_transfers_wait() {
    let pair = pair(Connector::Mooncake).await;
    let before = mooncake_take(&pair, "xfer-1");
    pair.prefill.restart();
    let (status, _) = post_as(&pair.decode, "r", &with(request(), before)).await;
    assert_eq!(status, 500);
    post_as(&pair.prefill, "r", &one_token(mooncake_give("xfer-1"))).await;
    let wrong = with(request(), mooncake_take(&pair, "xfer-2"));
    let mut decode = waiting(&pair.decode, "r", &wrong).await;
    assert!(decode.is_silent().await);
    assert_eq!(pair.held(), 1);
}

#[tokio::test]
async fn mooncake_without_ids_computes_or_waits_and_wrong_roles_end_the_engine() {
    let mut pair = pair(Connector::Mooncake).await;
    let mut without = mooncake_give("");
    without["transfer_id"] = Value::Null;
    assert_eq!(
        post_as(&pair.prefill, "r", &one_token(without)).await.0,
        200
    );
    assert_eq!(pair.held(), 0, "nothing is kept");
    let mut without = mooncake_take(&pair, "xfer-1");
    without["remote_engine_id"] = Value::Null;
    let mut decode = waiting(&pair.decode, "r", &with(request(), without)).await;
    assert!(decode.is_silent().await);
    let both = mooncake_take(&pair, "xfer-1");
    assert_eq!(
        post_as(&pair.prefill, "r", &with(request(), both)).await.0,
        500
    );
    timeout(LIMIT, pair.prefill.stopped())
        .await
        .expect("it ends");
    let give = one_token(mooncake_give("x"));
    assert_eq!(post_as(&pair.decode, "r", &give).await.0, 500);
}

#[tokio::test]
async fn mooncake_keeps_nothing_of_an_answer_that_ended_by_itself() {
    let pair = pair(Connector::Mooncake).await;
    let mut body = with(request(), mooncake_give("xfer-1"));
    body["max_tokens"] = Value::Null;
    let (status, answer) = post_as(&pair.prefill, "r", &body).await;
    assert_eq!(
        (status, &answer["choices"][0]["finish_reason"]),
        (200, &json!("stop"))
    );
    let usage = || pair.prefill.worker.ranks[0].pacer.gauges().cache_usage;
    eventually("its blocks are free", || usage() == 0.0).await;
    assert_eq!(pair.prefill.holds(), []);
}

#[tokio::test]
async fn mooncake_ranks_are_engines_of_their_own() {
    let mut two = config(Connector::Mooncake, Role::Prefill);
    two.data_parallel = 2;
    let decode = start(config(Connector::Mooncake, Role::Decode)).await;
    let pair = Pair {
        prefill: start(two).await,
        decode,
    };
    assert_eq!(
        engine(&pair.prefill, 1),
        engine(&pair.prefill, 0).replace("_dp0", "_dp1")
    );
    let body = one_token(mooncake_give("xfer-1"));
    let header = "x-data-parallel-rank: 1\r\n";
    ask(&pair.prefill, CHAT, header, &body).await;
    let take = |rank| {
        let mut params = mooncake_take(&pair, "xfer-1");
        params["remote_engine_id"] = engine(&pair.prefill, rank).into();
        with(request(), params)
    };
    assert_eq!(post_as(&pair.decode, "r", &take(0)).await.0, 500);
    assert_eq!(post_as(&pair.decode, "r", &take(1)).await.0, 200);
}

/// A request id as MoRI-IO reads it.
fn marked(pair: &Pair) -> String {
    let zmq = |worker| {
        let side = side(worker);
        format!(
            "host:{},handshake:{},notify:{}",
            side.ip(),
            side.port(),
            side.port()
        )
    };
    format!(
        "___prefill_addr_{}___decode_addr_{}_{UUID}",
        zmq(&pair.prefill),
        zmq(&pair.decode)
    )
}

#[tokio::test]
async fn moriio_reads_what_the_answer_names() {
    let pair = pair(Connector::MoriioRead).await;
    let id = marked(&pair);
    let mut params = json!({
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null, "remote_block_ids": null,
        "transfer_id": "tx-1", "remote_dp_size": 1,
    });
    let (status, prefilled) = post_as(&pair.prefill, &id, &one_token(params.clone())).await;
    assert_eq!(status, 200);
    let told = prefilled["kv_transfer_params"].clone();
    assert_eq!(
        (&told["transfer_id"], &told["remote_block_ids"][15]),
        (&json!("tx-1"), &json!(16))
    );
    for (field, wrong) in [
        ("remote_dp_size", json!(2)),
        ("transfer_id", json!("tx-2")),
        ("remote_dp_rank", json!(1)),
        ("tp_size", json!(2)),
    ] {
        let mut told = told.clone();
        told[field] = wrong;
        assert_eq!(
            post_as(&pair.decode, &id, &with(request(), told)).await.0,
            500,
            "{field}"
        );
    }
    let (status, decoded) = post_as(&pair.decode, &id, &with(request(), told)).await;
    assert_eq!((status, text(&decoded)), (200, &pair.alone().await));
    assert_eq!(pair.held(), 0);
    // Without parameters a consumer believes that the prompt is there.
    let (status, nonsense) = post_as(&pair.decode, &id, &request()).await;
    assert_eq!(status, 200);
    assert_ne!(*text(&nonsense), pair.alone().await);
    // Without an address of the other side the engine ends.
    params["transfer_id"] = "tx-3".into();
    let mut pair = pair;
    assert_eq!(post_as(&pair.prefill, "r", &one_token(params)).await.0, 500);
    timeout(LIMIT, pair.prefill.stopped())
        .await
        .expect("it ends");
}

#[tokio::test]
async fn moriio_writes_to_the_reader_that_prefill_was_told_of() {
    let pair = pair(Connector::MoriioWrite).await;
    let id = marked(&pair);
    let params = |decode: bool, transfer: &str, size: u32| {
        json!({
            "do_remote_decode": !decode, "do_remote_prefill": decode, "remote_engine_id": null,
            "remote_block_ids": null, "transfer_id": transfer, "remote_dp_size": size, "remote_tp_size": 1,
        })
    };
    let decode = waiting(&pair.decode, &id, &with(request(), params(true, "tx-1", 1))).await;
    assert_eq!(
        post_as(&pair.prefill, &id, &one_token(params(false, "tx-1", 1)))
            .await
            .0,
        200
    );
    let (status, decoded) = answer(decode).await;
    assert_eq!((status, text(&decoded)), (200, &pair.alone().await));
    // Prefill was told of another size than the reader has.
    post_as(&pair.prefill, &id, &one_token(params(false, "tx-2", 2))).await;
    assert_eq!(
        post_as(&pair.decode, &id, &with(request(), params(true, "tx-2", 1)))
            .await
            .0,
        500
    );
    let log = pair.decode.log();
    let why = log.last().and_then(|entry| entry.transfer_error.clone());
    assert!(why.is_some_and(|why| why.starts_with("they are for")));
    // Without parameters nobody writes.
    let mut waits = waiting(&pair.decode, &id, &request()).await;
    assert!(waits.is_silent().await);
}

/// A request id as P2P NCCL reads it.
fn addressed(prefill: SocketAddr, decode: SocketAddr) -> String {
    format!("___prefill_addr_{prefill}___decode_addr_{decode}_{UUID}")
}

#[tokio::test]
async fn p2p_nccl_finds_the_other_side_in_the_request_id() {
    let mut pair = pair(Connector::P2pNccl).await;
    let id = addressed(side(&pair.prefill), side(&pair.decode));
    let (status, _) = post_as(&pair.prefill, &id, &one_token(give())).await;
    assert_eq!((status, pair.held()), (200, 0));
    let (status, decoded) = post_as(&pair.decode, &id, &request()).await;
    assert_eq!((status, text(&decoded)), (200, &pair.alone().await));
    // An id without addresses: decode waits, prefill ends.
    let mut decode = waiting(&pair.decode, "r", &request()).await;
    assert!(decode.is_silent().await);
    drop(decode);
    assert_eq!(post_as(&pair.prefill, "r", &one_token(give())).await.0, 500);
    timeout(LIMIT, pair.prefill.stopped())
        .await
        .expect("it ends");
}

#[tokio::test]
async fn p2p_nccl_decode_waits_for_blocks_that_went_elsewhere() {
    let pair = pair(Connector::P2pNccl).await;
    let elsewhere = addressed(side(&pair.prefill), side(&pair.prefill));
    assert_eq!(
        post_as(&pair.prefill, &elsewhere, &one_token(give()))
            .await
            .0,
        200
    );
    let mut decode = waiting(&pair.decode, &elsewhere, &request()).await;
    assert!(decode.is_silent().await);
    drop(decode);
    // Another id than the prefill leg's.
    let id = addressed(side(&pair.prefill), side(&pair.decode));
    post_as(&pair.prefill, &id, &one_token(give())).await;
    let other = id.replace(UUID, &UUID.replace('0', "f"));
    let gone = || pair.decode.worker.ranks[0].pacer.gauges().deferred == 0;
    eventually("the first left", gone).await;
    let mut decode = waiting(&pair.decode, &other, &request()).await;
    assert!(decode.is_silent().await);
}

#[tokio::test]
async fn a_shared_store_needs_no_parameters() {
    let directory = tempfile::tempdir().expect("a directory");
    let stored = |role| {
        let mut config = config(Connector::Store, role);
        let transfer = config.transfer.as_mut().expect("it has one");
        transfer.store = Some(directory.path().to_owned());
        config
    };
    let pair = Pair {
        prefill: start(stored(Role::Prefill)).await,
        decode: start(stored(Role::Decode)).await,
    };
    let (_, before) = post_as(&pair.decode, "r", &request()).await;
    assert_eq!(before["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    pair.decode.restart();
    post_as(&pair.prefill, "r", &one_token(Value::Null)).await;
    let (_, decoded) = post_as(&pair.decode, "r", &request()).await;
    assert_eq!(*text(&decoded), pair.alone().await);
    assert_eq!(
        decoded["usage"]["prompt_tokens_details"]["cached_tokens"],
        480
    );
    assert_eq!(pair.decode.log()[1].external_tokens, 480);
    let (_, page) = get(&pair.decode, "/metrics").await;
    assert!(
        page.contains("source=\"external_kv_transfer\"} 480.0"),
        "{page}"
    );
}

/// A leg for SGLang.
fn in_room(pair: &Pair, room: u64) -> Value {
    let side = side(&pair.prefill);
    let mut body = request();
    body["bootstrap_host"] = side.ip().to_string().into();
    body["bootstrap_port"] = side.port().into();
    body["bootstrap_room"] = room.into();
    body
}

#[tokio::test]
async fn sglang_meets_in_a_room_and_needs_both_legs() {
    let pair = pair(Connector::Sglang).await;
    let mut prefill = Client::connect(&pair.prefill).await;
    prefill
        .post(CHAT, "connection: close\r\n", &in_room(&pair, 7))
        .await;
    eventually("computed", || pair.held() == 1).await;
    assert!(prefill.is_silent().await, "it waits for its reader");
    let (status, decoded) = post_as(&pair.decode, "r", &in_room(&pair, 7)).await;
    assert_eq!((status, text(&decoded)), (200, &pair.alone().await));
    let (status, prefilled) = answer(prefill).await;
    assert_eq!(
        (status, &prefilled["usage"]["completion_tokens"]),
        (200, &json!(1))
    );
    // Another room: decode waits. None: both refuse.
    let mut decode = waiting(&pair.decode, "r", &in_room(&pair, 8)).await;
    assert!(decode.is_silent().await);
    for worker in [&pair.prefill, &pair.decode] {
        let (status, refused) = post_as(worker, "r", &request()).await;
        assert_eq!(status, 400, "{refused}");
    }
}

#[tokio::test]
async fn sglang_prefill_gives_up_a_room_that_nobody_enters() {
    let pair = pair(Connector::Sglang).await;
    let fault = Fault::kv(KvFault::ExpireMs(50));
    pair.prefill.add_rule(Rule::next(1, fault)).expect("room");
    assert_eq!(post_as(&pair.prefill, "r", &in_room(&pair, 7)).await.0, 500);
    assert_eq!(pair.held(), 0);
}

#[tokio::test]
async fn sglang_takes_the_rank_that_the_room_says() {
    let mut two = config(Connector::Sglang, Role::Prefill);
    two.data_parallel = 2;
    let decode = start(config(Connector::Sglang, Role::Decode)).await;
    let pair = Pair {
        prefill: start(two).await,
        decode,
    };
    for room in [7, 10] {
        let mut prefill = Client::connect(&pair.prefill).await;
        prefill
            .post(CHAT, "connection: close\r\n", &in_room(&pair, room))
            .await;
        assert_eq!(
            post_as(&pair.decode, "r", &in_room(&pair, room)).await.0,
            200
        );
        assert_eq!(answer(prefill).await.0, 200);
    }
    let log = pair.prefill.log();
    let ranks: Vec<u32> = log.iter().map(|entry| entry.rank).collect();
    assert_eq!(ranks, [1, 0]);
}
