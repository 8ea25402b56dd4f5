//! The form that asks for the token of the admin port. Pure.

use maud::{Markup, html};

/// What the form has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Nobody has tried yet.
    Asked,
    /// The token was wrong.
    Wrong,
    /// The session was ended.
    Ended,
    /// There is a session.
    SignedIn,
}

/// The form to sign in or, with a session, to sign out.
pub fn content(notice: Notice) -> Markup {
    html! {
        section #login {
            h1 { @if notice == Notice::SignedIn { "Sign out" } @else { "Sign in" } }
            @match notice {
                Notice::Asked => p { "This replica shows its page to those who know the token of its admin port." },
                Notice::Wrong => p role="alert" { b { "That is not the token." } },
                Notice::Ended => p role="status" { "The session has ended." },
                Notice::SignedIn => p { "A session ends by itself after 12 hours, or after one without use." },
            }
            @if notice == Notice::SignedIn {
                form method="post" action="/page/logout" { button { "Sign out" } }
            } @else {
                form method="post" action="/page/login" {
                    label for="token" { "Token (admin.token)" }
                    input #token name="token" type="password" required autocomplete="current-password" autofocus maxlength="4096";
                    button { "Sign in" }
                }
                p.soft { "It is sent to this replica once and kept nowhere in the browser; the session may read this page and nothing else." }
            }
        }
    }
}
