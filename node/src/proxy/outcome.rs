//! How a request ended, and what that says about its worker.

/// How a request ended. Recorded at the end of the stream, not at its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The answer reached the client whole.
    Success,
    /// A stream ended cleanly without its end mark.
    Incomplete,
    /// The client left first.
    ClientLeft,
    /// An error answer, the worker's or ours, reached the client.
    Error,
    /// The worker ended a stream with an error event.
    WorkerError,
    /// The worker's answer broke off after bytes had gone out.
    WorkerBroke,
    /// The worker stopped producing after bytes had gone out.
    WorkerStalled,
    /// The limit for whole requests was reached after bytes had gone out.
    OutOfTime,
    /// This replica ended before the request did.
    ShutDown,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 9] = [
        Self::Success,
        Self::Incomplete,
        Self::ClientLeft,
        Self::Error,
        Self::WorkerError,
        Self::WorkerBroke,
        Self::WorkerStalled,
        Self::OutOfTime,
        Self::ShutDown,
    ];

    /// Stable metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Incomplete => "incomplete",
            Self::ClientLeft => "client_left",
            Self::Error => "error",
            Self::WorkerError => "worker_error",
            Self::WorkerBroke => "worker_broke",
            Self::WorkerStalled => "worker_stalled",
            Self::OutOfTime => "out_of_time",
            Self::ShutDown => "shut_down",
        }
    }

    /// Hundreds of the status that requests with this outcome usually have; 0: no answer began.
    pub const fn usual_classes(self) -> &'static [usize] {
        match self {
            Self::Error => &[4, 5],
            Self::ClientLeft => &[0, 2],
            Self::ShutDown => &[2, 5],
            Self::Success
            | Self::Incomplete
            | Self::WorkerError
            | Self::WorkerBroke
            | Self::WorkerStalled
            | Self::OutOfTime => &[2],
        }
    }

    /// What the outcome says about the worker that was answering.
    pub fn verdict(self) -> grapevine_placement::AttemptOutcome {
        use grapevine_placement::AttemptOutcome;
        match self {
            Self::Success => AttemptOutcome::Success,
            Self::Incomplete
            | Self::ClientLeft
            | Self::Error
            | Self::OutOfTime
            | Self::ShutDown => AttemptOutcome::Neutral,
            Self::WorkerError | Self::WorkerBroke | Self::WorkerStalled => AttemptOutcome::Failure,
        }
    }
}
