//! Requests that are divided between prefill and decode workers: real replicas, fake workers in both roles.
//!
//! `scene.rs` has the set-up and what clients and workers saw; each other file is one subject of the matrix's group
//! "Split requests".

mod alone;
mod blamed;
mod connectors;
mod decode_fails;
mod leaving;
mod load;
mod messages;
mod mixed;
mod nobody;
mod one_request;
mod prefill_fails;
mod quiet;
mod scene;
mod strangers;
mod together;
mod transfer_fails;
mod waiting;
mod zones;
