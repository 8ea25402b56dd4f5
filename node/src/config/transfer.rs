//! Settings of requests that are divided between prefill and decode workers.

use std::time::Duration;

use grapevine_placement::{Divide, named};
use grapevine_transfer::Connector;

use super::setting::{ms, secs};
use super::table::section;

named! {
    /// When a decode worker computes a whole request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DecodeAlone {
        /// Never: what cannot be divided is refused.
        Never = "never",
        /// A request that cannot be divided.
        Indivisible = "indivisible",
        /// That, and any request while no prefill worker can be used.
        Always = "always",
    }
}

section! {
    /// Requests that are divided: a prefill worker computes the prompt, a decode worker the answer.
    ///
    /// For models with workers of the roles prefill and decode. Equal on all replicas.
    [transfer] TransferConfig {
        /// How blocks come from one worker to the other, where a worker's labels do not say: nixl, mooncake, moriio,
        /// p2p_nccl, store or sglang.
        connector: Connector = Connector::Nixl, flag "kv-connector" Text;
        /// When a decode worker computes a whole request: "never", "indivisible" (one that cannot be divided, such as one
        /// with several answers), or "always" (that, and any while no prefill worker can be used).
        ///
        /// Never: what cannot be divided is refused, where no worker takes whole requests. Always: decode workers
        /// compute prompts while prefill is down, and all their streams are slower meanwhile.
        decode_alone: DecodeAlone = DecodeAlone::Indivisible, live now;
        /// Tokens of a prompt that the decode worker computes itself rather than have them computed and sent; 0: none.
        ///
        /// Counted without what it is expected to hold. Higher: fewer transfers, more prefill among decode.
        short_prompt_tokens: u32 = 256, live now;
        /// How much later than from a worker that takes whole requests the first token of a pair may be expected.
        ///
        /// Above that a worker of whole requests takes the request, where the model has some. Longer: calmer answers on
        /// those, more waiting for prefill workers.
        wait_for_pair: Duration = ms(200), in Duration::ZERO..=secs(3600), live now;
        /// How long a computed prompt may wait for a decode worker that is told of it; after that it is computed anew.
        ///
        /// Engines give its blocks to other prompts after a while (vLLM 0.32.0 with NIXL: 30 s, `kv_lease_duration`), and
        /// a decode worker that fetches them then decodes from other prompts' KV. Keep it well below that time.
        fetch_within: Duration = secs(15), in Duration::ZERO..=secs(3600), live now;
        /// Pairs whose workers spread the model over different numbers of processors (tensor parallel).
        ///
        /// Only some connectors of vLLM can do that; others fail, or decode from wrong blocks.
        mixed_tensor_parallel: bool = false;
        /// Pairs whose workers stand in different zones. Off: only within a zone, and with workers that name none.
        across_zones: bool = true;
        /// Clients may say themselves where the KV of a prompt is or goes (`kv_transfer_params`, `bootstrap_*` and the like)
        /// to workers that take whole requests. Off: 400, but for the hints of LMCache (`lmcache.*`), which name no place.
        ///
        /// On: any client may have an engine with a connector connect to hosts and ports of its choice. For clients that are
        /// trusted, such as a router in front that divides requests itself. Workers with roles are told by this replica alone.
        from_clients: bool = false, live now;
        /// How long blocks that a failed decode left on its prefill worker count as load there: the time after which
        /// engines give them up.
        held_for: Duration = secs(480), in Duration::ZERO..=secs(3600), live now;
    }
}

impl TransferConfig {
    /// What stays whole although it could be divided.
    pub fn divide(&self) -> Divide {
        Divide {
            short_prompt_tokens: self.short_prompt_tokens,
            wait_for_pair: self.wait_for_pair,
        }
    }
}
