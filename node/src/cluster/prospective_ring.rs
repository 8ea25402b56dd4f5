//! What a ring that is not in use yet would do.

use grapevine_placement::{Candidate, HotSet, Key, Standing, explain};

use super::pool::Pool;

impl Pool {
    /// Tokens of a prompt that requests would look for on a worker of this pool, if none were loaded and nothing were
    /// known but heat: all of them at the prompt's home, the shared ones at a hot prefix's workers, 0 elsewhere.
    pub fn tokens_sought_at(&self, worker: usize, hot: &HotSet, key: &Key) -> u32 {
        let idle: Vec<Candidate> = self
            .members
            .iter()
            .map(|member| Candidate {
                standing: member.out_as().unwrap_or(Standing::Usable),
                ..Candidate::default()
            })
            .collect();
        let view = grapevine_placement::View {
            ring: &self.ring,
            hot,
        };
        let explained = explain(&self.policy, view, key, &idle, &[], 0);
        if explained.decision.is_ok_and(|of| of.worker == worker) {
            return key.prompt_tokens();
        }
        let row = explained.rows.iter().find(|row| row.index == worker);
        row.map_or(0, |row| row.expected_tokens)
    }
}
