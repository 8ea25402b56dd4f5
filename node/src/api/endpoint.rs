//! Method and path → what the front does with a request.

use http::Method;

use super::error::{ApiError, ErrorKind};

/// Where a request on the data port belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// Any other path: sent to a worker as it came.
    Passthrough,
    /// `GET /v1/models`: the union over all workers.
    Models,
    /// `GET /v1/models/{id}`.
    Model,
    /// `GET /liveness`, `GET /health`: this process runs.
    Live,
    /// `GET /readiness`: this replica should get traffic.
    Ready,
}

impl Endpoint {
    /// Finds the endpoint, or the error for a method that the path does not have.
    pub fn of(method: &Method, path: &str) -> Result<Self, ApiError> {
        let (endpoint, allowed) = match path {
            "/v1/chat/completions" => (Self::Chat, Method::POST),
            "/v1/completions" => (Self::Completions, Method::POST),
            "/v1/embeddings" => (Self::Embeddings, Method::POST),
            "/v1/models" => (Self::Models, Method::GET),
            "/liveness" | "/health" => (Self::Live, Method::GET),
            "/readiness" => (Self::Ready, Method::GET),
            _ if path.starts_with("/v1/models/") => (Self::Model, Method::GET),
            _ if *method == Method::CONNECT => {
                return Err(ApiError::new(
                    ErrorKind::MethodNotAllowed,
                    "CONNECT is not served",
                ));
            }
            _ => return Ok(Self::Passthrough),
        };
        if *method == allowed || (allowed == Method::GET && *method == Method::HEAD) {
            Ok(endpoint)
        } else {
            Err(ApiError::new(
                ErrorKind::MethodNotAllowed,
                format!("{path} takes {allowed}"),
            ))
        }
    }

    /// Does the body have to be a JSON object that names a model?
    pub fn needs_model(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Embeddings)
    }

    /// Stable metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat_completions",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Passthrough => "passthrough",
            Self::Models | Self::Model => "models",
            Self::Live | Self::Ready => "health",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods() {
        let ok = |method: Method, path: &str| Endpoint::of(&method, path).expect("endpoint");
        assert_eq!(ok(Method::POST, "/v1/chat/completions"), Endpoint::Chat);
        assert_eq!(ok(Method::POST, "/v1/completions"), Endpoint::Completions);
        assert_eq!(ok(Method::POST, "/tokenize"), Endpoint::Passthrough);
        assert_eq!(ok(Method::GET, "/version"), Endpoint::Passthrough);
        assert_eq!(ok(Method::HEAD, "/health"), Endpoint::Live);
        assert_eq!(ok(Method::GET, "/v1/models/a/b"), Endpoint::Model);
        for (method, path) in [
            (Method::GET, "/v1/chat/completions"),
            (Method::DELETE, "/v1/models/x"),
            (Method::CONNECT, "/anything"),
        ] {
            let error = Endpoint::of(&method, path).expect_err("refused");
            assert_eq!(error.kind, ErrorKind::MethodNotAllowed);
        }
    }
}
