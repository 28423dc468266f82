//! `lockstep doctor`: reports the hardware, which parts of it the program will use, and why. All figures are measured
//! or read from the system.

use crate::options::{device, threads};
use crate::output;
use kernels::ceilings::{Ceilings, measure};
use kernels::{Context, CudaDevice, CudaProbe, DType, Device, Isa};
use lockstep::config::ComputeDType;
use lockstep::context;
use lockstep::error::paragraph;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;
use telemetry::CpuTimes;
use telemetry::system::{MemoryLimit, memory_limits};

/// Reports this machine's hardware, which parts of it will be used, and why.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockstep doctor                       what this machine has and can do
  lockstep doctor --threads 4           its ceilings with four threads
  LOCKSTEP_ISA=avx2 lockstep doctor     its ceilings with a lower instruction set")]
pub struct Args {
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
    /// The device: cpu, cuda, cuda:1, …; LOCKSTEP_DEVICE or the CPU if not given.
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<Device>,
    /// Threads; LOCKSTEP_THREADS or all cores if not given.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

/// The memory needed to measure this machine's speed, with a margin.
const MEASURED_BYTES: u64 = 320 << 20;

/// The results of all checks.
struct Findings {
    cpu: Option<String>,
    cores: usize,
    present: Vec<Isa>,
    ctx: Context,
    /// The reason why the requested device cannot be used, if there is one; the figures are then those of the CPU.
    refused: Option<anyhow::Error>,
    cuda: CudaProbe,
    threads: usize,
    total_memory: Option<u64>,
    available_memory: Option<u64>,
    memory_limit: Option<MemoryLimit>,
    ceilings: Ceilings,
    /// The load from other processes during the measurement, per core.
    load: Option<f64>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let open = |device| context(device, args.threads, ComputeDType::F32);
    let (ctx, refused) = match open(args.device) {
        Ok(ctx) => (ctx, None),
        Err(error) => (open(Some(Device::Cpu))?, Some(error)),
    };
    let memory = telemetry::system::memory_bytes();
    let memory_limit = memory_limits().into_iter().next();
    // Printed before the measurement, during which the kernel may kill this process if its cgroup's memory limit is
    // small.
    if let Some(limit) = memory_limit.as_ref().filter(|limit| limit.left() < MEASURED_BYTES) {
        output::note(format_args!(
            "warning: this process is limited to {limit}, {} of it free; the measurement needs {}",
            mib(limit.left()),
            mib(MEASURED_BYTES)
        ));
    }
    let before = CpuTimes::now();
    let ceilings = measure(&ctx, Duration::from_secs(1))?;
    let load = before.load_until(&CpuTimes::now());
    let findings = Findings {
        cpu: cpu_name(),
        cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
        present: Isa::present(),
        threads: ctx.threads(),
        total_memory: memory.0,
        available_memory: memory.1,
        memory_limit,
        ceilings,
        load,
        cuda: CudaProbe::new(),
        refused,
        ctx,
    };
    let text = if args.json { serde_json::to_string_pretty(&findings.json())? + "\n" } else { findings.text(&args) };
    output::exact(&text)?;
    findings.refused.map_or(Ok(()), Err)
}

impl Findings {
    fn json(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "build": crate::build(),
            "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH,
            "cpu": self.cpu,
            "cores": self.cores,
            "isa_present": self.present.iter().map(|isa| isa.name()).collect::<Vec<_>>(),
            "isa": self.ctx.describe(),
            "threads": self.threads,
            "memory_bytes": self.total_memory,
            "memory_available_bytes": self.available_memory,
            "memory_limit_bytes": self.memory_limit.as_ref().map(|limit| limit.bytes),
            "memory_limit_by": self.memory_limit.as_ref().map(|limit| &limit.source),
            "dtypes": ["f32", "bf16"],
            "amx": Isa::amx_refusal().unwrap_or("usable"),
            "bf16_pairs": Isa::dots_refusal().unwrap_or("usable"),
            "bf16_pairs_gain": Isa::dots_gain(),
            "flops_per_s": self.ceilings.flops_per_s,
            "tile_flops_per_s": self.ceilings.tile_flops_per_s,
            "pair_flops_per_s": self.ceilings.pair_flops_per_s,
            "read_bytes_per_s": self.ceilings.read_bytes_per_s,
            "load_of_others": self.load,
            "device": self.refused.is_none().then(|| self.ctx.memory().device().name()),
            "cuda": self.cuda_json(),
        })
    }

    fn kernels_used(&self, why: &str) -> String {
        if self.ctx.memory().device().is_cuda() {
            "those of CUDA".to_owned()
        } else {
            format!("{}: {why}", self.ctx.describe())
        }
    }

    fn cuda_json(&self) -> Value {
        let found = &self.cuda;
        let driver = match &found.driver {
            Ok(driver) => json!({"looked_for": found.driver_path, "cuda_version": driver.version}),
            Err(why) => json!({"looked_for": found.driver_path, "error": why}),
        };
        let nvrtc = match &found.nvrtc {
            Ok(version) => json!({"looked_for": found.nvrtc_paths, "version": version}),
            Err(why) => json!({"looked_for": found.nvrtc_paths, "error": why}),
        };
        let devices = found.driver.iter().flat_map(|driver| &driver.devices).enumerate();
        let device = |(number, device): (usize, &Result<CudaDevice, String>)| match device {
            Ok(device) => json!({
                "device": device_name(number),
                "name": device.name,
                "compute_capability": device.capability,
                "memory_bytes": device.memory_bytes,
                "memory_free_bytes": device.free_bytes,
            }),
            Err(why) => json!({"device": device_name(number), "error": why}),
        };
        json!({
            "driver": driver,
            "devices": devices.map(device).collect::<Vec<_>>(),
            "nvrtc": nvrtc,
            "kernel_cache": found.kernel_cache,
        })
    }

    /// The detected GPUs, and the device that will be used, as pairs of label and text.
    fn devices(&self, asked: Option<Device>) -> Vec<(String, String)> {
        let found = &self.cuda;
        let mut lines = Vec::new();
        let mut say = |name: &str, text: String| lines.push((name.to_owned(), text));
        match &found.driver {
            Ok(driver) => {
                say("NVIDIA driver", format!("CUDA {} ({})", driver.version, found.driver_path));
                for (number, device) in driver.devices.iter().enumerate() {
                    let text = match device {
                        Ok(d) => format!(
                            "{}, compute capability {}, {} of memory, {} free",
                            d.name,
                            d.capability,
                            gib(d.memory_bytes),
                            gib(d.free_bytes)
                        ),
                        Err(why) => format!("cannot be used: {why}"),
                    };
                    say(device_name(number), text);
                }
            }
            Err(why) => say("NVIDIA driver", format!("none: {why}")),
        }
        match &found.nvrtc {
            Ok(version) => say("NVRTC", format!("{version} (looked for {})", found.nvrtc_paths.join(", "))),
            Err(why) => say("NVRTC", format!("none: {why}")),
        }
        say("kernel cache", found.kernel_cache.display().to_string());
        let device = self.ctx.memory().device();
        let by = match (asked, std::env::var("LOCKSTEP_DEVICE").is_ok_and(|name| !name.is_empty())) {
            (Some(_), _) => "set by --device",
            (None, true) => "set by LOCKSTEP_DEVICE",
            (None, false) => "the default",
        };
        let used = match (&self.refused, device) {
            (Some(why), _) => format!("none: {}", paragraph(why)),
            (None, Device::CudaEmulated) => format!(
                "cuda-emulated: {by}. CUDA kernels compiled for this CPU, for tests; its figures are not those of a GPU"
            ),
            (None, device) => format!("{}: {by}", device.name()),
        };
        say("device used", used);
        lines
    }

    fn memory(&self) -> String {
        let bytes = |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), gib);
        let mut memory = format!("{}, {} available", bytes(self.total_memory), bytes(self.available_memory));
        if let Some(limit) = &self.memory_limit {
            let _ = write!(memory, "; this process is limited to {limit}, {} of it free", mib(limit.left()));
        }
        memory
    }

    /// The lines with measured figures.
    fn measured(&self) -> [(&'static str, String); 3] {
        let Ceilings { flops_per_s, read_bytes_per_s, tile_flops_per_s, pair_flops_per_s, .. } = self.ceilings;
        let of_bf16 = |flops: Option<f64>, kind: &str| {
            flops.map_or(String::new(), |flops| format!(", {:.1} GFLOP/s (bf16 matmuls {kind})", flops / 1e9))
        };
        let peaks = of_bf16(tile_flops_per_s, "on tiles") + &of_bf16(pair_flops_per_s, "by dot products");
        let (of, read) = match self.ctx.memory().device() {
            Device::CudaEmulated => (" of the emulator: not meaningful", "emulated: not meaningful"),
            Device::Cuda(_) => (" of the device", "a copy of 256 MiB on the device, bytes read plus bytes written"),
            _ => ("", "reading 256 MiB"),
        };
        let peak = format!("{:.1} GFLOP/s (fused multiply-adds in registers{of}){peaks}", flops_per_s / 1e9);
        let balance = format!(
            "{:.0} operations per byte read: work with fewer (such as decoding few sequences) is memory-bound",
            flops_per_s / read_bytes_per_s
        );
        [
            ("peak, measured", peak),
            ("memory, measured", format!("{:.1} GB/s ({read})", read_bytes_per_s / 1e9)),
            ("balance", balance),
        ]
    }

    fn text(&self, args: &Args) -> String {
        let threads_given = args.threads.is_some();
        let present: Vec<&str> = self.present.iter().map(|isa| isa.name()).collect();
        let forced = std::env::var("LOCKSTEP_ISA").is_ok_and(|v| !v.is_empty());
        let why_isa = if forced { "set by LOCKSTEP_ISA" } else { "the fastest on this machine" };
        let why_threads = if threads_given {
            "set by --threads"
        } else if std::env::var("LOCKSTEP_THREADS").is_ok_and(|v| !v.is_empty()) {
            "set by LOCKSTEP_THREADS"
        } else {
            "all cores that this process may use"
        };
        let amx = Isa::amx_refusal()
            .map_or("usable: its matmuls passed a test just now".to_owned(), |why| format!("not used: {why}"));
        let pairs = match (Isa::dots_refusal(), Isa::dots_gain()) {
            (Some(why), _) => format!("not used: {why}"),
            (None, gain) => format!(
                "{}: {:.2} times the multiply-add rate of f32, with equal bits, tested and measured just now",
                if self.ctx.describe() == "avx512-bf16" { "used" } else { "not used" },
                gain.unwrap_or(0.0)
            ),
        };
        let lines = [
            ("lockstep", format!("{} on {} {}", crate::build(), std::env::consts::OS, std::env::consts::ARCH)),
            ("processor", self.cpu.clone().unwrap_or_else(|| "unknown".to_owned())),
            ("cores", format!("{} (available to this process)", self.cores)),
            ("memory", self.memory()),
            ("kernels present", present.join(", ")),
            ("kernels used", self.kernels_used(why_isa)),
            ("AMX", amx),
            ("AVX-512 BF16", pairs),
            ("threads", format!("{}: {why_threads}", self.threads)),
            (
                "compute",
                format!(
                    "f32, or bf16 (dtype = \"bf16\"; {}), which halves the memory and bandwidth of weights",
                    match (self.ctx.arithmetic(DType::Bf16), self.ceilings.pair_flops_per_s) {
                        ("bf16-amx", _) => "matmuls on tiles",
                        (_, Some(_)) => "instructions for dot products",
                        _ => "widened to f32",
                    }
                ),
            ),
        ];
        let mut text = String::new();
        let lines = lines.into_iter().chain(self.measured()).map(|(name, value)| (name.to_owned(), value));
        let lines = lines.chain(self.devices(args.device));
        for (name, value) in lines {
            let _ = writeln!(text, "{name:<18} {value}");
        }
        if self.threads > self.cores {
            let _ = writeln!(
                text,
                "warning: {} threads share {} cores and wait for each other; use {} or fewer",
                self.threads, self.cores, self.cores
            );
        }
        if let Some(load) = self.load.filter(|load| *load >= CpuTimes::QUIET) {
            let _ = writeln!(
                text,
                "warning: other processes used {:.0} % of the cores' time during the measurement: the machine is \
                 faster than these figures suggest",
                100.0 * load
            );
        }
        if self.ctx.describe() == Isa::PORTABLE.name() {
            text.push_str(
                "warning: the portable kernels are many times slower than vector ones; use them only for tests, \
                 or on processors for which there are no vector kernels\n",
            );
        }
        text
    }
}

fn device_name(number: usize) -> &'static str {
    Device::Cuda(u8::try_from(number).unwrap_or(u8::MAX)).name()
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

fn cpu_name() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests;
