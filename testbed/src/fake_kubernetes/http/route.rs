//! Method, path and query → what is asked for.

use std::collections::HashMap;

use hyper::Method;
use percent_encoding::percent_decode_str;

use crate::fake_kubernetes::refusal::Refusal;
use crate::fake_kubernetes::store::{ListQuery, Selector};

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Pods of a namespace, or of all.
    Pods(Option<String>),
    Pod {
        namespace: String,
        name: String,
        status: bool,
    },
    Namespaces,
    Namespace(String),
    /// Everything else: discovery, or nothing.
    Other(String),
}

/// Parameters of a query, decoded; of a repeated one the last.
pub(super) struct Query(HashMap<String, String>);

impl Target {
    pub(super) fn of(path: &str) -> Self {
        let decoded = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let rest = path.strip_prefix("/api/v1/").unwrap_or_default();
        let parts: Vec<String> = rest.split('/').map(decoded).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["pods"] => Self::Pods(None),
            ["namespaces"] => Self::Namespaces,
            ["namespaces", name] => Self::Namespace((*name).to_owned()),
            ["namespaces", namespace, "pods"] => Self::Pods(Some((*namespace).to_owned())),
            ["namespaces", namespace, "pods", name] => Self::pod(namespace, name, false),
            ["namespaces", namespace, "pods", name, "status"] => Self::pod(namespace, name, true),
            _ => Self::Other(path.to_owned()),
        }
    }

    fn pod(namespace: &str, name: &str, status: bool) -> Self {
        Self::Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            status,
        }
    }

    /// Kubernetes' word for what a request does to it.
    pub(super) fn verb(&self, method: &Method, query: &Query) -> &'static str {
        let many = matches!(self, Self::Pods(_) | Self::Namespaces);
        match (method.as_str(), many) {
            ("GET", _) if query.flag("watch") => "watch",
            ("GET", true) => "list",
            ("GET", false) => "get",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "deletecollection",
            ("DELETE", false) => "delete",
            _ => "other",
        }
    }

    /// Resource, namespace and name, as access is granted.
    pub(super) fn parts(&self) -> (&'static str, Option<&str>, &str) {
        match self {
            Self::Pods(namespace) => ("pods", namespace.as_deref(), ""),
            Self::Pod {
                namespace,
                name,
                status,
            } => {
                let resource = if *status { "pods/status" } else { "pods" };
                (resource, Some(namespace), name)
            }
            Self::Namespaces => ("namespaces", None, ""),
            Self::Namespace(name) => ("namespaces", Some(name), name),
            Self::Other(_) => ("", None, ""),
        }
    }
}

impl Query {
    pub(super) fn parse(text: Option<&str>) -> Self {
        let pairs = url::form_urlencoded::parse(text.unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.0.get(name).map(String::as_str).unwrap_or_default()
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.text(name), "true" | "1")
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = |_| Refusal::bad_request(format!("{name}: Invalid value: {text:?}"));
        text.parse().map(Some).map_err(wrong)
    }

    pub(super) fn selector(&self) -> Result<Selector, Refusal> {
        Selector::parse(self.text("labelSelector"), self.text("fieldSelector"))
    }

    pub(super) fn list(&self, namespace: Option<String>) -> Result<ListQuery, Refusal> {
        let limit = self.number("limit")?;
        let after = self.text("continue");
        // Revision 0 is "any": what is cached, and here everything is.
        let revision = self
            .number("resourceVersion")?
            .filter(|revision| *revision > 0);
        if !after.is_empty() && revision.is_some() {
            return Err(Refusal::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(ListQuery {
            namespace,
            selector: self.selector()?,
            limit: limit.and_then(|limit| usize::try_from(limit).ok()),
            after: (!after.is_empty()).then(|| after.to_owned()),
            revision,
            exact: self.text("resourceVersionMatch") == "Exact",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods_become_verbs_on_resources() {
        let cases = [
            ("GET", "/api/v1/pods", "", "list", ("pods", None, "")),
            (
                "GET",
                "/api/v1/pods",
                "watch=true",
                "watch",
                ("pods", None, ""),
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods",
                "",
                "list",
                ("pods", Some("a"), ""),
            ),
            (
                "DELETE",
                "/api/v1/namespaces/a/pods/p%2D1",
                "",
                "delete",
                ("pods", Some("a"), "p-1"),
            ),
            (
                "PATCH",
                "/api/v1/namespaces/a/pods/p/status",
                "",
                "patch",
                ("pods/status", Some("a"), "p"),
            ),
            (
                "GET",
                "/api/v1/namespaces/a",
                "",
                "get",
                ("namespaces", Some("a"), "a"),
            ),
        ];
        for (method, path, query, verb, parts) in cases {
            let target = Target::of(path);
            let method = method.parse().expect("a method");
            assert_eq!(
                target.verb(&method, &Query::parse(Some(query))),
                verb,
                "{path}"
            );
            assert_eq!(target.parts(), parts, "{path}");
        }
        assert_eq!(Target::of("/version"), Target::Other("/version".to_owned()));
    }
}
