//! rewards
