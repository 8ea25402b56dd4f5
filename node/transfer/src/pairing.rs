//! Who can work with whom.
//!
//! A fact that is known of one side only refuses nothing: most workers declare little, and an engine checks by itself
//! when two meet.

use std::fmt::Display;

use crate::connector::Connector;
use crate::half::Half;

/// What pairs may differ in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairRules {
    /// Prefill and decode may have different tensor-parallel sizes. Default: no.
    pub mixed_tensor_parallel: bool,
}

/// The first fact in which two workers differ that have to agree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} differs: prefill {prefill}, decode {decode}")]
pub struct Mismatch {
    /// Which fact.
    pub what: &'static str,
    /// The prefill worker's.
    pub prefill: String,
    /// The decode worker's.
    pub decode: String,
}

/// Whether blocks can go from one worker to the other.
/// Errors: [`Mismatch`]: the first fact in which they differ.
pub fn pair(prefill: &Half, decode: &Half, rules: &PairRules) -> Result<(), Mismatch> {
    let connectors = (Some(prefill.connector), Some(decode.connector));
    equal("KV connector", connectors.0, connectors.1)?;
    equal("KV transfer mode", prefill.mode, decode.mode)?;
    let versions = (prefill.version.as_ref(), decode.version.as_ref());
    equal("engine version", versions.0, versions.1)?;
    equal("block size", prefill.block_size, decode.block_size)?;
    if !rules.mixed_tensor_parallel {
        equal("tensor-parallel size", prefill.tp_size, decode.tp_size)?;
    }
    // Both legs go to one rank, see `moriio`.
    if prefill.connector == Connector::MoriIo {
        let sizes = [prefill, decode].map(|half| Some(half.dp_size.unwrap_or(1)));
        equal("data-parallel size", sizes[0], sizes[1])?;
        equal("data-parallel rank", prefill.rank, decode.rank)?;
    }
    Ok(())
}

fn equal<T: PartialEq + Display>(
    what: &'static str,
    prefill: Option<T>,
    decode: Option<T>,
) -> Result<(), Mismatch> {
    match (prefill, decode) {
        (Some(prefill), Some(decode)) if prefill != decode => Err(Mismatch {
            what,
            prefill: prefill.to_string(),
            decode: decode.to_string(),
        }),
        _ => Ok(()),
    }
}
