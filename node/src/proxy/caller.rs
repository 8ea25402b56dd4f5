//! The caller of a request: which tenant its prompts belong to, and which models it may ask for.

use grapevine_placement::Models;
use http::HeaderMap;

use super::own_words::no_such_model;
use super::owned_id;
use crate::api::error::{ApiError, ErrorKind};
use crate::tenants::ApiKey;

/// The client that asks.
#[derive(Debug, Clone, Copy)]
pub enum Caller<'a> {
    /// A client without a key: the tenant is the one that the request names.
    Anybody,
    /// A client with a key: its tenant is the key's, whatever the request names.
    Keyed(&'a ApiKey),
    /// An operator who asks on behalf of a tenant.
    Tenant(&'a str),
}

/// A tenant's name, and where it was written, for messages.
pub(super) type NamedTenant<'a> = (&'a [u8], &'a str);

impl<'a> Caller<'a> {
    /// `header`: where requests without a key name their tenant.
    pub(super) fn tenant(
        self,
        header: Option<&'a str>,
        headers: &'a HeaderMap,
    ) -> Option<NamedTenant<'a>> {
        match self {
            Self::Keyed(key) => Some((key.tenant().name().as_bytes(), "the key")),
            Self::Tenant(name) => Some((name.as_bytes(), "the query")),
            Self::Anybody => {
                let name = header?;
                Some((headers.get(name)?.as_bytes(), name))
            }
        }
    }

    /// May it have what a key of this tenant had made? `None`: the owner is not known.
    pub(super) fn is_of(self, tenant: Option<u64>) -> bool {
        match self {
            // Without keys the tenant that a request names is not checked.
            Self::Anybody | Self::Tenant(_) => true,
            Self::Keyed(key) => tenant.is_none_or(|tenant| key.tenant().number() == tenant),
        }
    }

    /// May it have a response with this id? What the id does not say may be known otherwise.
    pub(super) fn may_have(self, id: &str) -> bool {
        match self {
            Self::Anybody | Self::Tenant(_) => true,
            Self::Keyed(key) => owned_id::is_of(id, key.tenant().number()) != Some(false),
        }
    }

    /// May a request of it reach workers of this model, by the model's own name or by an alias? `models`: the aliases.
    pub(super) fn reaches(self, model: &str, models: &Models) -> bool {
        let Self::Keyed(key) = self else {
            return true;
        };
        let may = |name: &str| key.may_ask_for(Some(name));
        // The name of an alias stands for its targets alone, also where workers serve a model of that name.
        let by_its_name = || models.targets_of(model).is_none() && may(model);
        let by_alias = || {
            let mut aliases = models.aliases();
            aliases.any(|(alias, targets)| {
                targets.iter().any(|target| target.model == model) && may(alias)
            })
        };
        !key.is_limited() || by_its_name() || by_alias()
    }

    /// `model`: the name that the request asks for, if it names one.
    pub(super) fn may_ask_for(self, model: Option<&str>) -> Result<(), ApiError> {
        match (self, model) {
            (Self::Anybody | Self::Tenant(_), _) => Ok(()),
            (Self::Keyed(key), _) if key.may_ask_for(model) => Ok(()),
            (Self::Keyed(_), Some(model)) => Err(no_such_model(model)),
            (Self::Keyed(_), None) => Err(ApiError::new(
                ErrorKind::PermissionDenied,
                "this key is for some models only, so a request has to name one of them as `model`",
            )),
        }
    }

    /// May it have its answer computed with an adapter that `model` does not name? `field`: where the body names one.
    pub(super) fn may_add_adapter(self, field: Option<&'static str>) -> Result<(), ApiError> {
        match (self, field) {
            (Self::Keyed(key), Some(field)) if key.is_limited() => Err(ApiError {
                param: Some(field),
                ..ApiError::new(
                    ErrorKind::PermissionDenied,
                    format!(
                        "this key is for some models only, so a request may not name an adapter in `{field}`; leave it out, or ask for the adapter as `model`"
                    ),
                )
            }),
            _ => Ok(()),
        }
    }

    /// Refuses a request that names two tenants: a proxy that adds its own word leaves the client's before it, and who
    /// reads on may take either. `header`: as in [`Self::tenant`].
    pub(super) fn names_one_tenant(
        self,
        header: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<(), ApiError> {
        let (Self::Anybody, Some(name)) = (self, header) else {
            return Ok(());
        };
        let mut named = headers.get_all(name).iter();
        let first = named.next();
        if named.all(|other| Some(other) == first) {
            return Ok(());
        }
        let message = format!(
            "{name} names two tenants; what stands before this router has to replace that header and not to add to it"
        );
        Err(ApiError::new(ErrorKind::InvalidRequest, message))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use grapevine_placement::{ModelSettings, Target, Weight};
    use prometheus_client::registry::Registry;
    use tokio::time::Instant;

    use super::*;
    use crate::config::parse_keys;
    use crate::tenants::metrics::TenantMetrics;
    use crate::tenants::{Keys, secret};

    /// A key with these lines in the file.
    fn key(lines: &str) -> Arc<ApiKey> {
        let hash = secret::hash_of(b"gv-a");
        let text = format!("[[key]]\nname = \"a\"\nhash = \"{hash}\"\n{lines}\n");
        let configs = parse_keys(Path::new("keys.toml"), &text).expect("a good file");
        let keys = Keys::open(TenantMetrics::register(&mut Registry::default()));
        keys.set(configs, Instant::now());
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", "gv-a".parse().expect("a value"));
        keys.caller(&headers).expect("let in").expect("a key")
    }

    #[test]
    fn an_alias_reaches_the_workers_of_its_targets() {
        let target = |model: &str| Target {
            model: model.to_owned(),
            weight: Weight::from_thousandths(1_000).expect("in range"),
        };
        let alias = |name: &str, targets: &[&str]| {
            let targets = targets.iter().map(|model| target(model)).collect();
            let settings = ModelSettings {
                targets,
                ..ModelSettings::default()
            };
            (name.to_owned(), settings)
        };
        let aliases = [alias("fast", &["m", "n"]), alias("own", &["m"])];
        let models = Models::new(aliases.into_iter().collect()).expect("well-formed");
        for (lines, reached) in [
            ("", &["m", "n", "own", "z"][..]),
            ("models = [\"fast\"]", &["m", "n"]),
            ("models = [\"n\"]", &["n"]),
            // No client gets to a model through an alias that hides it.
            ("models = [\"own\"]", &["m"]),
        ] {
            let key = key(lines);
            let caller = Caller::Keyed(&key);
            let all = ["m", "n", "own", "z"].into_iter();
            let found: Vec<_> = all.filter(|model| caller.reaches(model, &models)).collect();
            assert_eq!(found, reached, "{lines}");
        }
        assert!(Caller::Anybody.reaches("z", &models));
    }

    #[test]
    fn an_adapter_beside_the_model_is_for_keys_of_all_models() {
        let (limited, free) = (key("models = [\"m\"]"), key(""));
        let refused = |caller: Caller<'_>, field| {
            let error = caller.may_add_adapter(field).err()?;
            assert!(error.message.contains("`lora_path`"), "{}", error.message);
            Some((error.kind.status().as_u16(), error.param))
        };
        let named = Some("lora_path");
        let expected = Some((403, named));
        assert_eq!(refused(Caller::Keyed(&limited), named), expected);
        assert_eq!(refused(Caller::Keyed(&limited), None), None);
        for caller in [Caller::Keyed(&free), Caller::Anybody, Caller::Tenant("t")] {
            assert_eq!(refused(caller, named), None, "{caller:?}");
        }
    }

    #[test]
    fn a_request_names_one_tenant_or_is_refused() {
        let key = key("");
        for (values, is_one) in [
            (&[][..], true),
            (&["a"], true),
            (&["a", "a"], true),
            (&["a", "b"], false),
            (&["a", "a", "b"], false),
            (&["", "b"], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-tenant", value.parse().expect("a value"));
            }
            let checked = |caller: Caller<'_>, header| caller.names_one_tenant(header, &headers);
            let anybody = checked(Caller::Anybody, Some("x-tenant"));
            assert_eq!(anybody.is_ok(), is_one, "{values:?}");
            if let Err(error) = anybody {
                assert_eq!(error.kind.status(), 400);
                assert!(error.message.contains("x-tenant"), "{}", error.message);
            }
            // Nobody reads it there.
            assert!(checked(Caller::Anybody, None).is_ok());
            assert!(checked(Caller::Keyed(&key), Some("x-tenant")).is_ok());
        }
    }

    #[test]
    fn only_a_configured_header_names_a_tenant() {
        let mut headers = HeaderMap::new();
        headers.insert("x-tenant", "a".parse().expect("a value"));
        let named = |header| Caller::Anybody.tenant(header, &headers);
        assert_eq!(named(None), None);
        assert_eq!(named(Some("x-tenant")), Some((&b"a"[..], "x-tenant")));
        assert_eq!(named(Some("x-other")), None);
        let asked = Caller::Tenant("b").tenant(Some("x-tenant"), &headers);
        assert_eq!(asked, Some((&b"b"[..], "the query")));
    }
}
