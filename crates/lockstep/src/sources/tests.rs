//! A custom source of batches: an environment that writes the completions itself. This file alone adds the source; the
//! rest of the run is unchanged.

use super::*;
use crate::config::Purpose;
use crate::rollouts::{ScoredCompletion, ScoredGroup};
use crate::session::tests::{config, directory, one_thread, rows};
use crate::{Flow, Run, RunOptions, StopReason};
use model::Columns;
use model::columns::SAMPLER_LOGPS;
use rollout::{Completion, FinishReason};
use std::cell::RefCell;
use std::rc::Rc;

/// The id of the rewarded token.
const GOOD: u32 = 7;

/// The calls that the environment received.
#[derive(Default)]
struct Seen {
    /// The first group of each batch.
    batches: Vec<u64>,
    /// Optimizer steps, and whether each was the last on its batch.
    steps: Vec<(u64, bool)>,
    ended: bool,
}

/// Completes each prompt once with the good token and once with another.
struct Environment {
    seen: Rc<RefCell<Seen>>,
}

impl Environment {
    fn completion(generation: usize) -> ScoredCompletion {
        let ids = vec![if generation == 0 { GOOD } else { 9 }; 3];
        let completion = Completion {
            generation,
            sampled: vec![true; ids.len()],
            versions: vec![model::Updates(0); ids.len()],
            columns: Columns::of([(SAMPLER_LOGPS, vec![-3.0; ids.len()])]),
            finish_reason: FinishReason::Stop,
            ids,
        };
        let rewards = vec![Some(if generation == 0 { 1.0 } else { 0.0 })];
        ScoredCompletion { completion, content: "c".into(), rewards, steps: Vec::new(), extra: Default::default() }
    }
}

impl BatchSource for Environment {
    fn next(&mut self, next: &mut SourceState, data: &mut Sampler, _now: &Now<'_>) -> anyhow::Result<Batch> {
        self.seen.borrow_mut().batches.push(next.next_group.0);
        let group = |(group, row): (GroupId, usize)| ScoredGroup {
            group,
            prompt: Arc::new(Prompt {
                row,
                tokens: model::Prompt::new([row as u32 + 1]),
                content: "p".into(),
                columns: Default::default(),
            }),
            completions: (0..2).map(Environment::completion).collect(),
            problems: Vec::new(),
            lineage: None,
        };
        let groups: Vec<ScoredGroup> = next.next_group.and_after().zip(data.next_batch()).map(group).collect();
        next.next_group = next.next_group.after(groups.len());
        let rollouts = Rollouts { groups, reward_names: vec!["good".into()], reward_weights: vec![1.0] };
        Ok(Batch::Recorded(rollouts))
    }

    fn advance(&mut self, _at: &SourceState, step: StepDone<'_>) -> anyhow::Result<()> {
        self.seen.borrow_mut().steps.push((step.step.0, step.ends_batch));
        Ok(())
    }

    fn collector(&mut self) -> Option<&mut dyn Collect> {
        None
    }

    fn restore(&mut self, saved: SavedState<'_>, _checkpoint: &Path) -> anyhow::Result<SourceState> {
        Ok(SourceState { next_group: saved.next_group, ..SourceState::default() })
    }

    fn end(&self) -> anyhow::Result<()> {
        self.seen.borrow_mut().ended = true;
        Ok(())
    }
}

/// A run trains on this source, and after a stop in the middle of a batch it ends with the same weights.
#[test]
fn a_run_trains_on_a_custom_source() {
    let dir = directory();
    let seen = Rc::new(RefCell::new(Seen::default()));
    let options = || {
        let seen = seen.clone();
        let options = RunOptions::new().context(one_thread()).train_rows(rows()).reward("good", |_| None);
        options.wrap_source(move |_| Box::new(Environment { seen }))
    };
    let small = |out: &str| Config { num_iterations: 2, max_steps: 4, save_steps: 1, ..config(dir.path(), out) };
    let whole = Run::new(Purpose::Grpo, small("whole"), options()).unwrap().run().unwrap();
    assert_eq!(whole.step, Step(4));
    let metric = |name: &str| whole.metrics.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
    assert_eq!(metric("reward"), Some(0.5));
    {
        let seen = seen.take();
        assert_eq!(seen.batches, [0, 2]);
        assert_eq!(seen.steps, [(1, false), (2, true), (3, false), (4, true)]);
        assert!(seen.ended);
    }
    let stops = options().on_step(|step| if step == Step(3) { Flow::Break(()) } else { Flow::Continue(()) });
    let cut = Run::new(Purpose::Grpo, small("cut"), stops).unwrap().run().unwrap();
    assert_eq!((cut.step.0, cut.stop_reason), (3, StopReason::Requested));
    let resumed = Run::resume(Purpose::Grpo, cut.dir.root(), options()).unwrap().run().unwrap();
    assert_eq!(resumed.step, Step(4));
    assert_eq!(seen.borrow().batches, [0, 2], "the checkpoint contains the current batch");
    let weights = |root: &Path| std::fs::read(root.join("model/model.safetensors")).unwrap();
    assert!(weights(whole.dir.root()) == weights(resumed.dir.root()));
    assert!(weights(whole.dir.root()) != std::fs::read(dir.path().join("model/model.safetensors")).unwrap());
}
