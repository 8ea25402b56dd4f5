//! What the source is told: which pods, where, and how patient to be.

use std::path::PathBuf;
use std::time::Duration;

use grapevine_gossip::worker::Role;

/// Namespaces and selectors make scopes, each with a watch of its own; more than these are refused.
const SCOPES_MAX: usize = 64;
/// Shortest and longest time of one watch.
const WATCH_FOR: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(290);

/// Settings of the source. The default watches no pod: it needs a selector.
#[derive(Clone, Debug)]
pub struct KubernetesSettings {
    /// A kubeconfig; none: the service account of the pod that this replica runs in, and outside of a pod the
    /// kubeconfig that `kubectl` would use.
    pub kubeconfig: Option<PathBuf>,
    /// Namespaces to watch; none: that of this replica's own pod, or of the kubeconfig's context. `*`: all of them,
    /// which needs a ClusterRole.
    pub namespaces: Vec<String>,
    /// Label selector of workers, in Kubernetes' syntax (`app=vllm,tier in (a,b)`). Their role is that of their labels.
    pub selector: Option<String>,
    /// Label selector of workers that only prefill, whatever their labels say.
    pub prefill_selector: Option<String>,
    /// Label selector of workers that only decode, whatever their labels say.
    pub decode_selector: Option<String>,
    /// The port of pods that name none, 1 to 65,535. Default 8000, vLLM's own.
    pub port: u16,
    /// Workers speak TLS, unless their pod says otherwise. Default no.
    pub https: bool,
    /// How long the server keeps one watch, 1 to 290 s. Default 30 s. Shorter: a dead connection is found earlier.
    pub watch_for: Duration,
    /// How long after that an open watch is taken for dead. Default 5 s.
    pub idle_margin: Duration,
    /// Within which the head of every answer comes, and a whole page of a list. Default 10 s.
    pub answer_within: Duration,
    /// Pods in one page of a list, 1 or more. Default 500, as other clients ask.
    pub page_size: u32,
    /// Time after a first failure; doubles with each further one up to `retry_at_most`. Default 500 ms.
    pub retry_after: Duration,
    /// Longest time between attempts. Default 30 s.
    pub retry_at_most: Duration,
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            namespaces: Vec::new(),
            selector: None,
            prefill_selector: None,
            decode_selector: None,
            port: 8000,
            https: false,
            watch_for: Duration::from_secs(30),
            idle_margin: Duration::from_secs(5),
            answer_within: Duration::from_secs(10),
            page_size: 500,
            retry_after: Duration::from_millis(500),
            retry_at_most: Duration::from_secs(30),
        }
    }
}

/// Why settings cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// No selector, which would take every pod for a worker.
    #[error("no selector of pods is set; give one that only workers have, such as `app=vllm`")]
    NoSelector,
    /// A selector that selects everything.
    #[error("a selector of pods is empty; give one that only workers have, or leave it out")]
    EmptySelector,
    /// Too many watches.
    #[error(
        "{0} namespaces times selectors are more than {SCOPES_MAX}; watch all namespaces instead"
    )]
    Scopes(usize),
    /// Port 0.
    #[error("port 0 is none; give the one on which workers listen, such as 8000")]
    Port,
    /// Out of range.
    #[error("a watch of {0:?} is not within 1 to 290 s")]
    WatchFor(Duration),
    /// Pages without pods.
    #[error("pages of 0 pods end no list; give 500 or so")]
    PageSize,
}

/// Where pods are looked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Namespace {
    /// That of the credential.
    Own,
    Named(String),
    All,
}

/// One list and watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) namespace: Namespace,
    pub(super) selector: String,
    /// What the selector says about its pods.
    pub(super) role: Option<Role>,
}

impl KubernetesSettings {
    /// Checks the settings.
    /// Errors: [`SettingsError`]: the first setting that cannot work, with what to do.
    pub fn check(&self) -> Result<(), SettingsError> {
        let scopes = self.scopes();
        if scopes.is_empty() {
            return Err(SettingsError::NoSelector);
        }
        if scopes.iter().any(|scope| scope.selector.trim().is_empty()) {
            return Err(SettingsError::EmptySelector);
        }
        if scopes.len() > SCOPES_MAX {
            return Err(SettingsError::Scopes(scopes.len()));
        }
        if self.port == 0 {
            return Err(SettingsError::Port);
        }
        if !WATCH_FOR.contains(&self.watch_for) {
            return Err(SettingsError::WatchFor(self.watch_for));
        }
        if self.page_size == 0 {
            return Err(SettingsError::PageSize);
        }
        Ok(())
    }

    /// All scopes; of a pod in several the first one counts, so those that name a role come first.
    pub(super) fn scopes(&self) -> Vec<Scope> {
        let selectors = [
            (&self.prefill_selector, Some(Role::Prefill)),
            (&self.decode_selector, Some(Role::Decode)),
            (&self.selector, None),
        ];
        let named = |name: &String| Namespace::Named(name.clone());
        let mut namespaces: Vec<Namespace> = self.namespaces.iter().map(named).collect();
        namespaces.sort();
        namespaces.dedup();
        if namespaces.is_empty() {
            namespaces.push(Namespace::Own);
        }
        if self.namespaces.iter().any(|name| name == "*") {
            namespaces = vec![Namespace::All];
        }
        let given = selectors
            .into_iter()
            .filter_map(|(selector, role)| Some((selector.clone()?, role)));
        given
            .flat_map(|(selector, role)| {
                namespaces.iter().map(move |namespace| Scope {
                    namespace: namespace.clone(),
                    selector: selector.clone(),
                    role,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let good = KubernetesSettings {
            selector: Some("app=vllm".to_owned()),
            ..KubernetesSettings::default()
        };
        assert_eq!(good.check(), Ok(()));
        let refused = |change: &dyn Fn(&mut KubernetesSettings)| {
            let mut settings = good.clone();
            change(&mut settings);
            settings.check().expect_err("it cannot work")
        };
        assert_eq!(refused(&|s| s.selector = None), SettingsError::NoSelector);
        assert_eq!(
            refused(&|s| s.selector = Some(" ".to_owned())),
            SettingsError::EmptySelector
        );
        let many = (0..65).map(|index| format!("n{index}")).collect::<Vec<_>>();
        assert_eq!(
            refused(&|s| s.namespaces.clone_from(&many)),
            SettingsError::Scopes(65)
        );
        assert_eq!(refused(&|s| s.port = 0), SettingsError::Port);
        assert_eq!(refused(&|s| s.page_size = 0), SettingsError::PageSize);
        let long = Duration::from_secs(291);
        assert_eq!(
            refused(&|s| s.watch_for = long),
            SettingsError::WatchFor(long)
        );
    }

    #[test]
    fn scopes_are_selectors_times_namespaces_with_roles_first() {
        let settings = KubernetesSettings {
            namespaces: vec!["b".to_owned(), "a".to_owned(), "b".to_owned()],
            selector: Some("app=vllm".to_owned()),
            decode_selector: Some("role=decode".to_owned()),
            ..KubernetesSettings::default()
        };
        let scopes = settings.scopes();
        let named = |name: &str| Namespace::Named(name.to_owned());
        let scopes: Vec<_> = scopes
            .into_iter()
            .map(|scope| (scope.namespace, scope.role))
            .collect();
        let decode = Some(Role::Decode);
        let expected = [
            (named("a"), decode),
            (named("b"), decode),
            (named("a"), None),
            (named("b"), None),
        ];
        assert_eq!(scopes, expected);
        let place = |namespaces: &[&str]| {
            let namespaces = namespaces.iter().map(|&name| name.to_owned()).collect();
            let settings = KubernetesSettings {
                namespaces,
                decode_selector: None,
                ..settings.clone()
            };
            settings.scopes().remove(0).namespace
        };
        assert_eq!(place(&[]), Namespace::Own);
        assert_eq!(place(&["a", "*"]), Namespace::All);
    }
}
