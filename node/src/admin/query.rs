//! What stands in the query of a request for the admin port.

use crate::api::ApiError;

/// The query of a URL, decoded when asked for.
pub(super) struct Query<'a>(pub(super) &'a str);

impl Query<'_> {
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
