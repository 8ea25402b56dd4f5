//! What is read of a pod: a few fields of an object that can have hundreds.
//!
//! Pure. Other fields are passed over as they are read, and [`Facts`] is what is kept: thousands of pods take little
//! memory. The reader of the whole type would be hundreds of kilobytes of the program.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::Deserialize;

use super::names;

/// A pod as the API server shows it, as far as it is read. Each field may be absent, and those of the status null.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Pod {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    status: Option<Status>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: Option<String>,
    status: Option<String>,
}

impl Resource for Pod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

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
        let is_ready = |one: &Condition| {
            one.kind.as_deref() == Some("Ready") && one.status.as_deref() == Some("True")
        };
        let ready = conditions.any(is_ready);
        let texts = [&metadata.labels, &metadata.annotations];
        let said = texts.into_iter().flatten().flatten();
        let said = said.filter(|(name, _)| names::is_known(name));
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
