//! The forms in which metrics are written, and which client gets which. Pure.
//!
//! The library writes OpenMetrics 1.0; Prometheus' older text format 0.0.4 differs in the descriptions alone, because
//! values, labels and the names of samples are the same. A client that names OpenMetrics gets it, and all others the
//! older one, which `curl`, `promtool` and old scrapers take for granted.

use std::fmt::Write as _;

use http::HeaderMap;
use http::header::ACCEPT;

/// One of the two forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Form {
    /// What a scraper asks for (RFC 9110, section 12.5.1). Forms that are not written here, such as protobuf, have no
    /// say: scrapers that take them take text as well.
    pub fn asked_for(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(ACCEPT).into_iter();
        let ranges = lists
            .filter_map(|list| list.to_str().ok())
            .flat_map(|list| list.split(','));
        let (mut open, mut text) = (0.0_f32, 0.0_f32);
        for range in ranges {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut quality, mut version) = (1.0_f32, None);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => version = Some(value.trim().trim_matches('"')),
                    _ => {}
                }
            }
            match kind.as_str() {
                "application/openmetrics-text" if version.is_none_or(|v| v == "1.0.0") => {
                    open = quality.max(open);
                }
                "text/plain" | "text/*" | "*/*" => text = quality.max(text),
                _ => {}
            }
        }
        if open > 0.0 && open >= text {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    /// `Content-Type` of an answer in this form.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Metrics in this form, from what the library wrote.
    pub(crate) fn of(self, open: String) -> String {
        match self {
            Self::Text => as_text(&open),
            Self::OpenMetrics => open,
        }
    }
}

/// OpenMetrics without exemplars, which this router has none of, as text format 0.0.4: a counter is described by the
/// name of its samples, and there are neither units nor an end mark.
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
            text.push_str(line);
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

    #[test]
    fn whoever_names_openmetrics_gets_it() {
        let of_prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;\
             version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        let with_protobuf = format!(
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,{of_prometheus}"
        );
        for accept in [
            &[of_prometheus][..],
            &[&with_protobuf],
            &["application/openmetrics-text"],
            &["text/html, Application/OpenMetrics-Text; version=\"1.0.0\""],
            &["text/plain", "application/openmetrics-text"],
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
    fn counters_are_described_by_the_name_of_their_samples() {
        let open = "# HELP a Things, by kind.\n# TYPE a counter\na_total{kind=\"# HELP x\"} 1\n\
            # HELP b_seconds Time.\n# TYPE b_seconds histogram\n# UNIT b_seconds seconds\nb_seconds_sum 0.5\n\
            b_seconds_bucket{le=\"+Inf\"} 1\n# TYPE c unknown\nc 2\n# EOF\n";
        let text = "# HELP a_total Things, by kind.\n# TYPE a_total counter\na_total{kind=\"# HELP x\"} 1\n\
            # HELP b_seconds Time.\n# TYPE b_seconds histogram\nb_seconds_sum 0.5\n\
            b_seconds_bucket{le=\"+Inf\"} 1\n# TYPE c untyped\nc 2\n";
        assert_eq!(Form::Text.of(open.to_owned()), text);
        assert_eq!(Form::OpenMetrics.of(open.to_owned()), open);
    }
}
