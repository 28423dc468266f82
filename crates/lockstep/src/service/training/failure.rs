//! Why a request failed.

use crate::service::request::Refused;

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The description, with the fix.
    pub message: String,
    /// Whether the request itself is wrong. Otherwise the server failed.
    pub is_of_request: bool,
}

impl Failure {
    /// A failure because of the request.
    pub fn request(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), is_of_request: true }
    }

    /// A failure because of the request, with the message of an error.
    pub(super) fn request_error(error: impl ToString) -> Failure {
        Failure::request(error.to_string())
    }

    /// A failure of the server.
    pub fn server(message: impl ToString) -> Failure {
        Failure { message: message.to_string(), is_of_request: false }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        let is_of_request = !matches!(refused, Refused::Stops | Refused::Ended | Refused::Busy { .. });
        Failure { message: refused.to_string(), is_of_request }
    }
}
