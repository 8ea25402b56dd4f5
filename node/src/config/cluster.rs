//! Settings of the cluster: gossip between replicas, and `[cluster]`, which must agree everywhere.

use std::net::IpAddr;
use std::num::{NonZeroU8, NonZeroU16};
use std::path::PathBuf;
use std::time::Duration;

use grapevine_gossip::config;
use grapevine_placement::{
    HashAlgorithm, HashBound, KeySettings, Policy, PolicySettings, PrefixIndexSettings, Price,
    Ratio, RingSettings, Target,
};
use http::HeaderName;

use super::setting::{HOUR, LOOPBACK, ms, secs};
use super::table::section;
use super::types::{ByteSize, HostPort, Name, PriceRule};

section! {
    /// Gossip between replicas: QUIC with mutual TLS on one UDP port. Local to each replica.
    [gossip] GossipSettings {
        /// Address of this machine at which the other replicas reach this one, by gossip; with other replicas, and
        /// beyond loopback, certificates are required.
        ///
        /// Loopback: replicas of this machine alone. `0.0.0.0` takes all its addresses, and needs `advertise`.
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
        /// Requests a second that are compared with what another replica would decide; 0 for none.
        ///
        /// The share that agrees is a metric. Higher: a surer number, a little more work for peers.
        agreement_samples: u32 = 2, in 0..=50;
        /// How long placements are gathered before they are sent to the other replicas.
        ///
        /// Higher: fewer frames. Others learn later where a prefix went, and send its next turn elsewhere.
        evidence_batch: Duration = ms(20), in ms(10)..=ms(500);
        /// Bytes of placements that are sent to one peer each second, with bursts of one second.
        ///
        /// Equal on all replicas: what one sends beyond four times the value of a peer is dropped there. Lower:
        /// placements beyond it wait, and in the end are not sent. 256KiB are some 1,500 placements.
        evidence_bytes_per_s: ByteSize = ByteSize::kib(256),
            in ByteSize::kib(64)..=ByteSize::mib(16);
        /// Bytes of sent placements that are kept for peers that are slow or missed some.
        evidence_log_bytes: ByteSize = ByteSize::mib(1),
            in ByteSize::kib(64)..=ByteSize::mib(64);
        /// Silence after which the heat that a replica reported no longer counts.
        evidence_silent_after: Duration = secs(5), in secs(2)..=secs(30);
        /// Certificate of the cluster's authority (PEM), made by `grapevine ca init`.
        ca: Option<PathBuf> = None, flag "gossip-ca" Text;
        /// Certificate of this replica (PEM), made by `grapevine ca issue`.
        cert: Option<PathBuf> = None, flag "gossip-cert" Text;
        /// Private key of this replica (PEM), readable by this process only.
        key: Option<PathBuf> = None, flag "gossip-key" Text;
        /// Certificates that are accepted no more (PEM), written by `grapevine ca revoke`. Unset: none.
        ///
        /// This file and the three above are read again on SIGHUP and when they change, as often as
        /// `tls.refresh` says. What cannot be used is reported, and the old stays.
        revoked: Option<PathBuf> = None, flag "gossip-revoked" Text;
    }
}

section! {
    /// What all replicas must agree on: a fingerprint of it is gossiped, and replicas report a difference.
    [cluster] ClusterConfig {
        /// Name of the cluster; other clusters' replicas are refused. Part of every certificate.
        id: Name = Name::new("grapevine").expect("a valid name"), flag "cluster-id" Text;
        /// How a worker is chosen: prefix, consistent_hash, cache_aware, sticky, least_request,
        /// least_kv, power_of_two, random or round_robin. [[model]] gives a model another one.
        policy: Policy = Policy::default(), flag "policy" Text;
        /// How a prefill worker is chosen for a request that is divided. Unset: as `policy` says.
        prefill_policy: Option<Policy> = None, flag "prefill-policy" Text;
        /// How a decode worker is chosen for it. Unset: least_kv.
        decode_policy: Option<Policy> = None, flag "decode-policy" Text;
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
        /// Bytes of text that are taken for one token, before a worker has counted.
        ///
        /// Languages other than English have fewer for some models.
        bytes_per_token: NonZeroU8 = KeySettings::default().bytes_per_token,
            in NonZeroU8::MIN..=NonZeroU8::new(16).expect("not zero");
        /// Header that names the tenant, such as "x-tenant-id": tenants share no prefix and no home.
        ///
        /// Its value is salted into keys beside the body's `cache_salt`. Placement only: workers keep
        /// tenants apart by `cache_salt` alone.
        tenant_header: Option<HeaderName> = None;
        /// Headers that name a session where x-session-id and x-smg-routing-key do not; the first counts.
        ///
        /// Agents have their own: "x-claude-code-session-id", "session-id", "thread-id".
        session_headers: Vec<HeaderName> = Vec::new(), flag "routing-key-headers" List;
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
        /// Price of a token held by running requests (additive).
        ///
        /// Higher: decode is spread more. Lower: long sessions crowd workers and their caches.
        price_context: Ratio = additive_context();
        /// Tokens that any request costs (multiplicative).
        ///
        /// Higher: load counts for prompts that are cached, too. Lower: those go home whatever the load.
        price_overhead: Ratio = multiplicative().0;
        /// Requests that any worker is taken to have (multiplicative).
        ///
        /// Higher: requests in flight count less. Lower: one request more is a reason to leave.
        price_patience: Ratio = multiplicative().1;
        /// How far above the smallest price the first in order is still taken.
        ///
        /// Additive: tokens for each of the prompt's; multiplicative: a factor, 1 or more. Unset: 1.5
        /// for additive, 1.25 for multiplicative. Higher: replicas whose counts differ a little agree
        /// more often. Lower: queues are more even.
        price_tolerance: Option<Ratio> = None, in Some(ratio(0.0))..=Some(ratio(100.0));
        /// Requests in flight on a worker, as a multiple of its fair share, before it is passed over.
        ///
        /// Over the whole cluster. Higher: more cache hits, longer queues on hot prefixes.
        bound: Ratio = policy().bound.factor, in ratio(1.0)..=ratio(100.0);
        /// Requests above the mean that a worker may always have.
        ///
        /// Keeps the bound quiet at low load, where one request is a large share.
        bound_slack: Ratio = policy().bound.slack, in ratio(0.0)..=ratio(10_000.0);
        /// Tokens that each request above the bound costs (prefix).
        ///
        /// The bound is passed where more than that would be computed again elsewhere. Higher: crowds are
        /// left earlier. Lower: conversations and documents stay longer with the workers that hold them.
        crowd_price: Ratio = policy().crowd_price, in ratio(0.0)..=ratio(1_000_000.0);
        /// Times the bound that no worker may pass, whatever is computed again (prefix).
        ///
        /// Higher: more cache hits. Lower: fewer requests on one worker. 1: the bound is never passed.
        outer_bound: Ratio = policy().outer_bound, in ratio(1.0)..=ratio(100.0);
        /// Workers that are compared for a prompt of which nothing is known; 0 compares all (prefix).
        ///
        /// The first so many in its order. Higher: more even queues while counts are fresh. Lower: replicas
        /// agree more often, and fewer of them run to the same idle worker.
        choices: u8 = policy().choices, in 0..=8;
        /// Part of a worker's fair share of its model's requests from which on a prefix is hot (prefix).
        ///
        /// A hot prefix is shared by several workers. Higher: fewer copies of shared prefixes, more load
        /// on their homes. Lower: the reverse. 0 switches heat off.
        heat_share: Ratio = policy().heat.share, in ratio(0.0)..=ratio(1_000.0);
        /// Time in which a count of heat loses half of its value.
        ///
        /// Higher: steadier sets. Lower: a change of traffic is followed sooner.
        heat_half_life: Duration = policy().heat.half_life, in secs(1)..=HOUR;
        /// Bounded loads for `consistent_hash`: off, requests:FACTOR or prefill:FACTOR.
        ///
        /// A worker with more than so many times the mean of requests, or of tokens that wait for
        /// prefill, is passed over. Higher: more cache hits. Lower: more even load. 1.25 is usual.
        hash_bound: HashBound = policy().hash_bound;
        /// Part of a prompt that a worker must hold to be chosen for it (cache_aware).
        ///
        /// Higher: more even load. Lower: more cache hits.
        cache_aware_match: Ratio = policy().cache_aware.match_share,
            in ratio(0.0)..=ratio(1.0), flag "cache-threshold" Text;
        /// Requests between the busiest and the idlest worker that may mean imbalance (cache_aware).
        ///
        /// Both this and the factor must be passed; then load decides. Lower: load decides earlier.
        cache_aware_imbalance: Ratio = policy().cache_aware.imbalance_requests,
            flag "balance-abs-threshold" Text;
        /// Requests of the busiest worker over those of the idlest that may mean imbalance (cache_aware).
        ///
        /// Higher: more cache hits. Lower: load decides earlier.
        cache_aware_imbalance_factor: Ratio = policy().cache_aware.imbalance_factor,
            in ratio(1.0)..=ratio(1_000.0), flag "balance-rel-threshold" Text;
        /// Prefixes that are remembered, over all workers (prefix, cache_aware); 1,000 take about 65 kB.
        ///
        /// Higher: more memory. Lower: long conversations are forgotten while workers still hold them.
        prefix_index_entries_max: u32 = PrefixIndexSettings::default().entries_max, in 1_000..=10_000_000;
        /// Tokens that a worker's cache holds, host tier included, unless the worker reports another size.
        ///
        /// Too high: requests go after what is no longer there, until answers correct it. Too low:
        /// prefill is repeated.
        prefix_index_cache_tokens: u64 = PrefixIndexSettings::default().cache_tokens,
            in 1_000..=1_000_000_000_000;
        /// How long a worker is expected to hold what it was not asked for again.
        ///
        /// Higher: more hits after pauses. Lower: less is expected of what was evicted meanwhile.
        prefix_index_age_max: Duration = PrefixIndexSettings::default().age_max, in secs(10)..=24 * HOUR;
        /// How old news of a placement must be for a worker's own KV events to go before it.
        ///
        /// Lower: what was evicted is known sooner. Higher: prompts that wait for long count as held meanwhile.
        prefix_index_told_after: Duration = PrefixIndexSettings::default().told_after,
            in Duration::ZERO..=secs(600);
        /// With more than half of the workers unhealthy, use all of them.
        ///
        /// So many sick at once is more often a fault of the checks than of the workers.
        panic: bool = true;
        /// How long a fall of load, and the first rise after a rest, may wait before they are sent to the other replicas.
        ///
        /// Other rises are sent within 10 ms by up to four replicas, and within up to 50 ms by more. Lower: fresher counts,
        /// more datagrams. Replicas decide on what all of them know, so they agree at any age.
        load_batch: Duration = config::LOAD_BATCH, in ms(20)..=ms(50);
    }
}

section! {
    /// One model with its own policy, or an alias; repeat the section for each. Equal on all replicas.
    ///
    /// Part of the fingerprint, as [cluster] is.
    [model] ModelConfig {
        /// The name that clients ask for. Required.
        name: String = "llama".to_owned();
        /// Policy of the workers that serve this model. Unset: that of [cluster].
        policy: Option<Policy> = None;
        /// Policy of its prefill workers. Unset: that of [cluster], else `policy`.
        prefill_policy: Option<Policy> = None;
        /// Policy of its decode workers. Unset: that of [cluster].
        decode_policy: Option<Policy> = None;
        /// Makes the name an alias: the models that its requests go to, as "model" or "model:weight".
        ///
        /// With several, each conversation (session, else the beginning of its text) stays with one of
        /// them, in shares by weight; such as ["llama-70b:9", "llama-70b-v2:1"]. The name itself may be
        /// one of them, another alias may not. A target that no worker serves is passed over. Workers see
        /// the target's name, and answers carry it.
        targets: Option<Vec<Target>> = None;
        /// Mid-stream failover of this model's streams. Unset: as [failover] says for all.
        failover: Option<bool> = None;
    }
}

// Defaults come from placement, so that its tests, the replay and a replica mean the same.

fn policy() -> PolicySettings {
    PolicySettings::default()
}

fn additive_context() -> Ratio {
    match Price::ADDITIVE {
        Price::Additive { context, .. } => context,
        Price::Multiplicative { .. } => unreachable!("it is the additive price"),
    }
}

/// Overhead and patience.
fn multiplicative() -> (Ratio, Ratio) {
    match Price::MULTIPLICATIVE {
        Price::Multiplicative {
            overhead, patience, ..
        } => (overhead, patience),
        Price::Additive { .. } => unreachable!("it is the multiplicative price"),
    }
}

fn ratio(value: f64) -> Ratio {
    Ratio::new(value).expect("the table's numbers are ratios")
}
