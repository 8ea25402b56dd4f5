//! The OpenAI surface: which endpoint a request is for, what its body says, and how errors look.
//!
//! No sockets here; `proxy` owns the request's life.

pub mod cards;
pub mod endpoint;
pub mod error;
pub(crate) mod json;
mod message;
pub mod models;
pub mod multipart;
mod open;
mod priority;
pub mod prompt;
pub mod request;
pub(crate) mod text;
mod truth;

pub use endpoint::Endpoint;
pub use error::ApiError;
pub use open::OpenPath;
pub use priority::Priority;
