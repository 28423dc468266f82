//! Groups have the same numbers in the fleet, which knows nothing of this crate and has a type of its own for them. All
//! conversions between the two types are here.

use fleet::JobName;
use model::GroupId;

/// The job for a chunk of a group.
pub fn job_name(group: GroupId, chunk: u32) -> JobName {
    JobName::Rollout { group: fleet::GroupId(group.0), chunk }
}

/// The group and the chunk that a job generates; `None` for evaluations.
pub fn group_and_chunk(job: JobName) -> Option<(GroupId, u32)> {
    match job {
        JobName::Rollout { group, chunk } => Some((of_fleet_group(group), chunk)),
        JobName::Evaluation { .. } => None,
    }
}

/// The group that a job generates; `None` for evaluations.
pub fn group_of(job: JobName) -> Option<GroupId> {
    group_and_chunk(job).map(|(group, _)| group)
}

/// A group of the fleet.
pub fn of_fleet_group(group: fleet::GroupId) -> GroupId {
    GroupId(group.0)
}
