//! `lockstep serve`: HTTP over [`lockstep::service`], with APIs compatible with OpenAI's, vLLM's and Tinker's. This
//! crate knows wire formats, and neither models nor engines.
//!
//! | module | purpose |
//! |---|---|
//! | `server` | the listener, routes, access control |
//! | `openai` | OpenAI's and vLLM's endpoints: requests read, responses and streams written |
//! | `tinker` | Tinker's endpoints: training and sampling |
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
mod tinker;

pub use server::{Access, Server};
