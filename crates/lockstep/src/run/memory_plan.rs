//! Computes the memory that a run will take, part by part, before it starts. The parts are built on [`Device::Meta`],
//! which allocates nothing and only counts.
//!
//! The sizes are for the worst case that the configuration allows: every prompt as long as the longest, and every
//! completion as long as the limit or as the longest in the data. An allowance covers memory outside tensors.

pub use crate::models::Longest;
use crate::models::{Builder, Counted};
use kernels::context::threads_from_env;
use kernels::ops::Passes;
use kernels::{Context, Device, Memory};
use model::ModelConfig;
use std::fmt;
use telemetry::system::MemoryLimit;

/// Allowance per thread: the touched part of its stack, and the buffers of matmuls and attention.
const THREAD_BYTES: u64 = 2 << 20;
/// Memory of the lm head's backward pass: gradients of 256 rows × 4096 logits.
const LOGITS_BYTES: u64 = 256 * 4096 * 4;
/// Allowance for CUDA's memory pool, which allocates larger blocks than requested. Not measured on hardware yet.
const POOL_BYTES: u64 = 64 << 20;
/// Bytes per element of a tensor while it is read from a file to a device: 4 as f32, and up to 4 in the mapped file.
/// (Writing needs no such allowance, since tensors are written in pieces that fit the CPU cache.)
const READ_BYTES: u64 = 8;
/// The part for reading weights.
const READING: &str = "reading: largest tensor";
/// The part that is already resident in this process.
const PROGRAM: &str = "program, tokenizer, data";

/// The memory of one part of a run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Part {
    /// The name of the part: the purpose of its memory.
    #[serde(rename = "part")]
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Configuration keys that reduce this part and the run's memory with it. Empty if there are none, or if no search
    /// was made.
    pub lowered_by: String,
    /// The device with this memory; `None` for the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<&'static str>,
}

/// The memory that a run will take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Each part with its size.
    pub parts: Vec<Part>,
    /// Bytes of all parts in host memory: the expected peak of resident memory.
    pub total: u64,
    /// Bytes of all parts in device memory, if the device has separate memory.
    pub device_total: Option<u64>,
    /// The part of `total`, in bytes, that is already resident.
    pub resident: u64,
    /// The longest prompt and completion that the plan allows for.
    pub longest: Longest,
    /// How many of `parts` are tensors; these come first.
    tensors: usize,
    /// Bytes for reading the largest tensor.
    read: u64,
    /// Bytes of scratch memory for operations on a device, besides the tensors.
    scratch: u64,
}

/// Memory that this process can still allocate, in bytes; `None` if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Available {
    /// Available bytes of the host.
    pub host: Option<u64>,
    /// The limit that determines `host`, unless it is the machine's memory.
    pub limit: Option<MemoryLimit>,
    /// Available bytes of the device, including those that this process already has there.
    pub device: Option<u64>,
}

/// The device of a run, and the memory available for it.
#[derive(Clone, Copy)]
pub struct Room<'a> {
    /// The device of the run.
    pub device: Device,
    /// The available memory.
    pub available: &'a Available,
}

/// Plans the memory of the parts built by `build`, for a model of the shape `model` and sequences up to `longest`.
/// Allocates nothing.
pub fn planned<T>(
    builder: &Builder<'_>,
    model: &ModelConfig,
    longest: Longest,
    build: impl FnOnce(&mut Builder<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<MemoryPlan> {
    let mut meta = builder.on_meta();
    // Keeps the parts alive while they are counted.
    let _parts = build(&mut meta)?;
    let (ledgers, counted) = meta.counted();
    let mut parts = Vec::new();
    for (name, memory) in &ledgers {
        add(&mut parts, memory, name);
    }
    MemoryPlan::of(builder, model, longest, parts, counted)
}

/// Adds the memory counted on `memory` to `parts`. `whose` names the component.
fn add(parts: &mut Vec<Part>, memory: &Memory, whose: &str) {
    for (part, usage) in memory.usage() {
        // These keys select a different model; all other keys are found by replanning.
        let lowered_by = match (whose, part) {
            ("teacher", "weights") => "teacher_model_name_or_path",
            ("value model", "weights") => "value_model",
            (reward, "weights") if reward.starts_with("reward ") => "reward_funcs",
            _ => "",
        };
        let name = if whose.is_empty() { part.to_owned() } else { format!("{whose}: {part}") };
        parts.push(Part { name, bytes: usage.bytes as u64, lowered_by: lowered_by.to_owned(), on: None });
    }
}

impl Part {
    /// Whether this part is untouched while the weights (and the optimizer's state, if the run `resumes`) are read.
    /// Linux allocates no physical pages for untouched memory.
    fn is_untouched_while_reading(&self, resumes: bool) -> bool {
        let kind = self.name.rsplit(": ").next().unwrap_or_default();
        kind == "optimizer" && !resumes
            || ["gradients", "activations", "rollout activations", "workspace", "kv cache"].contains(&kind)
    }

    fn on_host(name: &str, bytes: u64) -> Part {
        Part { name: name.to_owned(), bytes, lowered_by: String::new(), on: None }
    }
}

impl Available {
    /// The memory available for a run on this context.
    pub fn of(ctx: &Context) -> Available {
        let free = ctx.device_memory().ok().flatten().and_then(|memory| memory.total_and_free);
        let held: u64 = ctx.memory().usage().values().map(|usage| usage.bytes as u64).sum();
        Available { device: free.map(|[_, free]| free + held), ..Available::on_host() }
    }

    /// The memory available for a run on the host alone.
    pub fn on_host() -> Available {
        let (host, limit) = telemetry::system::available_memory();
        Available { host, limit, device: None }
    }
}

impl MemoryPlan {
    /// Adds the parts besides tensors (reading, threads, the program itself), and the sums.
    fn of(
        builder: &Builder<'_>,
        model: &ModelConfig,
        longest: Longest,
        mut parts: Vec<Part>,
        Counted { passes, drafts, .. }: Counted,
    ) -> anyhow::Result<MemoryPlan> {
        let tensors = parts.len();
        let threads = builder.config.threads.map_or_else(threads_from_env, Ok)? as u64;
        let resident = telemetry::system::rss_bytes().unwrap_or(0);
        let read = model.largest_tensor() as u64 * READ_BYTES;
        let resumes = builder.checkpoint.is_some();
        // The optimizer's state is read after all weights.
        let own = model.compute.bytes() as u64;
        let reading = if resumes { read / READ_BYTES * (READ_BYTES - own) } else { model.reading_bytes() as u64 };
        let untouched = parts.iter().filter(|part| part.is_untouched_while_reading(resumes));
        let thread_bytes = threads * THREAD_BYTES + LOGITS_BYTES;
        let later: u64 = untouched.map(|part| part.bytes).sum::<u64>() + thread_bytes;
        let rest = [(READING, reading.saturating_sub(later)), ("threads", thread_bytes), (PROGRAM, resident)];
        parts.extend(rest.map(|(name, bytes)| Part::on_host(name, bytes)));
        if drafts > 0 {
            parts.push(Part::on_host("generation: drafts", drafts as u64));
        }
        let total = parts.iter().map(|p| p.bytes).sum();
        let (device_total, scratch) = (None, passes.scratch_bytes());
        Ok(MemoryPlan { parts, total, device_total, resident, longest, tensors, read, scratch })
    }

    /// The same plan for a run on `device`. If the device has its own memory, tensors and scratch are there, and the
    /// host has only the buffers for copies.
    pub fn on(mut self, device: Device) -> MemoryPlan {
        if !device.is_cuda() {
            return self;
        }
        let on = Some(device.name());
        self.parts.iter_mut().take(self.tensors).for_each(|part| part.on = on);
        let mut at = self.tensors;
        let mut add = |name: &str, bytes| {
            self.parts.insert(at, Part { on, ..Part::on_host(name, bytes) });
            at += 1;
        };
        add("scratch of operations", self.scratch);
        if device != Device::CudaEmulated {
            add("memory pool: rounding", POOL_BYTES);
        }
        self.parts.retain(|part| part.name != "threads");
        // The tensors' untouched memory is on the device, so reading cannot reuse it.
        self.parts.iter_mut().filter(|part| part.name == READING).for_each(|part| part.bytes = self.read);
        self.parts.push(Part::on_host("staging of copies", Passes::staging_bytes()));
        let sum = |there: bool| self.parts.iter().filter(|p| p.on.is_some() == there).map(|p| p.bytes).sum::<u64>();
        (self.total, self.device_total) = (sum(false), Some(sum(true)));
        self
    }

    /// Bytes of host memory that the run still has to take.
    pub fn needed(&self) -> u64 {
        self.total.saturating_sub(self.resident)
    }

    /// Bytes that the run leaves free in the memory of its tensors; 0 if unknown.
    pub(crate) fn left(&self, Room { device, available }: Room<'_>) -> u64 {
        let plan = self.clone().on(device);
        let (needed, free) = match plan.device_total {
            Some(total) => (total, available.device),
            None => (plan.needed(), available.host),
        };
        free.map_or(0, |free| free.saturating_sub(needed))
    }

    /// Bytes that the run takes of device `on`; if `None`, bytes that the run still has to take of host memory.
    pub(super) fn needed_on(&self, on: Option<&str>) -> u64 {
        match on {
            Some(_) => self.device_total.unwrap_or(0),
            None => self.needed(),
        }
    }

    /// The size of the part with the same name and device as `part`.
    pub(super) fn bytes_of(&self, part: &Part) -> u64 {
        // All plans of a run count the same resident memory, although each measures it again.
        let same = self.parts.iter().filter(|own| own.name != PROGRAM && (&own.name, own.on) == (&part.name, part.on));
        if part.name == PROGRAM { part.bytes } else { same.map(|own| own.bytes).sum() }
    }

    /// The memory that is too small for the run, if any; the host is checked first.
    pub(super) fn shortage(&self, available: &Available) -> Option<Shortage> {
        let on = self.parts.iter().find_map(|part| part.on);
        [(None, available.host), (on, available.device.filter(|_| self.device_total.is_some()))]
            .into_iter()
            .find_map(|(on, available)| available.filter(|&bytes| bytes < self.needed_on(on)).zip(Some(on)))
            .map(|(bytes, on)| {
                let limit = available.limit.clone().filter(|_| on.is_none());
                Shortage { on, needed: self.needed_on(on), available: bytes, limit }
            })
    }

    /// The bytes by which the run exceeds host and device memory.
    pub(super) fn excess(&self, available: &Available) -> u64 {
        let beyond = |needed: u64, available: Option<u64>| available.map_or(0, |bytes| needed.saturating_sub(bytes));
        beyond(self.needed(), available.host) + beyond(self.device_total.unwrap_or(0), available.device)
    }
}

/// A shortage of memory for a run.
pub(super) struct Shortage {
    /// The device; `None` for the host.
    pub on: Option<&'static str>,
    /// Bytes that the run needs.
    pub needed: u64,
    /// Available bytes.
    pub available: u64,
    /// The limit on this process, if it determines `available`.
    pub limit: Option<MemoryLimit>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = self.on.map_or("memory".to_owned(), |device| format!("{device}'s memory"));
        let (needed, available) = (mib(self.needed), mib(self.available));
        write!(f, "the run needs {needed} MiB of {memory}, but only {available} MiB are available")?;
        self.limit.as_ref().map_or(Ok(()), |limit| write!(f, " (this process is limited to {limit})"))
    }
}

/// Bytes as text in MiB, with one decimal.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// The longest sequence and the longest completion among `rows`, which are token counts of a prompt and its completion.
pub fn longest_of(rows: &[(usize, usize)]) -> Longest {
    let total = rows.iter().map(|(p, c)| p + c).max().unwrap_or(0);
    let completion = rows.iter().map(|(_, c)| *c).max().unwrap_or(0);
    Longest { prompt: total - completion, completion }
}

#[cfg(test)]
mod tests;
