//! A new client, with the credential as it is now.

use std::path::Path;

use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::{Client, Error};

use super::KubernetesSettings;
use super::failure::Failure;

/// Reads kubeconfig or service account, token and authority anew, and opens nothing yet.
pub(super) async fn connect(settings: &KubernetesSettings) -> Result<Client, Failure> {
    let mut config = config(settings).await.map_err(Failure::Credential)?;
    config.connect_timeout = Some(settings.answer_within);
    // Attempts are paced in one place, `follow.rs`.
    config.default_retry = false;
    let client = Client::try_from(config);
    client.map_err(|error: Error| Failure::Credential(error.to_string()))
}

async fn config(settings: &KubernetesSettings) -> Result<Config, String> {
    let Some(path) = &settings.kubeconfig else {
        if let Ok(config) = Config::incluster() {
            return Ok(config);
        }
        let found = Config::infer().await;
        return found.map_err(|error| error.to_string());
    };
    let file = Kubeconfig::read_from(path).map_err(|error| error.to_string())?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    config.map_err(|error| error.to_string())
}

/// Whether a kubeconfig can be read, and names a cluster and a user that it has.
///
/// # Errors
/// Why not.
pub fn check_kubeconfig(path: &Path) -> Result<(), String> {
    let file = Kubeconfig::read_from(path).map_err(|error| error.to_string())?;
    let context = file.current_context.as_deref().unwrap_or_default();
    let named = file.contexts.iter().find(|one| one.name == context);
    let Some(context) = named.and_then(|named| named.context.as_ref()) else {
        return Err(format!("it has no context {context:?} (current-context)"));
    };
    let has_cluster = file.clusters.iter().any(|one| one.name == context.cluster);
    has_cluster
        .then_some(())
        .ok_or_else(|| format!("it has no cluster {:?}", context.cluster))
}
