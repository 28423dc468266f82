//! Supervised fine-tuning (SFT). The loss is the mean negative log-likelihood of the completions. For whole texts and
//! conversations the mean covers all tokens except the first; masks in the data restrict it to the tokens that they
//! select.

use super::offline::{Loaded, Offline, Row, longest_row};
use crate::bad_input;
use crate::config::{Config, Purpose, SftLoss};
use crate::data::load::INPUT_IDS;
use crate::data::notices;
use crate::data::prompt_dataset::encoder;
use crate::data::{Dataset, DatasetSpec, Learned, LearnedRow};
use crate::error::OrBadInput;
use crate::run::learner::Learner;
use crate::stop::StopSignal;
use kernels::mean::{mean, over};
use model::chat::PromptEncoder;
use model::scoring::Compared;
use model::{Head, ModelAssets, Prompt, PromptSet, Scorer};
use telemetry::{Sinks, counted};
use train::loss::dft;
use train::{Objective, Sample};

/// The training method SFT.
pub struct Sft;

impl Offline for Sft {
    type Row = Sample;
    const PURPOSE: Purpose = Purpose::Sft;
    const HEAD: Head = Head::Lm;
    const EVALUATION_METRICS: &'static [&'static str] = &["loss", "entropy", "mean_token_accuracy"];
    const SHOWN_METRICS: &'static [&'static str] = &["loss", "grad_norm"];

    fn objective(config: &Config) -> Objective {
        match config.sft_loss_type {
            SftLoss::Nll => Objective::Supervised,
            SftLoss::Dft => Objective::Dft,
        }
    }

    fn load(
        config: &Config,
        mut spec: DatasetSpec,
        assets: &ModelAssets,
        sinks: &Sinks,
    ) -> anyhow::Result<Loaded<Sample>> {
        (spec.needs_completion, spec.whole_texts) = (true, true);
        let data = spec.load()?;
        let encoder = encoder(config, assets)?;
        notices::count_conversations(&encoder, &data, &spec.stop)?.report(sinks);
        let most = longest_row(config, assets);
        let learned =
            Learned { completion_only: config.completion_only_loss, assistant_only: config.assistant_only_loss };
        let rows = learned_rows(learned, &encoder, &data, (most, config.max_prompt_length), &spec.stop)?;
        kept(rows, data, (most, config.max_prompt_length), sinks)
    }

    /// Loss, entropy and token accuracy (how often the next token is the most likely one) of held-out rows. The metrics
    /// are means over the tokens of all rows, or, if `per_device_eval_batch_size` is set, averages of the means of each
    /// batch. A batch without a token in the loss is skipped.
    fn evaluate(
        config: &Config,
        learner: &Learner,
        scorer: &mut Scorer,
        rows: &[Sample],
    ) -> anyhow::Result<Vec<(String, f64)>> {
        let compared = scorer.compare(&learner.ctx, &learner.policy.weights, &Sample::sequences(rows))?;
        let batch = config.per_device_eval_batch_size.unwrap_or(rows.len()).max(1);
        let batches = compared.chunks(batch).zip(rows.chunks(batch));
        let batches: Vec<(usize, Sums)> =
            batches.map(|(compared, rows)| (rows.len(), Sums::of(config.sft_loss_type, compared, rows))).collect();
        Ok(means_of(&batches))
    }
}

/// The metrics of held-out batches, each with its number of rows. As in TRL, the loss is averaged by rows, and the
/// other metrics by batches.
fn means_of(batches: &[(usize, Sums)]) -> Vec<(String, f64)> {
    let learned = || batches.iter().filter(|(_, sums)| sums.tokens > 0);
    let rows = learned().map(|(rows, _)| rows).sum::<usize>() as f64;
    let mean_of = |of: fn(&Sums) -> f64| mean(learned().filter_map(|(_, sums)| sums.mean(of(sums))));
    let loss = || learned().filter_map(|(own, sums)| Some(sums.mean(sums.loss)? * (*own as f64 / rows))).sum();
    let metrics = [
        ("loss", (rows > 0.0).then(loss)),
        ("entropy", mean_of(|sums| sums.entropy)),
        ("mean_token_accuracy", mean_of(|sums| sums.right)),
    ];
    metrics.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Sums over the tokens of a held-out batch that count in the loss.
#[derive(Default)]
struct Sums {
    loss: f64,
    entropy: f64,
    /// Tokens that were the model's most likely choice.
    right: f64,
    tokens: usize,
}

impl Sums {
    fn of(kind: SftLoss, compared: &[Compared], rows: &[Sample]) -> Sums {
        let mut sums = Sums::default();
        for (one, row) in compared.iter().zip(rows) {
            for t in (0..row.loss_mask.len()).filter(|&t| row.loss_mask[t]) {
                let logp = f64::from(one.scores.logps[t]);
                sums.loss += match kind {
                    SftLoss::Nll => -logp,
                    SftLoss::Dft => dft::term(logp),
                };
                sums.entropy += f64::from(one.scores.entropies[t]);
                sums.right += f64::from(u8::from(one.is_likeliest[t]));
                sums.tokens += 1;
            }
        }
        sums
    }

    fn mean(&self, sum: f64) -> Option<f64> {
        over(sum, self.tokens as u64)
    }
}

/// Rows of a dataset as samples, with counts of skipped and unusual rows.
#[derive(Default)]
struct Rows {
    samples: Vec<Sample>,
    /// True if every token of every row counts in the loss.
    whole: bool,
    /// Skipped rows that are too long.
    left_out: usize,
    /// Skipped rows whose prompt is too long.
    long_prompts: usize,
    /// Skipped rows without a token in the loss.
    empty: usize,
    /// Rows whose prompt ends with different tokens when the completion follows.
    prompts_differ: usize,
    /// Rows with a `completion_mask` that has no effect.
    masks_left_out: usize,
}

/// Converts rows to samples. All tokens before the first one in the loss become the prompt. `most` limits the tokens of
/// a row, and of its prompt.
fn learned_rows(
    learned: Learned,
    encoder: &PromptEncoder<'_>,
    data: &Dataset,
    (most, most_of_prompt): (usize, Option<usize>),
    stop: &StopSignal,
) -> anyhow::Result<Rows> {
    let (mut rows, mut prompts) = (Rows { whole: true, ..Rows::default() }, PromptSet::default());
    let have_completions = data.examples.iter().any(|example| example.completion.is_some());
    for example in &data.examples {
        stop.check()?;
        if encoder.tokenizer.is_beyond(example.bytes(), most) {
            rows.left_out += 1;
            continue;
        }
        let place = || format!("{}, row {}", data.name, example.row + 1);
        if have_completions && example.completion.is_none() && !example.columns.contains_key(INPUT_IDS) {
            bad_input!(
                "{}: the row has no completion, but other rows have one: use either a prompt and a completion in each \
                 row, or one text or conversation in each row",
                place()
            );
        }
        let row = learned.tokens(encoder, example).or_bad_input_in(place())?;
        let LearnedRow { mut ids, learned: mut mask, prompt, prompt_differs } = row;
        if prompt.zip(most_of_prompt).is_some_and(|(prompt, most)| prompt > most) {
            rows.long_prompts += 1;
            continue;
        }
        if ids.len() > most {
            rows.left_out += 1;
            continue;
        }
        rows.whole &= mask.iter().all(|&learned| learned);
        if let Some(first) = mask.first_mut() {
            *first = false;
        }
        let Some(first) = mask.iter().position(|&learned| learned) else {
            rows.empty += 1;
            continue;
        };
        rows.prompts_differ += usize::from(prompt_differs);
        rows.masks_left_out += usize::from(learned.leaves_out_completion_mask(&example.columns));
        let completion = ids.split_off(first);
        let before = Prompt::new(ids);
        // A conversation must have the same bits as a whole and as a prompt with a completion, so neither shares a
        // prompt.
        let is_shared = prompt == Some(first) && !learned.assistant_only;
        let prompt = if is_shared { prompts.share(before) } else { before };
        rows.samples.push(Sample { loss_mask: mask.split_off(first), ..Sample::supervised(prompt, completion) });
    }
    Ok(rows)
}

/// Logs the numbers of skipped and unusual rows, and returns the samples.
fn kept(
    rows: Rows,
    data: Dataset,
    (most, most_of_prompt): (usize, Option<usize>),
    sinks: &Sinks,
) -> anyhow::Result<Loaded<Sample>> {
    let name = &data.name;
    if rows.left_out > 0 {
        let left_out = counted(rows.left_out, "row");
        sinks.info(&format!("{name}: left out: {left_out} longer than {most} tokens (max_length)"));
    }
    if let Some(most) = most_of_prompt.filter(|_| rows.long_prompts > 0) {
        let left_out = counted(rows.long_prompts, "row");
        sinks.info(&format!(
            "{name}: left out: {left_out} with a prompt of more than {most} tokens (max_prompt_length)"
        ));
    }
    if rows.empty > 0 {
        sinks.info(&format!("{name}: left out: {} without a token to learn", counted(rows.empty, "row")));
    }
    if rows.prompts_differ > 0 {
        sinks.info(&format!(
            "{name}: {}: the prompt's last tokens differ with and without its completion (a token spans the boundary, \
             or the chat template renders it differently). As in TRL, the completion begins where the tokens differ",
            counted(rows.prompts_differ, "row")
        ));
    }
    if rows.masks_left_out > 0 {
        sinks.warn(&format!(
            "{name}: {}: `completion_mask` is ignored and all tokens are learned, as in TRL if rows have no `prompt` \
             and `completion`: set completion_only_loss = true to learn only the marked tokens",
            counted(rows.masks_left_out, "row")
        ));
    }
    if rows.samples.is_empty() && rows.empty > 0 {
        bad_input!("{name}: no row has a token to learn");
    }
    if let (true, 0, Some(most)) = (rows.samples.is_empty(), rows.left_out, most_of_prompt) {
        bad_input!("{name}: every prompt has more than max_prompt_length = {most} tokens: raise max_prompt_length");
    }
    if rows.samples.is_empty() {
        bad_input!("{name}: every row is longer than max_length = {most}: raise max_length");
    }
    Ok(Loaded { rows: rows.samples, hash: data.hash, whole: rows.whole })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ComputeDType;
    use crate::models::load_assets;
    use crate::verify::tests::directory;
    use model::chat::PromptTime;
    use model::net::Scores;
    use std::sync::{Arc, Mutex};
    use telemetry::{Event, EventKind, Sink};

    /// All numbers are exact in binary, and all sums differ.
    #[test]
    fn metrics_sum_only_the_tokens_that_count() {
        let compared = |logps: &[f32], entropies: &[f32], is_likeliest: &[bool]| Compared {
            scores: Scores { logps: logps.to_vec(), entropies: entropies.to_vec() },
            is_likeliest: is_likeliest.to_vec(),
            mean_logits: vec![0.0; logps.len()],
        };
        let row = |mask: &[bool]| Sample {
            loss_mask: mask.to_vec(),
            ..Sample::supervised(Prompt::new([1]), vec![2; mask.len()])
        };
        let both = [
            compared(&[-0.5, -8.0, -1.0], &[0.25, 16.0, 0.5], &[true, true, false]),
            compared(&[-0.25, -64.0], &[2.0, 32.0], &[true, false]),
        ];
        let rows = [row(&[true, false, true]), row(&[true, false])];
        let sums = Sums::of(SftLoss::Nll, &both, &rows);
        assert_eq!((sums.loss, sums.entropy, sums.right, sums.tokens), (1.75, 2.75, 2.0, 3));
        assert_eq!((sums.mean(sums.loss), sums.mean(sums.right)), (Some(1.75 / 3.0), Some(2.0 / 3.0)));
        let dft = Sums::of(SftLoss::Dft, &both, &rows);
        assert_eq!(dft.loss, dft::term(-0.5) + dft::term(-1.0) + dft::term(-0.25));
        assert_eq!((dft.entropy, dft.right, dft.tokens), (2.75, 2.0, 3));
        let none = Sums::of(SftLoss::Nll, &both[1..], &[row(&[false, false])]);
        assert_eq!((none.tokens, none.mean(none.loss), none.mean(3.0)), (0, None, None));
        // A batch without tokens does not affect a mean. Without any other batch, the mean is missing.
        let named = |batches: &[(usize, Sums)]| -> Vec<f64> { means_of(batches).into_iter().map(|(_, x)| x).collect() };
        let other = || Sums { loss: 3.0, entropy: 1.0, right: 1.0, tokens: 2 };
        assert_eq!(named(&[(1, none), (3, other())]), named(&[(3, other())]));
        assert_eq!(named(&[(3, other())]), [1.5, 0.5, 0.5]);
        assert_eq!(named(&[(1, other()), (3, Sums { loss: 1.0, tokens: 1, ..Sums::default() })]), [1.125, 0.25, 0.25]);
        assert!(named(&[(2, Sums::default())]).is_empty() && named(&[]).is_empty());
    }

    /// A sink that keeps the messages as strings.
    struct Messages(Arc<Mutex<Vec<String>>>);

    impl Sink for Messages {
        fn receive(&mut self, event: &Event) -> telemetry::Result<()> {
            if let EventKind::Message { text, .. } = &event.kind {
                self.0.lock().unwrap().push(text.clone());
            }
            Ok(())
        }
    }

    /// Rows of token ids with their labels, as they are learned. Messages and errors name the file as FILE.
    fn loaded(rows: &[(&[u32], &[i64])]) -> (Result<Loaded<Sample>, String>, Vec<String>) {
        let dir = directory();
        let path = dir.path().join("rows.jsonl").display().to_string();
        let row = |(ids, labels): &(&[u32], &[i64])| format!("{{\"input_ids\": {ids:?}, \"labels\": {labels:?}}}\n");
        std::fs::write(&path, rows.iter().map(row).collect::<String>()).unwrap();
        let config = Config { dataset_name: Some(path.clone()), max_length: Some(3), ..Config::default() };
        let assets = load_assets(&dir.path().join("model"), Head::Lm, ComputeDType::F32, PromptTime(0)).unwrap();
        let (messages, sinks) = (Arc::new(Mutex::new(Vec::new())), Sinks::new());
        sinks.add(Messages(messages.clone()));
        let loaded = Sft::load(&config, DatasetSpec::train(&config).unwrap(), &assets, &sinks);
        let messages = messages.lock().unwrap().iter().map(|text| text.replace(&path, "FILE")).collect();
        (loaded.map_err(|error| error.to_string().replace(&path, "FILE")), messages)
    }

    #[test]
    fn tokens_before_the_first_learned_token_become_the_prompt() {
        let (found, messages) = loaded(&[
            (&[5, 6, 7], &[-100, 6, 7]),
            (&[5, 6, 7], &[-100, -100, 7]),
            (&[5, 6, 7], &[-100, 6, -100]),
            (&[5, 6], &[5, 6]),
            (&[5, 6, 7, 8], &[5, 6, 7, 8]),
            (&[5, 6], &[-100, -100]),
            (&[8, 9], &[8, -100]),
        ]);
        let found = found.unwrap();
        let of = |row: &Sample| (row.prompt.ids.clone(), row.completion.clone(), row.loss_mask.clone());
        let expected = [
            (vec![5], vec![6, 7], vec![true, true]),
            (vec![5, 6], vec![7], vec![true]),
            (vec![5], vec![6, 7], vec![true, false]),
            (vec![5], vec![6], vec![true]),
        ];
        assert_eq!(found.rows.iter().map(of).collect::<Vec<_>>(), expected);
        assert!(!found.whole, "not every token counts");
        let left_out = "FILE: left out: 1 row longer than 3 tokens (max_length)";
        assert_eq!(messages, [left_out, "FILE: left out: 2 rows without a token to learn"]);
        let (found, messages) = loaded(&[(&[5, 6, 7], &[5, 6, 7]), (&[8, 9], &[8, 9])]);
        assert!(found.unwrap().whole && messages.is_empty());

        let refused = |rows: &[(&[u32], &[i64])]| loaded(rows).0.err().expect("refused");
        assert_eq!(refused(&[(&[5, 6], &[5, -100])]), "FILE: no row has a token to learn");
        let long: (&[u32], &[i64]) = (&[5, 6, 7, 8], &[5, 6, 7, 8]);
        assert_eq!(refused(&[long, long]), "FILE: every row is longer than max_length = 3: raise max_length");
        // A row of one token cannot be learned. TRL keeps such a row, which does not change the loss.
        assert_eq!(loaded(&[(&[5, 6], &[5, 6]), (&[5], &[5])]).0.unwrap().rows.len(), 1);
        assert_eq!(refused(&[(&[5], &[5])]), "FILE: no row has a token to learn");
    }
}
