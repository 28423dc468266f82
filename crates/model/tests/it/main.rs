//! Models and what belongs to them against transformers, PEFT and slow references: one executable, which links once.

mod chat;
mod foreign;
mod io;
mod net;
mod shared;
mod templates;
