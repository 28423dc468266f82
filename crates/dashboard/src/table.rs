//! The table of all runs: kind and result of each run, and the configuration keys in which the runs differ.

use crate::run::{Config, RunFiles};
use crate::series::short;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The number of points of a run's sparkline.
const POINTS: usize = 60;
/// Keys that name or locate a run, and do not affect training.
const OF_PLACE: [&str; 3] = ["output_dir", "run_name", "logging_dir"];

/// A run's row in the table.
pub struct Row {
    /// The row, without the keys in which runs differ.
    line: Map<String, Value>,
    config: Arc<Config>,
}

impl Row {
    /// Reads the run with this id.
    pub fn of(id: &str, run: &mut RunFiles) -> Row {
        run.refresh();
        let (config, state) = (run.config(), run.state());
        let verdict = run.verdict_as(state != "running");
        let (step, total) = run.progress();
        let (metric, values) = run.judged_by();
        let held_out = run.series().values(&format!("eval_{metric}")).map(|(_, value)| value).last();
        let alarms: Vec<String> = run.active_alarms(&verdict).into_iter().map(|alarm| alarm.id).collect();
        let last = &values[values.len() - values.len().div_ceil(10)..];
        let reached = (!last.is_empty()).then(|| last.iter().sum::<f64>() / last.len() as f64);
        let mut line = Map::new();
        for (key, value) in [
            ("id", json!(id)),
            ("name", json!(config.name())),
            ("state", json!(state)),
            ("step", json!(step)),
            ("total", json!(total)),
            ("changed_s", json!(run.changed_s())),
            ("verdict", verdict.to_json()),
            ("metric", json!(metric)),
            ("reached", json!(reached.map(short))),
            ("held_out", json!(held_out.map(short))),
            ("curve", curve(&values)),
            ("alarms", json!(alarms)),
        ] {
            line.insert(key.to_owned(), value);
        }
        Row { line, config }
    }

    /// A number that is equal for runs whose configurations differ only in the seed.
    fn group(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (key, value) in &self.config.values {
            if key != "seed" && !OF_PLACE.contains(&key.as_str()) {
                (key, value.to_string()).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

/// The rows as JSON. `keys` are the keys in which the runs differ, with each run's values; runs with the same `group`
/// differ only in the seed.
pub fn table(rows: Vec<Row>) -> Value {
    let mut values: BTreeMap<&String, Vec<Option<&Value>>> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        for (key, value) in &row.config.values {
            values.entry(key).or_insert_with(|| vec![None; rows.len()])[place] = Some(value);
        }
    }
    let differ = |(key, of): &(&&String, &Vec<Option<&Value>>)| {
        !OF_PLACE.contains(&key.as_str()) && of.iter().any(|value| *value != of[0])
    };
    let keys: Vec<String> = values.iter().filter(differ).map(|(key, _)| (**key).clone()).collect();
    let lines: Vec<Value> = rows
        .into_iter()
        .map(|row| {
            let group = format!("{:016x}", row.group());
            let own = keys.iter().filter_map(|key| Some((key.clone(), row.config.values.get(key)?.clone())));
            let own: Map<String, Value> = own.collect();
            let mut line = row.line;
            line.insert("group".to_owned(), group.into());
            line.insert("keys".to_owned(), own.into());
            line.into()
        })
        .collect();
    json!({ "keys": keys, "runs": lines })
}

/// The means of equal parts of the values.
fn curve(values: &[f64]) -> Value {
    let finite: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    let width = finite.len().div_ceil(POINTS).max(1);
    finite.chunks(width).map(|part| short(part.iter().sum::<f64>() / part.len() as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn run(root: &Path, name: &str, config: &str, rewards: &[f64]) -> Row {
        let dir = root.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("config.toml"), format!("output_dir = \"{name}\"\n{config}")).unwrap();
        let lines =
            (1..).zip(rewards).map(|(step, reward)| json!({ "step": step, "reward": reward }).to_string() + "\n");
        std::fs::write(dir.join("metrics.jsonl"), lines.collect::<String>()).unwrap();
        Row::of(name, &mut RunFiles::new(dir))
    }

    #[test]
    fn rows_list_differing_keys_and_runs_that_differ_in_seed_share_a_group() {
        let dir = tempfile::tempdir().unwrap();
        let rising: Vec<f64> = (0..200).map(|i| f64::from(i) / 200.0).collect();
        let rows = vec![
            run(dir.path(), "a", "seed = 1\nbeta = 0.0\nmax_steps = 200", &rising),
            run(dir.path(), "b", "seed = 2\nbeta = 0.0\nmax_steps = 200\nrun_name = \"second\"", &rising),
            run(dir.path(), "c", "seed = 1\nbeta = 0.1\nmax_steps = 200", &[0.5; 8]),
            run(dir.path(), "d", "seed = 1\nbeta = 0.1\nmax_steps = 200\nlr = 3", &[]),
        ];
        let table = table(rows);
        assert_eq!(table["keys"], json!(["beta", "lr", "seed"]));
        let of = |place: usize, key: &str| table["runs"][place][key].clone();
        assert_eq!(of(0, "keys"), json!({ "beta": 0.0, "seed": 1 }));
        assert_eq!(of(3, "keys"), json!({ "beta": 0.1, "seed": 1, "lr": 3 }));
        assert_eq!(of(0, "group"), of(1, "group"));
        assert!(of(0, "group") != of(2, "group") && of(2, "group") != of(3, "group"));
        assert_eq!((of(0, "name"), of(1, "name")), (Value::Null, json!("second")));
        assert_eq!(
            (of(0, "verdict")["state"].clone(), of(2, "verdict")["state"].clone()),
            (json!("learning"), json!("constant"))
        );
        assert_eq!((of(0, "reached"), of(3, "reached")), (json!(0.9475), Value::Null));
        assert_eq!((of(0, "curve").as_array().unwrap().len(), of(3, "curve")), (50, json!([])));
        assert_eq!((of(0, "metric"), of(0, "step"), of(0, "total")), (json!("reward"), json!(200), json!(200)));
    }
}
