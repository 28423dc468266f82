//! A rank other than 0: generates the groups of jobs with an engine of its own and the weights that rank 0 shares.

use super::protocol::{Division, Reply, Request, bytes, numbers, text, value};
use crate::rollouts::jobs::{GroupAnswer, GroupJob};
use anyhow::Context as _;
use model::kept::RolloutActivations;
use model::{ModelView, Tokenizer};
use rollout::Engine;
use std::path::PathBuf;
use std::sync::Arc;
use train::{OtherWork, RankModel, SendReply};

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

impl OtherWork for RankEngine {
    fn work(
        &mut self,
        model: RankModel<'_>,
        request: &str,
        sent: &[u32],
        reply: &SendReply<'_>,
    ) -> train::Result<(String, Vec<u32>)> {
        let done = self.answer(model, request, sent, reply);
        done.map(|reply| (text(&reply), Vec::new())).map_err(|error| train::Error::Rank(format!("{error:#}")))
    }
}

impl RankEngine {
    /// Does the work of a request, and returns its last reply.
    fn answer(
        &mut self,
        model: RankModel<'_>,
        request: &str,
        sent: &[u32],
        reply: &SendReply<'_>,
    ) -> anyhow::Result<Reply> {
        match value(request)? {
            Request::Build { sizes, division: Division { tokenizer, kept_rows, most_rows, .. } } => {
                let (memory, rows) = (model.ctx.memory(), sizes.rows());
                if kept_rows > 0 {
                    let activations = RolloutActivations::new(memory, model.config, kept_rows, rows, most_rows);
                    *model.activations = Some(activations);
                }
                let engine = Engine::new(model.ctx, model.config, sizes)?;
                self.0 = Some(Built { engine, tokenizer: Some(tokenizer), kept: None });
                Ok(Reply::Ready)
            }
            Request::Generate { number, jobs, keeps } => {
                let built = self.0.as_mut().context("generation was requested before an engine")?;
                let weights = model.weights.context("generation was requested before the weights were shared")?;
                let jobs = bytes(sent, &jobs)?;
                let jobs = jobs.iter().map(|job| GroupJob::from_bytes(job)).collect::<Result<Vec<_>, _>>()?;
                let activations = model.activations.clone().filter(|_| keeps.is_some());
                built.keep(activations.clone(), keeps);
                built.generate(weights, &jobs, &|answer| {
                    let kept = activations.as_ref().is_some_and(|kept| kept.lock().has(answer.group.group));
                    let answer = answer.to_bytes();
                    reply(text(&Reply::Group { number, bytes: answer.len(), kept }), numbers(&answer))
                })?;
                Ok(Reply::Done { number })
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
