//! Hostile peers against running agents: strangers without a certificate, liars with one, floods.
//!
//! Each attack ends with the same question (`scene::Scene::unharmed`): three honest replicas agree, are
//! alive, and hold the same workers. A peer that lies is counted, and cut off after ten offences.

mod answers;
mod carried;
mod chitchat;
mod cornered;
mod floods;
mod gate;
mod membership;
mod planes;
mod rogue;
mod scene;
mod strangers;
