//! Tests of models against transformers, PEFT and slow references, in one executable, so that they link once.

mod chat;
mod foreign;
mod io;
mod net;
mod shared;
mod templates;
