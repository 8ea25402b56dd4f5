//! What is read of a pod: a few fields of an object that can have hundreds.
//!
//! Pure. Pods are kept in this form, so that thousands of them take little memory.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use super::labels;

/// A pod, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Revision of this state; 0 if the server gave none that is a number.
    pub(super) revision: u64,
    /// Empty while it has none.
    pub(super) ip: String,
    /// It has not ended, in either way.
    pub(super) is_alive: bool,
    /// It runs, its condition `Ready` is true, and nobody deletes it.
    pub(super) is_ready: bool,
    /// Annotations and labels that say something to us, by name; of both the annotation.
    pub(super) said: BTreeMap<String, String>,
}

impl From<&Pod> for Facts {
    fn from(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let conditions = status.and_then(|status| status.conditions.as_deref());
        let mut conditions = conditions.unwrap_or_default().iter();
        let ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
        let texts = [&metadata.labels, &metadata.annotations];
        let said = texts.into_iter().flatten().flatten();
        let said = said.filter(|(name, _)| labels::is_known(name));
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            revision: revision(metadata.resource_version.as_deref()),
            ip: status
                .and_then(|status| status.pod_ip.clone())
                .unwrap_or_default(),
            is_alive: !matches!(phase, Some("Succeeded" | "Failed")),
            is_ready: ready && phase == Some("Running") && metadata.deletion_timestamp.is_none(),
            said: said
                .map(|(name, text)| (name.clone(), text.clone()))
                .collect(),
        }
    }
}

fn revision(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}
