//! Split pairs: what a worker in the role prefill or decode does with `kv_transfer_params`, as a judge that refuses
//! what the real engine refuses.
//!
//! `plan` says what a request's parameters make the engine do; `shelf` keeps computed blocks for the other side;
//! `side_channel` and `fetch` are the two ends of a transfer, `wire` what they say to each other; `ping` registers at a
//! proxy. It shares no code with
//! the router, and knows the engines' side alone.

mod answer;
mod config;
mod fetch;
mod ping;
mod plan;
mod shelf;
mod side_channel;
mod store;
mod wire;

pub(super) use answer::answer;
pub use config::{Connector, Role, TransferConfig};
pub(super) use fetch::{Reader, send};
pub(super) use ping::Ping;
pub(super) use plan::{Asked, Give, Plan, Source, plan};
pub use shelf::{Hold, HoldState};
pub(super) use shelf::{Parcel, Shelf};
pub(super) use side_channel::SideChannel;
pub use side_channel::SideChannelState;
pub(super) use store::Store;
