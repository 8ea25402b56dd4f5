//! Panics as lines of the log. The usual hook writes them by itself: in a log of JSON nobody reads that, and where standard
//! error is not read it waits, and with it all that its thread serves.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{PanicHookInfo, set_hook};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Since the process started; there is one hook.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// How often a thread or a task panicked since the process started; what panics before the log begins is not counted.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// From now on; a backtrace comes where `RUST_BACKTRACE` asks for it.
pub(super) fn follow() {
    set_hook(Box::new(|info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
        tracing::error!(
            thread = thread::current().name(),
            why = why(info),
            backtrace = backtrace.map(tracing::field::display),
            "panicked at {}",
            place_of(info)
        );
    }));
}

fn place_of(info: &PanicHookInfo<'_>) -> String {
    info.location()
        .map_or_else(|| "an unknown place".to_owned(), ToString::to_string)
}

fn why<'a>(info: &'a PanicHookInfo<'_>) -> Option<&'a str> {
    let payload = info.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
}
