//! The built-in reward `length`.
