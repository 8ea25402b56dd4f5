//! Settings of admission, and of clients' keys with the file that lists them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use grapevine_placement::Ratio;
use http::{HeaderName, StatusCode};

use super::error::{ConfigError, Origin, Problem, in_order_of_place};
use super::raw::read_list;
use super::section_values::SectionValues;
use super::setting::{HOUR, Setting, Value, mismatch, ms, secs};
use super::table::{Section as _, section};
use super::types::Name;
use crate::api::Priority;

section! {
    /// Admission: which requests wait when `limits.requests` are in progress, or every worker is at its own limit.
    ///
    /// Local. A request waits before its body is read; if its client leaves meanwhile, no worker gets it.
    [admission] AdmissionConfig {
        /// Requests that may wait, unread; above it 503. The same again for each model that has no place left, and
        /// for each whose workers are all at their limit.
        queue_size: u32 = 100, in 0..=100_000, flag "queue-size" Text;
        /// How long a request may wait; then 503. Not longer than `timeouts.whole_request` either.
        queue_timeout: Duration = secs(60), in ms(1)..=HOUR, flag "queue-timeout-secs" Secs, live now;
        /// Headers in which a client may say how urgent a request is: high, normal or low, or a number below, at or
        /// above 0. The first that is there counts.
        priority_headers: Vec<HeaderName> = vec![
            HeaderName::from_static("x-priority"),
            HeaderName::from_static("x-smg-priority"),
        ], live now;
        /// Class of requests that name none, from clients without a key; not above `priority_max`.
        priority: Priority = Priority::Normal, live now;
        /// Most urgent class that a client without a key may claim.
        priority_max: Priority = Priority::Normal, live now;
        /// Requests of more urgent classes that may go first, in a row, while one waits; then it is its turn.
        ///
        /// Lower: less urgent classes get more under overload, 1 in `passed_over_max` + 1 each.
        passed_over_max: u32 = 8, in 1..=1_000;
        /// Whether workers are told the class, as vLLM's `X-Vllm-Priority`: -1 for high, 0 for normal, 1 for low.
        ///
        /// For engines with `--scheduling-policy priority`; any other refuses what is not 0. There the header counts
        /// instead of the body's `priority`, so no client is more urgent in the engine than it may be here.
        engine_priority: bool = false, flag "engine-priority" On, live now;
        /// Share of `limits.requests` that is kept for models, in equal parts, where several are served; the rest is
        /// for all of them. A request is then read before it waits, and waits for others of its model only.
        ///
        /// Higher: more is there for a model that has been idle. Lower: a busy one may use more. 0: one pool for all,
        /// in which requests wait unread.
        model_reserve: Ratio = Ratio::new(0.5).expect("a ratio"),
            in Ratio::new(0.0).expect("a ratio")..=Ratio::new(1.0).expect("a ratio");
        /// Status of answers that mean "no room": 503, or 429 as vllm-router and SMG answer.
        ///
        /// For clients and balancers that take a replica or a cluster for broken after some 5xx. Both carry
        /// `Retry-After`, and their `message` says which limit it was. Holds for a worker's own 503 of full queues, too.
        no_room_status: NoRoomStatus = NoRoomStatus::ServiceUnavailable, flag "no-room-status" Text, live now;
    }
}

section! {
    /// Clients' keys. Without a file every client that reaches the data port may use it.
    [keys] KeysConfig {
        /// File of keys, each as its hash; `grapevine keys new` makes one.
        ///
        /// With it a request needs `Authorization: Bearer <key>` (or `x-api-key`), which goes to no worker.
        file: Option<PathBuf> = None, flag "api-keys-file" Text;
        /// Whether a response that a key's request has stored gets an id that carries its tenant, as `request_id` of the body.
        ///
        /// So no other tenant's key finds it, at any replica. Off for engines that refuse a field that OpenAI does not have.
        mark_responses: bool = true;
        /// Between two looks whether the file has changed; SIGHUP looks at once. A bad file changes nothing.
        reload: Duration = secs(2), in ms(10)..=HOUR;
    }
}

section! {
    /// One key; repeat the section for each.
    [key] KeyConfig {
        /// Name of the key, in logs; no other key has it. Required.
        name: Name = Name::new("client").expect("a valid name");
        /// SHA-256 of the key, as `sha256:` and 64 hexadecimal digits. Required.
        hash: KeyHash = KeyHash([0; 32]);
        /// Tenant that the key belongs to: its keys share prefixes, limits and a share of the queue. Unset: the key's
        /// name.
        tenant: Option<String> = None;
        /// Class of its requests that name none, and the most urgent class that they may claim.
        priority: Priority = Priority::Normal;
        /// Names of models that it may ask for, as clients write them. Unset: all; an empty list is refused.
        ///
        /// With some, every request must name one of them.
        models: Vec<String> = Vec::new();
        /// Requests of its tenant at once, waiting ones included, above which this key gets 429. Unset: no own limit.
        max_requests: Option<u32> = None;
        /// Requests in a minute; as many may come at once after a quiet minute. Above it 429. Unset: no limit.
        requests_per_minute: Option<u32> = None;
        /// Tokens of prompts and answers in a minute; as many may be used at once after a quiet minute. Above it 429.
        /// Unset: no limit.
        ///
        /// A request comes in while any are left. It counts with an estimate, and when it ends with what its worker says.
        tokens_per_minute: Option<u32> = None;
        /// Whether these limits hold for the whole cluster, or for each replica by itself.
        ///
        /// Rates are divided evenly by the replicas that take traffic.
        cluster: bool = true;
        /// Share against other tenants of the same class when requests wait.
        weight: f64 = 1.0, in 0.001..=100.0;
        /// When it ends, as "2027-01-31T00:00:00Z". Unset: never.
        expires: Option<Expiry> = None;
    }
}

/// Status for a client whose request finds no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoomStatus {
    /// 503.
    ServiceUnavailable,
    /// 429.
    TooManyRequests,
}

impl NoRoomStatus {
    /// The status.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl Setting for NoRoomStatus {
    const VALUE_NAME: &'static str = "STATUS";

    fn parse(value: &Value) -> Result<Self, String> {
        let number = match value {
            Value::Integer(number) => Some(*number),
            other => other.text().and_then(|text| text.parse().ok()),
        };
        match number {
            Some(503) => Ok(Self::ServiceUnavailable),
            Some(429) => Ok(Self::TooManyRequests),
            _ => Err(mismatch("503 or 429", value)),
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.status().as_u16().to_string())
    }
}

/// Most bytes of the file of keys.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Most keys.
const KEYS_MAX: usize = 10_000;
/// Most tenants: each has series in the metrics, and replicas send each other the use of each.
const TENANTS_MAX: usize = 1_024;
/// Most bytes of a tenant's name.
const TENANT_BYTES_MAX: usize = 128;

/// SHA-256 of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 32]);

/// The first digits: enough to find a line of the file, useless for anything else.
impl fmt::Debug for KeyHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, ..] = self.0;
        write!(out, "sha256:{a:02x}{b:02x}{c:02x}...")
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl Setting for KeyHash {
    const VALUE_NAME: &'static str = "HASH";

    fn parse(value: &Value) -> Result<Self, String> {
        let digits = value.text().and_then(|text| text.strip_prefix("sha256:"));
        let digits = digits.filter(|d| d.len() == 64 && d.bytes().all(|b| b.is_ascii_hexdigit()));
        let digits = digits.ok_or_else(|| {
            // Not what was found: it may be the key itself.
            "expected \"sha256:\" and 64 hexadecimal digits; `grapevine keys new` makes both"
                .to_owned()
        })?;
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            *byte = u8::from_str_radix(pair, 16).expect("two hexadecimal digits");
        }
        Ok(Self(hash))
    }

    fn show(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

/// The end of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry(pub SystemTime);

impl Setting for Option<Expiry> {
    const VALUE_NAME: &'static str = "TIME";

    fn parse(value: &Value) -> Result<Self, String> {
        let time = value
            .text()
            .and_then(|text| humantime::parse_rfc3339(text).ok());
        let expected = "a time in UTC as \"2027-01-31T00:00:00Z\", in quotes";
        time.map(|time| Some(Expiry(time)))
            .ok_or_else(|| mismatch(expected, value))
    }

    fn show(&self) -> Option<String> {
        self.map(|Expiry(time)| format!("\"{}\"", humantime::format_rfc3339_seconds(time)))
    }
}

/// The list of keys in a file.
/// Errors: it cannot be read, or every mistake in it, each with file, line and key.
pub fn read_keys(path: &Path) -> Result<Vec<KeyConfig>, ConfigError> {
    let unreadable = |cause| ConfigError::Unreadable {
        path: path.to_owned(),
        cause,
    };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > FILE_BYTES_MAX {
        let what = format!("has {bytes} bytes; at most {FILE_BYTES_MAX} are read");
        return Err(unreadable(std::io::Error::other(what)));
    }
    parse_keys(path, &std::fs::read_to_string(path).map_err(unreadable)?)
}

/// Whether a tenant may be called so.
/// Errors: what its name must be.
pub(crate) fn check_tenant(name: &str) -> Result<(), String> {
    let is_visible = name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_visible && (1..=TENANT_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(format!(
        "expected 1 to {TENANT_BYTES_MAX} visible ASCII characters"
    ))
}

/// The list of keys in a file's text.
/// Errors: [`ConfigError::Invalid`] with every mistake. An empty text is one: many programs empty a file before they
/// write it, and all clients would be refused meanwhile.
pub fn parse_keys(path: &Path, text: &str) -> Result<Vec<KeyConfig>, ConfigError> {
    let (tables, mut problems) =
        read_list::<KeyConfig>(path, text, "{ name = \"acme-web\", hash = \"sha256:...\" }");
    let keys: Vec<KeyConfig> = tables
        .iter()
        .map(|table| KeyConfig::read(table, &mut problems))
        .collect();
    check(&tables, &keys, &mut problems);
    if text.trim().is_empty() {
        problems.push(Problem {
            origin: Origin::File {
                path: path.to_owned(),
                line: 1,
                column: 1,
            },
            key: "[[key]]".to_owned(),
            what: "the file is empty, as one that is being written; `grapevine keys new` makes a key, and a file with \
                   nothing but a comment refuses every client"
                .to_owned(),
        });
    }
    if problems.is_empty() {
        Ok(keys)
    } else {
        Err(ConfigError::Invalid(in_order_of_place(problems)))
    }
}

fn check(tables: &[SectionValues], keys: &[KeyConfig], problems: &mut Vec<Problem>) {
    let mut refuse = |origin: &Origin, key: &str, what: String| {
        problems.push(Problem {
            origin: origin.clone(),
            key: key.to_owned(),
            what,
        });
    };
    let mut names = std::collections::HashSet::new();
    let mut hashes = std::collections::HashSet::new();
    let mut tenants = std::collections::HashSet::new();
    for (table, key) in tables.iter().zip(keys) {
        for (required, example) in [("name", "acme-web"), ("hash", "sha256:...")] {
            if table.origin_of(required).is_none() {
                let what = format!("`{required}` is missing: write {required} = \"{example}\"");
                refuse(&table.origin, "[[key]]", what);
            }
        }
        if let Some(origin) = table.origin_of("name")
            && !names.insert(&key.name)
        {
            refuse(origin, "key.name", format!("{} is there twice", key.name));
        }
        // A hash that could not be read has been reported, and left its default.
        if let Some(origin) = table.origin_of("hash")
            && key.hash != KeyHash([0; 32])
            && !hashes.insert(key.hash)
        {
            refuse(
                origin,
                "key.hash",
                "another key has the same hash".to_owned(),
            );
        }
        // A list whose last model was taken out would open all of them.
        if let Some(origin) = table.origin_of("models")
            && table.is_empty_list("models")
        {
            let what = "the list is empty: name the models that the key may ask for, or leave `models` out for all of them";
            refuse(origin, "key.models", what.to_owned());
        }
        if let (Some(origin), Some(tenant)) = (table.origin_of("tenant"), &key.tenant)
            && let Err(what) = check_tenant(tenant)
        {
            refuse(origin, "key.tenant", what);
        }
        tenants.insert(key.tenant_name());
    }
    for (count, most, what) in [
        (keys.len(), KEYS_MAX, "keys"),
        (tenants.len(), TENANTS_MAX, "tenants"),
    ] {
        if count > most {
            let what = format!("{count} {what}; at most {most} are served");
            refuse(&Origin::Whole, "[[key]]", what);
        }
    }
}

impl KeyConfig {
    /// The tenant that the key belongs to.
    pub fn tenant_name(&self) -> &str {
        self.tenant.as_deref().unwrap_or(self.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<KeyConfig>, Vec<String>> {
        parse_keys(Path::new("keys.toml"), text)
            .map_err(|error| error.to_string().lines().map(str::to_owned).collect())
    }

    fn hash(digit: char) -> String {
        format!("sha256:{}", String::from(digit).repeat(64))
    }

    #[test]
    fn an_empty_file_is_no_list_without_keys() {
        for text in ["", " \n\n"] {
            let mistakes = parse(text).expect_err("empty");
            assert_eq!(mistakes.len(), 1, "{mistakes:?}");
            assert!(mistakes[0].starts_with("keys.toml:1:1: [[key]]: the file is empty"));
        }
        assert!(parse("# Nobody, until further notice.\n").is_ok_and(|keys| keys.is_empty()));
    }

    #[test]
    fn a_whole_entry_is_read() {
        let text = format!(
            "[[key]]\nname = \"acme-web\"\nhash = \"{}\"\ntenant = \"Acme\"\npriority = \"high\"\n\
             models = [\"a\"]\nmax_requests = 3\nrequests_per_minute = 60\nweight = 2.5\n\
             expires = \"2027-01-31T00:00:00Z\"\n[[key]]\nname = \"plain\"\nhash = \"{}\"\n",
            hash('a'),
            hash('b')
        );
        let keys = parse(&text).expect("valid");
        assert_eq!(keys[0].tenant_name(), "Acme");
        assert_eq!(keys[0].priority, Priority::High);
        assert_eq!(
            (keys[0].max_requests, keys[0].requests_per_minute),
            (Some(3), Some(60))
        );
        assert!(keys[0].expires.is_some() && keys[0].cluster);
        assert_eq!(keys[1].tenant_name(), "plain");
    }

    #[test]
    fn mistakes_have_file_line_and_key_and_no_secret() {
        let good =
            |name: &str, digit| format!("[[key]]\nname = \"{name}\"\nhash = \"{}\"\n", hash(digit));
        for (text, expected) in [
            (
                "[[key]]\nname = \"a\"\nhash = \"gv-the-key-itself\"\n".to_owned(),
                "keys.toml:3:8: key.hash: expected \"sha256:\" and 64 hexadecimal digits; `grapevine keys new` makes both",
            ),
            (
                "[[key]]\nname = \"a\"\n".to_owned(),
                "keys.toml:1:1: [[key]]: `hash` is missing: write hash = \"sha256:...\"",
            ),
            (
                good("a", 'a') + &good("a", 'b'),
                "keys.toml:5:8: key.name: a is there twice",
            ),
            (
                good("a", 'a') + &good("b", 'a'),
                "keys.toml:6:8: key.hash: another key has the same hash",
            ),
            (
                good("a", 'a') + "tenant = \"two words\"\n",
                "keys.toml:4:10: key.tenant: expected 1 to 128 visible ASCII characters",
            ),
            (
                good("a", 'a') + "models = []\n",
                "keys.toml:4:10: key.models: the list is empty: name the models that the key may ask for, or leave `models` out for all of them",
            ),
            (
                good("a", 'a') + "weigth = 2\n",
                "keys.toml:4:1: key.weigth: unknown key; did you mean `weight`?",
            ),
            (
                good("a", 'a') + "expires = \"tomorrow\"\n",
                "keys.toml:4:11: key.expires: expected a time in UTC as \"2027-01-31T00:00:00Z\", in quotes, found \"tomorrow\"",
            ),
            (
                good("a", 'a') + "priority = \"urgent\"\n",
                "keys.toml:4:12: key.priority: expected one of low, normal, high, found \"urgent\"",
            ),
            (
                "[keys]\nfile = \"x\"\n".to_owned(),
                "keys.toml:1:2: [keys]: unknown section; write [[key]], once a key",
            ),
            (
                "[key]\nname = \"x\"\n".to_owned(),
                "keys.toml:1:2: [[key]]: expected a list: write [[key]] with two brackets, once a key",
            ),
        ] {
            assert_eq!(parse(&text).expect_err(expected), [expected]);
        }
        assert!(parse("[[key]\n").expect_err("syntax")[0].starts_with("keys.toml:1:"));
    }

    #[test]
    fn no_room_has_one_of_two_statuses() {
        let word = |word: &str| NoRoomStatus::parse(&Value::Word(word.to_owned()));
        for status in [
            NoRoomStatus::ServiceUnavailable,
            NoRoomStatus::TooManyRequests,
        ] {
            let shown = status.show().expect("always set");
            assert_eq!(word(&shown), Ok(status));
            let number = Value::Integer(status.status().as_u16().into());
            assert_eq!(NoRoomStatus::parse(&number), Ok(status));
        }
        let expected = "expected 503 or 429, found \"500\"";
        assert_eq!(word("500").expect_err("neither"), expected);
    }

    #[test]
    fn a_hash_is_read_as_it_is_shown() {
        let hash = KeyHash([0xa7; 32]);
        let shown = hash.to_string();
        assert_eq!(KeyHash::parse(&Value::Text(shown)), Ok(hash));
        assert_eq!(format!("{hash:?}"), "sha256:a7a7a7...");
    }
}
