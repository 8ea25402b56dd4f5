//! Do the replicas agree? What each says of itself ([`Views`]), and what it would decide ([`Survey`]).

mod compare;
mod survey;
mod views;

pub use compare::{Sample, Verdict};
pub(crate) use compare::{heard, told};
pub use survey::{Samples, Survey, SurveyParts};
pub use views::Views;
