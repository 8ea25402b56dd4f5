//! What must be equal on all replicas, as one fingerprint that each of them publishes.
//!
//! `[cluster]` and `[[model]]` as placement sees them, and those settings of other sections that say how replicas act on
//! one worker together. Secrets are no part of it: what is published must not help to guess one.

use std::collections::BTreeMap;

use grapevine_placement::total_digest;

use super::setting::Setting;
use super::table::Section;
use super::{ClusterConfig, Config, ModelConfig};

/// Keys of `[cluster]` and `[[model]]` that are each replica's own affair, or are compared otherwise.
const OWN: [&str; 4] = ["id", "load_batch", "name", "failover"];

impl Config {
    /// The fingerprint: replicas with the same one agree.
    ///
    /// What is at its default is no part of it: replicas of neighbouring releases, of which one has a further setting,
    /// agree.
    pub fn fingerprint(&self) -> String {
        let mut bytes = self.cluster_settings().canonical_bytes();
        let plain = Self::from_layers(Default::default()).expect("defaults are valid");
        let differing = self.agreed().into_iter().zip(plain.agreed());
        for ((key, value), _) in differing.filter(|(own, default)| own != default) {
            let value = value.unwrap_or_default();
            bytes.extend(format!("\n{key} = {value}").into_bytes());
        }
        total_digest(&[], &[], &bytes).to_string()
    }

    /// What the fingerprint is made from, by name, with values as in the file (`unset` where there is none): two replicas
    /// whose fingerprints differ find here in what. No secret is among them.
    pub fn must_agree(&self) -> BTreeMap<String, String> {
        let is_shared = |(key, _): &(&'static str, Option<String>)| !OWN.contains(key);
        let of_cluster = self.cluster.shown().into_iter().filter(is_shared);
        let of_cluster =
            of_cluster.map(|(key, value)| (format!("{}.{key}", ClusterConfig::NAME), value));
        let of_models = self.model.iter().flat_map(|model| {
            let shown = model.shown().into_iter().filter(is_shared);
            let name = |key: &str| format!("{}[{}].{key}", ModelConfig::NAME, model.name);
            shown.map(move |(key, value)| (name(key), value))
        });
        let others = self.agreed().into_iter();
        let others = others.map(|(key, value)| (key.to_owned(), value));
        let all = of_cluster.chain(of_models).chain(others);
        all.map(|(key, value)| (key, value.unwrap_or_else(|| "unset".to_owned())))
            .collect()
    }

    /// Settings outside of `[cluster]` and `[[model]]` that must be equal, as in the file.
    fn agreed(&self) -> Vec<(&'static str, Option<String>)> {
        macro_rules! shown {
            ($($section:ident.$key:ident)*) => {
                vec![$((
                    concat!(stringify!($section), ".", stringify!($key)),
                    Setting::show(&self.$section.$key),
                )),*]
            };
        }
        shown!(
            transfer.connector transfer.decode_alone transfer.short_prompt_tokens transfer.wait_for_pair transfer.mixed_tensor_parallel
            transfer.across_zones transfer.from_clients transfer.held_for transfer.fetch_within discovery.hold discovery.empty_hold discovery.contest leases.ttl
            leases.grace pings.ttl pings.grace health.slow_start kv_events.enabled kv_events.index_bytes kv_events.text_blocks
            kv_events.host_worth kv_events.storage_worth
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DecodeAlone, Layers, Secret, TransferConfig};

    fn of_text(text: &str) -> Config {
        let layers = Layers {
            file: Some(("grapevine.toml".into(), text.to_owned())),
            ..Layers::default()
        };
        Config::from_layers(layers).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn what_differs_is_named() {
        let plain = of_text("");
        let check = |text: &str, expected: &[(&str, &str)]| {
            let other = of_text(text);
            assert_eq!(
                plain.fingerprint() != other.fingerprint(),
                !expected.is_empty(),
                "{text}"
            );
            let (ours, theirs) = (plain.must_agree(), other.must_agree());
            let differing = theirs
                .iter()
                .filter(|(key, value)| ours.get(*key) != Some(value));
            let named: Vec<_> = differing
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .collect();
            assert_eq!(named, expected, "{text}");
        };
        check(
            "cluster.virtual_nodes = 17",
            &[("cluster.virtual_nodes", "17")],
        );
        check("cluster.seed = 7", &[("cluster.seed", "7")]);
        check(
            "cluster.tenant_header = \"x-tenant\"",
            &[("cluster.tenant_header", "\"x-tenant\"")],
        );
        check(
            "cluster.session_headers = [\"x-s\"]",
            &[("cluster.session_headers", "[\"x-s\"]")],
        );
        check("discovery.hold = \"7s\"", &[("discovery.hold", "\"7s\"")]);
        check(
            "kv_events.host_worth = 0.5",
            &[("kv_events.host_worth", "0.5")],
        );
        check("kv_events.silence = \"9s\"", &[]);
        check("cluster.load_batch = \"30ms\"", &[]);
        check("cluster.id = \"other\"", &[]);
        check("limits.requests = 7", &[]);
        let of_model = [
            ("model[m].decode_policy", "unset"),
            ("model[m].policy", "\"round_robin\""),
            ("model[m].prefill_policy", "unset"),
            ("model[m].targets", "unset"),
        ];
        check(
            "[[model]]\nname = \"m\"\npolicy = \"round_robin\"",
            &of_model,
        );
    }

    #[test]
    fn all_of_transfer_is_agreed() {
        let config = Config::from_layers(Default::default()).expect("defaults");
        let agreed: Vec<&str> = config.agreed().iter().map(|(key, _)| *key).collect();
        for row in TransferConfig::ROWS {
            let key = format!("{}.{}", TransferConfig::NAME, row.key);
            assert!(agreed.contains(&&*key), "{key} must be equal, too");
        }
    }

    #[test]
    fn what_must_be_equal_is_in_the_fingerprint_and_nothing_else() {
        let of = |change: fn(&mut Config)| {
            let mut config = Config::from_layers(Default::default()).expect("defaults");
            change(&mut config);
            config.fingerprint()
        };
        let plain = of(|_| {});
        assert_eq!(plain, of(|config| config.limits.requests = 9));
        assert_eq!(
            plain,
            of(|config| config.leases.secret = Secret::new("a-secret-of-sixteen"))
        );
        let others: [fn(&mut Config); 5] = [
            |config| config.transfer.wait_for_pair *= 2,
            |config| config.transfer.decode_alone = DecodeAlone::Always,
            |config| config.transfer.short_prompt_tokens += 1,
            |config| config.discovery.hold *= 2,
            |config| config.cluster.virtual_nodes = "17".parse().expect("a number"),
        ];
        let mut seen: Vec<String> = others.map(of).into();
        seen.push(plain);
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count, "each is another one");
    }
}
