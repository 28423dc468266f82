//! Groups have the same numbers in the fleet, which does not depend on this crate and has its own type for them. All
//! conversions between the types are here.

use fleet::JobName;
use model::GroupId;

/// The job for a chunk of a group.
pub fn job_name(group: GroupId, chunk: u32) -> JobName {
    JobName { group: fleet::GroupId(group.0), chunk }
}

/// The group that a job generates.
pub fn group_of(job: JobName) -> GroupId {
    group_from_fleet(job.group)
}

/// A group of the fleet.
pub fn group_from_fleet(group: fleet::GroupId) -> GroupId {
    GroupId(group.0)
}
