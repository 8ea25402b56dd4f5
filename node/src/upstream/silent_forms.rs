//! What an engine does not say of prompts whose answers others compute.

use std::sync::atomic::{AtomicU8, Ordering};

use grapevine_transfer::body::Form;

/// So many answers without it, and none with it between them, show that an engine never says it. One alone shows nothing:
/// some connectors keep no blocks of a prompt whose first token is an end.
const SHOWN_BY: u8 = 3;

/// Forms of requests of which an engine's prefill answers do not say where the KV is: its release has no such field
/// there. Nothing else hangs on it, so it is read and written in no order.
#[derive(Debug, Default)]
pub struct SilentForms([AtomicU8; Form::COUNT]);

impl SilentForms {
    /// An answer to such a request did not say it.
    pub fn note(&self, form: Form) {
        let count = self.of(form);
        let more = count.load(Ordering::Relaxed).saturating_add(1);
        count.store(more, Ordering::Relaxed);
    }

    /// An answer said it.
    pub fn tells(&self, form: Form) {
        let count = self.of(form);
        // Hardly ever: the others only read.
        if count.load(Ordering::Relaxed) != 0 {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Whether it never does.
    pub fn has(&self, form: Form) -> bool {
        self.of(form).load(Ordering::Relaxed) >= SHOWN_BY
    }

    /// The engine may be one of another release.
    pub fn forget(&self) {
        self.0
            .iter()
            .for_each(|count| count.store(0, Ordering::Relaxed));
    }

    fn of(&self, form: Form) -> &AtomicU8 {
        &self.0[form as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_known_by_itself() {
        let silent = SilentForms::default();
        let note = |form| (0..SHOWN_BY).for_each(|_| silent.note(form));
        note(Form::Messages);
        assert!(silent.has(Form::Messages) && !silent.has(Form::Responses));
        note(Form::Responses);
        note(Form::Messages);
        assert!(silent.has(Form::Messages) && silent.has(Form::Responses));
        silent.forget();
        assert!(!silent.has(Form::Messages) && !silent.has(Form::Responses));
    }

    #[test]
    fn some_answers_that_say_nothing_show_nothing() {
        let silent = SilentForms::default();
        for _ in 0..300 {
            silent.note(Form::Messages);
            silent.note(Form::Messages);
            assert!(!silent.has(Form::Messages));
            silent.tells(Form::Messages);
        }
        for _ in 0..300 {
            silent.note(Form::Messages);
        }
        assert!(silent.has(Form::Messages));
    }
}
