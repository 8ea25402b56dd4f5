//! The forms in which metrics are written, and which client gets which. Pure.
//!
//! The library writes OpenMetrics 1.0. Prometheus' older text format 0.0.4 differs in the descriptions, and has no
//! exemplars; values, labels and the names of samples are the same. Protobuf is made from it in `protobuf`. A client
//! that names OpenMetrics or protobuf gets it, and all others the older text, which `curl`, `promtool` and old scrapers
//! take for granted.

use std::fmt::Write as _;

use bytes::Bytes;
use http::HeaderMap;
use http::header::ACCEPT;

use super::{protobuf, snapshot};

/// What Prometheus calls its protobuf.
const FAMILY: &str = "io.prometheus.client.MetricFamily";

/// One of the forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' protobuf, each family behind its length.
    Protobuf,
}

/// A range of types in `Accept`.
struct Range<'a> {
    kind: String,
    quality: f32,
    version: Option<&'a str>,
    message: Option<&'a str>,
    encoding: Option<&'a str>,
}

impl<'a> Range<'a> {
    fn of(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let mut range = Self {
            kind: parts.next().unwrap_or_default().to_ascii_lowercase(),
            quality: 1.0,
            version: None,
            message: None,
            encoding: None,
        };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim();
            let text = Some(value.trim_matches('"'));
            match name.trim() {
                "q" => range.quality = value.parse().unwrap_or(0.0),
                "version" => range.version = text,
                "proto" => range.message = text,
                "encoding" => range.encoding = text,
                _ => {}
            }
        }
        range
    }

    /// The form that it names, if it is one that is written here.
    fn form(&self) -> Option<Form> {
        match self.kind.as_str() {
            "application/openmetrics-text" if self.version.is_none_or(|v| v == "1.0.0") => {
                Some(Form::OpenMetrics)
            }
            "application/vnd.google.protobuf"
                if self.message == Some(FAMILY) && self.encoding == Some("delimited") =>
            {
                Some(Form::Protobuf)
            }
            "text/plain" | "text/*" | "*/*" => Some(Form::Text),
            _ => None,
        }
    }
}

impl Form {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// What a scraper asks for (RFC 9110, section 12.5.1), and of forms that it likes equally the one that says more.
    /// Forms that are not written here have no say.
    pub fn asked_for(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(ACCEPT).into_iter();
        let ranges = lists
            .filter_map(|list| list.to_str().ok())
            .flat_map(|list| list.split(','))
            .map(Range::of);
        let mut best = (Self::Text, 0.0);
        for range in ranges {
            let Some(form) = range.form() else { continue };
            let says_more = form as u8 > best.0 as u8 && range.quality > 0.0;
            if range.quality > best.1 || (range.quality >= best.1 && says_more) {
                best = (form, range.quality);
            }
        }
        best.0
    }

    /// `Content-Type` of an answer in this form.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// Metrics in this form, from what the library wrote.
    pub(crate) fn of(self, open: String) -> Bytes {
        match self {
            Self::Text => as_text(&open).into(),
            Self::OpenMetrics => open.into(),
            Self::Protobuf => protobuf::written(&open).into(),
        }
    }
}

/// OpenMetrics as text format 0.0.4: a counter is described by the name of its samples, and there are neither units nor
/// exemplars nor an end mark.
fn as_text(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    // OpenMetrics describes before it names the type, and the name depends on the type.
    let mut help = None;
    for line in open.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|of| of.split_once(' '))
        {
            let (end, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "stateset" => ("", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            if let Some((_, help)) = help.take().filter(|(of, _)| *of == name) {
                let _ = writeln!(text, "# HELP {name}{end} {help}");
            }
            let _ = writeln!(text, "# TYPE {name}{end} {kind}");
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            text.push_str(snapshot::without_exemplar(line));
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form_for(accept: &[&str]) -> Form {
        let mut headers = HeaderMap::new();
        for list in accept {
            headers.append(ACCEPT, list.parse().expect("a value"));
        }
        Form::asked_for(&headers)
    }

    const OF_PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;\
        version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";

    #[test]
    fn whoever_names_openmetrics_gets_it() {
        for accept in [
            &[OF_PROMETHEUS][..],
            &["application/openmetrics-text"],
            &["text/html, Application/OpenMetrics-Text; version=\"1.0.0\""],
            &["text/plain", "application/openmetrics-text"],
            &["application/vnd.google.protobuf;encoding=text,application/openmetrics-text;q=0.1"],
        ] {
            assert_eq!(form_for(accept), Form::OpenMetrics, "{accept:?}");
        }
        for accept in [
            &[][..],
            &["*/*"],
            &["text/plain;version=0.0.4"],
            &["text/plain; version=0.0.4; q=0.9, application/openmetrics-text; q=0.8"],
            &["application/openmetrics-text; q=0, */*"],
            &["application/openmetrics-text; version=2.0.0"],
            &["application/openmetrics-text; q=x"],
            &["application/vnd.google.protobuf"],
            &[";;,=,q=1"],
        ] {
            assert_eq!(form_for(accept), Form::Text, "{accept:?}");
        }
    }

    #[test]
    fn whoever_names_prometheus_protobuf_gets_it() {
        let named = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let of_prometheus = format!("{named};q=0.6,{OF_PROMETHEUS}");
        let spaced = named
            .replace(';', " ; ")
            .replace("delimited", "\"delimited\"");
        for accept in [
            &[named][..],
            &[&of_prometheus],
            &[&spaced],
            &["*/*, application/openmetrics-text", named],
        ] {
            assert_eq!(form_for(accept), Form::Protobuf, "{accept:?}");
        }
        for other in [
            format!("{named};q=0"),
            named.replace("delimited", "text"),
            named.replace("io.prometheus.client", "openmetrics"),
            "application/vnd.google.protobuf;encoding=delimited".to_owned(),
        ] {
            assert_eq!(form_for(&[&other]), Form::Text, "{other}");
            let list = format!("{other},application/openmetrics-text;q=0.5");
            assert_eq!(form_for(&[&list]), Form::OpenMetrics, "{list}");
        }
    }

    #[test]
    fn counters_are_described_by_the_name_of_their_samples() {
        let open = "# HELP a Things, by kind.\n# TYPE a counter\na_total{kind=\"# HELP x\"} 1\n\
            # HELP b_seconds Time.\n# TYPE b_seconds histogram\n# UNIT b_seconds seconds\nb_seconds_sum 0.5\n\
            b_seconds_bucket{le=\"+Inf\",model=\"a # {b}\"} 1 # {trace_id=\"1f\"} 0.5 1e9\n\
            b_seconds_bucket{le=\"+Inf\",model=\"a # {b}\"} 1\n# TYPE c unknown\nc 2\n# EOF\n";
        let text = "# HELP a_total Things, by kind.\n# TYPE a_total counter\na_total{kind=\"# HELP x\"} 1\n\
            # HELP b_seconds Time.\n# TYPE b_seconds histogram\nb_seconds_sum 0.5\n\
            b_seconds_bucket{le=\"+Inf\",model=\"a # {b}\"} 1\n\
            b_seconds_bucket{le=\"+Inf\",model=\"a # {b}\"} 1\n# TYPE c untyped\nc 2\n";
        assert_eq!(Form::Text.of(open.to_owned()), text);
        assert_eq!(Form::OpenMetrics.of(open.to_owned()), open);
    }
}
