//! The built-in reward `unique_chars`.
