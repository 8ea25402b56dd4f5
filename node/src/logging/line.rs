//! The time and the fields of a line, as `tracing-subscriber` writes them by itself, with less work.
//!
//! Each request has a line of some twenty fields, and what formats them one by one for any case took a fifth of all that
//! a request costs. So the usual kinds of values are written directly; everything else goes the usual way.

use std::cell::RefCell;
use std::fmt::{self, Debug, Write as _};
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::{MakeVisitor, VisitFmt, VisitOutput};
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::fmt::time::FormatTime;

/// Most lines of requests have no more fields than fit into so many bytes.
const USUAL_BYTES: usize = 512;

/// The time with microseconds.
pub(super) struct Time;

impl FormatTime for Time {
    fn format_time(&self, line: &mut Writer<'_>) -> fmt::Result {
        let now = SystemTime::now();
        let Ok(since) = now.duration_since(SystemTime::UNIX_EPOCH) else {
            return write!(line, "{}", humantime::format_rfc3339_micros(now));
        };
        LATEST.with_borrow_mut(|(second, text)| {
            if *second != Some(since.as_secs()) {
                *second = Some(since.as_secs());
                *text = humantime::format_rfc3339_micros(now).to_string();
            }
            // Seven digits, of which the first is there for the zeros behind it.
            let mut digits = itoa::Buffer::new();
            let micros = digits.format(1_000_000 + since.subsec_micros());
            text.truncate(UP_TO_SECONDS_BYTES);
            text.push_str(&micros[1..]);
            text.push('Z');
            line.write_str(text)
        })
    }
}

/// Bytes of `2026-11-27T20:07:40.`.
const UP_TO_SECONDS_BYTES: usize = 20;

thread_local! {
    /// The latest time that this thread wrote: its second since 1970, and its text.
    static LATEST: RefCell<(Option<u64>, String)> = const { RefCell::new((None, String::new())) };
}

/// `name=value` after `name=value`.
pub(super) struct Fields;

impl<'a> MakeVisitor<Writer<'a>> for Fields {
    type Visitor = FieldWriter<'a>;

    fn make_visitor(&self, line: Writer<'a>) -> FieldWriter<'a> {
        FieldWriter {
            line,
            text: String::with_capacity(USUAL_BYTES),
            is_first: true,
            result: Ok(()),
        }
    }
}

pub(super) struct FieldWriter<'a> {
    line: Writer<'a>,
    /// What is next in the line. The line's own writer is asked through two tables of functions each time.
    text: String,
    is_first: bool,
    result: fmt::Result,
}

impl FieldWriter<'_> {
    /// As `tracing-subscriber` does it.
    fn usual(&mut self, record: impl FnOnce(&mut DefaultVisitor<'_>)) {
        if self.result.is_ok() {
            let is_first = std::mem::take(&mut self.is_first);
            let mut usual = DefaultVisitor::new(Writer::new(&mut self.text), is_first);
            record(&mut usual);
            self.result = usual.finish();
        }
    }

    fn pass_on(&mut self) {
        if self.result.is_ok() && !self.text.is_empty() {
            self.result = self.line.write_str(&self.text);
        }
        self.text.clear();
    }

    /// A name, and room for its value.
    fn direct(&mut self, name: &str) -> &mut String {
        if !std::mem::take(&mut self.is_first) {
            self.text.push(' ');
        }
        self.text.push_str(name);
        self.text.push('=');
        &mut self.text
    }

    fn number(&mut self, field: &Field, value: u64) {
        match is_usual(field) {
            true => self.usual(|usual| usual.record_u64(field, value)),
            false => {
                let mut digits = itoa::Buffer::new();
                self.direct(field.name()).push_str(digits.format(value));
            }
        }
    }
}

impl Visit for FieldWriter<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let from = self.text.len();
        match is_usual(field) {
            true => self.usual(|usual| usual.record_debug(field, value)),
            false => {
                let written = write!(self.direct(field.name()), "{value:?}");
                self.result = self.result.and(written);
            }
        }
        // An entry is one line, and moves no cursor: an error may have several lines, or quote what others chose. The
        // library escapes the text of the line alone.
        if field.name() != "message" && self.text[from..].contains(char::is_control) {
            let value = self.text.split_off(from);
            for letter in value.chars() {
                match letter.is_control() {
                    true => self.text.extend(letter.escape_default()),
                    false => self.text.push(letter),
                }
            }
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.usual(|usual| usual.record_error(field, value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match is_usual(field) || !is_plain(value) {
            true => self.usual(|usual| usual.record_str(field, value)),
            false => {
                let text = self.direct(field.name());
                text.push('"');
                text.push_str(value);
                text.push('"');
            }
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.number(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.number(field, value),
            Err(_) => self.usual(|usual| usual.record_i64(field, value)),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        match in_tenths(value).filter(|_| !is_usual(field)) {
            Some(tenths) => {
                let mut digits = itoa::Buffer::new();
                let text = self.direct(field.name());
                text.push_str(digits.format(tenths / 10));
                text.push('.');
                text.push_str(digits.format(tenths % 10));
            }
            None => self.usual(|usual| usual.record_f64(field, value)),
        }
    }
}

impl VisitOutput<fmt::Result> for FieldWriter<'_> {
    fn finish(mut self) -> fmt::Result {
        self.pass_on();
        self.result
    }
}

impl VisitFmt for FieldWriter<'_> {
    fn writer(&mut self) -> &mut dyn fmt::Write {
        self.pass_on();
        &mut self.line
    }
}

/// Fields that are more than their name and value: the text of the line, what came through `log`, a raw name.
fn is_usual(field: &Field) -> bool {
    let name = field.name();
    name == "message" || name.starts_with("log.") || name.starts_with("r#")
}

/// Nothing in it is written in another form within quotes. All of it is looked at, many bytes at a time.
fn is_plain(value: &str) -> bool {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\');
    value.bytes().fold(true, |all, byte| all & is_plain(byte))
}

/// A number that has one digit behind the point at most, and is not so large that it is written in another form.
fn in_tenths(number: f64) -> Option<u64> {
    let tenths = (number * 10.0).round();
    let is_usual = number.is_sign_positive() && tenths < 1e15 && tenths / 10.0 == number;
    // Whole, and far below 2^63.
    is_usual.then_some(tenths as u64)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    impl Lines {
        fn text(&self) -> String {
            let bytes = self.0.lock().expect("not poisoned").clone();
            String::from_utf8(bytes).expect("text")
        }
    }

    const CONTROLS: &str = "\u{1b}[31m\u{7f}\0";

    #[test]
    fn fields_are_written_as_usual() {
        let (usual, ours) = (Lines::default(), Lines::default());
        let layer = || {
            tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .without_time()
        };
        let to_usual = tracing_subscriber::registry().with(layer().with_writer(usual.clone()));
        let to_ours = layer().fmt_fields(Fields).with_writer(ours.clone());
        let to_ours = tracing_subscriber::registry().with(to_ours);
        tracing::subscriber::with_default(to_usual, log_all);
        tracing::subscriber::with_default(to_ours, log_all);
        // But for what it lets through.
        let raw = format!("last={CONTROLS}");
        assert_eq!(usual.text().matches(&raw).count(), 1);
        let escaped = usual.text().replace(&raw, r"last=\u{1b}[31m\u{7f}\u{0}");
        assert_eq!(ours.text(), escaped);
    }

    fn log_all() {
        let error = io::Error::other(io::Error::other("inner \"quoted\""));
        let as_error = &error as &(dyn std::error::Error + 'static);
        let texts = ["", "plain", "o'clock", "a \"b\" \\ c", "umläut", CONTROLS];
        for text in texts {
            tracing::info!(text, none = None::<&str>, some = Some(text), "the {text}");
            tracing::warn!(message = text, r#type = text, last = %text, ?text);
        }
        for number in [0, 9, 10, 12_345, u64::MAX] {
            let (signed, wide) = (number as i64, u128::from(number));
            tracing::info!(number, r#type = number, small = number as u8, "numbers");
            tracing::info!(signed, less = -(signed / 2), wide);
        }
        for number in [
            0.0,
            -0.0,
            0.1,
            0.25,
            12.3,
            100.0,
            99_999_999_999_999.9,
            1e15,
            1e20,
            -0.5,
            f64::NAN,
            f64::INFINITY,
        ] {
            tracing::info!(number, r#type = number, is_nan = number.is_nan());
        }
        tracing::error!(error = as_error, "failed");
        let span = tracing::info_span!("within", of = "it", count = 3);
        span.in_scope(|| tracing::info!(first = 1));
    }

    #[test]
    fn an_entry_is_one_line() {
        let lines = Lines::default();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false);
        let layer = layer.fmt_fields(Fields).with_writer(lines.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let error = "first\r\nsecond \u{1b}[2Jcleared";
            tracing::warn!(%error, "it failed");
        });
        let text = lines.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.ends_with(" it failed error=first\\r\\nsecond \\u{1b}[2Jcleared\n"),
            "{text}"
        );
    }

    #[test]
    fn the_time_is_written_as_usual() {
        let (mut usual, mut ours) = (String::new(), String::new());
        let written =
            tracing_subscriber::fmt::time::SystemTime.format_time(&mut Writer::new(&mut usual));
        written.expect("a string takes all");
        // The first time of a second, and one more.
        for _ in 0..2 {
            ours.clear();
            Time.format_time(&mut Writer::new(&mut ours))
                .expect("a string takes all");
        }
        let form = |time: &str| time.replace(|c: char| c.is_ascii_digit(), "0");
        assert_eq!(form(&ours), form(&usual));
        // Years are the same but at one moment in a year; the order of the parts shows.
        let at = |time: &str| humantime::parse_rfc3339(time).expect("a time");
        let between = at(&ours).duration_since(at(&usual)).expect("the later one");
        assert!(between.as_secs() < 60, "{usual} {ours}");
    }
}
