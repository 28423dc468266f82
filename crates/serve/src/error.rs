//! Errors as OpenAI's API returns them: `{"error": {"message", "type", "param", "code"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lockstep::service::Refused;
use serde_json::{Value, json};

/// The seconds after which a client may retry.
const RETRY_AFTER: &str = "1";

/// The beginning of a client's text, for a message.
pub fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

/// An error response.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    kind: &'static str,
    pub message: String,
    /// The request's field.
    pub param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, kind, message: message.into(), param: None, code: None }
    }

    /// An error of the client, in the whole request.
    pub fn bad(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError::new(status, "invalid_request_error", message)
    }

    /// An error in a field of the request.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::bad(StatusCode::BAD_REQUEST, message) }
    }

    /// The same error with a code for programs.
    pub fn with_code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// A failure of the server.
    pub fn failed(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    pub fn to_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        let message = refused.to_string();
        match refused {
            Refused::Field { field, .. } => ApiError::field(field, message),
            Refused::ContextLength(_) => ApiError::field("prompt", message).with_code("context_length_exceeded"),
            Refused::NoSuchModel { .. } => {
                let error = ApiError::field("model", message).with_code("model_not_found");
                ApiError { status: StatusCode::NOT_FOUND, ..error }
            }
            Refused::Busy { .. } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                ApiError::new(status, "rate_limit_error", message).with_code("rate_limit_exceeded")
            }
            Refused::Stops => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message),
            Refused::Ended => ApiError::failed(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, answer(&self.to_json())).into_response();
        with_retry(&mut response);
        response
    }
}

/// Tells the client when to send the request again, if that may help.
pub fn with_retry(response: &mut Response) {
    if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&response.status()) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
    }
}

/// A response with JSON.
pub fn answer(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
