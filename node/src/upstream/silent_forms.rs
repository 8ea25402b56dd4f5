//! What an engine does not say of prompts whose answers others compute.

use std::sync::atomic::{AtomicU8, Ordering};

use grapevine_transfer::body::Form;

/// Forms of requests of which an engine's prefill answers do not say where the KV is: its release has no such field
/// there. Nothing else hangs on it, so it is read and written in no order.
#[derive(Debug, Default)]
pub struct SilentForms(AtomicU8);

impl SilentForms {
    /// An answer to such a request did not say it.
    pub fn note(&self, form: Form) {
        self.0.fetch_or(bit(form), Ordering::Relaxed);
    }

    /// Whether one has not.
    pub fn has(&self, form: Form) -> bool {
        self.0.load(Ordering::Relaxed) & bit(form) != 0
    }

    /// The engine may be one of another release.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

const fn bit(form: Form) -> u8 {
    1 << form as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_known_by_itself() {
        let silent = SilentForms::default();
        silent.note(Form::Messages);
        assert!(silent.has(Form::Messages) && !silent.has(Form::Responses));
        silent.note(Form::Responses);
        silent.note(Form::Messages);
        assert!(silent.has(Form::Messages) && silent.has(Form::Responses));
        silent.forget();
        assert!(!silent.has(Form::Messages) && !silent.has(Form::Responses));
    }
}
