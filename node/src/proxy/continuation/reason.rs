//! Why a broken stream is not continued: one label each of `grapevine_failovers_total`.

use grapevine_placement::named;

named! {
    /// What stands against a continuation.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Reason {
        /// The request has tools or functions.
        Tools = "tools",
        /// It asks for log probabilities.
        Logprobs = "logprobs",
        /// It asks for several choices, or beam search; or the answer has several.
        Choices = "choices",
        /// It constrains the answer's form: what has been said already is no part of a new grammar.
        Format = "format",
        /// Its prompt cannot be extended by text: token ids, several prompts, `echo`, `suffix`, truncation.
        Prompt = "prompt",
        /// It wants token ids, which cannot be cut where the text is cut.
        TokenIds = "token_ids",
        /// It wants stop strings in the answer: one may lie across the seam.
        Stop = "stop",
        /// It asks for audio.
        Audio = "audio",
        /// Its prompt was computed elsewhere, for one worker.
        Transfer = "transfer",
        /// Its body cannot be read.
        Request = "request",
        /// The answer has reasoning, which no message can begin with.
        Reasoning = "reasoning",
        /// The answer calls tools.
        ToolCalls = "tool_calls",
        /// The answer is longer than `failover.text_bytes`.
        TooLong = "too_long",
        /// An event cannot be read, or is longer than `limits.event_line_bytes`.
        Answer = "answer",
        /// All tokens that were asked for have been produced.
        Spent = "spent",
        /// The answer is whole, but the usage that was asked for is lost.
        UsageLost = "usage_lost",
        /// It was continued `failover.max` times.
        Limit = "limit",
        /// No place in the retry budget became free in time.
        Budget = "budget",
        /// No other worker is left.
        NoWorker = "no_worker",
        /// The workers that were asked did not take it.
        Refused = "refused",
        /// Workers ended while they had it.
        QueryOfDeath = "query_of_death",
        /// The time limit of the whole request is reached.
        OutOfTime = "out_of_time",
    }
}
