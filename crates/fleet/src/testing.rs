//! Names that tests of several modules use.

use crate::job::{JobName, WorkerName};

pub(crate) fn name(text: &str) -> WorkerName {
    WorkerName::new(text).unwrap()
}

pub(crate) fn job(number: u64) -> JobName {
    chunk(number, 0)
}

pub(crate) fn chunk(number: u64, chunk: u32) -> JobName {
    JobName::Rollout { number, chunk }
}
