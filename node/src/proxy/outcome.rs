//! How a request ended, and what that says about its worker.

use grapevine_placement::named;

named! {
    /// How a request ended. Recorded at the end of the stream, not at its head.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Outcome {
        /// The answer reached the client whole.
        Success = "success",
        /// A stream ended cleanly without its end mark.
        Incomplete = "incomplete",
        /// The client left first.
        ClientLeft = "client_left",
        /// An error answer, the worker's or ours, reached the client.
        Error = "error",
        /// The worker ended a stream with an error event.
        WorkerError = "worker_error",
        /// The worker's answer broke off after bytes had gone out.
        WorkerBroke = "worker_broke",
        /// The worker stopped producing after bytes had gone out.
        WorkerStalled = "worker_stalled",
        /// The limit for whole requests was reached after bytes had gone out.
        OutOfTime = "out_of_time",
        /// This replica ended before the request did.
        ShutDown = "shut_down",
    }
}

impl Outcome {
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
