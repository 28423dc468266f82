//! What is said of a machine whose figures are given.

use super::*;
use kernels::CudaDriver;
use std::collections::BTreeMap;

fn findings() -> Findings {
    let gpu = CudaDevice {
        name: "A GPU".to_owned(),
        capability: "9.0".to_owned(),
        memory_bytes: 3 << 29,
        free_bytes: 1 << 30,
    };
    let driver = CudaDriver { version: "12.9".to_owned(), devices: vec![Err("it is busy".to_owned()), Ok(gpu)] };
    Findings {
        cpu: Some("A processor".to_owned()),
        cores: 4,
        present: vec![Isa::PORTABLE],
        ctx: context(Some(Device::Cpu), Some(1), ComputeDType::F32).unwrap(),
        refused: None,
        cuda: CudaProbe {
            driver_path: "libcuda".to_owned(),
            driver: Ok(driver),
            nvrtc_paths: vec!["a".to_owned(), "b".to_owned()],
            nvrtc: Ok("12.8".to_owned()),
            kernel_cache: "/cache".into(),
        },
        threads: 4,
        total_memory: Some(8 << 30),
        available_memory: Some(5 << 29),
        memory_limit: None,
        ceilings: Ceilings {
            flops_per_s: 250e9,
            tile_flops_per_s: None,
            pair_flops_per_s: None,
            read_bytes_per_s: 12.5e9,
        },
    }
}

fn args(threads: Option<usize>) -> Args {
    Args { json: false, device: None, threads }
}

/// What is said, by the names at the beginnings of the lines.
fn said(findings: &Findings, threads: Option<usize>) -> BTreeMap<String, String> {
    let text = findings.text(&args(threads));
    text.lines().map(|line| (line[..18].trim_end().to_owned(), line[19..].to_owned())).collect()
}

#[test]
fn each_figure_has_its_line() {
    let found = findings();
    let lines = said(&found, Some(4));
    for (name, text) in [
        ("processor", "A processor"),
        ("cores", "4 (this process may use them)"),
        ("memory", "8.0 GiB, 2.5 GiB available"),
        ("kernels present", "portable"),
        ("threads", "4: --threads asks for it"),
        ("peak, measured", "250.0 GFLOP/s (fused multiply-adds in registers)"),
        ("memory, measured", "12.5 GB/s (reading 256 MiB)"),
        (
            "balance",
            "20 operations for each byte read: work with fewer waits for memory (decoding a few sequences does)",
        ),
        ("NVIDIA driver", "CUDA 12.9 (libcuda)"),
        ("cuda", "cannot be used: it is busy"),
        ("cuda:1", "A GPU, compute capability 9.0, 1.5 GiB of memory, 1.0 GiB free"),
        ("NVRTC", "12.8 (looked for a, b)"),
        ("kernel cache", "/cache"),
    ] {
        assert_eq!(lines.get(name).map(String::as_str), Some(text), "{name}");
    }
    assert!(lines["kernels used"].starts_with(&format!("{}: ", found.ctx.describe())), "{}", lines["kernels used"]);
    assert!(lines["device used"].starts_with("cpu: "), "{}", lines["device used"]);
    let version = format!("{} on {} {}", crate::build(), std::env::consts::OS, std::env::consts::ARCH);
    assert_eq!(lines["lockstep"], version);
    assert!(!found.text(&args(None)).contains("wait for each other"), "as many threads as cores");
}

#[test]
fn what_is_missing_is_said_and_too_many_threads_are_warned_of() {
    let mut found = findings();
    found.cpu = None;
    found.threads = 5;
    (found.total_memory, found.available_memory, found.memory_limit) = (None, None, None);
    let source = "/g/memory.max".to_owned();
    found.memory_limit = Some(MemoryLimit { bytes: 3 << 29, used: 1 << 29, source });
    found.cuda.driver = Err("no library".to_owned());
    found.cuda.nvrtc = Err("neither".to_owned());
    found.ceilings.tile_flops_per_s = Some(2e12);
    found.ceilings.pair_flops_per_s = Some(5e11);
    found.refused = Some(anyhow::anyhow!("no such device"));
    let lines = said(&found, None);
    for (name, text) in [
        ("processor", "unknown"),
        (
            "memory",
            "unknown, unknown available; this process is limited to 1536.0 MiB by /g/memory.max, of which 1024.0 MiB \
             are left",
        ),
        ("NVIDIA driver", "none: no library"),
        ("NVRTC", "none: neither"),
        ("device used", "none: no such device"),
        (
            "peak, measured",
            "250.0 GFLOP/s (fused multiply-adds in registers), 2000.0 GFLOP/s (bf16 matmuls on tiles), 500.0 GFLOP/s \
             (bf16 matmuls in pairs)",
        ),
    ] {
        assert_eq!(lines.get(name).map(String::as_str), Some(text), "{name}");
    }
    let warning = "\nwarning: 5 threads on 4 cores wait for each other; use 4 or fewer\n";
    assert!(found.text(&args(None)).contains(warning));
    assert_eq!(found.json()["device"], Value::Null);
}

#[test]
fn the_json_has_the_same_figures() {
    let json = findings().json();
    let gpu = json!({
        "device": "cuda:1", "name": "A GPU", "compute_capability": "9.0", "memory_bytes": 3u64 << 29,
        "memory_free_bytes": 1u64 << 30,
    });
    let cuda = json!({
        "driver": {"looked_for": "libcuda", "cuda_version": "12.9"},
        "devices": [{"device": "cuda", "error": "it is busy"}, gpu],
        "nvrtc": {"looked_for": ["a", "b"], "version": "12.8"},
        "kernel_cache": "/cache",
    });
    for (key, value) in [
        ("cpu", json!("A processor")),
        ("cores", json!(4)),
        ("threads", json!(4)),
        ("memory_bytes", json!(8u64 << 30)),
        ("memory_available_bytes", json!(5u64 << 29)),
        ("memory_limit_bytes", Value::Null),
        ("memory_limit_by", Value::Null),
        ("isa_present", json!(["portable"])),
        ("flops_per_s", json!(250e9)),
        ("read_bytes_per_s", json!(12.5e9)),
        ("dtypes", json!(["f32", "bf16"])),
        ("device", json!("cpu")),
        ("cuda", cuda),
    ] {
        assert_eq!(json[key], value, "{key}");
    }
    let mut found = findings();
    (found.cuda.driver, found.cuda.nvrtc) = (Err("x".to_owned()), Err("y".to_owned()));
    let cuda = found.cuda_json();
    assert_eq!(cuda["driver"], json!({"looked_for": "libcuda", "error": "x"}));
    assert_eq!((&cuda["devices"], &cuda["nvrtc"]["error"]), (&json!([]), &json!("y")));
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpu_name();
    assert_eq!(name.is_some(), info.lines().any(|line| line.starts_with("model name")));
    assert!(name.is_none_or(|name| info.contains(&format!(": {name}\n")) && !name.is_empty()));
}
