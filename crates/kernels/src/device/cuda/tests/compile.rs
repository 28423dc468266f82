//! Compiles every kernel for every architecture with NVRTC, and checks that no register is spilled and no instruction
//! is approximate. Needs NVRTC, but neither a driver nor a GPU; `cargo xtask cuda` downloads NVRTC.

use super::load::SOURCES;
use crate::device::cuda::Source;
use crate::device::cuda::nvrtc::Nvrtc;
use crate::device::cuda::sources::shipped_name;
use std::path::PathBuf;

/// The architectures for which a version of NVRTC compiles.
fn architectures(version: (i32, i32)) -> Vec<&'static str> {
    let oldest = if version.0 < 13 { &["70"][..] } else { &[] };
    [oldest, &["75", "80", "86", "89", "90", "90a", "100", "120"]].concat()
}

/// The faults of a source's compiled kernels, and the number of registers that each kernel uses.
fn judge(nvrtc: &Nvrtc, arch: &str, source: &Source) -> (Vec<String>, Vec<String>) {
    let compiled = nvrtc.compile(source, arch).unwrap();
    assert!(compiled.ptx.contains(".entry") && !compiled.cubin.is_empty(), "{}", source.name);
    let (mut wrong, mut registers, mut kernel) = (Vec::new(), Vec::new(), "");
    for line in compiled.log.lines() {
        if let Some(rest) = line.split("Function properties for ").nth(1) {
            kernel = rest.trim();
        }
        if line.contains("spill stores") && !line.contains(" 0 bytes spill stores, 0 bytes spill loads") {
            wrong.push(format!("sm_{arch} {kernel}: {}", line.trim()));
        }
        if let Some(used) = line.split("Used ").nth(1).and_then(|rest| rest.split(' ').next()) {
            registers.push(format!("{kernel} {used}"));
        }
    }
    assert_eq!(registers.len(), source.text.matches("KERNEL(").count(), "sm_{arch} {}", compiled.log);
    for line in compiled.ptx.lines() {
        let instruction = line.split("//").next().unwrap_or("");
        if [".approx", ".ftz"].iter().any(|word| instruction.contains(word)) {
            wrong.push(format!("sm_{arch} {}.cu: {}", source.name, line.trim()));
        }
    }
    (wrong, registers)
}

/// NVRTC, or `None` and a printed line. If `LOCKSTEP_NVRTC` is set, it must work.
fn nvrtc() -> Option<&'static Nvrtc> {
    Nvrtc::get()
        .map_err(|why| {
            assert!(std::env::var("LOCKSTEP_NVRTC").is_err(), "{why}");
            eprintln!("skipped 1: {why}");
        })
        .ok()
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut wrong = Vec::new();
    for arch in architectures(nvrtc.version) {
        for source in &SOURCES {
            let (found, registers) = judge(nvrtc, arch, source);
            wrong.extend(found);
            // Printed for information: the number of registers limits how many blocks run on a multiprocessor.
            println!("sm_{arch} {}.cu: registers {}", source.name, registers.join(", "));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn approximate_instructions_are_detected_and_none_is_contracted() {
    let Some(nvrtc) = nvrtc() else { return };
    let kernel = |value: &str| -> Source {
        let text = format!("KERNEL(planted, 32, float* x, float a) {{ x[threadIdx.x] = {value}; }}");
        Source { name: "planted_for_the_compiler", text: Box::leak(text.into()) }
    };
    for approximate in ["__expf(a)", "__fdividef(a, x[1])", "rsqrtf(a)"] {
        let (wrong, _) = judge(nvrtc, "80", &kernel(approximate));
        assert!(!wrong.is_empty(), "{approximate}");
    }
    let (wrong, _) = judge(nvrtc, "80", &kernel("a * x[1] + 1.0f / sqrtf(x[2])"));
    assert_eq!(wrong, [""; 0]);
    let ptx = nvrtc.compile(&kernel("a * x[1] + x[2]"), "80").unwrap().ptx;
    assert!(ptx.contains("mul.rn.f32") && !ptx.contains("fma"), "{ptx}");
}

/// From compute capability 8.0 on, bf16 matmuls must compile to the instruction that tensor_core.rs describes, and to
/// no other.
#[test]
fn bf16_matmuls_compile_to_the_documented_instruction() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = SOURCES.iter().find(|source| source.name == "linear_bf16").expect("ops/linear/linear_bf16.cu");
    let instructions = |arch: &str| -> Vec<String> {
        let ptx = nvrtc.compile(source, arch).unwrap().ptx;
        let words = ptx.split_whitespace().filter(|word| word.starts_with("mma.") || word.starts_with("wmma."));
        words.map(String::from).collect()
    };
    for arch in ["80", "89", "90", "100"] {
        let all = instructions(arch);
        assert!(!all.is_empty(), "sm_{arch}");
        for instruction in all {
            assert_eq!(instruction, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "sm_{arch}");
        }
    }
    assert_eq!(instructions("75"), [""; 0]);
}

/// Writes every kernel as a binary for every architecture, under the names that the driver expects, into the directory
/// `LOCKSTEP_WRITE_CUBINS`. Without that variable, writes one kernel for one architecture, in a temporary directory.
#[test]
fn cubins_are_written_for_every_architecture() {
    let Some(nvrtc) = nvrtc() else { return };
    let asked = std::env::var_os("LOCKSTEP_WRITE_CUBINS").map(PathBuf::from);
    let place = std::env::temp_dir().join(format!("lockstep-written-cubins-{}", std::process::id()));
    let place = asked.as_ref().unwrap_or(&place);
    std::fs::create_dir_all(place).unwrap();
    let (mut sources, mut archs) = (SOURCES.iter().collect::<Vec<_>>(), architectures(nvrtc.version));
    if asked.is_none() {
        sources.retain(|source| source.name == "glu");
        archs.retain(|&arch| arch == "80");
    }
    for arch in archs.iter().filter(|arch| !arch.ends_with('a')) {
        for source in &sources {
            let cubin = nvrtc.compile(source, arch).unwrap().cubin;
            assert!(cubin.starts_with(b"\x7fELF"), "{}", source.name);
            std::fs::write(place.join(shipped_name(source, &Nvrtc::options(arch))), cubin).unwrap();
        }
    }
    let written = std::fs::read_dir(place).unwrap().count();
    assert!(written >= sources.len(), "{written} files");
    println!("{written} cubins in {}", place.display());
    if asked.is_none() {
        std::fs::remove_dir_all(place).unwrap();
    }
}
