//! Tests of the copies between the host and a device. The checked device counts all of them.

use crate::*;
use kernels::Copies;

const VOCAB: usize = 97;
const SEQUENCES: usize = 6;
const LAYERS: usize = 2;

fn sampling() -> SamplingParams {
    SamplingParams { max_new_tokens: 12, seed: 5, ..SamplingParams::default() }
}

/// A configuration with fewer slots than the first step has draws, so that the sampler is called several times.
fn config() -> EngineConfig {
    EngineConfig { max_num_seqs: 4, ..roomy(64) }
}

fn generated(ctx: &Context, narrow: bool) -> Vec<(Vec<u32>, Vec<u32>)> {
    let wide = qwen3(ctx, 24, 2, VOCAB);
    let weights = if narrow { in_bf16(ctx, &wide) } else { wide };
    let prompts = [prompt(VOCAB, 0, 5), prompt(VOCAB, 1, 9)];
    let mut engine = poisoned(ctx, &weights, config());
    bits(&engine.generate(&weights, requests(&prompts, SEQUENCES, sampling())).unwrap())
}

#[test]
fn the_checked_device_reproduces_the_bits_of_the_cpu() {
    for isa in [Isa::best(), Isa::AMX_EMULATED] {
        for narrow in [false, true] {
            let [here, behind_handles] =
                [Context::cpu(isa, 2), Context::cpu_checked(isa, 2)].map(|ctx| generated(&ctx, narrow));
            assert_eq!(here.len(), 2 * SEQUENCES);
            assert!(here == behind_handles, "{isa:?} {narrow}");
        }
    }
}

#[test]
fn a_decode_step_makes_one_copy_in_each_direction() {
    let ctx = Context::cpu_checked(Isa::best(), 1);
    let weights = qwen3(&ctx, 24, 2, VOCAB);
    let mut engine = poisoned(&ctx, &weights, config());
    for request in requests(&[prompt(VOCAB, 0, 5)], 4, sampling()) {
        engine.submit(request).unwrap();
    }
    let mut steps = 0;
    while !engine.is_idle() {
        let before = ctx.memory().copies();
        engine.step(&weights).unwrap();
        let Copies { to_device, to_device_bytes, to_host, to_host_bytes, .. } = ctx.memory().copies() - before;
        assert_eq!((to_device, to_host), (1, 1), "step {steps}");
        if steps > 0 {
            // Per sequence, the step copies a token, a position, a table, two words for its write, the row to sample
            // from and one page to the device, and a token with its log-probability, log-sum-exp and entropy to the
            // host.
            assert_eq!((to_device_bytes, to_host_bytes), (4 * 4 * 7, 4 * 4 * 4), "step {steps}");
        }
        steps += 1;
    }
    assert_eq!(steps, 12);
}

/// The counts also hold for draws with truncation and a penalty, since their parameters are part of the step's one
/// copy.
#[test]
fn a_decode_step_on_emulated_cuda_has_one_wait_and_one_launch_per_operation() {
    let Some(ctx) = emulated() else { return };
    let weights = qwen3(&ctx, 24, LAYERS, VOCAB);
    // Kernel launches of a layer: norm; q, k and v; their norms; rope; the write to pages; attention; its matmul. Then
    // norm; gate and up; their activation; down.
    const LAYER: u64 = 7 + 4;
    // Other launches: embedding and final norm; the rows to sample from, their logits, statistics, and the draw.
    const OTHERS: u64 = 2 + 4;
    let (prompt_len, sequences) = (5, 4);
    let truncated = SamplingParams { top_k: 20, top_p: 0.9, repetition_penalty: 1.2, ..sampling() };
    for (sampling, penalised) in [(sampling(), 0), (truncated, 1)] {
        let mut engine = poisoned(&ctx, &weights, config());
        for request in requests(&[prompt(VOCAB, 0, prompt_len)], sequences, sampling) {
            engine.submit(request).unwrap();
        }
        let mut steps = 0;
        while !engine.is_idle() {
            let before = ctx.memory().copies();
            engine.step(&weights).unwrap();
            let made = ctx.memory().copies() - before;
            // When the completions begin, each one gets a copy of the prompt's last page.
            let pages = if steps == 1 { (sequences * LAYERS) as u64 } else { 0 };
            // The rows are as on the checked device. The parameters of a draw are 12 words and the penalised tokens.
            let rows = if steps == 0 { 3 * 5 + 2 * 5 + 1 + 4 } else { 7 * sequences };
            let draws = sequences * (12 + penalised * (prompt_len + steps));
            let expected = Copies {
                to_device: 1,
                to_device_bytes: 4 * (rows + draws) as u64,
                to_host: 1,
                to_host_bytes: 4 * 4 * sequences as u64,
                launches: LAYERS as u64 * LAYER + OTHERS + penalised as u64 + pages,
                waits: 1,
            };
            assert_eq!(made, expected, "step {steps}");
            steps += 1;
        }
        assert_eq!(steps, 12);
    }
}
