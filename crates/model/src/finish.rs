//! The reasons why a completion ends.

/// The reason why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The completion reached a stop id or a stop string.
    Stop,
    /// The completion reached the length limit or the end of the context.
    Length,
    /// The completion has not ended. It reached the length at which it is returned unfinished, to be continued later.
    Unfinished,
}

impl FinishReason {
    /// The reason why a completion ended: [`Length`](Self::Length) if it was truncated.
    pub fn from_truncated(truncated: bool) -> FinishReason {
        if truncated { FinishReason::Length } else { FinishReason::Stop }
    }

    /// The reason's name in JSON output. `stop` and `length` are OpenAI's names.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Unfinished => "unfinished",
        }
    }
}
