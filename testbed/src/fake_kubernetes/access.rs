//! Who may do what: one user with a token, and grants as a Role would give them.
//!
//! Pure. Refusals name verb, resource and namespace in the words of the real server, because operators search for them.

use serde::Deserialize;

use super::refusal::Refusal;

/// Grants at most.
pub(super) const GRANTS_MAX: usize = 64;

/// Verbs on pods, in some namespaces.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// `get`, `list`, `watch`, ...; `*` for all.
    pub verbs: Vec<String>,
    /// None: in the whole cluster, as a ClusterRole.
    #[serde(default)]
    pub namespace: Option<String>,
}

/// The one user, and what it may do.
#[derive(Debug, Clone)]
pub(super) struct Access {
    pub(super) user: String,
    pub(super) token: String,
    /// None: everything.
    pub(super) grants: Option<Vec<Grant>>,
}

impl Access {
    /// Is this the header of the user?
    pub(super) fn authenticate(&self, authorization: Option<&str>) -> Result<(), Refusal> {
        let token = authorization.and_then(|header| header.strip_prefix("Bearer "));
        let is_user = token.is_some_and(|token| token.trim() == self.token);
        is_user.then_some(()).ok_or_else(Refusal::unauthorized)
    }

    /// May the user do this? `namespace` none: in all of them.
    pub(super) fn authorize(
        &self,
        verb: &str,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<(), Refusal> {
        let Some(grants) = &self.grants else {
            return Ok(());
        };
        let allows = |grant: &Grant| {
            let verbs = grant.verbs.iter().any(|one| one == verb || one == "*");
            let here = grant.namespace.is_none() || grant.namespace.as_deref() == namespace;
            verbs && here && resource.starts_with("pods")
        };
        if grants.iter().any(allows) {
            return Ok(());
        }
        let user = &self.user;
        let scope = namespace.map_or_else(
            || "at the cluster scope".to_owned(),
            |namespace| format!("in the namespace \"{namespace}\""),
        );
        let kind = resource.split('/').next().unwrap_or_default();
        let subject = if name.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind} \"{name}\"")
        };
        let message = format!(
            "{subject} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"\" {scope}"
        );
        Err(Refusal::new(403, "Forbidden", message).about(kind, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_verb_resource_and_namespace() {
        let grant = |verbs: &[&str], namespace: Option<&str>| Grant {
            verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
            namespace: namespace.map(str::to_owned),
        };
        let access = Access {
            user: "system:serviceaccount:default:grapevine".to_owned(),
            token: "t".to_owned(),
            grants: Some(vec![
                grant(&["get", "list"], Some("a")),
                grant(&["watch"], None),
            ]),
        };
        assert!(access.authorize("list", "pods", Some("a"), "").is_ok());
        assert!(access.authorize("watch", "pods", None, "").is_ok());
        let refused = access
            .authorize("list", "pods", Some("b"), "")
            .expect_err("not granted");
        assert_eq!(
            refused.message,
            "pods is forbidden: User \"system:serviceaccount:default:grapevine\" cannot list resource \
             \"pods\" in API group \"\" in the namespace \"b\""
        );
        let refused = access
            .authorize("list", "pods", None, "")
            .expect_err("only in a");
        assert!(
            refused
                .message
                .ends_with("in API group \"\" at the cluster scope")
        );
        let refused = access
            .authorize("patch", "pods/status", Some("a"), "p")
            .expect_err("not granted");
        assert!(
            refused.message.starts_with("pods \"p\" is forbidden"),
            "{}",
            refused.message
        );
        assert_eq!(
            access
                .authenticate(Some("Bearer x"))
                .expect_err("another")
                .code,
            401
        );
        assert!(access.authenticate(Some("Bearer t")).is_ok());
    }
}
