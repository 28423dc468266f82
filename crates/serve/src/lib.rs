//! `lockstep serve`: HTTP over [`lockstep::service`], with an API compatible with OpenAI's and vLLM's. This crate knows
//! wire formats, and neither models nor engines.
//!
//! | module | purpose |
//! |---|---|
//! | `server` | the listener, routes, access control |
//! | `openai` | the endpoints: requests read, responses and streams written |
//! | `fields` | the table of all request fields: read, ignored or refused |
//! | `body` | values of a request's JSON, with errors that name the field |
//! | `error` | errors in OpenAI's JSON shape |
//! | `metrics` | the route `/metrics` |

mod body;
mod error;
mod fields;
mod metrics;
mod openai;
mod server;
#[cfg(test)]
mod tests;

pub use server::{Access, Server};
