//! What `GET` shows: replicas, events, rings, workers.

mod cluster;
mod events;
mod rings;
mod workers;
