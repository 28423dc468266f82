//! Weights in slots of shared memory: the values that a second process reads, and the memory that they take.
#![cfg(target_os = "linux")]

use kernels::{Device, Memory};
use model::weights::NextParams;
use model::{Adapter, LoraConfig, ModelConfig, Params, SharedSlot, Sharing, TargetModules, WeightSlots, Weights};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn config(vocab: usize) -> Arc<ModelConfig> {
    let json = format!(
        r#"{{"model_type": "llama", "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": {vocab}, "tie_word_embeddings": true}}"#
    );
    Arc::new(ModelConfig::parse(&json).unwrap())
}

fn lora() -> LoraConfig {
    LoraConfig { r: 4, target_modules: TargetModules::AllLinear, ..LoraConfig::default() }
}

fn sum(params: &Params) -> u64 {
    let bits = params.tensors().into_iter().flat_map(|t| t.to_vec_f32()).map(|x| u64::from(x.to_bits()));
    bits.fold(0, |sum: u64, x| sum.rotate_left(5) ^ x)
}

/// An optimizer that adds `x` to every number.
fn add(next: &mut NextParams<'_>, x: f32) -> kernels::Result<()> {
    for tensor in next.tensors_mut() {
        let (from, mut to) = tensor.overwrite();
        let data: Vec<f32> = from.unwrap_or(to.view()).to_vec_f32().iter().map(|y| y + x).collect();
        to.copy_from_f32(&data);
    }
    Ok(())
}

fn bytes(params: &Params) -> usize {
    params.tensors().iter().map(|t| t.bytes()).sum()
}

/// Private resident memory of this process, in bytes.
fn private() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let kb = text.lines().filter(|line| line.starts_with("Private_")).map(|line| line.split_whitespace().nth(1));
    kb.map(|kb| kb.unwrap().parse::<usize>().unwrap() << 10).sum()
}

/// Reads the slot at `path` in another process, which reports the sum of the weights, their number and version, and its
/// private bytes.
fn read_elsewhere(path: &Path) -> Vec<u64> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "shared::child", "--nocapture"]).env("SHARED_SLOT", path);
    let out = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let line = out.lines().find_map(|line| line.split("> ").nth(1)).unwrap_or_else(|| panic!("{out}"));
    line.split(' ').map(|word| word.parse().unwrap()).collect()
}

#[test]
#[ignore = "a child process of the other tests"]
fn child() {
    let path = std::env::var_os("SHARED_SLOT").expect("run by the other tests");
    let memory = Memory::new(Device::Cpu);
    let before = private();
    let slot = SharedSlot::open(Path::new(&path)).unwrap();
    let (weights, contents) = slot.weights(&memory, &config(40_000)).unwrap().expect("published");
    // The weights are summed in pieces, because a copy of all weights would be private memory.
    let mut sum: u64 = 0;
    for tensor in weights.params.tensors() {
        for row in 0..tensor.shape()[0] {
            let data = tensor.rows(row..row + 1).to_vec_f32();
            for x in &data {
                sum = sum.rotate_left(5) ^ u64::from(x.to_bits());
            }
        }
    }
    let more = private().saturating_sub(before);
    writeln!(std::io::stdout().lock(), "> {sum} {} {} {more}", contents.number, weights.version).unwrap();
}

#[test]
fn another_process_reads_each_version_without_a_copy() {
    let memory = Memory::new(Device::Cpu);
    let first = Weights::random(&memory, &config(40_000), 1).unwrap();
    let all = bytes(&first.params);
    let mut slots = WeightSlots::shared(&memory, first, Sharing { run: [3; 16], ..Sharing::default() }).unwrap();
    slots.reserve(2).unwrap();
    assert!(memory.usage()["weights"].bytes == 2 * all, "both slots must be counted");
    let mut held = Vec::new();
    for number in 0..4 {
        let published = slots.publish(number, [number as u8; 16], number == 3).unwrap();
        let [read, of, version, private] = read_elsewhere(&published.path)[..] else { panic!() };
        assert_eq!((read, of, version), (sum(&slots.current().params), number, number));
        assert!((private as usize) < all / 10, "{private} private bytes for {all} bytes of weights");
        if number == 3 {
            SharedSlot::open(&published.path).unwrap().audit().unwrap();
        }
        held.push(slots.hold());
        held.drain(..held.len() - 1); // the previous version is free now
        slots.update(|next| add(next, 0.5)).unwrap();
    }
    assert_eq!((slots.slots(), slots.bytes_copied()), (2, 0));
}

#[test]
fn a_pinned_version_is_not_overwritten_and_an_unchanged_one_stays() {
    let (memory, config) = (Memory::new(Device::Cpu), config(64));
    let first = Weights::random(&memory, &config, 1).unwrap();
    let mut slots = WeightSlots::shared(&memory, first, Sharing::default()).unwrap();
    assert!(SharedSlot::open(Path::new("/dev/null")).is_err());
    let one = slots.publish(1, [1; 16], true).unwrap();
    // After a skipped step, the weights have not changed.
    let two = slots.publish(2, [2; 16], true).unwrap();
    assert_eq!((&two.path, two.number, two.stored_as), (&one.path, 2, 1));
    let slot = SharedSlot::open(&one.path).unwrap();
    let (pinned, contents) = slot.weights(&memory, &config).unwrap().expect("published");
    assert_eq!((contents.number, contents.lineage, slot.run()), (1, [1; 16], [0; 16]));
    let before = sum(&pinned.params);
    // The version is pinned through the slot, but `slots` holds no pointer to it.
    slots.update(|next| add(next, 1.0)).unwrap();
    let three = slots.publish(3, [3; 16], false).unwrap();
    assert!(three.path != one.path && sum(&pinned.params) == before && slots.slots() == 2);
    drop(pinned);
    slots.update(|next| add(next, 1.0)).unwrap(); // in place, because the third version is neither held nor pinned
    assert!(SharedSlot::open(&three.path).unwrap().weights(&memory, &config).unwrap().is_none(), "being written");
    let message = slot.weights(&memory, &self::config(65)).unwrap_err().to_string();
    assert!(
        message.contains("model.embed_tokens.weight F32 [2, 256, 32]") && message.contains("[3, 256, 32]"),
        "{message}"
    );
}

#[test]
fn shared_base_weights_are_sealed_and_only_the_adapter_has_slots() {
    let (memory, config) = (Memory::new(Device::Cpu), config(64));
    let sharing = Sharing::default();
    let load = |memory: &Memory| Weights::random(memory, &config, 1);
    let (base, path) = sharing.base(&memory, &config, load).unwrap();
    assert_eq!(sum(&base.params), sum(&Weights::random(&memory, &config, 1).unwrap().params));
    let other = SharedSlot::open(&path).unwrap();
    let (mapped, _) = other.weights(&memory, &config).unwrap().expect("sealed");
    assert_eq!(sum(&mapped.params), sum(&base.params));
    other.audit().unwrap();
    let adapter = Adapter::new(&memory, &base, &lora(), 1).unwrap();
    let mut slots = WeightSlots::shared(&memory, adapter, sharing).unwrap();
    let published = slots.publish(0, [0; 16], true).unwrap();
    let slot = SharedSlot::open(&published.path).unwrap();
    assert!(slot.weights(&memory, &config).is_err(), "an adapter slot must not be read as base weights");
    let (read, _) = slot.adapter(&memory, &config, &lora()).unwrap().expect("published");
    assert_eq!(sum(&read.params), sum(&slots.current().params));
    // The pinned version does not change while the next one is written.
    let before = sum(&read.params);
    slots.update(|next| add(next, 1.0)).unwrap();
    assert!(sum(&read.params) == before && before != sum(&slots.current().params));
    assert_eq!(slots.bytes_copied(), 0);
}

#[test]
fn a_plan_counts_reserved_slots() {
    let memory = Memory::new(Device::Meta);
    let mut slots = WeightSlots::new(&memory, Weights::zeros(&memory, &config(64)));
    let one = memory.usage()["weights"].bytes;
    slots.reserve(3).unwrap();
    assert_eq!((memory.usage()["weights"].bytes, slots.slots()), (3 * one, 3));
}
