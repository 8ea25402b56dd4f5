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
    if !file.clusters.iter().any(|one| one.name == context.cluster) {
        return Err(format!("it has no cluster {:?}", context.cluster));
    }
    // A context without a user asks as nobody, which an API server may allow.
    match &context.user {
        Some(user) if !file.auth_infos.iter().any(|one| one.name == *user) => {
            Err(format!("it has no user {user:?}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(context: &str, cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {context}\n\
             contexts:\n- name: here\n  context: {{ cluster: {cluster}, user: {user} }}\n\
             clusters:\n- name: home\n  cluster: {{ server: 'https://127.0.0.1:1' }}\n\
             users:\n- name: me\n  user: {{ token: x }}\n"
        )
    }

    #[test]
    fn a_kubeconfig_names_a_context_a_cluster_and_a_user_that_it_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        for (text, expected) in [
            (kubeconfig("here", "home", "me"), None),
            (
                kubeconfig("there", "home", "me"),
                Some("no context \"there\""),
            ),
            (kubeconfig("''", "home", "me"), Some("no context \"\"")),
            (
                kubeconfig("here", "away", "me"),
                Some("no cluster \"away\""),
            ),
            (kubeconfig("here", "home", "you"), Some("no user \"you\"")),
            ("clusters: 5".to_owned(), Some("")),
        ] {
            std::fs::write(&path, &text).expect("it can be written");
            match (check_kubeconfig(&path), expected) {
                (Ok(()), None) => {}
                (Err(why), Some(part)) => assert!(why.contains(part), "{text}: {why}"),
                (checked, _) => panic!("{text}: {checked:?}"),
            }
        }
        let why = check_kubeconfig(&folder.path().join("missing")).expect_err("no file");
        assert!(why.contains("missing"), "{why}");
    }
}
