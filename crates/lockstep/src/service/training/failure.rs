//! Why a request failed.

use crate::service::request::Refused;

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The description, with the fix.
    pub message: String,
    /// The part that has to change.
    pub cause: Cause,
}

/// The cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The request itself is wrong.
    Request,
    /// Too much waits. The request may be sent again later.
    Load,
    /// The server failed.
    Server,
}

impl Failure {
    /// A failure because of the request.
    pub fn request(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), cause: Cause::Request }
    }

    /// A failure because of the request, with the message of an error.
    pub(super) fn request_error(error: impl ToString) -> Failure {
        Failure::request(error.to_string())
    }

    /// A failure because of everything that waits.
    pub(super) fn load(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), cause: Cause::Load }
    }

    /// A failure of the server.
    pub fn server(message: impl ToString) -> Failure {
        Failure { message: message.to_string(), cause: Cause::Server }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        let cause = match refused {
            Refused::Stops | Refused::Ended => Cause::Server,
            Refused::Busy { .. } => Cause::Load,
            _ => Cause::Request,
        };
        Failure { message: refused.to_string(), cause }
    }
}
