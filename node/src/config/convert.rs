//! From checked sections to the settings of placement, of gossip and of the watch of pods: the one place that knows both.

use std::net::SocketAddr;

#[cfg(feature = "kubernetes")]
use grapevine_discovery::kubernetes::KubernetesSettings;
use grapevine_discovery::label::Declared;
use grapevine_gossip::config::{EvidenceConfig, Facts, GossipConfig};
use grapevine_gossip::identity::PemFiles;
use grapevine_gossip::worker::{
    Labels, RawWorker, Role, WorkerError, WorkerId, WorkerSpec, WorkerUrl, weight_milli,
};
use grapevine_placement::{
    Bound, BreakerSettings, CacheAware, ClusterSettings, HeatSettings, KeySettings, ModelSettings,
    Models, ModelsError, PolicySettings, PrefixIndexSettings, Price, RingSettings, RolePolicies,
};

#[cfg(feature = "kubernetes")]
use super::KubernetesConfig;
use super::{
    BreakerConfig, ClusterConfig, Config, GossipSettings, ModelConfig, PriceRule, Section,
    WorkerConfig, WorkersConfig,
};

impl Config {
    /// Name of this replica: the configured one, or `r1` where it is alone and needs none.
    pub fn replica_id(&self) -> String {
        let id = self.replica.id.as_ref();
        id.map_or_else(|| "r1".to_owned(), ToString::to_string)
    }

    /// The settings of placement, whose fingerprint all replicas compare.
    pub fn cluster_settings(&self) -> ClusterSettings {
        ClusterSettings {
            models: self.models().expect("a checked configuration breaks none"),
            ..self.cluster.placement()
        }
    }

    /// The models with settings of their own.
    /// Errors: the first of placement's rules that they break. Those of a checked configuration break none.
    pub(super) fn models(&self) -> Result<Models, ModelsError> {
        let settings = |model: &ModelConfig| ModelSettings {
            policy: model.policy,
            roles: RolePolicies {
                prefill: model.prefill_policy,
                decode: model.decode_policy,
            },
            targets: model.targets.clone().unwrap_or_default(),
        };
        let models = self.model.iter();
        Models::new(models.map(|m| (m.name.clone(), settings(m))).collect())
    }

    /// What gossip needs to start; it sends the other replicas these facts.
    pub fn gossip_config(&self, facts: Facts) -> GossipConfig {
        let gossip = &self.gossip;
        GossipConfig {
            advertise: gossip.advertise.as_ref().map(ToString::to_string),
            seeds: gossip.seeds.iter().map(ToString::to_string).collect(),
            load_batch: self.cluster.load_batch,
            evidence: gossip.evidence(),
            ..GossipConfig::new(SocketAddr::new(gossip.host, gossip.port), facts)
        }
    }
}

impl ClusterConfig {
    fn placement(&self) -> ClusterSettings {
        let text_key_bytes = u32::try_from(self.text_key_bytes.0).ok();
        ClusterSettings {
            ring: RingSettings {
                virtual_nodes: self.virtual_nodes,
                hash: self.hash,
                seed: self.seed,
            },
            key: KeySettings {
                hash: self.hash,
                seed: self.seed,
                text_key_bytes: text_key_bytes
                    .and_then(|bytes| bytes.try_into().ok())
                    .expect("its range is 256B to 1MiB"),
                bytes_per_token: self.bytes_per_token,
            },
            policy: PolicySettings {
                policy: self.policy,
                price: self.price(),
                bound: Bound {
                    factor: self.bound,
                    slack: self.bound_slack,
                },
                crowd_price: self.crowd_price,
                outer_bound: self.outer_bound,
                choices: self.choices,
                heat: HeatSettings {
                    share: self.heat_share,
                    half_life: self.heat_half_life,
                },
                hash_bound: self.hash_bound,
                cache_aware: CacheAware {
                    match_share: self.cache_aware_match,
                    imbalance_requests: self.cache_aware_imbalance,
                    imbalance_factor: self.cache_aware_imbalance_factor,
                },
                panic: self.panic,
            },
            roles: RolePolicies {
                prefill: self.prefill_policy,
                decode: self.decode_policy,
            },
            prefix_index: PrefixIndexSettings {
                entries_max: self.prefix_index_entries_max,
                cache_tokens: self.prefix_index_cache_tokens,
                age_max: self.prefix_index_age_max,
                told_after: self.prefix_index_told_after,
            },
            tenant_header: self.tenant_header.as_ref().map(ToString::to_string),
            session_headers: self
                .session_headers
                .iter()
                .map(ToString::to_string)
                .collect(),
            models: Models::default(),
        }
    }

    fn price(&self) -> Price {
        let mut price = match self.price {
            PriceRule::Additive => Price::ADDITIVE,
            PriceRule::Multiplicative => Price::MULTIPLICATIVE,
        };
        match &mut price {
            Price::Additive {
                prefill,
                context,
                tolerance,
            } => {
                *prefill = self.price_prefill.unwrap_or(*prefill);
                *context = self.price_context;
                *tolerance = self.price_tolerance.unwrap_or(*tolerance);
            }
            Price::Multiplicative {
                prefill,
                overhead,
                patience,
                tolerance,
            } => {
                *prefill = self.price_prefill.unwrap_or(*prefill);
                *overhead = self.price_overhead;
                *patience = self.price_patience;
                *tolerance = self.price_tolerance.unwrap_or(*tolerance);
            }
        }
        price
    }
}

impl GossipSettings {
    fn evidence(&self) -> EvidenceConfig {
        EvidenceConfig {
            batch: self.evidence_batch,
            peer_bytes_per_s: u32::try_from(self.evidence_bytes_per_s.0)
                .expect("its range ends at 16MiB"),
            log_bytes: self.evidence_log_bytes.as_usize(),
            silent_after: self.evidence_silent_after,
        }
    }

    /// The replica's certificate files; none for a cluster of one without an identity.
    pub fn identity(&self) -> Option<PemFiles> {
        Some(PemFiles {
            ca: self.ca.clone()?,
            cert: self.cert.clone()?,
            key: self.key.clone()?,
            revoked: self.revoked.clone(),
        })
    }
}

impl WorkerConfig {
    /// The worker as the registry knows it.
    /// Errors: the first of the registry's rules that it breaks. Those of a checked configuration break none.
    pub fn registered(&self) -> Result<(WorkerId, WorkerSpec), WorkerError> {
        let spec = WorkerSpec::new(RawWorker {
            models: self.models.clone(),
            weight_milli: weight_milli(self.weight)?,
            role: self.role,
            dp_size: self.dp_size,
            zone: self.zone.clone(),
            max_in_flight: self.max_in_flight,
            ..RawWorker::at(self.url.to_string())
        })?;
        let id = match &self.id {
            Some(id) => id.parse()?,
            None => spec.default_id(),
        };
        Ok((id, spec))
    }

    /// All rules that it breaks, each with its key, where [`registered`](Self::registered) stops at the first one.
    pub(super) fn mistakes(&self) -> Vec<(&'static str, WorkerError)> {
        let plain = || RawWorker::at(self.url.to_string());
        let alone = |raw| WorkerSpec::new(raw).err();
        let models = RawWorker {
            models: self.models.clone(),
            ..plain()
        };
        let ranks = RawWorker {
            dp_size: self.dp_size,
            ..plain()
        };
        let zone = RawWorker {
            zone: self.zone.clone(),
            ..plain()
        };
        let limit = RawWorker {
            max_in_flight: self.max_in_flight,
            ..plain()
        };
        let id = self.id.as_ref().map(|id| id.parse::<WorkerId>());
        let all = [
            ("id", id.and_then(Result::err)),
            ("models", alone(models)),
            ("weight", weight_milli(self.weight).err()),
            ("dp_size", alone(ranks)),
            ("zone", alone(zone)),
            ("max_in_flight", alone(limit)),
        ];
        let all = all.into_iter();
        all.filter_map(|(key, error)| Some((key, error?))).collect()
    }

    /// What is declared of it beyond that.
    /// Errors: as [`WorkerConfig::registered`].
    pub fn declared_labels(&self) -> Result<Labels, WorkerError> {
        let declared = Declared {
            kv_connector: self.kv_connector.clone(),
            bootstrap_port: self.bootstrap_port,
            kv_address: self.kv_address.clone(),
            labels: self.labels.clone(),
        };
        declared.into_labels()
    }

    /// Which settings of this worker changed that [`WorkerConfig::registered`] does not have: its key, and labels that are
    /// new or have another value.
    pub(super) fn changed_beside(&self, before: &Self) -> Vec<&'static str> {
        let keys = self.differing(before).into_iter();
        let keys = keys.filter(|key| ["api_key", "api_key_file"].contains(key));
        let labels = self.declared_labels().ok();
        let labels = labels.zip(before.declared_labels().ok());
        let is_labelled = labels.is_some_and(|(now, before)| !before.contain(&now));
        keys.chain(is_labelled.then_some("labels")).collect()
    }
}

#[cfg(feature = "kubernetes")]
impl KubernetesConfig {
    /// The settings of the source that watches pods.
    pub(crate) fn source(&self) -> KubernetesSettings {
        let selector = |parts: &[String]| (!parts.is_empty()).then(|| parts.join(","));
        KubernetesSettings {
            kubeconfig: self.kubeconfig.clone(),
            namespaces: self.namespaces.clone(),
            selector: selector(&self.selector),
            prefill_selector: selector(&self.prefill_selector),
            decode_selector: selector(&self.decode_selector),
            port: self.port,
            ..KubernetesSettings::default()
        }
    }
}

impl WorkersConfig {
    /// Takes over which workers there are.
    pub(super) fn list_as(&mut self, new: &Self) {
        self.urls.clone_from(&new.urls);
        self.prefill_urls.clone_from(&new.prefill_urls);
        self.decode_urls.clone_from(&new.decode_urls);
        self.data_parallel_size = new.data_parallel_size;
    }

    /// The workers of the lists: one for each rank, where an address has several.
    pub(super) fn listed(&self) -> Vec<WorkerConfig> {
        let of = |url: &WorkerUrl, role, bootstrap_port| {
            ranks(url, self.data_parallel_size).map(move |(url, dp_size)| WorkerConfig {
                url,
                role,
                bootstrap_port,
                dp_size,
                ..WorkerConfig::default()
            })
        };
        let whole = self.urls.iter().flat_map(|url| of(url, Role::Any, None));
        let prefill = self.prefill_urls.0.iter();
        let prefill = prefill.flat_map(|one| of(&one.url, Role::Prefill, one.bootstrap_port));
        let decode = self.decode_urls.iter();
        let decode = decode.flat_map(|url| of(url, Role::Decode, None));
        whole.chain(prefill).chain(decode).collect()
    }
}

/// `url@0` to `url@size-1` with the number of ranks, or the URL alone where it is one, or names its rank.
fn ranks(url: &WorkerUrl, size: u32) -> impl Iterator<Item = (WorkerUrl, Option<u32>)> + use<> {
    let whole = (size == 1 || url.rank().is_some()).then(|| (url.clone(), None));
    let count = if whole.is_some() { 0 } else { size };
    let base = url.base().to_owned();
    let of_rank = move |rank| {
        let url = format!("{base}@{rank}").parse();
        (url.expect("a rank below 1,024"), Some(size))
    };
    whole.into_iter().chain((0..count).map(of_rank))
}

impl BreakerConfig {
    /// As placement takes it.
    pub(crate) fn settings(&self) -> BreakerSettings {
        BreakerSettings {
            failure_threshold: self.failure_threshold,
            success_threshold: self.success_threshold,
            success_rate: self.success_rate,
            rate_outcomes: self.rate_outcomes,
            rate_window: self.rate_window,
            timeout: self.open_for,
            timeout_max: self.open_max.max(self.open_for),
            jitter: self.jitter,
            window: self.window,
        }
    }
}

#[cfg(test)]
mod tests {
    use grapevine_placement::Ratio;

    use super::*;

    #[test]
    fn defaults_are_those_of_placement() {
        assert_eq!(
            ClusterConfig::default().placement(),
            ClusterSettings::default()
        );
    }

    #[test]
    fn defaults_of_evidence_are_those_of_gossip() {
        let ours = GossipSettings::default().evidence();
        assert_eq!(ours, EvidenceConfig::default());
    }

    #[test]
    fn defaults_of_the_breaker_are_those_of_placement() {
        let ours = BreakerConfig::default().settings();
        assert_eq!(ours, BreakerSettings::default());
    }

    #[test]
    fn each_price_has_its_own_defaults() {
        let mut config = ClusterConfig {
            price: PriceRule::Multiplicative,
            ..ClusterConfig::default()
        };
        assert_eq!(config.placement().policy.price, Price::MULTIPLICATIVE);
        config.price_prefill = Some(Ratio::MAX);
        config.price_tolerance = Some(Ratio::MAX);
        let Price::Multiplicative {
            prefill, tolerance, ..
        } = config.placement().policy.price
        else {
            panic!("another price");
        };
        assert_eq!((prefill, tolerance), (Ratio::MAX, Ratio::MAX));
        config.price = PriceRule::Additive;
        let Price::Additive {
            prefill, tolerance, ..
        } = config.placement().policy.price
        else {
            panic!("another price");
        };
        assert_eq!((prefill, tolerance), (Ratio::MAX, Ratio::MAX));
    }

    #[test]
    fn a_worker_keeps_what_was_written() {
        let worker = WorkerConfig {
            weight: 0.7,
            id: Some("w1".to_owned()),
            zone: Some("rack-2".to_owned()),
            ..WorkerConfig::default()
        };
        let (id, spec) = worker.registered().expect("valid");
        assert_eq!((id.as_str(), spec.weight_milli()), ("w1", 700));
        assert_eq!(spec.to_raw().zone.as_deref(), Some("rack-2"));
        let (id, _) = WorkerConfig::default().registered().expect("valid");
        assert_eq!(id.as_str(), "http://127.0.0.1:8000");
    }
}
