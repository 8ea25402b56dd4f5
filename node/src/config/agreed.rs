//! What must be equal on all replicas, as one fingerprint that each of them publishes.
//!
//! `[cluster]` and `[[model]]` as placement sees them, and those settings of other sections that say how replicas act on
//! one worker together. Secrets are no part of it: what is published must not help to guess one.

use grapevine_placement::total_digest;

use super::Config;
use super::setting::Setting;

impl Config {
    /// The fingerprint: replicas with the same one agree.
    ///
    /// What is at its default is no part of it: replicas of neighbouring releases, of which one has a further setting,
    /// agree.
    #[must_use]
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
            transfer.across_zones transfer.held_for discovery.hold discovery.empty_hold discovery.contest leases.ttl
            leases.grace pings.ttl pings.grace health.slow_start
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::table::Section as _;
    use crate::config::{DecodeAlone, Secret, TransferConfig};

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
