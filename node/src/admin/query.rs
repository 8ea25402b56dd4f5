//! What stands in the query of a request for the admin port.

use http::Uri;

use crate::api::ApiError;

/// Most of an unknown name that is repeated to whoever sent it.
const NAME_CHARS_MAX: usize = 64;

/// The query of a URL, decoded when asked for.
pub(super) struct Query<'a>(pub(super) &'a str);

impl<'a> Query<'a> {
    /// That of a URL. `known`: the names that mean something in it; none: any other is ignored.
    /// Errors: 400 for another name: a slip of `warmup` would warm up a worker that is to take requests at once.
    pub(super) fn of(uri: &'a Uri, known: Option<&[&str]>) -> Result<Self, ApiError> {
        let query = Self(uri.query().unwrap_or_default());
        known.map_or(Ok(()), |known| query.has_only(known))?;
        Ok(query)
    }

    fn has_only(&self, known: &[&str]) -> Result<(), ApiError> {
        let mut names = url::form_urlencoded::parse(self.0.as_bytes()).map(|(name, _)| name);
        let Some(name) = names.find(|name| !known.contains(&name.as_ref())) else {
            return Ok(());
        };
        let name: String = name.chars().take(NAME_CHARS_MAX).collect();
        let here = match known {
            [] => "it has none".to_owned(),
            known => format!("it has {}", known.join(", ")),
        };
        let message = format!("this endpoint has no parameter `{name}`; {here}");
        Err(ApiError::invalid("query", message))
    }

    pub(super) fn value(&self, name: &str) -> Option<String> {
        url::form_urlencoded::parse(self.0.as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    }

    pub(super) fn require(&self, name: &'static str) -> Result<String, ApiError> {
        self.value(name)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| ApiError::invalid(name, format!("add ?{name}=... to the URL")))
    }

    /// Whether a new worker may be warmed up before it takes requests; absent: yes.
    pub(super) fn warms_up(&self) -> Result<bool, ApiError> {
        match self.value("warmup").as_deref() {
            None | Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(_) => Err(ApiError::invalid("warmup", "warmup is true or false")),
        }
    }
}

/// A path segment without its percent-encoding; ids are mostly URLs.
pub(super) fn decoded(segment: &str) -> Result<String, ApiError> {
    percent_encoding::percent_decode_str(segment)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| ApiError::invalid("id", "the id is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_is_not_there_is_told_with_those_that_are() {
        let told = |query: &str, known: &[&str]| {
            let checked = Query(query).has_only(known);
            checked.map_err(|error| error.message.into_owned())
        };
        assert_eq!(told("", &[]), Ok(()));
        assert_eq!(told("after=a&limit=3", &["limit", "after"]), Ok(()));
        let message = "this endpoint has no parameter `warm-up`; it has warmup";
        assert_eq!(told("warm-up=false", &["warmup"]), Err(message.to_owned()));
        let none = told("x", &[]).expect_err("it has none");
        assert!(none.ends_with("no parameter `x`; it has none"), "{none}");
        let long = told(&"x".repeat(1_000), &[]).expect_err("it has none");
        assert!(long.len() < 200, "{long}");
    }
}
