//! NIXL: vLLM's `NixlConnector` (the decode worker pulls) and `NixlPushConnector` (the prefill worker pushes).
//!
//! Pull: the prefill's answer names engine, side channel and blocks; the decode leg repeats it byte for byte.
//!
//! Push: the decode worker tells the prefill's engine where its own blocks are, so it needs that engine's identity
//! only, and both legs go out at once. The identity is in each of the engine's answers (`transfer_mode` is `push`
//! there); before the first one, the prefill goes first as with pull, and it always does where one address stands for
//! several data-parallel ranks, each of which is an engine. The prefill's engine finds the decode's by
//! `transfer_id`, releases before by the request id without its last eight digits, so both are the pair's own.

use serde::Serialize;

use crate::answer::{BadAnswer, Params};
use crate::connector::Mode;
use crate::half::Half;
use crate::ids::Ids;
use crate::label;
use crate::leg::{Begin, Leg, PARAMS};
use crate::object;

/// What the prefill leg asks for: keep the blocks for somebody else. The fields that are `null` are those of the
/// decode leg, which releases of vLLM have looked for.
#[derive(Serialize)]
pub(crate) struct Keep {
    do_remote_decode: bool,
    do_remote_prefill: bool,
    remote_engine_id: (),
    remote_block_ids: (),
    remote_host: (),
    remote_port: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer_id: Option<String>,
}

/// What the decode leg gets where the prefill worker pushes.
#[derive(Serialize)]
struct Register<'a> {
    do_remote_prefill: bool,
    do_remote_decode: bool,
    remote_engine_id: &'a str,
    remote_host: &'a str,
    remote_port: u16,
    tp_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pp_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dcp_size: Option<u32>,
    remote_request_id: &'a str,
    transfer_id: String,
}

impl Keep {
    pub(crate) fn for_somebody(transfer_id: Option<String>) -> Self {
        Self {
            do_remote_decode: true,
            do_remote_prefill: false,
            remote_engine_id: (),
            remote_block_ids: (),
            remote_host: (),
            remote_port: (),
            transfer_id,
        }
    }
}

pub(crate) fn begin(prefill: &Half, decode: &Half, ids: &Ids<'_>) -> Begin {
    let is_push = prefill.mode == Some(Mode::Push);
    let keep = Keep::for_somebody(is_push.then(|| ids.transfer()));
    let first = Leg::prefill(prefill)
        .with_id(request_id(prefill, ids))
        .with(PARAMS, &keep);
    match registration(prefill, decode, ids) {
        Some(decode) => Begin::Together {
            prefill: first,
            decode,
        },
        None => Begin::PrefillFirst(first),
    }
}

pub(crate) fn decode_leg(
    prefill: &Half,
    decode: &Half,
    ids: &Ids<'_>,
    answer: &[u8],
) -> Result<Leg, BadAnswer> {
    let params = Params::read(answer)?;
    for name in ["remote_engine_id", "remote_host", "remote_port"] {
        params.need(name)?;
    }
    let leg = Leg::decode(decode).with_id(request_id(prefill, ids));
    Ok(match prefill.mode {
        Some(Mode::Push) => {
            let transfer = format!("\"{}\"", ids.transfer());
            leg.with_json(PARAMS, params.with(&[("transfer_id", transfer)]))
        }
        _ => leg.with_json(PARAMS, params.repeat()),
    })
}

/// Who pushes, where, and how many tensor-parallel workers it has.
pub(crate) fn learned(prefill: &Half, answer: &[u8]) -> Vec<(String, String)> {
    let Ok(params) = Params::read(answer) else {
        return Vec::new();
    };
    let size = |name| params.get(name).and_then(|json| json.parse::<u32>().ok());
    let text = |name| params.get(name).and_then(object::text);
    let mode = text("transfer_mode").and_then(|mode| mode.parse::<Mode>().ok());
    let mode = mode.filter(|mode| mode.connector() == prefill.connector);
    let mut lesson = Lesson {
        rank: prefill.rank,
        labels: Vec::new(),
    };
    let known = prefill.mode.map(Mode::as_str);
    lesson.add(label::MODE, mode.map(|mode| mode.to_string()), known);
    let sizes = [
        (label::TP_SIZE, "tp_size", prefill.tp_size),
        (label::PP_SIZE, "pp_size", prefill.pp_size),
        (label::DCP_SIZE, "dcp_size", prefill.dcp_size),
    ];
    for (label, name, known) in sizes {
        let told = size(name)
            .filter(|size| *size > 0)
            .map(|size| size.to_string());
        let known = known.map(|known| known.to_string());
        lesson.add(label, told, known.as_deref());
    }
    // Of several engines behind one address each would teach another identity, and none could be used.
    if mode == Some(Mode::Push) && prefill.is_one_engine() {
        let port = size("remote_port").and_then(|port| u16::try_from(port).ok());
        let port = port.filter(|port| *port > 0).map(|port| port.to_string());
        let known = prefill.side_port.map(|port| port.to_string());
        let (id, host) = (text("remote_engine_id"), text("remote_host"));
        let (id, host) = (id.map(String::from), host.map(String::from));
        lesson.add_of_rank(label::ENGINE_ID, id, prefill.engine_id.as_deref());
        lesson.add_of_rank(label::HOST, host, prefill.side_host.as_deref());
        lesson.add_of_rank(label::PORT, port, known.as_deref());
    }
    lesson.labels
}

/// The decode leg of a prefill worker that pushes and whose identity is known.
fn registration(prefill: &Half, decode: &Half, ids: &Ids<'_>) -> Option<Leg> {
    if prefill.mode != Some(Mode::Push) {
        return None;
    }
    let request_id = ids.unique_request();
    let register = Register {
        do_remote_prefill: true,
        do_remote_decode: false,
        remote_engine_id: prefill.engine_id.as_deref()?,
        remote_host: prefill.side_host.as_deref()?,
        remote_port: prefill.side_port?,
        tp_size: prefill.tp_size.unwrap_or(1),
        pp_size: prefill.pp_size,
        dcp_size: prefill.dcp_size,
        remote_request_id: &request_id,
        transfer_id: ids.transfer(),
    };
    let leg = Leg::decode(decode).with(PARAMS, &register);
    Some(leg.with_id(Some(request_id)))
}

/// The id of both legs: where the engines find each other by it, one that no client chose.
fn request_id(prefill: &Half, ids: &Ids<'_>) -> Option<String> {
    (prefill.mode == Some(Mode::Push)).then(|| ids.unique_request())
}

/// Labels that an answer teaches.
struct Lesson {
    rank: Option<u32>,
    labels: Vec<(String, String)>,
}

impl Lesson {
    /// A label of the whole worker, if the answer tells another value than is known.
    fn add(&mut self, name: &str, told: Option<String>, known: Option<&str>) {
        if let Some(told) = told.filter(|told| is_value(told) && Some(&**told) != known) {
            self.labels.push((name.to_owned(), told));
        }
    }

    /// A label of the worker's rank.
    fn add_of_rank(&mut self, name: &str, told: Option<String>, known: Option<&str>) {
        match self.rank {
            Some(rank) => self.add(&format!("{name}.{rank}"), told, known),
            None => self.add(name, told, known),
        }
    }
}

/// Whether a label may have this value: 1 to 200 visible ASCII characters.
fn is_value(text: &str) -> bool {
    (1..=200).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}
