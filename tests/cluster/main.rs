//! Clusters of real processes on loopback: QUIC with mutual TLS, HTTP streams, real signals.
//!
//! `../MATRIX.md` lists the row of the test matrix for each file.

mod agreement;
mod certificates;
mod chaos;
mod convergence;
mod discovery;
mod doctor;
mod drain;
mod growth;
mod hearsay;
mod hostile;
mod hot_prompt;
mod hot_share;
mod json_answers;
mod kv_events;
mod kv_placement;
mod labels;
mod leases;
mod links;
mod monitoring;
mod pods;
mod reload;
mod replica_kill;
mod responses;
mod restart_knowledge;
mod rolling;
mod sampled_agreement;
mod seeds;
mod service_manager;
mod shutdown;
mod sleep;
mod split;
mod status;
mod strangers;
mod supervision;
mod tenants;
mod twins;
mod versions;
mod warmup;
mod worker_freeze;
mod worker_kill;
mod worker_verdict;
mod zombie;
