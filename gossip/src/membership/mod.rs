//! Which replicas are there, and the facts that each reports of itself (`facts.rs`). `chitchat/` is how they travel.

mod chitchat;

pub(crate) use chitchat::{Membership, next_generation};
