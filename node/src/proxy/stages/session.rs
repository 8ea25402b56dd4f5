//! A WebSocket session on its way to a worker: only its handshake is sent.

use std::sync::Arc;

use bytes::Bytes;
use http::{Uri, header};
use tokio::time::Instant;

use super::accepted::{Accepted, Admitted};
use super::asked::Asked;
use super::outgoing::outgoing;
use super::read::{EntryParts, caller};
use crate::admission::byte_budget::ByteBudget;
use crate::api::ApiError;
use crate::cluster::quarantine::KnownBy;
use crate::http::worker_body::WorkerBody;
use crate::http::{handshake, headers};
use crate::proxy::body::HeldBody;
use crate::proxy::deaths::Company;
use crate::proxy::realtime::watch::SessionScope;
use crate::proxy::realtime::{self, Opening, Session};
use crate::proxy::record::Record;
use crate::proxy::routing_query::{RoutingInput, RoutingQuery};
use crate::upstream::outgoing::Outgoing;

impl Admitted {
    /// A session instead of a request with a body: only its handshake is sent.
    /// Errors: what [`RoutingQuery::of`] refuses, or its model has no room.
    pub(in crate::proxy) async fn session(
        self,
        opening: Opening,
        entry: &EntryParts<'_>,
        bodies: &Arc<ByteBudget>,
        record: &mut Record,
    ) -> Result<Box<Asked>, ApiError> {
        let Accepted {
            mut head,
            endpoint,
            key,
            deadline,
            ..
        } = self.accepted;
        let read = Instant::now();
        let cluster = entry.cluster;
        let body = opening.as_body();
        let input = RoutingInput {
            endpoint,
            path: head.uri.path(),
            headers: &head.headers,
            body: &body,
            upload: None,
            caller: caller(key.as_ref()),
        };
        let mut query = RoutingQuery::of(cluster, &input)?;
        record.asks_for(query.pool.label());
        record.asked_model = query.asked_model.clone();
        let now = Instant::now();
        let thought = now - read;
        entry
            .model(&mut query, key.as_ref(), &self.waits_by, now, record)
            .await?;
        let explained = head.headers.contains_key(headers::EXPLAIN);
        let model = query.pool.model();
        let scope = SessionScope::of(cluster, key.as_ref(), model);
        if scope.is_some() {
            // What is to be read is not compressed.
            head.headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
        }
        let offers_protocol = handshake::offers(&head.headers, realtime::PROTOCOL);
        head.uri = renamed(std::mem::take(&mut head.uri), model);
        let nothing = WorkerBody::unchanged(Bytes::new());
        let mut outgoing = Outgoing {
            // Nothing has been said in it yet.
            repeatable: true,
            upgrade: Some(opening.accept),
            ..outgoing(head, nothing, record.request_id(), key.is_some())
        };
        handshake::switch(&mut outgoing.headers);
        Ok(Box::new(Asked {
            explained,
            outgoing,
            query,
            body: HeldBody {
                bytes: Bytes::new(),
                reserved: bodies.reserve(),
            },
            known: KnownBy::default(),
            endpoint,
            deadline,
            waits_by: self.waits_by,
            failover: false,
            has_looked: false,
            thought,
            company: Company::default(),
            division: None,
            tenant: None,
            session: Some(Session {
                place: opening.place,
                scope,
                offers_protocol,
            }),
            _counted: entry.budget.request(),
        }))
    }
}

/// The target of a session, with the model's own name where the client wrote an alias.
fn renamed(uri: Uri, model: &str) -> Uri {
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let renamed = realtime::target_with(target, model).parse();
    renamed.unwrap_or(uri)
}
