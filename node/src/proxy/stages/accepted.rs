//! A request of which the head is known, and the room to read the rest.

use std::sync::Arc;

use http::request::Parts;
use http_body::Body as _;
use tokio::time::Instant;

use crate::admission::{Admission, Ask};
use crate::api::endpoint::Form;
use crate::api::{ApiError, Endpoint};
use crate::http::client_body::ClientBody;
use crate::proxy::caller::Caller;
use crate::proxy::record::Record;
use crate::tenants::ApiKey;

/// A request for a worker; nothing of its body is read yet.
#[derive(Debug)]
pub(in crate::proxy) struct Accepted {
    pub(super) head: Box<Parts>,
    pub(super) body: ClientBody,
    pub(super) endpoint: Endpoint,
    pub(super) key: Option<Arc<ApiKey>>,
    pub(super) deadline: Option<Instant>,
}

/// A request that this replica has room for.
#[derive(Debug)]
pub(in crate::proxy) struct Admitted {
    pub(super) accepted: Accepted,
    pub(super) waits_by: Ask,
}

impl Accepted {
    /// `key`: the client's, where there are keys; `deadline`: the end of the whole request.
    pub(in crate::proxy) fn new(
        head: Box<Parts>,
        body: ClientBody,
        endpoint: Endpoint,
        key: Option<Arc<ApiKey>>,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            head,
            body,
            endpoint,
            key,
            deadline,
        }
    }

    /// The end of the whole request.
    pub(in crate::proxy) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// What its body is.
    pub(in crate::proxy) fn form(&self) -> Form {
        self.endpoint.traits().form
    }

    /// Whether what it has computed counts in tokens.
    fn counts_in_tokens(&self) -> bool {
        self.endpoint.traits().computes && self.form() != Form::Multipart
    }

    /// Length of its body, if the client said it.
    pub(in crate::proxy) fn announced(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Its head, if it is a WebSocket handshake.
    pub(in crate::proxy) fn session_head(&self) -> Option<&Parts> {
        (self.endpoint == Endpoint::Realtime).then_some(&*self.head)
    }

    /// Refuses a request whose tenant could be read in two ways, before it waits as one of them. `header`: where a tenant
    /// without a key is named.
    ///
    /// # Errors
    /// 400.
    pub(in crate::proxy) fn names_one_tenant(&self, header: Option<&str>) -> Result<(), ApiError> {
        let caller = self.key.as_ref();
        let caller = caller.map_or(Caller::Anybody, |key| Caller::Keyed(key));
        caller.names_one_tenant(header, &self.head.headers)
    }

    /// Takes a place to be read, among the requests of this replica; waits for one if it must.
    /// Errors: what [`Admission::admit`] refuses.
    pub(in crate::proxy) async fn admit(
        self,
        admission: &Admission,
        record: &mut Record,
    ) -> Result<Admitted, ApiError> {
        let key = self.key.as_ref();
        let waits_by = admission.ask(
            key.map(|key| &**key),
            &self.head.headers,
            self.announced(),
            self.deadline,
        );
        let waits_by = match self.endpoint {
            Endpoint::Response => waits_by.that_only_reads().without_tokens(),
            _ if !self.counts_in_tokens() => waits_by.without_tokens(),
            _ => waits_by,
        };
        record.priority = waits_by.class();
        record.waits(record.started());
        match admission.admit(key, &waits_by).await {
            Ok(admitted) => {
                record.admission = Some(admitted.permit);
                record.waited(admitted.queued);
                record.quotas = admitted.quotas;
                record.charge = admitted.charge;
                Ok(Admitted {
                    accepted: self,
                    waits_by,
                })
            }
            Err(refused) => {
                record.quotas = refused.quotas;
                record.waited(refused.queued);
                Err(refused.error)
            }
        }
    }
}
