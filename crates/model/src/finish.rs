//! Why a completion ended.

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It reached a stop id or a stop string.
    Stop,
    /// It reached its greatest length, or the end of the context.
    Length,
    /// It has not ended: it reached the length at which it is returned unfinished, to be continued later.
    Unfinished,
}

impl FinishReason {
    /// The reason of a completion that has ended: [`Length`](Self::Length) if it was cut.
    pub fn of_ended(truncated: bool) -> FinishReason {
        if truncated { FinishReason::Length } else { FinishReason::Stop }
    }

    /// The reason's name in JSON output: `stop` and `length` are those of OpenAI's API.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Unfinished => "unfinished",
        }
    }
}
