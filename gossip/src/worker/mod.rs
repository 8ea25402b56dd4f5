//! What the cluster knows of a worker, in checked types.
//!
//! Pure. Parse, don't validate: a [`WorkerSpec`] exists only if its [`RawWorker`] was within every
//! limit, so nothing that is merged, stored or sent needs a second look. The checks are the same
//! for operators and for peers: a poisonous entry would otherwise reach every replica in seconds.

mod id;
mod labels;
mod role;
mod source;

use std::collections::BTreeSet;

pub use id::{DP_SIZE_MAX, ID_BYTES_MAX, URL_BYTES_MAX, WorkerId, WorkerUrl};
pub use labels::{
    LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_BYTES_MAX, LABELS_MAX, Labels,
};
pub use role::Role;
pub(crate) use source::LATER_SOURCES;
pub use source::{LaterSource, PROVIDER_BYTES_MAX, ProviderName, Source};

/// Greatest number of models and adapters one worker serves.
pub const MODELS_MAX: usize = 64;
/// Greatest length of a model's name in bytes.
pub const MODEL_BYTES_MAX: usize = 256;
/// Greatest length of all model names of one worker together, in bytes; bounds a registry entry.
pub const MODELS_BYTES_MAX: usize = 4096;
/// Greatest length of a zone's name in bytes.
pub const ZONE_BYTES_MAX: usize = 64;
/// Greatest weight, in thousandths: 100 times a plain worker.
pub const WEIGHT_MILLI_MAX: u32 = 100_000;
/// Weight of a plain worker, in thousandths.
pub const WEIGHT_MILLI_DEFAULT: u32 = 1000;

/// Where a worker stands between joining and leaving. Never moves keys: placement skips by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Takes requests.
    #[default]
    Active,
    /// Joins with a cold cache; the replica that declared this fills it until this time.
    Warming {
        /// End of the warm-up, Unix milliseconds; at most ten minutes after it was declared. In a view a
        /// warm-up that is over reads as `Active`.
        until_ms: u64,
    },
    /// Takes no new prefixes; sessions it holds may stay until it is removed.
    Draining,
}

impl State {
    /// The end of a warm-up that somebody declared over. The greatest number, so that of two records
    /// with one stamp this one is kept.
    pub(crate) const WARMED_MS: u64 = u64::MAX;

    /// For people and the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Warming { .. } => "warming",
            Self::Draining => "draining",
        }
    }
}

/// A worker as somebody described it, before any check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawWorker {
    /// `http` or `https` URL, optionally followed by `@rank`.
    pub url: String,
    /// Models and adapters; empty = ask the worker (see [`Source::Learned`]).
    pub models: Vec<String>,
    /// Share of keys in thousandths of a plain worker, 1 to 100,000.
    pub weight_milli: u32,
    /// Which half of a request it takes.
    pub role: Role,
    /// Number of data-parallel ranks of the engine, 1 to 1,024; `None` = not known.
    pub dp_size: Option<u32>,
    /// Failure domain, up to 64 visible ASCII characters.
    pub zone: Option<String>,
    /// Greatest number of requests in flight from the whole cluster, 1 or more; `None` = no limit
    /// of its own.
    pub max_in_flight: Option<u32>,
    /// Between joining and leaving.
    pub state: State,
    /// Rises with each restart of the worker; in neither the ring nor its digest.
    pub epoch: u64,
}

impl RawWorker {
    /// A plain worker at `url`: all models it has, weight 1, active.
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            models: Vec::new(),
            weight_milli: WEIGHT_MILLI_DEFAULT,
            role: Role::default(),
            dp_size: None,
            zone: None,
            max_in_flight: None,
            state: State::default(),
            epoch: 0,
        }
    }
}

/// A description of a worker that passed every check. Models are sorted and distinct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSpec {
    url: WorkerUrl,
    raw: RawWorker,
    /// Code and time of a state that only a later release knows. It is carried for it, and read as
    /// [`State::Active`], because no state moves a key.
    later_state: Option<(u8, u64)>,
}

impl WorkerSpec {
    /// Checks `raw` and brings it into the one spelling that all replicas use.
    /// Errors: the first rule that it breaks; nothing was changed.
    pub fn new(mut raw: RawWorker) -> Result<Self, WorkerError> {
        let url: WorkerUrl = raw.url.parse()?;
        raw.url = url.to_string();
        raw.models = checked_models(raw.models)?;
        if !(1..=WEIGHT_MILLI_MAX).contains(&raw.weight_milli) {
            let weight = f64::from(raw.weight_milli) / 1000.0;
            return Err(WorkerError::Weight(weight.to_string()));
        }
        if raw
            .dp_size
            .is_some_and(|size| !(1..=DP_SIZE_MAX).contains(&size))
        {
            return Err(WorkerError::DpSize(raw.dp_size.unwrap_or_default()));
        }
        if let (Some(rank), Some(size)) = (url.rank(), raw.dp_size)
            && rank >= size
        {
            return Err(WorkerError::Rank(rank.to_string()));
        }
        if let Some(zone) = &raw.zone
            && (zone.is_empty()
                || zone.len() > ZONE_BYTES_MAX
                || !zone.bytes().all(|b| b.is_ascii_graphic()))
        {
            return Err(WorkerError::Zone);
        }
        if raw.max_in_flight == Some(0) {
            return Err(WorkerError::MaxInFlight);
        }
        let later_state = None;
        Ok(Self {
            url,
            raw,
            later_state,
        })
    }

    /// This worker in a state that only a later release knows, by its code on the wire and its time.
    pub(crate) fn in_later_state(mut self, code: u8, until_ms: u64) -> Self {
        self.raw.state = State::Active;
        self.later_state = Some((code, until_ms));
        self
    }

    /// Whether this release knows all of it.
    pub(crate) fn is_read(&self) -> bool {
        self.later_state.is_none() && !matches!(self.raw.role, Role::Later(_))
    }

    /// The description to change and check again.
    pub fn to_raw(&self) -> RawWorker {
        self.raw.clone()
    }

    /// The id a worker has when the operator gave it none.
    pub fn default_id(&self) -> WorkerId {
        self.raw.url.parse().expect("a checked URL is a worker id")
    }

    /// Where requests go, and the data-parallel rank.
    pub fn url(&self) -> &WorkerUrl {
        &self.url
    }

    /// Models and adapters, sorted; empty = not known yet.
    pub fn models(&self) -> &[String] {
        &self.raw.models
    }

    /// Share of keys, in thousandths of a plain worker.
    pub fn weight_milli(&self) -> u32 {
        self.raw.weight_milli
    }

    /// Which half of a request it takes.
    pub fn role(&self) -> Role {
        self.raw.role
    }

    /// Number of data-parallel ranks, if known.
    pub fn dp_size(&self) -> Option<u32> {
        self.raw.dp_size
    }

    /// Failure domain, if given.
    pub fn zone(&self) -> Option<&str> {
        self.raw.zone.as_deref()
    }

    /// Greatest number of requests in flight, if limited.
    pub fn max_in_flight(&self) -> Option<u32> {
        self.raw.max_in_flight
    }

    /// Between joining and leaving.
    pub fn state(&self) -> State {
        self.raw.state
    }

    /// Restart counter of the worker.
    pub fn epoch(&self) -> u64 {
        self.raw.epoch
    }

    /// This worker with what a replica learned by asking it: models where none were given, and the
    /// latest epoch.
    pub(crate) fn completed_by(&self, learned: &Self) -> Self {
        let mut raw = self.raw.clone();
        if raw.models.is_empty() {
            raw.models.clone_from(&learned.raw.models);
        }
        raw.epoch = raw.epoch.max(learned.raw.epoch);
        Self {
            url: self.url.clone(),
            raw,
            later_state: self.later_state,
        }
    }

    /// Whether this is what `wanted` describes, but for what the cluster and the worker themselves bring in: a warm-up
    /// of one that is to be in use, and the epoch.
    pub fn is_as_wanted(&self, wanted: &Self) -> bool {
        if self == wanted {
            return true;
        }
        let mut known = self.clone();
        if matches!(known.state(), State::Warming { .. }) {
            known = known.in_state(State::Active);
        }
        known.raw.epoch = wanted.raw.epoch;
        known == *wanted
    }

    /// This worker in another state.
    pub(crate) fn in_state(&self, state: State) -> Self {
        let mut other = self.clone();
        other.raw.state = state;
        other.later_state = None;
        other
    }

    /// This worker in another epoch, and nothing else that a later record could contradict.
    pub(crate) fn started_at(&self, epoch: u64) -> Self {
        let mut raw = RawWorker::at(self.raw.url.clone());
        raw.epoch = epoch;
        Self {
            url: self.url.clone(),
            raw,
            later_state: None,
        }
    }

    /// This worker as an entry of its labels describes it: they stand in place of the models.
    pub(crate) fn labelled(&self, labels: &Labels) -> Self {
        let mut raw = RawWorker::at(self.raw.url.clone());
        raw.models = labels.to_texts();
        Self {
            url: self.url.clone(),
            raw,
            later_state: None,
        }
    }

    /// This worker in the latest epoch of both.
    pub(crate) fn not_before(&self, other: &Self) -> Self {
        let mut later = self.clone();
        later.raw.epoch = later.raw.epoch.max(other.raw.epoch);
        later
    }

    /// The role's number on the wire and in digests.
    pub(crate) fn role_code(&self) -> u8 {
        match self.raw.role {
            Role::Any => 0,
            Role::Prefill => 1,
            Role::Decode => 2,
            Role::Later(code) => code,
        }
    }

    /// The state's number on the wire and in digests, with its time.
    pub(crate) fn state_code(&self) -> (u8, u64) {
        self.later_state.unwrap_or(match self.raw.state {
            State::Active => (0, 0),
            State::Warming { until_ms } => (1, until_ms),
            State::Draining => (2, 0),
        })
    }

    /// Appends the bytes that digests and the merge order are made of: every field, fixed order,
    /// lengths first. Changing them changes every digest: a new release must not.
    pub fn write_canonical(&self, out: &mut Vec<u8>) {
        let raw = &self.raw;
        write_text(out, &raw.url);
        out.extend_from_slice(&(raw.models.len() as u32).to_le_bytes());
        raw.models.iter().for_each(|model| write_text(out, model));
        out.extend_from_slice(&raw.weight_milli.to_le_bytes());
        out.push(self.role_code());
        // 0 is outside the range of both optional numbers and stands for "none".
        out.extend_from_slice(&raw.dp_size.unwrap_or(0).to_le_bytes());
        write_text(out, raw.zone.as_deref().unwrap_or(""));
        out.extend_from_slice(&raw.max_in_flight.unwrap_or(0).to_le_bytes());
        let (state, until_ms) = self.state_code();
        out.push(state);
        out.extend_from_slice(&until_ms.to_le_bytes());
        out.extend_from_slice(&raw.epoch.to_le_bytes());
    }
}

/// A weight as the registry has it: thousandths of a plain worker, 1 to [`WEIGHT_MILLI_MAX`], rounded to the nearest. The
/// one rule for every place where a person or a source writes a weight.
/// Errors: [`WorkerError::Weight`] unless it is a number from 0.001 to 100.
pub fn weight_milli(weight: f64) -> Result<u32, WorkerError> {
    if !(0.001..=f64::from(WEIGHT_MILLI_MAX / 1000)).contains(&weight) {
        return Err(WorkerError::Weight(weight.to_string()));
    }
    // In range: a small whole number.
    Ok((weight * 1000.0).round() as u32)
}

/// What a registry entry can have of the names that a worker lists, each once, in its order: those that are no names are
/// left out, and of too many the last. With the first limit that left one out. The same list gives the same on every replica.
pub fn usable_models(listed: &[String]) -> (Vec<String>, Option<WorkerError>) {
    let (mut usable, mut seen) = (Vec::new(), BTreeSet::new());
    let (mut bytes, mut limit) = (0, None);
    for name in listed.iter().filter(|name| seen.insert(*name)) {
        let broken = if let Err(error) = checked_model(name) {
            error
        } else if usable.len() == MODELS_MAX {
            WorkerError::Models(listed.len())
        } else if bytes + name.len() > MODELS_BYTES_MAX {
            WorkerError::ModelBytes(listed.iter().map(String::len).sum())
        } else {
            bytes += name.len();
            usable.push(name.clone());
            continue;
        };
        limit.get_or_insert(broken);
    }
    (usable, limit)
}

fn checked_model(name: &str) -> Result<(), WorkerError> {
    match name.is_empty() || name.len() > MODEL_BYTES_MAX || name.chars().any(char::is_control) {
        true => Err(WorkerError::Model(
            name.chars().take(MODEL_BYTES_MAX).collect(),
        )),
        false => Ok(()),
    }
}

fn checked_models(models: Vec<String>) -> Result<Vec<String>, WorkerError> {
    if models.len() > MODELS_MAX {
        return Err(WorkerError::Models(models.len()));
    }
    models.iter().try_for_each(|name| checked_model(name))?;
    let bytes = models.iter().map(String::len).sum::<usize>();
    if bytes > MODELS_BYTES_MAX {
        return Err(WorkerError::ModelBytes(bytes));
    }
    Ok(BTreeSet::from_iter(models).into_iter().collect())
}

/// Length first, so that no two different lists of texts give the same bytes.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Why a description of a worker was refused. The caller's fault in every case; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The id is empty, too long, or needs escaping.
    #[error(
        "worker id {0:?} is not 1 to {ID_BYTES_MAX} visible ASCII characters without quotes and backslashes"
    )]
    Id(String),
    /// The URL cannot be one of a worker.
    #[error("worker URL {url:?} refused: {why}")]
    Url {
        /// The URL as it was given.
        url: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The URL is longer than [`URL_BYTES_MAX`].
    #[error("worker URL of {0} bytes is longer than {URL_BYTES_MAX}")]
    UrlTooLong(usize),
    /// The data-parallel rank is not below the number of ranks.
    #[error("data-parallel rank {0} is not below the number of ranks (at most {DP_SIZE_MAX})")]
    Rank(String),
    /// The number of data-parallel ranks is out of range.
    #[error("data-parallel size {0} is not within 1 to {DP_SIZE_MAX}")]
    DpSize(u32),
    /// More than [`MODELS_MAX`] models.
    #[error("{0} models are more than {MODELS_MAX}")]
    Models(usize),
    /// A model's name is empty, too long, or has control characters.
    #[error("model name {0:?} is not 1 to {MODEL_BYTES_MAX} bytes without control characters")]
    Model(String),
    /// The names of all models together are longer than [`MODELS_BYTES_MAX`].
    #[error("model names of {0} bytes together are longer than {MODELS_BYTES_MAX}")]
    ModelBytes(usize),
    /// The weight is out of range.
    #[error("weight {0} is not a number from 0.001 to 100")]
    Weight(String),
    /// The zone is empty, too long, or not visible ASCII.
    #[error("zone is not 1 to {ZONE_BYTES_MAX} visible ASCII characters")]
    Zone,
    /// A worker that may take no request is not a worker; drain it instead.
    #[error("max_in_flight is 0; drain or remove the worker instead")]
    MaxInFlight,
    /// The role is none that this release knows.
    #[error("role {0:?} is not any, prefill or decode")]
    Role(String),
    /// A label's name is not usable, or a text is not `name=value`.
    #[error(
        "label {0:?} does not begin with a name of 1 to {LABEL_NAME_BYTES_MAX} of a-z, 0-9, '.', '_' and '-'"
    )]
    Label(String),
    /// A label's value is empty, too long, or not visible ASCII.
    #[error("value of label {0:?} is not 1 to {LABEL_VALUE_BYTES_MAX} visible ASCII characters")]
    LabelValue(String),
    /// A label has a value that its reader cannot use; the reader's message.
    #[error("{0}")]
    LabelMeaning(String),
    /// More than [`LABELS_MAX`] labels.
    #[error("{0} labels are more than {LABELS_MAX}")]
    Labels(usize),
    /// Labels are longer than [`LABELS_BYTES_MAX`] together.
    #[error("{0} bytes of labels are more than {LABELS_BYTES_MAX}")]
    LabelBytes(usize),
    /// The name of a discovery provider is not usable.
    #[error("provider name {0:?} is not 1 to {PROVIDER_BYTES_MAX} visible ASCII characters")]
    Provider(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut RawWorker)) -> WorkerError {
        let mut raw = RawWorker::at("http://w:8000");
        change(&mut raw);
        WorkerSpec::new(raw).expect_err("out of range")
    }

    #[test]
    fn a_weight_is_a_number_from_a_thousandth_to_a_hundred() {
        for (weight, milli) in [(0.001, 1), (0.7, 700), (1.0, 1000), (100.0, 100_000)] {
            assert_eq!(weight_milli(weight), Ok(milli), "{weight}");
        }
        for weight in [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            -1.0,
            -0.0,
            0.0009,
            100.01,
        ] {
            let refused = WorkerError::Weight(weight.to_string());
            assert_eq!(weight_milli(weight), Err(refused), "{weight}");
        }
    }

    #[test]
    fn limits_refuse_with_their_reason() {
        assert_eq!(
            refused(|w| w.weight_milli = 0),
            WorkerError::Weight("0".into())
        );
        assert_eq!(
            refused(|w| w.weight_milli = 100_001),
            WorkerError::Weight("100.001".into())
        );
        assert_eq!(refused(|w| w.dp_size = Some(0)), WorkerError::DpSize(0));
        assert_eq!(
            refused(|w| w.dp_size = Some(1025)),
            WorkerError::DpSize(1025)
        );
        assert_eq!(refused(|w| w.zone = Some(String::new())), WorkerError::Zone);
        assert_eq!(
            refused(|w| w.zone = Some("z".repeat(65))),
            WorkerError::Zone
        );
        assert_eq!(
            refused(|w| w.max_in_flight = Some(0)),
            WorkerError::MaxInFlight
        );
        assert_eq!(
            refused(|w| w.models = vec!["m".into(); 65]),
            WorkerError::Models(65)
        );
        assert_eq!(
            refused(|w| w.models = vec![String::new()]),
            WorkerError::Model(String::new())
        );
        assert_eq!(
            refused(|w| w.models = vec!["a\nb".into()]),
            WorkerError::Model("a\nb".into())
        );
        assert!(matches!(
            refused(|w| w.models = vec!["m".repeat(257)]),
            WorkerError::Model(_)
        ));
        assert_eq!(
            refused(|w| w.models = vec!["m".repeat(256); 17]),
            WorkerError::ModelBytes(17 * 256)
        );
        let beyond_size = |w: &mut RawWorker| {
            w.url = "http://w:8000@4".into();
            w.dp_size = Some(4);
        };
        assert_eq!(refused(beyond_size), WorkerError::Rank("4".into()));
    }

    #[test]
    fn what_can_be_used_of_a_list_is_used() {
        let names = |of: std::ops::Range<usize>| of.map(|n| format!("m{n:03}")).collect::<Vec<_>>();
        let texts = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let long = |n: usize| format!("{n:0>250}");
        let bad = |name: &str| Some(WorkerError::Model(name.into()));
        for (listed, expected) in [
            (texts(&[]), (texts(&[]), None)),
            (texts(&["b", "a", "b"]), (texts(&["b", "a"]), None)),
            (
                texts(&["b", "x\ny", "", "a"]),
                (texts(&["b", "a"]), bad("x\ny")),
            ),
            (texts(&[""]), (texts(&[]), bad(""))),
            (names(0..64), (names(0..64), None)),
            (
                [names(0..70), names(0..2)].concat(),
                (names(0..64), Some(WorkerError::Models(72))),
            ),
            (
                (0..17).map(long).chain(["a".to_owned()]).collect(),
                (
                    (0..16).map(long).chain(["a".to_owned()]).collect(),
                    Some(WorkerError::ModelBytes(17 * 250 + 1)),
                ),
            ),
        ] {
            let found = usable_models(&listed);
            assert_eq!(found, expected);
            let entry = RawWorker {
                models: found.0,
                ..RawWorker::at("http://w:8000")
            };
            assert!(WorkerSpec::new(entry).is_ok(), "a registry takes it");
        }
    }

    #[test]
    fn spelling_does_not_matter() {
        let mut raw = RawWorker::at("HTTP://W:8000/@1");
        raw.models = vec!["b".into(), "a".into(), "b".into()];
        let spec = WorkerSpec::new(raw).expect("valid");
        assert_eq!(spec.models(), ["a", "b"]);
        assert_eq!(spec.default_id().as_str(), "http://w:8000@1");
        assert_eq!(
            (spec.url().base(), spec.url().rank()),
            ("http://w:8000", Some(1))
        );
        assert_eq!(WorkerSpec::new(spec.to_raw()), Ok(spec));
    }

    #[test]
    fn every_field_is_in_the_canonical_bytes() {
        let bytes = |change: fn(&mut RawWorker)| {
            let mut raw = RawWorker::at("http://w:8000");
            change(&mut raw);
            let mut out = Vec::new();
            WorkerSpec::new(raw)
                .expect("valid")
                .write_canonical(&mut out);
            out
        };
        let variants = [
            bytes(|_| {}),
            bytes(|w| w.url = "http://w:8001".into()),
            bytes(|w| w.models = vec!["ab".into()]),
            bytes(|w| w.models = vec!["a".into(), "b".into()]),
            bytes(|w| w.weight_milli = 2),
            bytes(|w| w.role = Role::Prefill),
            bytes(|w| w.role = Role::Decode),
            bytes(|w| w.dp_size = Some(1)),
            bytes(|w| w.zone = Some("z".into())),
            bytes(|w| w.max_in_flight = Some(1)),
            bytes(|w| w.state = State::Draining),
            bytes(|w| w.state = State::Warming { until_ms: 0 }),
            bytes(|w| w.state = State::Warming { until_ms: 1 }),
            bytes(|w| w.epoch = 1),
        ];
        let distinct: BTreeSet<_> = variants.iter().collect();
        assert_eq!(distinct.len(), variants.len());
    }
}
