//! Speculative decoding with drafts from earlier completions, including those of earlier epochs. All bits of a resumed
//! run must stay the same, whether its draft file is kept or lost.

use super::stop::files;
use super::{config, directory, options};
use crate::config::{Config, Purpose};
use crate::{Run, StopSignal};
use rollout::Speculative;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use telemetry::Step;

/// A configuration of several epochs with repetitive completions.
fn repetitive(dir: &Path, out: &str, speculative: Speculative) -> Config {
    Config {
        speculative,
        temperature: 0.05,
        max_completion_length: 48,
        max_steps: 8,
        logging_steps: 1,
        record_rollouts: true,
        log_completions: true,
        ..config(dir, out)
    }
}

/// Runs `config`, and stops after the step `stop_after` unless it is 0.
fn run(config: Config, stop_after: u64) -> PathBuf {
    let stop = StopSignal::new();
    let request = stop.clone();
    let options = options().stop_signal(stop).on_step(move |step| {
        if step == Step(stop_after) {
            request.request();
        }
        ControlFlow::Continue(())
    });
    Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap().dir.root().to_owned()
}

#[test]
fn keeping_or_losing_drafts_changes_no_bit() {
    let dir = directory();
    let has_metrics = |root: &Path| {
        let text = std::fs::read_to_string(root.join("metrics.jsonl")).unwrap();
        text.contains("\"rollout/spec_decode_draft_acceptance_rate\"")
    };
    let off = run(repetitive(dir.path(), "off", Speculative::Off), 0);
    let expected = files(&off, 8);
    assert!(expected.keys().any(|name| name.ends_with("model.safetensors")) && !has_metrics(&off));
    assert!(!off.join("drafts.bin").exists());
    let auto = run(repetitive(dir.path(), "auto", Speculative::Auto), 0);
    assert!(has_metrics(&auto), "no tokens were drafted");
    let same = |root: &Path, what: &str| {
        let found = files(root, 8);
        let other: Vec<_> = expected.keys().filter(|name| found.get(*name) != expected.get(*name)).collect();
        assert!(other.is_empty() && expected.len() == found.len(), "{what}: {other:?}");
    };
    same(&auto, "auto");
    let kept = std::fs::read(auto.join("drafts.bin")).unwrap();
    let change = |what: &str, root: &Path| {
        let file = root.join("drafts.bin");
        assert!(file.exists(), "{what}");
        match what {
            "kept" => {}
            "lost" => std::fs::remove_file(file).unwrap(),
            // The texts of the finished run, truncated in the middle.
            "others" => std::fs::write(file, &kept[..kept.len() * 2 / 3]).unwrap(),
            _ => std::fs::write(file, b"no words that anybody wrote").unwrap(),
        }
    };
    for (what, step) in [("kept", 4), ("lost", 4), ("others", 5), ("damaged", 3)] {
        let root = run(repetitive(dir.path(), what, Speculative::Auto), step);
        change(what, &root);
        Run::resume(Purpose::Grpo, &root, options()).unwrap().run().unwrap();
        same(&root, what);
        let whole = what != "kept" || std::fs::read(root.join("drafts.bin")).unwrap() == kept;
        assert!(whole, "with the kept file, the resumed run drafts as much as an uninterrupted one");
    }
}
