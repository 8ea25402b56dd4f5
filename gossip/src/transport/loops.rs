//! Distinguishes a replica that dialled itself from another process under its id.
//!
//! Neither address nor generation does: behind a relay it meets itself at another address than it has, and two
//! processes that start in the same millisecond have one generation. But both ends of a connection, and nobody else,
//! can compute the same bytes from its handshake (RFC 8446, 7.5): a process that accepts
//! its own connection finds them here.

use std::collections::HashMap;

use parking_lot::Mutex;
use quinn::Connection;

/// Dials of this process that wait for an answer to their HELLO, and whether this process itself reads it.
#[derive(Debug, Default)]
pub(super) struct Loops {
    dials: Mutex<HashMap<Mark, bool>>,
}

/// What only the two ends of one connection know.
type Mark = [u8; 16];

/// A dial, until it is dropped.
pub(super) struct Dialling<'a> {
    loops: &'a Loops,
    mark: Option<Mark>,
}

impl Loops {
    /// Call it before HELLO is sent.
    pub(super) fn dialling(&self, connection: &Connection) -> Dialling<'_> {
        let mark = mark(connection);
        if let Some(mark) = mark {
            self.dials.lock().insert(mark, false);
        }
        Dialling { loops: self, mark }
    }

    /// Whether it was this process that dialled what it accepted here. Call it before HELLO is answered.
    pub(super) fn closes_with(&self, connection: &Connection) -> bool {
        let mark = mark(connection);
        let mut dials = self.dials.lock();
        let dial = mark.and_then(|mark| dials.get_mut(&mark));
        dial.map(|is_own| *is_own = true).is_some()
    }
}

impl Dialling<'_> {
    /// Whether it was this process that answered. Call it once HELLO was answered.
    pub(super) fn was_answered_here(&self) -> bool {
        let dials = self.loops.dials.lock();
        self.mark
            .and_then(|mark| dials.get(&mark).copied())
            .unwrap_or(false)
    }
}

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        if let Some(mark) = self.mark {
            self.loops.dials.lock().remove(&mark);
        }
    }
}

fn mark(connection: &Connection) -> Option<Mark> {
    let mut mark = Mark::default();
    // It fails only before the end of the handshake, and before that no HELLO is sent.
    let exported = connection.export_keying_material(&mut mark, LABEL, b"");
    exported.is_ok().then_some(mark)
}

const LABEL: &[u8] = b"EXPERIMENTAL grapevine loop";
