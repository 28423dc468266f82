//! The built-in reward `gsm8k`.
