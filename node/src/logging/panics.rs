//! Panics as lines of the log. The usual hook writes them by itself: in a log of JSON nobody reads that, and where standard
//! error is not read it waits, and with it all that its thread serves.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{PanicHookInfo, set_hook};
use std::thread;

/// From now on; a backtrace comes where `RUST_BACKTRACE` asks for it.
pub(super) fn follow() {
    set_hook(Box::new(|info| {
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
