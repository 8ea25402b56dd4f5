//! Workers that prefill and workers that decode, and what lies between them.

use grapevine_placement::Divide;

/// Pools of prefill and decode workers beside those that do both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// Workers that compute prompts, at least 1.
    pub prefill_workers: usize,
    /// Workers that generate answers, at least 1.
    pub decode_workers: usize,
    /// What stays whole, on the best worker that does both, or without those on the best decode worker.
    pub divide: Divide,
    /// How keys and values travel.
    pub link: Link,
}

/// The way from a prefill worker to a decode worker. Every worker has one port, which serves one transfer at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes of keys and values of a token, over all layers.
    pub token_bytes: u64,
    /// Bytes a second, above 0.
    pub bytes_per_s: f64,
    /// Time of a transfer before its first byte, in us.
    pub setup_us: u64,
}

impl Link {
    /// Time that so many tokens take, in us.
    pub(super) fn time_us(&self, tokens: u32) -> u64 {
        let bytes = u64::from(tokens) * self.token_bytes;
        self.setup_us + (bytes as f64 * 1e6 / self.bytes_per_s).ceil() as u64
    }
}

/// Ports of all workers: when each is free again.
#[derive(Debug)]
pub(super) struct Ports {
    free_us: Vec<u64>,
}

impl Ports {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            free_us: vec![0; workers],
        }
    }

    /// When a transfer of so many tokens that is asked for now is over: both ports have to be free for it.
    pub(super) fn transfer(
        &mut self,
        now_us: u64,
        link: &Link,
        from: usize,
        to: usize,
        tokens: u32,
    ) -> u64 {
        let start = now_us.max(self.free_us[from]).max(self.free_us[to]);
        let end = start + link.time_us(tokens);
        self.free_us[from] = end;
        self.free_us[to] = end;
        end
    }
}
