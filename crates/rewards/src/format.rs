//! The built-in reward `format`.
