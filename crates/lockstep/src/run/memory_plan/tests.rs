use super::*;
use crate::config::Config;
use crate::stop::StopSignal;
use kernels::{DType, Tensor};
use std::path::Path;
use telemetry::Sinks;

/// A model whose embedding is much the largest tensor. Only its shape is looked at.
const SHAPE: &str = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 100000,
"hidden_size": 1024, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
"num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": true, "attention_bias": false, "bos_token_id": null, "eos_token_id": 0}"#;

const LONGEST: Longest = Longest { prompt: 5, completion: 7 };
/// Bytes of three threads.
const THREADS: u64 = 3 * (2 << 20) + (4 << 20);

fn part(name: &str, bytes: u64) -> Part {
    Part::of_host(name, bytes)
}

/// A plan of these tensors for three threads.
fn plan(tensors: &[(&str, u64)], checkpoint: Option<&Path>, counted: Counted) -> MemoryPlan {
    let config = Config { threads: Some(3), ..Config::default() };
    let (sinks, stop) = (Sinks::new(), StopSignal::new());
    let builder = Builder::new(&Context::meta(), &config, checkpoint, &sinks, &stop);
    let tensors = tensors.iter().map(|(name, bytes)| part(name, *bytes)).collect();
    MemoryPlan::of(&builder, &ModelConfig::parse(SHAPE).unwrap(), LONGEST, tensors, counted).unwrap()
}

fn bytes(plan: &MemoryPlan, name: &str) -> Option<u64> {
    plan.parts.iter().find(|part| part.name == name).map(|part| part.bytes)
}

#[test]
fn what_no_tensor_accounts_for() {
    // The embedding of f32: 4 bytes for each element in the file beside its parameter, and 8 on a device.
    let embedding = 4 * 100_000 * 1024;
    let reading = ModelConfig::parse(SHAPE).unwrap().reading_bytes() as u64;
    assert!((embedding / 2..=embedding).contains(&reading));
    let of = plan(&[("weights", 1000)], None, Counted::default());
    assert_eq!(bytes(&of, "threads"), Some(THREADS));
    assert_eq!(bytes(&of, "program, tokenizer, data"), Some(of.resident));
    assert!(of.resident > 0 && of.parts.len() == 4 && of.longest == LONGEST && of.device_total.is_none());
    assert_eq!(bytes(&of, READING), Some(reading - THREADS));
    assert_eq!(of.total, 1000 + reading + of.resident);
    assert_eq!((of.needed(), of.read), (1000 + reading, 2 * embedding));
    // Of memory that is untouched until then it takes nothing more.
    let later =
        [("training: gradients", 3), ("training: activations", 5), ("workspace", 7), ("generation: kv cache", 11)];
    let optimizer = [("training: optimizer", 100), ("training: weights", 1000)];
    let fresh = plan(&[&later[..], &optimizer].concat(), None, Counted::default());
    assert_eq!(bytes(&fresh, READING), Some(reading - THREADS - 126));
    // The moments are read when all weights are there, from the file of one tensor.
    let resumed = plan(&[&later[..], &optimizer].concat(), Some(Path::new("c")), Counted::default());
    assert_eq!(bytes(&resumed, READING), Some(embedding - THREADS - 26));
    let much = plan(&[("gradients", 1 << 40)], None, Counted::default());
    assert_eq!(bytes(&much, READING), Some(0));
    // Texts from which draft tokens are guessed.
    let drafts = plan(&[], None, Counted { drafts: 77, ..Counted::default() });
    let part = drafts.parts.last().unwrap();
    assert_eq!((part.name.as_str(), part.bytes), ("generation: drafts", 77));
    assert!(bytes(&of, "generation: drafts").is_none());
}

#[test]
fn on_a_device_with_memory_of_its_own() {
    let passes = Passes { tokens: 64, sequences: 4, positions: 12, vocab: 100, heads: 2, ..Passes::default() };
    let scratch = passes.scratch_bytes();
    assert!(scratch > 0);
    let host = plan(&[("weights", 1000), ("gradients", 300)], None, Counted { passes, drafts: 9 });
    assert_eq!(host.clone().on(Device::Cpu), host);
    let names = |plan: &MemoryPlan| plan.parts.iter().map(|p| (p.name.clone(), p.bytes, p.on)).collect::<Vec<_>>();
    let emulated = host.clone().on(Device::CudaEmulated);
    let on = Some("cuda-emulated");
    let expected = [
        ("weights".to_owned(), 1000, on),
        ("gradients".to_owned(), 300, on),
        ("scratch of operations".to_owned(), scratch, on),
        (READING.to_owned(), 8 * 100_000 * 1024, None),
        ("program, tokenizer, data".to_owned(), host.resident, None),
        ("generation: drafts".to_owned(), 9, None),
        ("staging of copies".to_owned(), Passes::staging_bytes(), None),
    ];
    assert_eq!(names(&emulated), expected);
    assert_eq!(emulated.device_total, Some(1300 + scratch));
    let total = 8 * 100_000 * 1024 + host.resident + 9 + Passes::staging_bytes();
    assert_eq!((emulated.total, emulated.needed()), (total, total - host.resident));
    // A real one takes memory in larger pieces than it is asked for.
    let real = host.on(Device::Cuda(0));
    let pool = real.parts.iter().position(|part| part.name == "memory pool: rounding").unwrap();
    assert_eq!((pool, real.parts[pool].bytes, real.parts[pool].on), (3, 64 << 20, Some("cuda")));
    assert_eq!((real.parts.len(), real.device_total), (8, Some(1300 + scratch + (64 << 20))));
}

/// A plan of these parts: bytes, and whether they are the device's.
fn planned_of(parts: &[(u64, Option<&'static str>)], resident: u64) -> MemoryPlan {
    let part = |&(bytes, on)| Part { on, ..part("p", bytes) };
    let parts: Vec<Part> = parts.iter().map(part).collect();
    let sum = |on: bool| parts.iter().filter(|part| part.on.is_some() == on).map(|part| part.bytes).sum::<u64>();
    let (total, there) = (sum(false), sum(true));
    let device_total = (there > 0).then_some(there);
    MemoryPlan { parts, total, device_total, resident, longest: LONGEST, tensors: 0, read: 0, scratch: 0 }
}

#[test]
fn a_shortage_is_of_the_host_or_of_the_device_and_names_the_limit() {
    const MIB: u64 = 1 << 20;
    let shortage = |plan: &MemoryPlan, host: Option<u64>, device: Option<u64>, limit: Option<MemoryLimit>| {
        plan.shortage(&Available { host, device, limit }).map(|shortage| shortage.to_string())
    };
    let plan = planned_of(&[(10 * MIB, None), (5 * MIB, None)], 4 * MIB);
    assert_eq!((plan.needed(), plan.needed_on(None)), (11 * MIB, 11 * MIB));
    let few = "the run needs 11.0 MiB of memory and 10.5 MiB are available".to_owned();
    assert_eq!(shortage(&plan, None, None, None), None);
    assert_eq!(shortage(&plan, Some(11 * MIB), None, None), None);
    assert_eq!(shortage(&plan, Some(21 * MIB / 2), None, None), Some(few.clone()));
    let limit = MemoryLimit { bytes: 60 * MIB, used: 3, source: "/g/memory.max".to_owned() };
    let limited = format!("{few} (this process is limited to 60.0 MiB by /g/memory.max)");
    assert_eq!(shortage(&plan, Some(21 * MIB / 2), None, Some(limit)), Some(limited));
    let cuda = Some("cuda");
    let plan = planned_of(&[(10 * MIB, cuda), (4 * MIB, cuda), (MIB, None)], 0);
    assert_eq!((plan.needed_on(cuda), plan.needed_on(None), plan.device_total), (14 * MIB, MIB, Some(14 * MIB)));
    assert_eq!(shortage(&plan, Some(MIB), Some(14 * MIB), None), None);
    assert_eq!(shortage(&plan, Some(MIB), None, None), None);
    let few = "the run needs 14.0 MiB of cuda's memory and 9.0 MiB are available".to_owned();
    assert_eq!(shortage(&plan, Some(MIB), Some(9 * MIB), None), Some(few));
    // The host's memory is looked at first.
    let few = "the run needs 1.0 MiB of memory and 0.5 MiB are available".to_owned();
    assert_eq!(shortage(&plan, Some(MIB / 2), Some(1), None), Some(few));
    let excess =
        |host: u64, device: u64| plan.excess(&Available { host: Some(host), device: Some(device), limit: None });
    assert_eq!([excess(MIB, 14 * MIB), excess(MIB - 3, 14 * MIB - 4), excess(0, u64::MAX)], [0, 7, MIB]);
}

#[test]
fn parts_are_named_with_the_keys_that_name_their_model() {
    let allocated = |whose: &str, part: &'static str| {
        let memory = Context::meta().memory().part(part);
        let _held = Tensor::zeros(&memory, &[3, 5], DType::F32);
        let mut parts = Vec::new();
        add(&mut parts, &memory, whose);
        let own = parts.into_iter().find(|own| own.bytes == 60).unwrap();
        (own.name, own.lowered_by)
    };
    for (whose, part, lowered_by) in [
        ("training", "activations", ""),
        ("teacher", "weights", "teacher_model_name_or_path"),
        ("teacher", "workspace", ""),
        ("value model", "weights", "value_model"),
        ("reward model:x", "weights", "reward_funcs"),
        ("reward model:x", "workspace", ""),
    ] {
        assert_eq!(allocated(whose, part), (format!("{whose}: {part}"), lowered_by.to_owned()));
    }
    assert_eq!(allocated("", "weights"), ("weights".to_owned(), String::new()));
}

#[test]
fn the_longest_of_rows() {
    let longest = |rows: &[(usize, usize)]| {
        let Longest { prompt, completion } = longest_of(rows);
        (prompt, completion)
    };
    assert_eq!(longest(&[(3, 4), (9, 1), (2, 6)]), (4, 6));
    assert_eq!(longest(&[]), (0, 0));
    assert_eq!(LONGEST.positions(), 12);
    assert_eq!((mib(0), mib(1 << 20), mib(3 << 19)), ("0.0".to_owned(), "1.0".to_owned(), "1.5".to_owned()));
}
