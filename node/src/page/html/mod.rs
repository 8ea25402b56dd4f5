//! The page as HTML. Complete without its script; the script only replaces parts that changed. Pure.

mod chart;
pub mod detail;
pub mod explain;
pub mod login;
mod overview;
mod tables;

use maud::{DOCTYPE, Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

pub use self::overview::parts_of;
use super::model::Standing;

/// The style sheet.
pub const STYLE: &str = include_str!("style.css");
/// The script.
pub const SCRIPT: &str = include_str!("script.js");

/// A part of a page that is replaced as a whole when it changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its id in the page.
    pub id: &'static str,
    /// What is in it.
    pub html: String,
}

/// What is around the parts of a page.
#[derive(Debug, Clone)]
pub struct Shell<'a> {
    /// The replica that shows it.
    pub replica: &'a str,
    /// What the page is about.
    pub title: &'a str,
    /// Path and query of the stream of changes; none for a page that does not change.
    pub live: Option<String>,
    /// Whether there is a session that can be ended.
    pub has_session: bool,
}

impl Part {
    fn new(id: &'static str, html: &Markup) -> Self {
        Self {
            id,
            html: html.0.clone(),
        }
    }
}

impl Shell<'_> {
    /// The whole page around its parts.
    pub fn around(&self, parts: &[Part]) -> String {
        let sections = html! {
            @for part in parts {
                section id=(part.id) { (maud::PreEscaped(&part.html)) }
            }
        };
        self.page(&sections)
    }

    /// The whole page around what does not change.
    pub fn page(&self, content: &Markup) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " · " (self.replica) " · Grapevine" }
                    link rel="icon" href="data:,";
                    link rel="stylesheet" href="/page/style.css";
                    script src="/page/script.js" defer {}
                }
                body data-live=[self.live.as_deref()] {
                    a.skip href="#main" { "Skip to the content" }
                    header {
                        p.name { "Grapevine " span.soft { "seen by replica " } b { (self.replica) } }
                        nav aria-label="Pages" {
                            a href="/" { "Overview" }
                            a href="/page/explain" { "Where would it go?" }
                            @if self.has_session { a href="/page/login" { "Sign out" } }
                        }
                        p #live.soft role="status" { noscript { "Reload for newer figures." } }
                    }
                    main #main tabindex="-1" { (content) }
                }
            }
        };
        page.0
    }
}

/// Path of the page of a worker.
pub fn worker_path(id: &str) -> String {
    format!("/page/workers/{}", encoded(id))
}

/// Path of the page of a replica.
pub fn replica_path(id: &str) -> String {
    format!("/page/replicas/{}", encoded(id))
}

/// As one segment of a path, or one value of a query.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A sign for eyes that see no colour, before words that say the same.
fn sign(standing: Standing) -> Markup {
    let (class, sign) = match standing {
        Standing::Bad => ("bad", "✖"),
        Standing::Doubtful => ("doubt", "▲"),
        Standing::Meant => ("meant", "◆"),
        Standing::Well => ("well", "●"),
    };
    html! { span class={ "sign " (class) } aria-hidden="true" { (sign) } }
}

/// `17:04:59`, the time of day of a second since 1970, in UTC.
fn clock(unix_s: u64) -> String {
    let of_day = unix_s % 86_400;
    let (hours, minutes) = (of_day / 3_600, of_day / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}", of_day % 60)
}

/// What is left out of a list.
fn and_more(more: usize, of_what: &str) -> Markup {
    html! {
        @if more > 0 { p.soft { "and " (more) " more " (of_what) } }
    }
}
