//! The OpenAI surface of one replica in front of fake workers: byte for byte, error for error.
//!
//! `../README.md` says which row of the test matrix each file is for.

mod abuse;
mod access_log;
mod admin;
mod admission;
mod aliases;
mod breakers;
mod bytes;
mod cache;
mod errors;
mod failover;
mod framing;
mod h2_floods;
mod headers;
mod house;
mod http2;
mod keys;
mod leaving;
mod models;
mod odd_workers;
mod openai;
mod passthrough;
mod retries;
mod scrapes;
mod secrets;
mod slow_reader;
mod stalls;
mod streams;
mod tls;
mod tls_workers;
mod tracing;
mod unreachable;
mod whereabouts;
