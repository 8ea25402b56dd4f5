//! The steps of a scenario, one after the other.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::Run;
use super::sight::short;
use crate::chaos::excuse::Excuse;
use crate::chaos::fault::Fault;
use crate::chaos::observe::Observer;
use crate::chaos::promise::promise;
use crate::chaos::record::{MarkKind, Origin, Sample};
use crate::chaos::scenario::{Expectation, Rush, Step};
use crate::chaos::traffic::Traffic;

impl Run<'_> {
    /// Does all steps until the end, the longest time, a stop or an error; then repairs what is still broken.
    /// Returns notes for the reader.
    pub(super) async fn steps(
        &mut self,
        steps: &[Step],
        traffic: &Traffic,
        stop: &CancellationToken,
    ) -> Vec<String> {
        let longest = self.plan.longest.unwrap_or(Duration::MAX);
        let mut notes = Vec::new();
        let progress = print_progress(
            self.origin,
            self.observer,
            traffic,
            self.plan.progress_every,
        );
        let all = async {
            for step in steps {
                // A step always runs to its end: the effects of half a step would be unknown.
                let waits = match step {
                    Step::Wait(time) => Some(*time),
                    _ => None,
                };
                if let Some(time) = waits {
                    tokio::select! {
                        () = sleep(time) => {}
                        () = stop.cancelled() => {}
                    }
                } else {
                    self.step(step).await.with_context(|| format!("{step:?}"))?;
                }
                if stop.is_cancelled() {
                    return Ok(Some("stopped before its end".to_owned()));
                }
                if Duration::from_millis(self.origin.elapsed_ms()) >= longest {
                    return Ok(None);
                }
            }
            anyhow::Ok(None)
        };
        let done = tokio::select! {
            done = all => done,
            () = progress => unreachable!("progress lines have no end"),
        };
        let done = match (done, self.repair().await) {
            (Ok(note), Ok(())) => {
                notes.extend(note);
                Ok(())
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        let seen = done
            .as_ref()
            .map_or_else(|e| format!("{e:#}"), |()| "all".to_owned());
        self.promises
            .push(promise("every step can be done", done.is_ok(), seen));
        notes
    }

    async fn step(&mut self, step: &Step) -> anyhow::Result<()> {
        match step {
            Step::Phase(name) => {
                self.end_phase();
                self.phase = Some(self.observer.mark(MarkKind::Phase, None, *name));
                eprintln!("{} {name}", clock(self.origin));
            }
            Step::Wait(time) => sleep(*time).await,
            Step::Do(fault) => self.apply(fault).await?,
            Step::Add { via, worker } => {
                self.note(format!("worker {worker} is added by replica {via}"));
                self.fleet.add_worker(*via, *worker).await?;
                self.workers.insert(*worker);
            }
            Step::Remove { via, worker } => {
                self.note(format!("worker {worker} is removed by replica {via}"));
                self.fleet.remove_worker(*via, *worker).await?;
                self.workers.remove(worker);
            }
            Step::Scale(replicas) => {
                self.note(format!("{replicas} replicas"));
                self.fleet.scale(*replicas).await?;
            }
            Step::Rush(rush) => self.rush(*rush).await?,
            Step::Expect(expectation) => self.expect(expectation).await,
        }
        if !matches!(step, Step::Phase(_) | Step::Wait(_)) {
            self.last_ms = self.origin.elapsed_ms();
        }
        Ok(())
    }

    async fn apply(&mut self, fault: &Fault) -> anyhow::Result<()> {
        let now = self.origin.elapsed_ms();
        let name = fault.node().map(|node| self.fleet.name(node));
        let kind = match fault.repair() {
            Some(_) => MarkKind::Fault,
            None => MarkKind::Heal,
        };
        eprintln!("{} {fault}", clock(self.origin));
        self.first_ms.get_or_insert(now);
        // From here on the fault may cause failures, also if its injection fails half-way.
        if kind == MarkKind::Fault {
            let mark = self.observer.mark(kind, name.as_deref(), fault.to_string());
            self.broken.push((*fault, mark));
            let name = name.as_deref().unwrap_or_default();
            self.excuses.extend(Excuse::of(fault, name, now));
        }
        self.fleet.apply(fault).await?;
        let now = self.origin.elapsed_ms();
        if kind == MarkKind::Heal {
            self.observer.mark(kind, name.as_deref(), fault.to_string());
        }
        for (earlier, mark) in self
            .broken
            .extract_if(.., |(earlier, _)| fault.ends(earlier))
        {
            self.observer.end(mark);
            let text = earlier.to_string();
            self.excuses.iter_mut().for_each(|e| e.end(&text, now));
        }
        Ok(())
    }

    /// Repairs the faults that are still present, the latest first. One that fails does not stop the others.
    async fn repair(&mut self) -> anyhow::Result<()> {
        let mut failed = None;
        while let Some((fault, _)) = self.broken.last().copied() {
            let repair = fault.repair().expect("only faults are kept");
            if let Err(error) = self.apply(&repair).await {
                failed = Some(error.context(repair.to_string()));
                self.broken.pop();
            }
        }
        self.end_phase();
        failed.map_or(Ok(()), Err)
    }

    fn end_phase(&mut self) {
        if let Some(phase) = self.phase.take() {
            self.observer.end(phase);
        }
    }

    fn note(&self, text: String) {
        eprintln!("{} {text}", clock(self.origin));
        self.observer.mark(MarkKind::Note, None, text);
    }

    async fn rush(&mut self, rush: Rush) -> anyhow::Result<()> {
        self.first_ms.get_or_insert(self.origin.elapsed_ms());
        let text = format!("{} times as many requests more", rush.times);
        let mark = self.observer.mark(MarkKind::Fault, None, text);
        let traffic = Traffic::start(self.fleet.front(), self.plan.rush(rush), self.origin);
        sleep(rush.time).await;
        self.rushes.push(traffic.stop().await?);
        self.observer.end(mark);
        Ok(())
    }

    pub(super) async fn expect(&mut self, expectation: &Expectation) {
        let start = Instant::now();
        let Expectation { what, within } = expectation;
        let seen = self
            .observer
            .until(*within, |sample| what.is_seen(sample))
            .await;
        let took = start.elapsed();
        let missed = seen.is_none().then(|| {
            eprintln!("{} not seen: {what}", clock(self.origin));
            match self.observer.latest() {
                Some(sample) => short(&sample),
                None => "the replicas were never seen".to_owned(),
            }
        });
        let text = format!("{what}, within {} s", within.as_secs());
        let met = self.met.entry(text).or_default();
        met.times += 1;
        met.slowest = met.slowest.max(took);
        met.missed = met.missed.take().or(missed);
    }
}

/// Prints a line of progress again and again, for ever.
async fn print_progress(origin: Origin, observer: &Observer, traffic: &Traffic, every: Duration) {
    loop {
        sleep(every).await;
        let live = traffic.live();
        let latest: Option<Arc<Sample>> = observer.latest();
        let mib = |bytes: u64| bytes >> 20;
        let of_replicas = latest.map_or_else(String::new, |sample| {
            let rss = sample.replicas.iter().filter_map(|r| r.rss_bytes).map(mib);
            format!(
                ", {} ring(s), memory {} MiB",
                sample.rings().len(),
                rss.map(|mib| mib.to_string()).collect::<Vec<_>>().join("/")
            )
        });
        eprintln!(
            "{} {} requests, {} failed, hits {:.0} %, TTFT {} ms{of_replicas}",
            clock(origin),
            live.ended,
            live.failed,
            100.0 * live.hit_rate,
            live.first_token_p50.as_millis(),
        );
    }
}

/// Minutes and seconds since the beginning.
fn clock(origin: Origin) -> String {
    let seconds = origin.elapsed_ms() / 1_000;
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}
