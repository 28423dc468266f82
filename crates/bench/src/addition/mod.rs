//! Two-digit addition, one character a token: what `lockstep demo` and `lockstep bench algorithms` train on.

pub mod task;
pub mod workspace;
