//! Starts the watch of pods: settings of this program to those of the source.

use std::time::Duration;

use grapevine_discovery::kubernetes::{KubernetesSettings, run};
use grapevine_discovery::{Watcher, feed};

use super::base::Base;
use crate::config::KubernetesConfig;

/// Name of the source in the registry.
const NAME: &str = "kubernetes";
/// A picture is confirmed at the end of each watch, 30 s, or a failure is told some seconds later; this is never
/// reached unless the source is stuck.
const STALE_AFTER: Duration = Duration::from_secs(90);

/// The end at which pictures are read, if pods are to be watched.
pub(super) fn start(base: Base<'_>) -> Option<Watcher> {
    let config = &base.config.kubernetes;
    if !config.enabled {
        return None;
    }
    let (feed, watcher) = feed(NAME, STALE_AFTER);
    base.tasks().spawn(run(settings(config), feed));
    Some(watcher)
}

fn settings(config: &KubernetesConfig) -> KubernetesSettings {
    let selector = |parts: &[String]| (!parts.is_empty()).then(|| parts.join(","));
    KubernetesSettings {
        kubeconfig: config.kubeconfig.clone(),
        namespaces: config.namespaces.clone(),
        selector: selector(&config.selector),
        prefill_selector: selector(&config.prefill_selector),
        decode_selector: selector(&config.decode_selector),
        port: config.port,
        ..KubernetesSettings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_labels_become_selectors() {
        let config = KubernetesConfig {
            selector: vec!["app=vllm".to_owned(), "tier in (a,b)".to_owned()],
            ..KubernetesConfig::default()
        };
        let settings = settings(&config);
        assert_eq!(settings.selector.as_deref(), Some("app=vllm,tier in (a,b)"));
        assert_eq!(settings.decode_selector, None);
        assert_eq!(settings.check(), Ok(()));
    }
}
