//! Pods as workers: each replica lists and watches pods by itself, and reports a full picture after every change.
//!
//! The source is level-triggered. What it knows are the pods of the last list, kept up to date by a watch
//! (`board.rs`, pure); which workers they are is a function of that alone (`mapping.rs`, `labels.rs`, pure). Whenever
//! something is not as it should be, the source lists anew over a new connection, with the credential read again
//! (`follow.rs`, `client.rs`), so a lost event lasts until the next list and no longer. A failure leaves the picture as
//! it is and says what to do (`failure.rs`).
//!
//! It lists and watches with kube's client and not with its `watcher`: that one does not tell that a quiet watch is
//! alive, without which a picture grows stale, and asks for ever from the same revision when the refusal of an old one
//! comes as the HTTP status 410.

mod board;
mod client;
mod failure;
mod follow;
mod labels;
mod mapping;
mod names;
mod pod;
mod settings;

pub use client::mistakes_of_kubeconfig;
pub use follow::run;
pub use settings::{KubernetesSettings, SettingsError};
