//! The built-in reward `command`.
