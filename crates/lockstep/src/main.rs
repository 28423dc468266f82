//! The application.
fn main() {}
