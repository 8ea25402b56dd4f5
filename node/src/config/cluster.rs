//! Settings of the cluster: gossip between replicas, and `[cluster]`, which must agree everywhere.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use super::table::section;
use super::value::{ByteSize, HostPort, LOOPBACK, Name, choices, ms};

section! {
    /// Gossip between replicas: QUIC with mutual TLS on one UDP port. Local to each replica.
    [gossip] GossipSettings {
        /// Address to bind. Beyond loopback certificates are required.
        host: IpAddr = LOOPBACK, flag "gossip-host" Text;
        /// UDP port to bind; 0 takes a free one.
        port: u16 = 30002, flag "gossip-port" Text;
        /// Where other replicas reach this one; needed when bound to `0.0.0.0` or behind NAT.
        ///
        /// Unset: the bound address.
        advertise: Option<HostPort> = None, flag "gossip-advertise" Text;
        /// Replicas to begin with, as `host:port`, in any order.
        ///
        /// Tried for ever, names resolved anew each time; dead ones and the own address do no harm.
        /// One that lives is enough: the rest is learned.
        seeds: Vec<HostPort> = Vec::new(), flag "seed" List;
        /// Certificate of the cluster's authority (PEM), made by `grapevine ca init`.
        ca: Option<PathBuf> = None, flag "gossip-ca" Text;
        /// Certificate of this replica (PEM), made by `grapevine ca issue`. Read again when it changes.
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
        policy: Policy = Policy::Prefix, flag "policy" Text;
        /// Hash of ring and keys: xxh3, murmur3 or cityhash.
        hash: HashKind = HashKind::Xxh3;
        /// Points on the ring for a worker of weight 1.
        ///
        /// Higher: more even shares, a larger ring to build.
        virtual_nodes: NonZeroU32 = NonZeroU32::new(256).expect("not zero"),
            in NonZeroU32::MIN..=NonZeroU32::new(4096).expect("not zero");
        /// Seed of the ring's hash. Another seed is another ring: every key may move.
        seed: u64 = 0;
        /// Leading bytes that key a text without message structure (completions).
        ///
        /// Higher: texts that differ late part ways. Lower: texts that agree early stay together.
        text_key_bytes: ByteSize = ByteSize::kib(8), in ByteSize(256)..=ByteSize::mib(1);
        /// Formula that prices candidates: product or sum.
        price: PriceRule = PriceRule::Product;
        /// Requests in flight on a worker, as a multiple of the mean of all, before it is passed over.
        ///
        /// Over the whole cluster. Higher: more cache hits, longer queues on hot prefixes.
        bound: f64 = 1.5, in 1.0..=100.0;
        /// Requests above the mean that a worker may always have.
        ///
        /// Keeps the bound quiet at low load, where one request is a large share.
        bound_slack: u32 = 4, in 0..=10_000;
        /// How long changes of load are collected before they are sent to the other replicas.
        ///
        /// Lower: fresher counts, more datagrams. Agreement falls as load ages.
        load_batch: Duration = ms(20), in ms(20)..=ms(50);
        /// Age at which the load that another replica reported counts half.
        load_half_life: Duration = ms(500), in ms(10)..=ms(60_000);
    }
}

choices! {
    /// How a worker is chosen.
    Policy {
        /// Prefix-aware consistent hashing, left only at a price (default).
        Prefix = "prefix",
        /// The ring alone, keyed by session, user, or prefix.
        ConsistentHash = "consistent_hash",
        /// By session header; round robin without one.
        Sticky = "sticky",
        /// The fewest requests in flight in the cluster.
        LeastRequest = "least_request",
        /// The less loaded of two drawn ones.
        PowerOfTwo = "power_of_two",
        /// Any.
        Random = "random",
        /// One after the other.
        RoundRobin = "round_robin",
    }
    renamed {
        "cache_aware" => "prefix",
        "kv_aware" => "prefix",
        "sticky_least_loaded" => "sticky",
        "rendezvous_hash" => "consistent_hash",
    }
}

choices! {
    /// Hash of ring and keys.
    HashKind {
        /// XXH3, 64 bits.
        Xxh3 = "xxh3",
        /// MurmurHash3.
        Murmur3 = "murmur3",
        /// CityHash64.
        Cityhash = "cityhash",
    }
}

choices! {
    /// How candidates of the policy `prefix` are priced.
    PriceRule {
        /// Prefill to be done times requests in flight.
        Product = "product",
        /// Prefill to be done plus context held.
        Sum = "sum",
    }
}
