//! Settings of the cluster: gossip between replicas, and `[cluster]`, which must agree everywhere.

use std::net::IpAddr;
use std::num::{NonZeroU8, NonZeroU16};
use std::path::PathBuf;
use std::time::Duration;

use grapevine_gossip::config;
use grapevine_placement::{HashAlgorithm, KeySettings, Policy, Ratio, RingSettings};

use super::table::section;
use super::types::{ByteSize, HostPort, Name, PriceRule};
use super::value::{LOOPBACK, ms};

section! {
    /// Gossip between replicas: QUIC with mutual TLS on one UDP port. Local to each replica.
    [gossip] GossipSettings {
        /// Address of the gossip port. Beyond loopback certificates are required.
        host: IpAddr = LOOPBACK, flag "gossip-host" Text;
        /// The gossip port (UDP); 0 takes a free one.
        port: u16 = 30002, flag "gossip-port" Text;
        /// Where other replicas reach this one; needed when bound to `0.0.0.0` or behind NAT.
        ///
        /// Unset: the bound address.
        advertise: Option<HostPort> = None, flag "gossip-advertise" Text;
        /// Gossip addresses of replicas to begin with, as `host:port`, in any order.
        ///
        /// Tried for ever, names resolved anew each time; dead ones and the own address do no harm.
        /// One that lives is enough: the rest is learned.
        seeds: Vec<HostPort> = Vec::new(), flag "seed" List;
        /// Certificate of the cluster's authority (PEM), made by `grapevine ca init`.
        ca: Option<PathBuf> = None, flag "gossip-ca" Text;
        /// Certificate of this replica (PEM), made by `grapevine ca issue`.
        cert: Option<PathBuf> = None, flag "gossip-cert" Text;
        /// Private key of this replica (PEM), readable by this process only.
        key: Option<PathBuf> = None, flag "gossip-key" Text;
    }
}

section! {
    /// What all replicas must agree on: a fingerprint of it is gossiped, and a difference is loud.
    [cluster] ClusterConfig {
        /// Name of the cluster; other clusters' replicas are refused. Part of every certificate.
        id: Name = Name::new("grapevine").expect("a valid name"), flag "cluster-id" Text;
        /// How a worker is chosen: prefix, consistent_hash, sticky, least_request, power_of_two,
        /// random or round_robin.
        policy: Policy = Policy::default(), flag "policy" Text;
        /// Hash of ring and keys: xxh3, murmur3 or cityhash.
        hash: HashAlgorithm = HashAlgorithm::default();
        /// Seed of the hash. Another seed is another ring: every key may move.
        seed: u64 = 0;
        /// Points on the ring for a worker of weight 1.
        ///
        /// Higher: more even shares, a larger ring to build.
        virtual_nodes: NonZeroU16 = RingSettings::default().virtual_nodes,
            in NonZeroU16::MIN..=NonZeroU16::new(4096).expect("not zero");
        /// Leading bytes that key a text without message structure (completions).
        ///
        /// Lower: texts that agree early stay together. Higher: texts that differ late part ways.
        text_key_bytes: ByteSize = ByteSize::kib(8), in ByteSize(256)..=ByteSize::mib(1);
        /// Bytes of text that are taken for one token, before anybody has counted.
        ///
        /// Languages other than English have fewer for some models.
        bytes_per_token: NonZeroU8 = KeySettings::default().bytes_per_token,
            in NonZeroU8::MIN..=NonZeroU8::new(16).expect("not zero");
        /// Formula by which `prefix` prices workers: additive or multiplicative.
        ///
        /// With q, c, n for prefill tokens, context tokens and requests in flight on a worker by its
        /// weight, L prompt tokens and m those expected in its cache.
        /// Additive: q + price_prefill * (L - m) + price_context * c.
        /// Multiplicative: (q + price_prefill * (L - m) + price_overhead) * (n + price_patience).
        price: PriceRule = PriceRule::Additive;
        /// Price of a token that must be computed here, against one that waits.
        ///
        /// Unset: 6 for additive, 3 for multiplicative. Higher: homes are left later, queues grow.
        /// With 1 conversations wander between workers.
        price_prefill: Option<Ratio> = None;
        /// Price of a token held by running requests (additive). Higher: decode is spread more.
        price_context: Ratio = ratio(0.1);
        /// Tokens that any request costs (multiplicative).
        price_overhead: Ratio = ratio(256.0);
        /// Requests that any worker is taken to have (multiplicative). Higher: load counts less.
        price_patience: Ratio = ratio(4.0);
        /// How far above the smallest price the first in order is still taken (multiplicative).
        price_tolerance: Ratio = ratio(1.25), in ratio(1.0)..=ratio(100.0);
        /// Part of a key's stable tokens that its home is expected to hold.
        ///
        /// Higher: homes are left later. Lower: load counts more.
        home_credit: Ratio = ratio(0.75), in ratio(0.0)..=ratio(1.0);
        /// Requests in flight on a worker, as a multiple of its fair share, before it is passed over.
        ///
        /// Over the whole cluster. Higher: more cache hits, longer queues on hot prefixes.
        bound: Ratio = ratio(1.5), in ratio(1.0)..=ratio(100.0);
        /// Requests above the mean that a worker may always have.
        ///
        /// Keeps the bound quiet at low load, where one request is a large share.
        bound_slack: Ratio = ratio(4.0), in ratio(0.0)..=ratio(10_000.0);
        /// With more than half of the workers unhealthy, use all of them.
        ///
        /// So many sick at once is more often a fault of the checks than of the workers.
        panic: bool = true;
        /// How long changes of load are collected before they are sent to the other replicas.
        ///
        /// Lower: fresher counts, more datagrams. Agreement falls as load ages.
        load_batch: Duration = config::LOAD_BATCH, in ms(20)..=ms(50);
    }
}

fn ratio(value: f64) -> Ratio {
    Ratio::new(value).expect("the table's numbers are ratios")
}
