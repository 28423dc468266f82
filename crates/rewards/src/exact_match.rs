//! The built-in reward `exact_match`.
