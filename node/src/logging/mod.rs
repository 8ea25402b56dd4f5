//! Log lines on standard error, text or JSON, written by a thread of their own.
//!
//! A reader of standard error that stops reading would otherwise stop the router: its threads
//! would wait inside the write. Here a line that finds the queue full is dropped and counted.

mod line;
mod panics;

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{Registry, reload};

pub use self::panics::panics;
use crate::config::LogConfig;

/// Lines that may wait for standard error; about 1 MB.
const QUEUE_LINES: usize = 4096;
/// Bytes that are written at once.
const BATCH_BYTES: usize = 64 * 1024;
/// How long a line waits for others.
const GATHER: Duration = Duration::from_millis(10);
/// After so many looks, [`GATHER`] apart, that found nothing, the writer sleeps until a line wakes it.
const QUIET_LOOKS: u32 = 10;
/// How often the end of the process looks, [`GATHER`] apart, whether the last lines were read.
const LAST_LOOKS: u32 = 200;

/// Lines dropped since the process started; there is one log.
static LINES_DROPPED: AtomicU64 = AtomicU64::new(0);

/// What changes which lines are written.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Lines that were dropped since the process started, because standard error was not read or could not be written.
pub fn lines_dropped() -> u64 {
    LINES_DROPPED.load(Ordering::Relaxed)
}

/// Sends the process's log to standard error, panics included; the lines end when the guard is dropped.
/// Errors: the process has a log already.
pub fn start(config: &LogConfig) -> Result<LogGuard, TryInitError> {
    let (queue, writer) = queue(io::stderr(), config.json);
    let lines = tracing_subscriber::fmt::layer()
        .with_timer(line::Time)
        .with_writer(queue);
    let (filter, handle) = reload::Layer::new(filter(config));
    let registry = tracing_subscriber::registry().with(filter);
    if config.json {
        registry.with(lines.json().flatten_event(true)).try_init()?;
    } else {
        let lines = lines.with_ansi(false).fmt_fields(line::Fields);
        registry.with(lines).try_init()?;
    }
    // There is one log, so there is one of these.
    let _ = FILTER.set(handle);
    panics::follow();
    Ok(writer)
}

/// Other lines are written from now on: the level, and whether requests have theirs.
pub fn follow(config: &LogConfig) {
    if let Some(handle) = FILTER.get() {
        // It fails only where the log is gone.
        let _ = handle.reload(filter(config));
    }
}

/// Our own lines from the level on; those of libraries from `warn` on unless more was asked for, and never their
/// `trace`, in which HTTP libraries write whole heads, keys included.
fn filter(config: &LogConfig) -> Targets {
    let level = config.level;
    let libraries = match level {
        Level::INFO => Level::WARN,
        Level::TRACE => Level::DEBUG,
        level => level,
    };
    let filter = Targets::new()
        .with_default(LevelFilter::from(libraries))
        .with_target("grapevine", LevelFilter::from(level));
    // kube's client writes an ERROR for each answer that it did not get. The source of pods reports every failure itself,
    // once, with what to do.
    let filter = match level {
        Level::TRACE | Level::DEBUG => filter,
        _ => filter.with_target("kube_client", LevelFilter::OFF),
    };
    match config.access {
        true => filter,
        false => filter.with_target("grapevine::access", LevelFilter::OFF),
    }
}

/// Writes the lines that wait, then ends, when it is dropped.
#[derive(Debug)]
pub struct LogGuard {
    stop: SyncSender<LogMessage>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        // What was logged before the end is worth a wait, but not for ever: there may be no reader.
        let mut looks = 0..LAST_LOOKS;
        while let Err(TrySendError::Full(_)) = self.stop.try_send(LogMessage::Stop) {
            if looks.next().is_none() {
                return;
            }
            pause();
        }
        let Some(thread) = self.thread.take() else {
            return;
        };
        while !thread.is_finished() {
            if looks.next().is_none() {
                return;
            }
            pause();
        }
        let _ = thread.join();
    }
}

fn pause() {
    #[allow(
        clippy::disallowed_methods,
        reason = "the runtime has ended when the log does; its own thread is no runtime worker"
    )]
    std::thread::sleep(GATHER);
}

enum LogMessage {
    Line(Vec<u8>),
    Stop,
}

/// The log's side of the queue.
struct Queue {
    lines: SyncSender<LogMessage>,
    dropped: Arc<AtomicU64>,
}

fn queue(out: impl Write + Send + 'static, is_json: bool) -> (Queue, LogGuard) {
    let (lines, waiting) = sync_channel(QUEUE_LINES);
    let dropped = Arc::new(AtomicU64::new(0));
    let queue = Queue {
        lines: lines.clone(),
        dropped: Arc::clone(&dropped),
    };
    let thread = std::thread::spawn(move || write_lines(&waiting, &dropped, out, is_json, pause));
    let guard = LogGuard {
        stop: lines,
        thread: Some(thread),
    };
    (queue, guard)
}

/// Gathers for a moment what follows a line, and writes it all at once: a write, a wake-up and a switch of
/// threads per line cost a request more than everything else that the router does for it.
///
/// While lines come it looks for them by itself, so that whoever logs wakes nobody. Behind a full batch there are others,
/// and no `pause`: the queue would fill up.
fn write_lines(
    waiting: &Receiver<LogMessage>,
    dropped: &AtomicU64,
    mut out: impl Write,
    is_json: bool,
    mut pause: impl FnMut(),
) {
    let mut batch = Vec::with_capacity(BATCH_BYTES);
    let (mut is_open, mut was_full) = (true, false);
    let mut quiet_looks = QUIET_LOOKS;
    let mut is_cut = false;
    while is_open {
        if quiet_looks >= QUIET_LOOKS {
            is_open = take(waiting.recv().ok(), &mut batch);
        }
        if is_open && !was_full {
            pause();
        }
        while is_open && batch.len() < BATCH_BYTES {
            match waiting.try_recv() {
                Ok(message) => is_open = take(Some(message), &mut batch),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => is_open = false,
            }
        }
        was_full = batch.len() >= BATCH_BYTES;
        quiet_looks = if batch.is_empty() { quiet_looks + 1 } else { 0 };
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            batch.extend_from_slice(notice(lost, is_json).as_bytes());
        }
        let lines = memchr::memchr_iter(b'\n', &batch).count() as u64;
        if is_cut && !batch.is_empty() {
            is_cut = false;
            // What comes next must not stand behind half a line; an empty one is passed over by who reads lines.
            batch.insert(0, b'\n');
        }
        if out.write_all(&batch).is_err() {
            // Its reader is gone, or a disk is full: metrics tell, and the log when it is read again.
            is_cut = true;
            let own = lines - u64::from(lost > 0);
            LINES_DROPPED.fetch_add(own, Ordering::Relaxed);
            dropped.fetch_add(lost + own, Ordering::Relaxed);
        }
        batch.clear();
    }
    let _ = out.flush();
}

/// The line in place of those that were lost.
fn notice(lost: u64, is_json: bool) -> String {
    let said = format!("{lost} log lines were dropped: standard error was not read");
    if !is_json {
        return said + "\n";
    }
    let mut at = String::new();
    // Writing to a string cannot fail.
    let _ = line::Time.format_time(&mut Writer::new(&mut at));
    let line =
        json!({ "timestamp": at, "level": "WARN", "message": said, "target": module_path!() });
    format!("{line}\n")
}

/// False when that was the end.
fn take(message: Option<LogMessage>, batch: &mut Vec<u8>) -> bool {
    match message {
        Some(LogMessage::Line(line)) => {
            batch.extend_from_slice(&line);
            true
        }
        Some(LogMessage::Stop) | None => false,
    }
}

/// Lent to whoever logs: a sender of its own for each line would be counted up and down for all threads.
impl<'a> MakeWriter<'a> for Queue {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

/// The log formats a line first and writes it with one call.
impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self
            .lines
            .try_send(LogMessage::Line(line.to_vec()))
            .is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            LINES_DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Stands still until its lock is free, like a pipe without a reader.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Mutex<Vec<u8>>>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_is_written_before_the_end() {
        let pipe = Pipe::default();
        let (queue, guard) = queue(pipe.clone(), false);
        for number in 0..100 {
            writeln!(&queue, "{number}").expect("never fails");
        }
        drop(guard);
        let written = pipe.0.lock().expect("not poisoned").clone();
        assert!(String::from_utf8(written).expect("text").ends_with("99\n"));
    }

    #[test]
    fn many_lines_are_written_as_fast_as_they_are_read() {
        let (lines, waiting) = sync_channel(QUEUE_LINES);
        let line = [&[b'-'; 255][..], b"\n"].concat();
        for _ in 1..QUEUE_LINES {
            let line = LogMessage::Line(line.clone());
            lines.try_send(line).expect("there is room");
        }
        lines.try_send(LogMessage::Stop).expect("there is room");
        let (mut written, mut pauses) = (Vec::new(), 0);
        let count = || pauses += 1;
        write_lines(&waiting, &AtomicU64::new(0), &mut written, false, count);
        assert_eq!(written.len(), (QUEUE_LINES - 1) * line.len());
        // A megabyte, of which each pause would let 64 KiB pass.
        assert_eq!(pauses, 1);
    }

    #[test]
    fn a_line_after_a_silence_is_written_without_another_one() {
        let pipe = Pipe::default();
        let (queue, _guard) = queue(pipe.clone(), false);
        for number in 0..2 {
            writeln!(&queue, "{number}").expect("never fails");
            let is_written = |_: u32| {
                pause();
                pipe.0.lock().expect("not poisoned").len() == 2 * (number + 1)
            };
            assert!((0..LAST_LOOKS).any(is_written), "{number}");
            // Longer than the writer looks for lines by itself.
            (0..=2 * QUIET_LOOKS).for_each(|_| pause());
        }
    }

    #[test]
    fn a_reader_that_stops_does_not_stop_the_log() {
        let pipe = Pipe::default();
        let (queue, guard) = queue(pipe.clone(), false);
        let stopped = pipe.0.lock().expect("not poisoned");
        // One more than the queue and the writer's hands hold.
        for _ in 0..QUEUE_LINES + 2 {
            (&queue).write_all(b"line\n").expect("never fails");
        }
        drop(stopped);
        drop(guard);
        let written = pipe.0.lock().expect("not poisoned").clone();
        let written = String::from_utf8(written).expect("text");
        assert!(
            written.contains("log lines were dropped"),
            "{}",
            written.len()
        );
        assert!(lines_dropped() > 0);
    }

    /// A full disk, or a pipe whose reader is gone.
    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let before = lines_dropped();
        let (queue, guard) = queue(Broken, false);
        for number in 0..5 {
            writeln!(&queue, "{number}").expect("never fails");
        }
        drop(guard);
        assert!(lines_dropped() >= before + 5);
    }

    /// A disk that is full for a while, in the middle of a line.
    #[test]
    fn a_line_that_was_cut_off_is_ended() {
        #[derive(Clone, Default)]
        struct Full(Arc<Mutex<(Vec<u8>, usize)>>);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let mut disk = self.0.lock().expect("not poisoned");
                let fit = bytes.len().min(disk.1);
                if fit == 0 {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                disk.1 -= fit;
                disk.0.extend_from_slice(&bytes[..fit]);
                Ok(fit)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let full = Full::default();
        full.0.lock().expect("not poisoned").1 = 11;
        let (lines, waiting) = sync_channel(4);
        let (writer, room) = (full.clone(), full.clone());
        let dropped = AtomicU64::new(0);
        let line = |text: &str| LogMessage::Line(text.as_bytes().into());
        lines.send(line("{\"a\":1}\n")).expect("room");
        let mut looks = 0;
        let ends = || {
            looks += 1;
            match looks {
                2 => lines.send(line("{\"a\":2}\n")).expect("room"),
                4 => {
                    room.0.lock().expect("not poisoned").1 = 1_000;
                    lines.send(line("{\"a\":3}\n")).expect("room");
                }
                6 => lines.send(LogMessage::Stop).expect("room"),
                _ => {}
            }
        };
        write_lines(&waiting, &dropped, writer, true, ends);
        let written = full.0.lock().expect("not poisoned").0.clone();
        let text = String::from_utf8(written).expect("text");
        let lines = text.lines().filter(|line| !line.is_empty());
        let whole = lines.filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
        assert_eq!(
            whole.count(),
            3,
            "the first, the notice and the third: {text}"
        );
    }

    #[test]
    fn what_is_said_of_lost_lines_is_a_line_like_the_others() {
        let line: serde_json::Value = serde_json::from_str(&notice(3, true)).expect("JSON");
        assert_eq!(line["level"], "WARN");
        let message = line["message"].as_str().expect("text");
        assert!(message.starts_with("3 log lines"), "{message}");
        assert!(notice(3, false).starts_with("3 log lines"));
    }

    #[test]
    fn the_end_does_not_wait_for_ever() {
        let pipe = Pipe::default();
        let (queue, guard) = queue(pipe.clone(), false);
        let stopped = pipe.0.lock().expect("not poisoned");
        for _ in 0..QUEUE_LINES + 2 {
            (&queue).write_all(b"line\n").expect("never fails");
        }
        drop(guard);
        drop(stopped);
    }

    #[test]
    fn libraries_speak_from_warn_on() {
        let config = |level| LogConfig {
            level,
            ..LogConfig::default()
        };
        let check = |level, target, at, expected| {
            assert_eq!(
                filter(&config(level)).would_enable(target, &at),
                expected,
                "{target} {at}"
            );
        };
        check(Level::INFO, "grapevine::proxy", Level::INFO, true);
        check(Level::INFO, "kube_client::client", Level::ERROR, false);
        check(Level::DEBUG, "kube_client::client", Level::ERROR, true);
        check(Level::INFO, "grapevine_gossip", Level::INFO, true);
        check(Level::INFO, "grapevine", Level::DEBUG, false);
        check(Level::INFO, "chitchat", Level::INFO, false);
        check(Level::INFO, "chitchat", Level::WARN, true);
        check(Level::ERROR, "chitchat", Level::WARN, false);
        check(Level::DEBUG, "quinn", Level::DEBUG, true);
        check(Level::TRACE, "grapevine", Level::TRACE, true);
        check(Level::TRACE, "hyper", Level::DEBUG, true);
        check(Level::TRACE, "hyper", Level::TRACE, false);
    }
}
