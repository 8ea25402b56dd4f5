//! Do the replicas agree? What each reports of itself ([`Views`]), and what it would decide ([`Survey`]).

mod compare;
mod dry_run;
mod survey;
mod views;

#[cfg(test)]
pub(crate) use compare::encode_key;
pub use compare::{Sample, Verdict};
pub use survey::{Samples, Survey, SurveyParts};
pub use views::Views;
