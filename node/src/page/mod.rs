//! The page of the admin port: what it shows, as data, and as HTML. Knows no HTTP; `admin/pages/` serves it.
//!
//! - [`history`]: the last hour, in bounded memory. Pure.
//! - [`sampler`]: the one task that fills it.
//! - [`facts`]: what one rendering is made from: answers of the admin API, and a copy of the history. Pure.
//! - [`model`]: what the page shows, as data: rows, the worst first, and how many more there are. Pure.
//! - [`html`]: the same as HTML and SVG. Every text from outside is escaped by the library that writes it. Pure.

pub mod facts;
pub mod history;
pub mod html;
pub mod model;
pub mod sampler;
