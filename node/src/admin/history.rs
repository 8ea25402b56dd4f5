//! The last hour as figures: `GET /history`, what the page draws and `grapevine top` draws, too.

use serde::Serialize;

use super::Admin;
use super::query::Query;
use crate::api::ApiError;
use crate::page::history::{History, Moment};
use crate::page::model::charts::{Chart, Line, of_cluster, of_replica, of_worker};
use crate::page::model::reasons;

/// `GET /history`. Seven charts of at most 360 points a line: some 100 kB.
#[derive(Debug, Serialize)]
pub(super) struct HistoryView {
    replica: String,
    /// None of a worker or replica that has no history of its own.
    charts: Vec<ChartView>,
    /// Comparisons with peers within the last hour, by what they found.
    agreement: Vec<ReasonView>,
}

#[derive(Debug, Serialize)]
struct ChartView {
    id: &'static str,
    title: &'static str,
    /// `count`, `per_second`, `seconds`, or `share`: 0 to 1.
    unit: &'static str,
    /// Seconds between the edges.
    span_s: u64,
    /// The right edge, in seconds since 1970.
    until_s: u64,
    lines: Vec<LineView>,
    marks: Vec<MarkView>,
}

#[derive(Debug, Serialize)]
struct LineView {
    name: &'static str,
    /// Seconds before the right edge, and the value; null where nothing was observed. Oldest first.
    points: Vec<(u64, Option<f32>)>,
}

#[derive(Debug, Serialize)]
struct MarkView {
    /// Seconds before the right edge.
    ago_s: u64,
    /// `fault`, `repair` or `change`.
    kind: &'static str,
}

#[derive(Debug, Serialize)]
struct ReasonView {
    reason: &'static str,
    count: u64,
}

impl Admin {
    /// Of the cluster, or of one: `?worker=`, `?replica=`.
    pub(super) fn describe_history(&self, query: &Query<'_>) -> Result<HistoryView, ApiError> {
        let (worker, replica) = (query.value("worker"), query.value("replica"));
        let of: &dyn Fn(&History, Moment) -> Vec<Chart> = match (&worker, &replica) {
            (None, None) => &of_cluster,
            (Some(id), None) => &|history, now| of_worker(history, id, now),
            (None, Some(id)) => &|history, now| of_replica(history, id, now),
            (Some(_), Some(_)) => {
                let message = "ask for one worker or for one replica";
                return Err(ApiError::invalid("replica", message));
            }
        };
        Ok(self.recorder.show(|history, now| HistoryView {
            replica: self.replica.clone(),
            charts: of(history, now).iter().map(ChartView::of).collect(),
            agreement: reasons(history)
                .into_iter()
                .map(|(reason, count)| ReasonView { reason, count })
                .collect(),
        }))
    }
}

impl ChartView {
    fn of(chart: &Chart) -> Self {
        let ago = |at| chart.until.saturating_sub(at).as_secs();
        let line = |line: &Line| LineView {
            name: line.name,
            points: line
                .points
                .iter()
                .map(|(at, value)| (ago(*at), Some(*value).filter(|value| value.is_finite())))
                .collect(),
        };
        Self {
            id: chart.id,
            title: chart.title,
            unit: chart.unit.as_str(),
            span_s: chart.span.as_secs(),
            until_s: chart.until_unix_s,
            lines: chart.lines.iter().map(line).collect(),
            marks: chart
                .marks
                .iter()
                .map(|(at, kind)| MarkView {
                    ago_s: ago(*at),
                    kind: kind.as_str(),
                })
                .collect(),
        }
    }
}
