//! The task of `lockstep demo` and `lockstep bench algorithms`: two-digit addition, with one token per character.

pub mod task;
pub mod workspace;
