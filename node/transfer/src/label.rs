//! Names of labels: what a worker declares, or what is learned about it, beyond its description.
//!
//! A label whose name ends in `.<rank>` holds for that data-parallel rank and goes before the one without.

/// The connector: nixl, mooncake, moriio, p2p_nccl, store or sglang; vLLM's class names are understood, too.
pub const CONNECTOR: &str = "kv.connector";
/// Port of the prefill's bootstrap server (Mooncake, SGLang), 1 to 65,535.
pub const BOOTSTRAP_PORT: &str = "kv.bootstrap_port";
/// Address of the engine's ZMQ side as it names itself: `host:port`, or `host:<ip>,handshake:<port>,notify:<port>` of
/// MoRI-IO.
pub const ADDRESS: &str = "kv.address";
/// Who moves the blocks: pull or push (NIXL), read or write (MoRI-IO).
pub const MODE: &str = "kv.mode";
/// The engine's id in transfers.
pub const ENGINE_ID: &str = "kv.engine_id";
/// Host of the engine's side channel (NIXL push).
pub const HOST: &str = "kv.host";
/// Port of the engine's side channel (NIXL push), 1 to 65,535.
pub const PORT: &str = "kv.port";
/// Tensor-parallel size, 1 or more.
pub const TP_SIZE: &str = "kv.tp_size";
/// Pipeline-parallel size, 1 or more.
pub const PP_SIZE: &str = "kv.pp_size";
/// Decode-context-parallel size, 1 or more.
pub const DCP_SIZE: &str = "kv.dcp_size";
/// Number of data-parallel ranks, 1 or more.
pub const DP_SIZE: &str = "kv.dp_size";
/// Tokens in a block, 1 or more.
pub const BLOCK_SIZE: &str = "kv.block_size";
/// Whether the engine sleeps, in vLLM's words; there once it has slept.
pub const SLEEP_STATE: &str = "engine.sleep_state";
/// Its value of one that does not.
pub const AWAKE: &str = "awake";
/// The engine's version, as it tells it.
pub const VERSION: &str = "engine.version";
