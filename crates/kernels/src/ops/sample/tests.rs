use super::*;
use crate::check::normal;
use crate::ops::lm_head;
use crate::{Device, Isa, Memory, Tensor};

mod parameters;

pub(super) const PLAIN: RowParams<'static> = RowParams { temperature: 1.0, key: 42, ..RowParams::GREEDY };

/// Parameters that cover every sampling mode.
pub(super) fn kinds() -> Vec<RowParams<'static>> {
    const SEEN: &[u32] = &[3, 5, 5, 17, 600, 2];
    vec![
        PLAIN,
        RowParams { temperature: 0.7, ..PLAIN },
        RowParams { temperature: 0.0, ..PLAIN },
        RowParams { temperature: 0.0, repetition_penalty: 1.3, history: SEEN, ..PLAIN },
        RowParams { top_k: 7, ..PLAIN },
        RowParams { top_p: 0.8, temperature: 1.4, ..PLAIN },
        RowParams { min_p: 0.1, ..PLAIN },
        RowParams { repetition_penalty: 1.8, history: SEEN, ..PLAIN },
        RowParams {
            temperature: 0.9,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.02,
            repetition_penalty: 1.1,
            history: SEEN,
            ..PLAIN
        },
    ]
}

struct Case {
    h: usize,
    v: usize,
    hidden: Vec<f32>,
    weight: Vec<f32>,
}

/// The outputs of a call, one of each per row.
#[derive(Debug, PartialEq)]
struct Samples {
    ids: Vec<u32>,
    logps: Vec<f32>,
    truncated: Vec<f32>,
    lse: Vec<f32>,
    entropies: Vec<f32>,
}

impl Case {
    /// Hidden rows of norm about 3 give peaked distributions in which several tokens are likely.
    fn new(rows: usize, h: usize, v: usize) -> Case {
        let scale = 3.0 / (h as f32).sqrt();
        let hidden = normal::<f32>(1, rows * h).into_iter().map(|x| x * scale).collect();
        Case { h, v, hidden, weight: normal(2, v * h) }
    }
    fn repeated(rows: usize, h: usize, v: usize) -> Case {
        let mut case = Case::new(1, h, v);
        case.hidden = case.hidden.repeat(rows);
        case
    }
    /// Samples from the hidden rows `first..`.
    fn sample(&self, ctx: &Context, first: usize, rows: &[RowParams<'_>]) -> Samples {
        let m = memory();
        let n = rows.len();
        let hidden = Tensor::from_f32(&m, &[n, self.h], &self.hidden[first * self.h..(first + n) * self.h]);
        let weight = Matrix::from_f32(&m, self.v, self.h, &self.weight);
        let mut ids = Tensor::from_u32(&m, &[n], &vec![u32::MAX; n]);
        let column = || Tensor::from_f32(&m, &[n], &vec![f32::NAN; n]);
        let [mut logps, mut truncated, mut lse, mut entropies] = [column(), column(), column(), column()];
        let args = Forward {
            hidden: hidden.view(),
            weight: &weight,
            rows,
            packed: None,
            ids: ids.view_mut(),
            logps: logps.view_mut(),
            truncated_logps: Some(truncated.view_mut()),
            lse: Some(lse.view_mut()),
            entropies: Some(entropies.view_mut()),
        };
        forward(ctx, args).unwrap();
        let [logps, truncated, lse, entropies] = [logps, truncated, lse, entropies].map(|column| column.to_vec_f32());
        Samples { ids: ids.view().to_vec_u32(), logps, truncated, lse, entropies }
    }
    fn logits(&self, row: usize) -> Vec<f64> {
        let hidden = &self.hidden[row * self.h..(row + 1) * self.h];
        let dot = |w: &[f32]| hidden.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
        self.weight.chunks_exact(self.h).map(dot).collect()
    }
    /// Log-probability of `id`, log-sum-exp and entropy of a row, as [`lm_head::forward`] computes them.
    fn scored(&self, ctx: &Context, row: usize, id: u32, inv_temperature: f32) -> [f32; 3] {
        let m = memory();
        let hidden = Tensor::from_f32(&m, &[1, self.h], &self.hidden[row * self.h..(row + 1) * self.h]);
        let weight = Matrix::from_f32(&m, self.v, self.h, &self.weight);
        let targets = Tensor::from_u32(&m, &[1], &[id]);
        let [mut logps, mut lse, mut entropies] = [1; 3].map(|rows| Tensor::zeros(&m, &[rows], DType::F32));
        let args = lm_head::Forward {
            hidden: hidden.view(),
            weight: &weight,
            targets: targets.view(),
            inv_temperature,
            logps: logps.view_mut(),
            lse: lse.view_mut(),
            entropies: Some(entropies.view_mut()),
        };
        lm_head::forward(ctx, args).unwrap();
        [logps, lse, entropies].map(|column| column.to_vec_f32()[0])
    }
}

fn memory() -> Memory {
    Memory::new(Device::Cpu)
}

/// `n` rows that cycle through all kinds, each with a separate counter.
fn mixed(n: usize) -> Vec<RowParams<'static>> {
    let kinds = kinds();
    (0..n).map(|i| RowParams { counter: [i as u32, 1, 2, 3], ..kinds[i % kinds.len()] }).collect()
}

#[test]
fn log_probability_log_sum_exp_and_entropy_have_the_bits_of_lm_head() {
    for v in [5 * 200, 1031, 700] {
        let case = Case::new(40, 19, v);
        let rows = mixed(40);
        for isa in Isa::present() {
            let ctx = Context::cpu(isa, 1);
            let Samples { ids, logps, lse, entropies, .. } = case.sample(&ctx, 0, &rows);
            for (row, params) in rows.iter().enumerate() {
                let beta = if params.temperature == 0.0 { 1.0 } else { (1.0 / params.temperature) as f32 };
                let found = [logps[row], lse[row], entropies[row]].map(f32::to_bits);
                assert_eq!(found, case.scored(&ctx, row, ids[row], beta).map(f32::to_bits), "{isa:?} row {row}");
            }
        }
    }
}

#[test]
fn draws_do_not_depend_on_threads_isa_or_batch() {
    let case = Case::new(40, 19, 1031);
    let rows = mixed(40);
    let all = case.sample(&Context::cpu(Isa::PORTABLE, 1), 0, &rows);
    for isa in Isa::present() {
        for threads in [1, 2, 3] {
            assert_eq!(case.sample(&Context::cpu(isa, threads), 0, &rows), all, "{isa:?} {threads}");
        }
    }
    let ctx = Context::cpu(Isa::best(), 1);
    for row in 0..40 {
        let alone = case.sample(&ctx, row, &rows[row..=row]);
        let only = |column: &[f32]| vec![column[row]];
        let (lse, entropies) = (only(&all.lse), only(&all.entropies));
        let expected = Samples {
            ids: vec![all.ids[row]],
            logps: only(&all.logps),
            truncated: only(&all.truncated),
            lse,
            entropies,
        };
        assert_eq!(alone, expected, "row {row}");
    }
}

/// χ² of draws against a distribution, in standard deviations above its mean. Rare tokens are counted together.
fn chi_square(ids: &[u32], p: &[f64]) -> f64 {
    let n = ids.len() as f64;
    let mut counts = vec![0.0; p.len()];
    for &id in ids {
        counts[id as usize] += 1.0;
    }
    let (mut chi, mut bins, mut rare) = (0.0, 0.0, (0.0, 0.0));
    for (&count, &p) in counts.iter().zip(p) {
        if p * n >= 8.0 {
            chi += (count - p * n).powi(2) / (p * n);
            bins += 1.0;
        } else {
            assert!(p > 0.0 || count == 0.0, "a token with probability 0 was drawn");
            rare = (rare.0 + count, rare.1 + p * n);
        }
    }
    if rare.1 >= 8.0 {
        chi += (rare.0 - rare.1).powi(2) / rare.1;
        bins += 1.0;
    }
    let freedom: f64 = bins - 1.0;
    if freedom < 1.0 { 0.0 } else { (chi - freedom) / (2.0 * freedom).sqrt() }
}

#[test]
fn draws_follow_the_distribution() {
    const N: usize = 6000;
    let case = Case::repeated(N, 6, 1100);
    let ctx = Context::cpu(Isa::best(), 1);
    for kind in kinds() {
        let rows: Vec<_> = (0..N).map(|i| RowParams { counter: [i as u32, 0, 0, 9], ..kind }).collect();
        let Samples { ids, truncated, .. } = case.sample(&ctx, 0, &rows);
        let p = reference::distribution(&case.logits(0), &kind);
        let chi = chi_square(&ids, &p);
        assert!(chi < 5.0, "{kind:?}: {chi} standard deviations");
        for (&id, &logp) in ids.iter().zip(&truncated) {
            assert!((f64::from(logp) - p[id as usize].ln()).abs() < 1e-4, "{kind:?}");
        }
        if kind.temperature > 0.0 {
            // Draws at another temperature must fail the test.
            let other = RowParams { temperature: kind.temperature * 1.5, ..kind };
            let p = reference::distribution(&case.logits(0), &other);
            let possible: Vec<u32> = ids.iter().copied().filter(|&id| p[id as usize] > 0.0).collect();
            assert!(chi_square(&possible, &p) > 8.0, "{kind:?}");
        }
    }
}

#[test]
fn a_token_with_zero_weight_is_never_drawn() {
    let drawn = |weights: &[f32], u: f64| super::inverse::inverse_cdf(weights.iter().copied(), u);
    assert_eq!(drawn(&[0.0, 1.0], 0.0), (1, 0.0));
    assert_eq!(drawn(&[0.0, 1.0, 0.0, 3.0], 0.25), (3, 0.0));
    assert_eq!(drawn(&[1.0, 3.0, 0.0], 0.625), (1, 0.5));
    // Rounding can put `u` at the very end.
    assert_eq!(drawn(&[1.0, 3.0, 0.0], 1.0), (1, 1.0 - f64::EPSILON));
    // If `u` is exactly at the end of a weight, the next token is drawn.
    assert_eq!(drawn(&[1.0, 3.0], 0.25), (1, 0.0));
    assert_eq!(drawn(&[f32::NAN, 1.0], 0.5).0, 1);
    assert_eq!(drawn(&[0.0, 0.0], 0.5).0, 0);
}

#[test]
fn greedy_takes_the_lowest_id_of_equal_logits() {
    let mut case = Case::new(3, 8, 1300);
    let best: Vec<f32> = case.hidden[..8].iter().map(|x| x * 100.0).collect();
    for id in [530, 1250, 700] {
        case.weight[id * 8..(id + 1) * 8].copy_from_slice(&best);
    }
    for isa in Isa::present() {
        let greedy = RowParams { temperature: 0.0, ..PLAIN };
        assert_eq!(case.sample(&Context::cpu(isa, 2), 0, &[greedy]).ids, [530]);
        let penalised = RowParams { repetition_penalty: 1.5, history: &[530], ..greedy };
        assert_eq!(case.sample(&Context::cpu(isa, 2), 0, &[penalised]).ids, [700]);
        let ignored = RowParams { top_k: 3, top_p: 0.5, ..greedy };
        assert_eq!(case.sample(&Context::cpu(isa, 2), 0, &[ignored]).ids, [530]);
    }
}

/// A case with these logits: the hidden size is 1, and every hidden value is 1.
fn case_with_logits(logits: &[f32]) -> Case {
    Case { h: 1, v: logits.len(), hidden: vec![1.0; 400], weight: logits.to_vec() }
}

/// The ids of 400 draws, each with its log-probability in the truncated distribution.
fn drawn(case: &Case, params: RowParams<'_>) -> std::collections::BTreeMap<u32, f32> {
    let rows: Vec<_> = (0..400).map(|i| RowParams { counter: [i, 0, 0, 5], ..params }).collect();
    let Samples { ids, truncated, .. } = case.sample(&Context::cpu(Isa::best(), 1), 0, &rows);
    ids.into_iter().zip(truncated).collect()
}

/// As in transformers' top-k, tokens that tie with the k-th token are kept.
#[test]
fn top_k_keeps_ties_with_the_kth_token() {
    let case = case_with_logits(&[1.0, 3.0, 2.0, 2.0, 0.0, 2.0]);
    let ids = |top_k| drawn(&case, RowParams { top_k, ..PLAIN }).into_keys().collect::<Vec<_>>();
    assert_eq!((ids(1), ids(2), ids(4)), (vec![1], vec![1, 2, 3, 5], vec![1, 2, 3, 5]));
    assert_eq!(ids(5), [0, 1, 2, 3, 5]);
}

/// Both of two equal logits are exactly as likely as the most likely token, so min_p = 1 keeps both.
#[test]
fn min_p_keeps_a_token_exactly_at_the_threshold() {
    let case = case_with_logits(&[2.0, 2.0, 1.0]);
    let drawn = drawn(&case, RowParams { min_p: 1.0, ..PLAIN });
    assert_eq!(drawn.keys().copied().collect::<Vec<_>>(), [0, 1]);
    assert!(drawn.values().all(|logp| (logp + std::f32::consts::LN_2).abs() < 1e-6), "{drawn:?}");
}

/// However often a token occurs in the history, its logit is divided by the penalty (or, below 0, multiplied) once.
#[test]
fn a_repeated_token_is_penalised_once() {
    let case = case_with_logits(&[4.0, -1.0, 0.5]);
    let logps = |history| drawn(&case, RowParams { repetition_penalty: 2.0, history, ..PLAIN });
    let once = logps(&[0, 1]);
    assert_eq!(logps(&[0, 1, 0, 0, 1, 0]), once);
    // The penalty of 2 turns the logits into 4 / 2, −1 × 2 and, outside the history, 0.5.
    let total = (2.0f64.exp() + (-2.0f64).exp() + 0.5f64.exp()).ln();
    for (id, logit) in [(0, 2.0), (1, -2.0), (2, 0.5)] {
        assert!((f64::from(once[&id]) - (logit - total)).abs() < 1e-6, "{id}: {once:?}");
    }
}

/// The nucleus has half of 3,000 tokens, all of them, or a single one.
#[test]
fn top_p_keeps_a_nucleus_of_many_tokens() {
    let case = Case { h: 1, v: 3000, hidden: vec![1.0], weight: vec![0.25; 3000] };
    let ctx = Context::cpu(Isa::best(), 1);
    for (top_p, kept) in [(0.5, 1500.0f64), (0.9999, 3000.0), (1e-9, 1.0)] {
        let Samples { ids, truncated, .. } = case.sample(&ctx, 0, &[RowParams { top_p, ..PLAIN }]);
        assert!((f64::from(truncated[0]) + kept.ln()).abs() < 1e-5, "top_p {top_p}");
        assert!(f64::from(ids[0]) < kept, "top_p must keep the lowest ids of equal logits");
    }
}

/// A case with a single row of these logits.
fn logits(row: &[f32]) -> Case {
    Case { h: 1, v: row.len(), hidden: vec![1.0], weight: row.to_vec() }
}

#[test]
fn greedy_penalises_a_token_seen_twice_once() {
    // 4 / 1.2 is above 3, but 4 / 1.2² is below.
    let seen_twice = RowParams { temperature: 0.0, repetition_penalty: 1.2, history: &[0, 0], ..PLAIN };
    for isa in Isa::present() {
        assert_eq!(logits(&[4.0, 3.0, 1.0]).sample(&Context::cpu(isa, 1), 0, &[seen_twice]).ids, [0]);
    }
}

#[test]
fn top_k_and_min_p_keep_ties() {
    let ctx = Context::cpu(Isa::best(), 1);
    let kept = |row: &[f32], params: RowParams<'_>| -> f64 {
        let Samples { ids, truncated, .. } = logits(row).sample(&ctx, 0, &[params]);
        let below = f64::from(row[0] - row[ids[0] as usize]);
        (-below - f64::from(truncated[0])).exp()
    };
    // Sums of exp(z − max) over the kept tokens.
    let three = 1.0 + 2.0 * (-2.0f64).exp();
    assert!((kept(&[3.0, 1.0, 1.0, 0.0], RowParams { top_k: 2, ..PLAIN }) - three).abs() < 1e-5);
    assert!((kept(&[2.0, 2.0, 1.0], RowParams { min_p: 1.0, ..PLAIN }) - 2.0).abs() < 1e-5);
}

#[test]
fn a_non_finite_row_gets_a_non_finite_log_probability() {
    let mut case = Case::new(9, 8, 700);
    case.hidden.fill(f32::NAN);
    let Samples { ids, logps, .. } = case.sample(&Context::cpu(Isa::best(), 1), 0, &kinds());
    assert!(ids.iter().all(|&id| id < 700) && logps.iter().all(|logp| logp.is_nan()));
}

#[test]
fn the_error_names_an_invalid_sampling_parameter() {
    let message = |params| parameters::says(params).expect("the parameter must be refused");
    assert_eq!(
        message(RowParams { temperature: -1.0, ..PLAIN }),
        "sample::forward: temperature is -1, expected 0 or more"
    );
    assert!(message(RowParams { top_p: 0.0, ..PLAIN }).contains("top_p is 0"));
    assert!(message(RowParams { min_p: 2.0, ..PLAIN }).contains("min_p is 2"));
    assert!(message(RowParams { repetition_penalty: 0.0, ..PLAIN }).contains("repetition_penalty is 0"));
    assert!(message(RowParams { repetition_penalty: 2.0, history: &[10], ..PLAIN }).contains("history[0] is 10"));
}
