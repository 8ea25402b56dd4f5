//! `kv_transfer_params` of a prefill worker's answer.
//!
//! Pure. Field order and spelling are those of the capture (NIXL pull) and of the connectors' `request_finished`.

use std::net::SocketAddr;

use super::config::{Connector, TransferConfig};
use super::shelf::Hold;

/// The JSON of the answer; `None`: this connector tells nothing. `cached` are prompt tokens that the prefill worker had.
pub(in crate::fake_worker) fn answer(
    config: &TransferConfig,
    side_channel: SocketAddr,
    hold: &Hold,
    data_parallel: u32,
    remote_request_id: &str,
    cached: u32,
) -> Option<String> {
    let blocks: Vec<String> = hold.blocks.iter().map(u64::to_string).collect();
    let blocks = blocks.join(",");
    let (engine, tensor_parallel) = (&hold.engine_id, config.tensor_parallel);
    let (host, port) = (side_channel.ip(), side_channel.port());
    let id = serde_json::Value::from(remote_request_id);
    let key = serde_json::Value::from(hold.key.as_str());
    let tokens = hold.tokens;
    match config.connector {
        Connector::Nixl => Some(format!(
            r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[{blocks}]],"remote_engine_id":"{engine}","remote_request_id":{id},"remote_host":"{host}","remote_port":{port},"tp_size":{tensor_parallel},"dcp_size":1,"pp_size":1,"remote_num_tokens":{tokens},"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":{cached}}}"#
        )),
        Connector::NixlPush => Some(format!(
            r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[{blocks}]],"remote_engine_id":"{engine}","remote_request_id":{id},"remote_host":"{host}","remote_port":{port},"tp_size":{tensor_parallel},"pp_size":1,"remote_num_tokens":{tokens},"transfer_mode":"push","remote_prefill_cached_tokens":{cached}}}"#
        )),
        Connector::MoriioRead | Connector::MoriioWrite => Some(format!(
            r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[{blocks}],"remote_engine_id":"{engine}","remote_host":"{host}","remote_handshake_port":{port},"remote_notify_port":{port},"remote_dp_size":{data_parallel},"tp_size":{tensor_parallel},"transfer_id":{key}}}"#
        )),
        Connector::Mooncake | Connector::P2pNccl | Connector::Store | Connector::Sglang => None,
    }
}
