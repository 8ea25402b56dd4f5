//! The files of a client: authority, token and kubeconfig; and the server's certificate.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::json;
use tempfile::TempDir;

/// A folder with the files; one that was made for them ends with it.
pub(super) struct Files {
    directory: PathBuf,
    _temporary: Option<TempDir>,
}

impl Files {
    /// Makes the folder, the authority, and the settings of a server that it vouches for.
    pub(super) fn new(directory: Option<PathBuf>) -> anyhow::Result<(Self, Arc<ServerConfig>)> {
        let temporary = match directory {
            Some(_) => None,
            None => Some(TempDir::new().context("cannot make a folder for the kubeconfig")?),
        };
        let own = temporary.as_ref().map(|folder| folder.path().to_owned());
        let directory = directory.or(own).expect("given or made");
        // Clients take a relative path in a kubeconfig as one from the kubeconfig's own folder.
        let directory = absolute(&directory)
            .with_context(|| format!("{} is no folder", directory.display()))?;
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let files = Self {
            directory,
            _temporary: temporary,
        };
        let server = files.certify().context("cannot make certificates")?;
        Ok((files, server))
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    pub(super) fn authority(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    pub(super) fn token(&self) -> PathBuf {
        self.directory.join("token")
    }

    /// Replaces the token as a kubelet does: by a rename, so that nobody reads half of it.
    pub(super) fn write_token(&self, token: &str) -> anyhow::Result<()> {
        replace(&self.token(), token)
    }

    /// Writes the kubeconfig; JSON is YAML, too.
    pub(super) fn write_kubeconfig(&self, server: SocketAddr) -> anyhow::Result<()> {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{ "name": "fake", "cluster": {
                "server": format!("https://{server}"), "certificate-authority": self.authority(),
            }}],
            "users": [{ "name": "grapevine", "user": { "tokenFile": self.token() } }],
            "contexts": [{ "name": "fake", "context": {
                "cluster": "fake", "user": "grapevine", "namespace": "default",
            }}],
        });
        replace(&self.kubeconfig(), &config.to_string())
    }

    fn certify(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority
            .distinguished_name
            .push(DnType::CommonName, "fake-kubernetes");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority_key = KeyPair::generate()?;
        let certificate = authority.self_signed(&authority_key)?;
        replace(&self.authority(), &certificate.pem())?;
        let issuer = Issuer::new(authority, authority_key);

        let names = ["localhost", "kubernetes", "kubernetes.default.svc"].map(str::to_owned);
        let mut leaf = CertificateParams::new(names)?;
        leaf.distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        let loopback = [IpAddr::from([127, 0, 0, 1]), "::1".parse()?];
        let addresses = loopback.map(rcgen::SanType::IpAddress);
        leaf.subject_alt_names.extend(addresses);
        let key = KeyPair::generate()?;
        let leaf = leaf.signed_by(&key, &issuer)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(
                vec![leaf.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::Component;

    use serde_json::Value;

    use super::*;

    #[test]
    fn a_kubeconfig_in_a_relative_folder_names_whole_paths() {
        let folder = TempDir::new().expect("a folder");
        let here = std::env::current_dir().expect("a folder");
        let up = here.components().skip(1).map(|_| Component::ParentDir);
        let from_here: PathBuf = up.chain(folder.path().components().skip(1)).collect();
        let (files, _) = Files::new(Some(from_here)).expect("a relative folder");
        let server = SocketAddr::from(([127, 0, 0, 1], 1));
        files.write_kubeconfig(server).expect("written");
        files.write_token("t").expect("written");
        let text = fs::read_to_string(files.kubeconfig()).expect("a kubeconfig");
        let config: Value = serde_json::from_str(&text).expect("JSON");
        for place in [
            "/clusters/0/cluster/certificate-authority",
            "/users/0/user/tokenFile",
        ] {
            let named = config.pointer(place).and_then(Value::as_str);
            let path = Path::new(named.expect("a path"));
            assert!(path.is_absolute() && path.is_file(), "{}", path.display());
        }
    }
}
