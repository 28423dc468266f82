//! A rank other than 0: generates the groups of jobs with an engine of its own and the weights that rank 0 shares.

use super::protocol::{Division, Reply, Request, bytes, numbers, texts};
use crate::rollouts::jobs::{GroupAnswer, GroupJob};
use anyhow::Context as _;
use model::kept::RolloutActivations;
use model::{ModelView, Tokenizer};
use ranks::Message;
use rollout::Engine;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use train::{RankModel, SendReply};

/// The engine of a rank; none before rank 0 asks for it.
#[derive(Default)]
pub struct RankEngine(Option<Built>);

struct Built {
    engine: Engine,
    /// The directory of the tokenizer, until the tokenizer is loaded.
    tokenizer: Option<PathBuf>,
    /// The generation of rank 0 to which the kept activations belong.
    kept: Option<u64>,
}

impl RankEngine {
    /// Does the work of a request, and returns its last reply. `note` writes to the rank's log.
    pub fn work(
        &mut self,
        model: RankModel<'_>,
        request: &Message,
        reply: &SendReply<'_>,
        note: &dyn Fn(&str),
    ) -> anyhow::Result<Message> {
        let (sent, start) = (&request.numbers, Instant::now());
        match request.value()? {
            Request::Build { sizes, division: Division { tokenizer, kept_rows, most_rows, .. }, drafts } => {
                let (memory, rows) = (model.ctx.memory(), sizes.rows());
                if kept_rows > 0 {
                    let activations = RolloutActivations::new(memory, model.config, kept_rows, rows, most_rows);
                    *model.activations = Some(activations);
                }
                note(&format!(
                    "generation: up to {} sequences, {} KV blocks, {kept_rows} tokens with kept activations",
                    sizes.max_num_seqs, sizes.kv_blocks
                ));
                let mut engine = Engine::new(model.ctx, model.config, sizes)?;
                engine.restore_drafts(&bytes(sent, &[drafts])?[0]);
                self.0 = Some(Built { engine, tokenizer: Some(tokenizer), kept: None });
                Ok(Message::json(&Reply::Ready, Vec::new())?)
            }
            Request::Generate { number, jobs, texts: text_bytes, keeps } => {
                let built = self.0.as_mut().context("generation was requested before an engine")?;
                let weights = model.weights.context("generation was requested before the weights were shared")?;
                let mut parts = bytes(sent, &[jobs, vec![text_bytes]].concat())?;
                let others = parts.pop().map_or(Vec::new(), |bytes| numbers(&bytes));
                for (prompt, completion) in texts(&others) {
                    built.engine.remember(prompt, std::iter::once(completion));
                }
                let before = built.engine.counters();
                let jobs = parts.iter().map(|job| GroupJob::from_bytes(job)).collect::<Result<Vec<_>, _>>()?;
                let activations = model.activations.clone().filter(|_| keeps.is_some());
                built.keep(activations.clone(), keeps);
                built.generate(weights, &jobs, &|answer| {
                    let kept = activations.as_ref().is_some_and(|kept| kept.lock().has(answer.group.group));
                    let answer = answer.to_bytes();
                    let group = Reply::Group { number, bytes: answer.len(), kept };
                    reply(Message::json(&group, numbers(&answer))?)
                })?;
                let counters = built.engine.counters() - before;
                let (groups, tokens, seconds) = (jobs.len(), counters.computed_tokens, start.elapsed().as_secs_f64());
                note(&format!("generation {number}: {groups} groups, {tokens} computed tokens in {seconds:.3} s"));
                Ok(Message::json(&Reply::Done { number, counters }, Vec::new())?)
            }
        }
    }
}

impl Built {
    /// Keeps the `activations` of the next groups, which belong to the generation `of` of rank 0.
    fn keep(&mut self, activations: Option<RolloutActivations>, of: Option<u64>) {
        if let Some(activations) = activations.as_ref().filter(|_| self.kept != of) {
            activations.lock().clear();
            self.kept = of;
        }
        self.engine.keep_activations(activations);
    }

    /// Generates the groups of `jobs`, and passes each one to `send` as soon as it is complete.
    fn generate(
        &mut self,
        weights: ModelView<'_>,
        jobs: &[GroupJob],
        send: &dyn Fn(&GroupAnswer) -> train::Result<()>,
    ) -> anyhow::Result<()> {
        if jobs.iter().any(|job| !job.sampling.stop_strings.is_empty())
            && let Some(dir) = self.tokenizer.take()
        {
            self.engine.set_detokenizer(Arc::new(Tokenizer::load(&dir)?));
        }
        let requests = jobs.iter().map(|job| job.request(None)).collect();
        let mut sent = Ok(());
        self.engine.generate_with(weights, requests, |group| {
            let answer = GroupAnswer { group: group.clone(), scores: Vec::new(), rollout_s: 0.0 };
            if sent.is_ok() {
                sent = send(&answer);
            }
        })?;
        Ok(sent?)
    }
}
