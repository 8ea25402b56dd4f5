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

/// What is wrong with a kubeconfig: that it cannot be read, that it has no such cluster or user as its context names, or
/// that a file which it names cannot be read.
pub fn mistakes_of_kubeconfig(path: &Path) -> Vec<String> {
    let file = match Kubeconfig::read_from(path) {
        Ok(file) => file,
        Err(error) => return vec![error.to_string()],
    };
    let name = file.current_context.as_deref().unwrap_or_default();
    let named = file.contexts.iter().find(|one| one.name == name);
    let Some(context) = named.and_then(|named| named.context.as_ref()) else {
        return vec![format!("it has no context {name:?} (current-context)")];
    };
    let mut mistakes = Vec::new();
    let mut named_files = Vec::new();
    match file.clusters.iter().find(|one| one.name == context.cluster) {
        None => mistakes.push(format!("it has no cluster {:?}", context.cluster)),
        Some(cluster) => {
            let cluster = cluster.cluster.as_ref();
            let authority = cluster.and_then(|one| one.certificate_authority.as_ref());
            named_files.push(("certificate-authority", authority));
        }
    }
    // A context without a user asks as nobody, which an API server may allow.
    if let Some(user) = &context.user {
        match file.auth_infos.iter().find(|one| one.name == *user) {
            None => mistakes.push(format!("it has no user {user:?}")),
            Some(found) => {
                let user = found.auth_info.as_ref();
                named_files.extend([
                    ("tokenFile", user.and_then(|one| one.token_file.as_ref())),
                    (
                        "client-certificate",
                        user.and_then(|one| one.client_certificate.as_ref()),
                    ),
                    ("client-key", user.and_then(|one| one.client_key.as_ref())),
                ]);
            }
        }
    }
    for (key, path) in named_files {
        if let Some(path) = path
            && let Err(error) = std::fs::read(path)
        {
            mistakes.push(format!("{key}: cannot read {path}: {error}"));
        }
    }
    mistakes
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
            let mistakes = mistakes_of_kubeconfig(&path);
            match (mistakes.as_slice(), expected) {
                ([], None) => {}
                ([why], Some(part)) => assert!(why.contains(part), "{text}: {why}"),
                (checked, _) => panic!("{text}: {checked:?}"),
            }
        }
        let why = mistakes_of_kubeconfig(&folder.path().join("missing")).join("\n");
        assert!(why.contains("missing"), "{why}");
    }

    #[test]
    fn every_mistake_of_a_kubeconfig_is_named_and_its_files_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        let text = kubeconfig("here", "home", "me").replace(
            "server: 'https://127.0.0.1:1'",
            "server: 'https://127.0.0.1:1', certificate-authority: ca.crt",
        );
        let text = text.replace("token: x", "tokenFile: token, client-key: me.key");
        std::fs::write(&path, text).expect("it can be written");
        // Beside the kubeconfig, as kubectl has it.
        std::fs::write(folder.path().join("token"), "x").expect("it can be written");
        let mistakes = mistakes_of_kubeconfig(&path);
        let [authority, key] = mistakes.as_slice() else {
            panic!("{mistakes:?}")
        };
        assert!(
            authority.starts_with("certificate-authority: cannot read "),
            "{authority}"
        );
        assert!(
            key.starts_with("client-key: ") && key.contains("me.key"),
            "{key}"
        );

        std::fs::write(&path, kubeconfig("here", "away", "you")).expect("it can be written");
        let both = ["it has no cluster \"away\"", "it has no user \"you\""];
        assert_eq!(mistakes_of_kubeconfig(&path), both);
    }
}
