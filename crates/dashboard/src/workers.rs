//! The batches that each worker of a distributed run computed, from `fleet/made_by.jsonl`, which does not record times.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// For each worker, its number of groups in each batch: `{"width", "batches", "workers": [{"name", "groups", "busy_s",
/// "idle_s"}]}`. A bucket has `width` batches, a power of two, so that there are at most `pixels` buckets. `None` for a
/// run without workers.
pub fn workers(root: &Path, pixels: usize) -> Option<Value> {
    let batches = lockstep::workers::groups_made(root)?;
    let grid = |width: u64| {
        let mut grid: Vec<u64> = batches.keys().map(|batch| batch / width * width).collect();
        grid.dedup();
        grid
    };
    let mut width = 1;
    while grid(width).len() > pixels.max(1) {
        width *= 2;
    }
    let grid = grid(width);
    let mut lanes: BTreeMap<&String, Vec<u64>> = BTreeMap::new();
    for (batch, makers) in &batches {
        let place = grid.binary_search(&(batch / width * width)).unwrap_or_default();
        for (name, groups) in makers {
            lanes.entry(name).or_insert_with(|| vec![0; grid.len()])[place] += groups;
        }
    }
    let lane = |(name, groups): (&String, Vec<u64>)| {
        let status = status(root, name);
        json!({ "name": name, "groups": groups, "busy_s": status["busy_s"], "idle_s": status["idle_s"] })
    };
    let lanes: Vec<Value> = lanes.into_iter().map(lane).collect();
    (!grid.is_empty()).then(|| json!({ "width": width, "batches": grid, "workers": lanes }))
}

/// The last status of a worker on this machine.
fn status(root: &Path, name: &str) -> Value {
    let workers = disk::read_dir(root.join("fleet/workers")).unwrap_or_default();
    // Only names from directory entries become paths; names from file contents do not.
    let own = workers.into_iter().find(|entry| entry.file_name().to_str() == Some(name));
    let bytes = own.and_then(|entry| disk::read(entry.path().join("status.json"), disk::most::STATE).ok());
    serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep::workers::made_by_path as path;

    fn lane(name: &str, groups: [u64; 3], busy_s: Option<f64>, idle_s: Option<f64>) -> Value {
        json!({ "name": name, "groups": groups, "busy_s": busy_s, "idle_s": idle_s })
    }

    #[test]
    fn lanes_count_groups_from_the_last_line_of_each_batch() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(workers(dir.path(), 9), None);
        let fleet = dir.path().join("fleet");
        std::fs::create_dir_all(fleet.join("workers/dev1")).unwrap();
        std::fs::write(fleet.join("workers/dev1/status.json"), r#"{"busy_s":3.5,"idle_s":1.5}"#).unwrap();
        std::fs::write(dir.path().join("status.json"), r#"{"busy_s":9}"#).unwrap();
        let lines = [
            r#"{"batch":0,"groups":{"dev1":[1,2],"dev2":[3]}}"#,
            r#"{"batch":1,"groups":{"dev2":[4,5,6]}}"#,
            r#"{"batch":3,"groups":{"../..":[7]}}"#,
            r#"{"batch":1,"groups":{"dev1":[4],"dev2":[5,6]}}"#,
            r#"{"batch":4,"gro"#,
        ];
        std::fs::write(path(dir.path()), lines.join("\n")).unwrap();
        let all = workers(dir.path(), 9).unwrap();
        assert_eq!((&all["width"], &all["batches"]), (&json!(1), &json!([0, 1, 3])));
        let expected = [
            lane("../..", [0, 0, 1], None, None),
            lane("dev1", [2, 1, 0], Some(3.5), Some(1.5)),
            lane("dev2", [1, 2, 0], None, None),
        ];
        assert_eq!(all["workers"], json!(expected));
        let two = workers(dir.path(), 2).unwrap();
        assert_eq!((&two["width"], &two["batches"]), (&json!(2), &json!([0, 2])));
        assert_eq!(two["workers"][2]["groups"], json!([3, 0]));
        std::fs::write(path(dir.path()), "").unwrap();
        assert_eq!(workers(dir.path(), 9), None);
    }
}
