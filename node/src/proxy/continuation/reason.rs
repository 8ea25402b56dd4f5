//! Why a broken stream is not continued: one label each of `grapevine_failovers_total`.

/// What stands against a continuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The request has tools or functions.
    Tools,
    /// It asks for log probabilities.
    Logprobs,
    /// It asks for several choices, or beam search; or the answer has several.
    Choices,
    /// It constrains the answer's form: what has been said already is no part of a new grammar.
    Format,
    /// Its prompt cannot be extended by text: token ids, several prompts, `echo`, `suffix`, truncation.
    Prompt,
    /// It wants token ids, which cannot be cut where the text is cut.
    TokenIds,
    /// It wants stop strings in the answer: one may lie across the seam.
    Stop,
    /// It asks for audio.
    Audio,
    /// Its prompt was computed elsewhere, for one worker.
    Transfer,
    /// Its body cannot be read.
    Request,
    /// The answer has reasoning, which no message can begin with.
    Reasoning,
    /// The answer calls tools.
    ToolCalls,
    /// The answer is longer than `failover.text_bytes`.
    TooLong,
    /// An event cannot be read, or is longer than `limits.event_line_bytes`.
    Answer,
    /// All tokens that were asked for have been produced.
    Spent,
    /// The answer is whole, but the usage that was asked for is lost.
    UsageLost,
    /// It was continued `failover.max` times.
    Limit,
    /// No place in the retry budget became free in time.
    Budget,
    /// No other worker is left.
    NoWorker,
    /// The workers that were asked did not take it.
    Refused,
    /// Workers ended while they had it.
    QueryOfDeath,
    /// The time limit of the whole request is reached.
    OutOfTime,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 22] = [
        Self::Tools,
        Self::Logprobs,
        Self::Choices,
        Self::Format,
        Self::Prompt,
        Self::TokenIds,
        Self::Stop,
        Self::Audio,
        Self::Transfer,
        Self::Request,
        Self::Reasoning,
        Self::ToolCalls,
        Self::TooLong,
        Self::Answer,
        Self::Spent,
        Self::UsageLost,
        Self::Limit,
        Self::Budget,
        Self::NoWorker,
        Self::Refused,
        Self::QueryOfDeath,
        Self::OutOfTime,
    ];

    /// Stable metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Logprobs => "logprobs",
            Self::Choices => "choices",
            Self::Format => "format",
            Self::Prompt => "prompt",
            Self::TokenIds => "token_ids",
            Self::Stop => "stop",
            Self::Audio => "audio",
            Self::Transfer => "transfer",
            Self::Request => "request",
            Self::Reasoning => "reasoning",
            Self::ToolCalls => "tool_calls",
            Self::TooLong => "too_long",
            Self::Answer => "answer",
            Self::Spent => "spent",
            Self::UsageLost => "usage_lost",
            Self::Limit => "limit",
            Self::Budget => "budget",
            Self::NoWorker => "no_worker",
            Self::Refused => "refused",
            Self::QueryOfDeath => "query_of_death",
            Self::OutOfTime => "out_of_time",
        }
    }
}
