//! Metrics on their way to a collector of OpenTelemetry: one task that reads them all now and then, and sends them.
//!
//! Nothing waits for it, and nothing queues: one export is under way at a time, and one that fails is not sent again,
//! because values are cumulative and the next one holds it all. What is read is what scrapers get (`snapshot`).

mod message;
mod starts;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use self::message::{Message, Scope, messages};
use self::starts::Starts;
use super::{Counter, Family, ResultLabels, metrics, snapshot};
use crate::config::{Collector, MetricsExportConfig};
use crate::otlp::{self, Client, Signal};
use crate::shutdown::Phase;

/// Variables with headers for the collector; the first one that is set counts. An empty one is as none, as OpenTelemetry
/// has it.
const HEADERS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_HEADERS",
];
/// Time for the last export at the end of the process.
const LAST_WITHIN: Duration = Duration::from_secs(1);

metrics! {
    /// Metrics for a collector.
    pub ExportMetrics {
        points: Family<ResultLabels, Counter>,
            "metrics_export_points", "Data points for the collector of metrics, by what became of them";
    }
}

impl ExportMetrics {
    fn count(&self, result: &'static str, points: u64) {
        let labels = ResultLabels { result };
        self.points.get_or_create(&labels).inc_by(points);
    }
}

/// Gives all metrics as OpenMetrics text.
type Read = dyn Fn() -> String + Send + Sync;

/// Sends metrics to a collector.
#[derive(Debug)]
pub struct Exporter {
    client: Client,
    target: String,
    headers: HeaderMap,
    interval: Duration,
    scope: Arc<Scope>,
    starts: Arc<Mutex<Starts>>,
    metrics: ExportMetrics,
    /// The last export was taken whole; a change is worth a line in the log.
    works: bool,
}

/// What a collector took of one export.
#[derive(Debug, Default)]
struct Taken {
    points: u64,
    refused: u64,
    /// What it said when it refused some first.
    why: String,
}

/// What a message came to that was not taken.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("{}", otlp::chain(&**.0))]
    Exchange(opentelemetry_http::HttpError),
    #[error("the collector answered with status {0}")]
    Status(http::StatusCode),
}

impl Exporter {
    /// Sets the export up; none when no endpoint is configured. It has to be run. `variable` gives one of the
    /// environment that is set.
    /// Errors: the client for the collector cannot be made, or the variable with its headers cannot be read.
    pub fn new(
        config: &MetricsExportConfig,
        service_name: &str,
        replica: &str,
        metrics: &ExportMetrics,
        variable: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(Collector { url: endpoint, .. }) = &config.endpoint else {
            return Ok(None);
        };
        let client = Client::new(config.protocol, endpoint, config.timeout)
            .with_context(|| format!("cannot send metrics to {endpoint}"))?;
        // There from the start: nothing lost is a zero and not a gap.
        for result in ["sent", "failed", "refused"] {
            metrics.count(result, 0);
        }
        Ok(Some(Self {
            client,
            target: Signal::Metrics.target(config.protocol, endpoint),
            headers: headers(variable)?,
            interval: config.interval,
            scope: Arc::new(Scope::of(&otlp::resource(service_name, replica))),
            starts: Arc::new(Mutex::new(Starts::new(nanos_now()))),
            metrics: metrics.clone(),
            works: true,
        }))
    }

    /// Sends what `read` gives, OpenMetrics text, until the replica's end, and then once more.
    pub async fn run(mut self, read: impl Fn() -> String + Send + Sync + 'static, phase: Phase) {
        let read: Arc<Read> = Arc::new(read);
        let mut ticks = interval_at(Instant::now() + self.interval, self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let export = async {
                ticks.tick().await;
                self.export(&read).await;
            };
            tokio::select! {
                () = export => {}
                () = phase.closed() => break,
            }
        }
        // What a collector does not take by then is lost.
        let _ = timeout(LAST_WITHIN, self.export(&read)).await;
    }

    async fn export(&mut self, read: &Arc<Read>) {
        let mut messages = self.messages(read).await.into_iter();
        let mut taken = Taken::default();
        for message in messages.by_ref() {
            let points = message.points;
            match self.send(message).await {
                Ok(partly) => self.take(points, partly, &mut taken),
                Err(error) => {
                    // The others would fail alike, and take as long.
                    let left: u64 = messages.map(|message| message.points).sum();
                    self.metrics.count("failed", points + left);
                    if std::mem::replace(&mut self.works, false) {
                        tracing::warn!(%error, "the metrics collector does not accept metrics; what it misses is in the next export");
                    }
                    return;
                }
            }
        }
        self.judge(taken);
    }

    /// With a thousand workers this is some tenths of a second of work, for which gossip does not wait.
    async fn messages(&self, read: &Arc<Read>) -> Vec<Message> {
        let now = nanos_now();
        let (scope, starts) = (Arc::clone(&self.scope), Arc::clone(&self.starts));
        let read = Arc::clone(read);
        let translated = tokio::task::spawn_blocking(move || {
            let mut starts = starts.lock();
            messages(snapshot::metrics(&read()), &scope, &mut starts, now)
        });
        // The process is ending if it does not run.
        translated.await.unwrap_or_default()
    }

    /// Counts what became of one message.
    fn take(&self, points: u64, partly: ExportMetricsPartialSuccess, taken: &mut Taken) {
        let refused = u64::try_from(partly.rejected_data_points).unwrap_or(0);
        let refused = refused.min(points);
        self.metrics.count("sent", points - refused);
        self.metrics.count("refused", refused);
        if taken.refused == 0 {
            taken.why = partly.error_message;
        }
        taken.points += points;
        taken.refused += refused;
    }

    /// Of a whole export: what a collector refuses may be in any one of its messages, and in the same one each time.
    fn judge(&mut self, taken: Taken) {
        let Taken {
            points,
            refused,
            why,
        } = taken;
        let works = refused == 0;
        let worked = std::mem::replace(&mut self.works, works);
        if works && !worked {
            tracing::info!("the metrics collector accepts metrics again");
        } else if !works && worked {
            tracing::warn!(
                refused,
                points,
                why,
                "the metrics collector refuses some of the metrics"
            );
        }
    }

    async fn send(&self, message: Message) -> Result<ExportMetricsPartialSuccess, SendError> {
        let mut request = Request::post(&self.target)
            .body(Bytes::from(message.body))
            .expect("the target was a URL");
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        let kind = HeaderValue::from_static("application/x-protobuf");
        headers.insert(CONTENT_TYPE, kind);
        let answer = self.client.exchange(request).await;
        let answer = answer.map_err(SendError::Exchange)?;
        if !answer.status().is_success() {
            return Err(SendError::Status(answer.status()));
        }
        // What it says is only how much it left out, so an answer that cannot be read is not worth an error.
        let answer = ExportMetricsServiceResponse::decode(answer.into_body());
        Ok(answer
            .unwrap_or_default()
            .partial_success
            .unwrap_or_default())
    }
}

/// `read` gives a variable that is set.
fn headers(read: impl Fn(&str) -> Option<String>) -> anyhow::Result<HeaderMap> {
    let mut set = HEADERS
        .into_iter()
        .filter_map(|name| Some((name, read(name)?)))
        .filter(|(_, list)| !list.trim().is_empty());
    let Some((name, list)) = set.next() else {
        return Ok(HeaderMap::new());
    };
    otlp::headers(&list).with_context(|| format!("cannot read {name}"))
}

fn nanos_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since.unwrap_or_default().as_nanos();
    u64::try_from(nanos).unwrap_or(u64::MAX)
}
