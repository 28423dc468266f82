//! Short constructors of names, for tests.

use crate::ids::GroupId;
use crate::job::{JobName, WorkerName};

pub(crate) fn name(text: &str) -> WorkerName {
    WorkerName::new(text).unwrap()
}

pub(crate) fn job(group: u64) -> JobName {
    chunk(group, 0)
}

pub(crate) fn chunk(group: u64, chunk: u32) -> JobName {
    JobName { group: GroupId(group), chunk }
}
