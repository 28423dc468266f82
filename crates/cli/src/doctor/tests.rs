//! Tests of the report for given findings.

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
        load: Some(0.1),
    }
}

fn args(threads: Option<usize>) -> Args {
    Args { json: false, device: None, threads }
}

/// The report's lines by their labels.
fn report(findings: &Findings, threads: Option<usize>) -> BTreeMap<String, String> {
    let text = findings.text(&args(threads));
    text.lines().map(|line| (line[..18].trim_end().to_owned(), line[19..].to_owned())).collect()
}

#[test]
fn a_busy_machine_gives_a_warning() {
    let warned = |load| {
        let text = Findings { load, ..findings() }.text(&args(None));
        text.lines().find(|line| line.contains("other processes")).map(str::to_owned)
    };
    assert_eq!((warned(None), warned(Some(0.19))), (None, None));
    let line = warned(Some(0.204)).unwrap();
    assert!(line.starts_with("warning: other processes used 20 % of the cores' time during the measurement"), "{line}");
    assert_eq!(Findings { load: Some(0.5), ..findings() }.json()["load_of_others"], 0.5);
}

#[test]
fn missing_hardware_is_reported_and_too_many_threads_give_a_warning() {
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
    let lines = report(&found, None);
    for (name, text) in [
        ("processor", "unknown"),
        (
            "memory",
            "unknown, unknown available; this process is limited to 1536.0 MiB by /g/memory.max, 1024.0 MiB of \
             it free",
        ),
        ("NVIDIA driver", "none: no library"),
        ("NVRTC", "none: neither"),
        ("device used", "none: no such device"),
        (
            "peak, measured",
            "250.0 GFLOP/s (fused multiply-adds in registers), 2000.0 GFLOP/s (bf16 matmuls on tiles), 500.0 GFLOP/s \
             (bf16 matmuls by dot products)",
        ),
    ] {
        assert_eq!(lines.get(name).map(String::as_str), Some(text), "{name}");
    }
    let warning = "\nwarning: 5 threads share 4 cores and wait for each other; use 4 or fewer\n";
    assert!(found.text(&args(None)).contains(warning));
    assert_eq!(found.json()["device"], Value::Null);
}
