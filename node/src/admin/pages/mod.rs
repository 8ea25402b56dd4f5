//! The page: what an operator sees in a browser. `crate::page` makes it; here are its paths, who may see it, and its
//! headers.
//!
//! | method, path | what |
//! |---|---|
//! | `GET /` | what is wrong, replicas, workers, the last hour |
//! | `GET /page/workers/{id}`, `GET /page/replicas/{id}` | one of them; 404 where there is none |
//! | `GET`, `POST /page/explain` | where a prompt would go, by every replica; the form sends it in the body |
//! | `GET /page/live?of=&id=` | parts of a page as they change, as events |
//! | `GET /page/style.css`, `GET /page/script.js` | the same for everybody |
//! | `GET`, `POST /page/login`, `POST /page/logout` | a session, where the port has a token |
//!
//! The page changes nothing. A session opens it and nothing else: the rest of the admin API asks for the token.

mod ask;
mod forms;
mod gather;
mod live;
mod rendered;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts as Head;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use maud::{Markup, html};

use super::answer::{self, Answer, not_found};
use super::body::{BodyLimits, read_within};
use super::methods::asked;
use super::query::Query;
use super::query::decoded;
use super::token::has_token;
use super::{Admin, gate};
use crate::api::ApiError;
use crate::page::html::explain::Chosen;
use crate::page::html::login::{self, Notice};
use crate::page::html::{SCRIPT, STYLE, Shell, encoded, explain};
use crate::page::model::{Listed, MODELS_SHOWN};
use crate::tenants::bearer;

pub(super) use self::live::LiveBody;
use self::live::Viewers;
use self::rendered::{Rendered, What};
use self::sessions::Sessions;

/// Scripts, styles and streams of this port alone; nothing else at all, and no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     frame-ancestors 'none'; base-uri 'none'; form-action 'self'";
/// A prompt of 200,000 characters, of a visitor who may ask.
const QUESTION: BodyLimits = BodyLimits {
    bytes: 2 << 20,
    within: Duration::from_secs(30),
};
/// A token, of anybody.
const TOKEN: BodyLimits = BodyLimits {
    bytes: 8 << 10,
    within: Duration::from_secs(5),
};

/// What the page keeps between requests.
#[derive(Debug, Default)]
pub struct Pages {
    rendered: Rendered,
    sessions: Sessions,
    viewers: Viewers,
}

/// What goes out: an answer, or a stream of events.
pub(super) type Outgoing = Either<Full<Bytes>, LiveBody>;

/// A path of the page.
enum Path {
    Overview,
    Worker(String),
    Replica(String),
    Explain,
    Live,
    Style,
    Script,
    Login,
    Logout,
}

impl Path {
    fn of(segments: &[&str]) -> Result<Option<Self>, ApiError> {
        Ok(Some(match segments {
            [""] => Self::Overview,
            ["page", "workers", id] => Self::Worker(decoded(id)?),
            ["page", "replicas", id] => Self::Replica(decoded(id)?),
            ["page", "explain"] => Self::Explain,
            ["page", "live"] => Self::Live,
            ["page", "style.css"] => Self::Style,
            ["page", "script.js"] => Self::Script,
            ["page", "login"] => Self::Login,
            ["page", "logout"] => Self::Logout,
            _ => return Ok(None),
        }))
    }

    fn methods(&self) -> &'static [&'static Method] {
        match self {
            Self::Login | Self::Explain => &[&Method::GET, &Method::HEAD, &Method::POST],
            Self::Logout => &[&Method::POST],
            _ => &[&Method::GET, &Method::HEAD],
        }
    }
}

/// Whether a path belongs to the page.
pub(super) fn is_page(path: &str) -> bool {
    path == "/" || path.starts_with("/page/")
}

impl Admin {
    /// Answers a request for a path of the page.
    pub(super) async fn page(self: &Arc<Self>, head: &Head, body: Incoming) -> Response<Outgoing> {
        let answer = self.page_or_refusal(head, body).await;
        let mut answer = answer.unwrap_or_else(|error| {
            let plain = error.response().map(Full::new);
            plain.map(Either::Left)
        });
        guard(&mut answer);
        answer
    }

    async fn page_or_refusal(
        self: &Arc<Self>,
        head: &Head,
        body: Incoming,
    ) -> Result<Response<Outgoing>, ApiError> {
        self.admin_gate
            .now()
            .check_visit(&head.method, &head.headers)
            .map_err(|refused| self.refusal(refused))?;
        let path = head.uri.path().trim_start_matches('/');
        let segments: Vec<&str> = path.split('/').collect();
        let path = Path::of(&segments)?.ok_or_else(|| not_found("the page has no such path"))?;
        let whole = |answer: Result<Answer, ApiError>| answer.map(|of| of.map(Either::Left));
        // The same for everybody, and what a form to sign in needs.
        let method = asked(&head.method);
        match (method, &path) {
            (&Method::GET, Path::Style) => {
                return whole(Ok(asset("text/css; charset=utf-8", STYLE)));
            }
            (&Method::GET, Path::Script) => {
                return whole(Ok(asset("text/javascript; charset=utf-8", SCRIPT)));
            }
            _ => {}
        }
        let session = self.visitor(head)?;
        let methods = path.methods();
        match (method, path) {
            (&Method::GET, Path::Login) => whole(Ok(self.login_page(head, Notice::Asked))),
            (&Method::POST, Path::Login) => {
                let form = self.form(head, body, TOKEN).await?;
                whole(Ok(self.sign_in(head, &form)))
            }
            (&Method::POST, Path::Logout) => {
                self.form(head, body, TOKEN).await?;
                whole(Ok(self.sign_out(head)))
            }
            // Whoever has none is asked for the token on the same path, and nothing is shown.
            _ if session == Visitor::Stranger => {
                // Somebody's guess, or a proxy's own: it looks the same.
                if bearer(&head.headers).is_some() {
                    self.refused("token");
                }
                whole(Ok(self.login_page(head, Notice::Asked)))
            }
            (&Method::GET, Path::Overview) => whole(Ok(self.shown(head, &What::Overview).await)),
            (&Method::GET, Path::Worker(id)) => {
                whole(Ok(self.shown(head, &What::Worker(id)).await))
            }
            (&Method::GET, Path::Replica(id)) => {
                whole(Ok(self.shown(head, &What::Replica(id)).await))
            }
            (&Method::GET, Path::Live) => {
                let what = What::of(&Query(head.uri.query().unwrap_or_default()))?;
                self.live(head, what)
            }
            (&Method::GET, Path::Explain) => {
                whole(Ok(self.ask_page(head, Chosen::default(), &html! {})))
            }
            (&Method::POST, Path::Explain) => {
                let form = self.form(head, body, QUESTION).await?;
                whole(Ok(self.asked(head, &form).await))
            }
            _ => Err(ApiError::method_not_allowed(&head.method, methods)),
        }
    }

    /// Who asks: the port without a token is open to whom it is bound for; else the token, or a session. Whatever else is in
    /// `Authorization` is for a proxy on the way, which may ask for credentials of its own and pass them on.
    fn visitor(&self, head: &Head) -> Result<Visitor, ApiError> {
        let Some(token) = &*self.token.now() else {
            self.check_caller(head)?;
            return Ok(Visitor::Anybody);
        };
        let id = self.session_id(head);
        if id.is_some_and(|id| self.pages.sessions.is_known(&id, token)) {
            return Ok(Visitor::WithSession);
        }
        Ok(match has_token(head, token) {
            true => Visitor::WithToken,
            false => Visitor::Stranger,
        })
    }

    fn has_session(&self, head: &Head) -> bool {
        matches!(self.visitor(head), Ok(Visitor::WithSession))
    }

    async fn shown(self: &Arc<Self>, head: &Head, what: &What) -> Answer {
        let made = self.parts_of(what).await;
        let status = match made.is_known {
            true => StatusCode::OK,
            false => StatusCode::NOT_FOUND,
        };
        let (title, query) = match what {
            What::Overview => ("Overview".to_owned(), String::new()),
            What::Worker(id) => (id.clone(), format!("?of=worker&id={}", encoded(id))),
            What::Replica(id) => (id.clone(), format!("?of=replica&id={}", encoded(id))),
        };
        let shell = Shell {
            replica: &self.replica,
            title: &title,
            live: Some(format!("/page/live{query}")),
            has_session: self.has_session(head),
        };
        page(status, shell.around(&made.parts))
    }

    /// The form to ask where a prompt would go, with an answer below it.
    fn ask_page(&self, head: &Head, chosen: Chosen<'_>, answer: &Markup) -> Answer {
        let models = self.askable();
        let shell = Shell {
            replica: &self.replica,
            title: "Where would it go?",
            live: None,
            has_session: self.has_session(head),
        };
        let (models, tenants) = (Listed::first(models, MODELS_SHOWN), self.askers());
        let content = html! {
            section #asked { h1 { "Where would a prompt go?" } (explain::form(&models, tenants.as_ref(), chosen)) (answer) }
        };
        page(StatusCode::OK, shell.page(&content))
    }

    fn login_page(&self, head: &Head, notice: Notice) -> Answer {
        let has_session = self.has_session(head);
        let (status, notice) = match (has_session, notice) {
            (true, Notice::Asked) => (StatusCode::OK, Notice::SignedIn),
            (_, Notice::Ended) => (StatusCode::OK, notice),
            _ => (StatusCode::UNAUTHORIZED, notice),
        };
        let shell = Shell {
            replica: &self.replica,
            title: "Sign in",
            live: None,
            has_session,
        };
        page(status, shell.page(&login::content(notice)))
    }

    /// What a form of this page sent.
    async fn form(
        &self,
        head: &Head,
        body: Incoming,
        limits: BodyLimits,
    ) -> Result<Bytes, ApiError> {
        gate::check_form(&head.headers).map_err(|refused| self.refusal(refused))?;
        read_within(body, limits).await
    }
}

/// Who asks for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visitor {
    /// The port has no token.
    Anybody,
    WithToken,
    WithSession,
    /// Neither.
    Stranger,
}

fn page(status: StatusCode, html: String) -> Answer {
    answer::answer(status, "text/html; charset=utf-8", html.into())
}

fn asset(kind: &'static str, text: &'static str) -> Answer {
    answer::answer(StatusCode::OK, kind, Bytes::from_static(text.as_bytes()))
}

/// What keeps a browser from doing more with an answer than to show it.
fn guard(answer: &mut Response<Outgoing>) {
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // Nothing leaves this origin. With `no-referrer` a browser would hide the origin of the page's own forms, too.
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
        (OPENER_POLICY, "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
