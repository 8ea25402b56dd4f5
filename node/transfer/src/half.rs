//! Half of a pair: what is known of one worker that prefill or decode may go to.

use std::fmt;
use std::str::FromStr;

use crate::address::{ZMQ_FORMS, is_zmq_address};
use crate::connector::{Connector, Mode};
use crate::label;

/// One worker as half of a pair: its address and what its labels say, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    /// An IPv6 address in brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) rank: Option<u32>,
    pub(crate) connector: Connector,
    pub(crate) mode: Option<Mode>,
    pub(crate) bootstrap_port: Option<u16>,
    pub(crate) address: Option<String>,
    /// Of the rank, or of the only one.
    pub(crate) engine_id: Option<String>,
    pub(crate) side_host: Option<String>,
    pub(crate) side_port: Option<u16>,
    pub(crate) tp_size: Option<u32>,
    pub(crate) pp_size: Option<u32>,
    pub(crate) dcp_size: Option<u32>,
    pub(crate) dp_size: Option<u32>,
    pub(crate) block_size: Option<u32>,
    pub(crate) version: Option<String>,
}

/// A label whose value does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("label `{name}` is `{value}`: {why}")]
pub struct LabelError {
    /// The label's name, without a rank.
    pub name: &'static str,
    /// The value.
    pub value: String,
    /// What it should be.
    pub why: String,
}

/// Whether labels say something that can be used, of whatever worker.
/// Errors: the first one that does not.
pub fn check<'l>(label: impl Fn(&str) -> Option<&'l str>) -> Result<(), LabelError> {
    Half::read("worker", 1, None, Connector::Nixl, |name| {
        // A mode fits its connector, which may be the cluster's.
        label(name).filter(|_| name != label::MODE || label(label::CONNECTOR).is_some())
    })
    .map(drop)
}

impl Half {
    /// Reads a worker's labels.
    ///
    /// `host` and `port` are those of its HTTP URL, `rank` its data-parallel rank where it is one of several behind the
    /// URL, `default` the connector of workers that name none, `label` the value by a name of [`label`](mod@label).
    /// Errors: the first label whose value does not fit. A worker with such a label is in no pair.
    pub fn read<'l>(
        host: &str,
        port: u16,
        rank: Option<u32>,
        default: Connector,
        label: impl Fn(&str) -> Option<&'l str>,
    ) -> Result<Self, LabelError> {
        let labels = Reader {
            rank,
            find: &|name| label(name),
        };
        let class = labels.text(label::CONNECTOR);
        let connector = labels.parsed(label::CONNECTOR)?.unwrap_or(default);
        let mode = labels.parsed(label::MODE)?;
        let mode = mode.or_else(|| class.and_then(Mode::of_class));
        if let Some(mode) = mode.filter(|mode: &Mode| mode.connector() != connector) {
            let why = format!("{connector} has no such mode");
            return Err(LabelError {
                name: label::MODE,
                value: mode.to_string(),
                why,
            });
        }
        let dp_size = labels.positive(label::DP_SIZE)?;
        Ok(Self {
            host: bracketed(host),
            port,
            rank,
            connector,
            mode,
            bootstrap_port: labels.port(label::BOOTSTRAP_PORT)?,
            address: labels.zmq_address(label::ADDRESS)?,
            engine_id: labels.engine_id(dp_size),
            side_host: labels.text(label::HOST).map(str::to_owned),
            side_port: labels.port(label::PORT)?,
            tp_size: labels.positive(label::TP_SIZE)?,
            pp_size: labels.positive(label::PP_SIZE)?,
            dcp_size: labels.positive(label::DCP_SIZE)?,
            dp_size,
            block_size: labels.positive(label::BLOCK_SIZE)?,
            version: labels.text(label::VERSION).map(str::to_owned),
        })
    }

    /// How its blocks travel.
    pub fn connector(&self) -> Connector {
        self.connector
    }

    /// Who moves them, where it is known and there are two ways.
    pub fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Whether its answers teach what has to be known of its engine.
    pub fn learns_identity(&self) -> bool {
        self.connector == Connector::Nixl
    }

    /// Whether one engine has all of its requests: not where several ranks stand behind one address, and the engine's
    /// front chooses among them.
    pub(crate) fn is_one_engine(&self) -> bool {
        self.rank.is_some() || self.dp_size.unwrap_or(1) == 1
    }

    /// The same worker without what an answer taught of its engine: it may have been started again since.
    pub fn without_identity(&self) -> Self {
        Self {
            engine_id: None,
            side_host: None,
            side_port: None,
            ..self.clone()
        }
    }

    /// Its HTTP address, or what it calls its ZMQ side.
    pub(crate) fn zmq_address(&self) -> String {
        let http = || format!("{}:{}", self.host, self.port);
        self.address.clone().unwrap_or_else(http)
    }
}

/// Labels, those of the rank first.
struct Reader<'f, 'l> {
    rank: Option<u32>,
    find: &'f dyn Fn(&str) -> Option<&'l str>,
}

impl<'l> Reader<'_, 'l> {
    fn of_rank(&self, name: &str, rank: u32) -> Option<&'l str> {
        (self.find)(&format!("{name}.{rank}"))
    }

    fn text(&self, name: &str) -> Option<&'l str> {
        let own = self.rank.and_then(|rank| self.of_rank(name, rank));
        own.or_else(|| (self.find)(name))
    }

    fn parsed<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, LabelError>
    where
        T::Err: fmt::Display,
    {
        self.checked(name, |text| {
            text.parse().map_err(|error: T::Err| error.to_string())
        })
    }

    fn checked<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, LabelError> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        let value = value.to_owned();
        read(&value)
            .map(Some)
            .map_err(|why| LabelError { name, value, why })
    }

    fn port(&self, name: &'static str) -> Result<Option<u16>, LabelError> {
        self.checked(name, |text| {
            let port = text.parse().ok().filter(|port| *port > 0);
            port.ok_or_else(|| "a port is 1 to 65535".to_owned())
        })
    }

    fn zmq_address(&self, name: &'static str) -> Result<Option<String>, LabelError> {
        self.checked(name, |text| {
            let is_one = is_zmq_address(text);
            is_one
                .then(|| text.to_owned())
                .ok_or_else(|| format!("write {ZMQ_FORMS}"))
        })
    }

    fn positive(&self, name: &'static str) -> Result<Option<u32>, LabelError> {
        self.checked(name, |text| {
            let size = text.parse().ok().filter(|size| *size > 0);
            size.ok_or_else(|| "a size is 1 or more".to_owned())
        })
    }

    /// The engine's id. With several ranks each is an engine of its own: vLLM puts `_dp<rank>` behind the configured id,
    /// so an id without it, which a person declared, is completed. Which of several ranks will compute is not known when
    /// the worker has none; then neither is the id.
    fn engine_id(&self, dp_size: Option<u32>) -> Option<String> {
        let plain = || (self.find)(label::ENGINE_ID);
        match self.rank {
            Some(rank) => {
                let own = self.of_rank(label::ENGINE_ID, rank).map(str::to_owned);
                own.or_else(|| plain().map(|id| with_rank(id, rank)))
            }
            None if dp_size.unwrap_or(1) == 1 => plain()
                .or_else(|| self.of_rank(label::ENGINE_ID, 0))
                .map(str::to_owned),
            None => None,
        }
    }
}

fn with_rank(id: &str, rank: u32) -> String {
    let digits = id.rsplit_once("_dp").map(|(_, digits)| digits);
    let is_complete = digits
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()));
    if is_complete {
        id.to_owned()
    } else {
        format!("{id}_dp{rank}")
    }
}

/// A host as it stands in a URL.
fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}
