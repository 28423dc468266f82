mod waits;

use super::*;
use crate::Tensor;

#[test]
fn work_is_counted_for_the_calling_thread() {
    let before = counted();
    count(5, 7);
    assert_eq!(counted(), (before.0 + 5, before.1 + 7));
    // A matmul of [3, 5] by [5, 11] has 165 multiply-adds of two operations each, and accesses weight, input and output
    // once.
    count_matmul(3, 11, 5, 1000);
    assert_eq!(counted(), (before.0 + 5 + 330, before.1 + 7 + 1000 + 4 * (3 * 11 + 3 * 5)));
    std::thread::scope(|scope| scope.spawn(|| assert_eq!(counted(), (0, 0))).join().unwrap());
}

#[test]
fn gates_are_fused_for_bf16_tiles_and_whole_panels_only() {
    let memory = Memory::new(Device::Cpu);
    for (isa, dtype, rows, fuses) in [
        (Isa::AMX_EMULATED, DType::Bf16, 64, true),
        (Isa::AMX_EMULATED, DType::Bf16, 128, true),
        (Isa::AMX_EMULATED, DType::Bf16, 96, false),
        (Isa::AMX_EMULATED, DType::F32, 64, false),
        (Isa::PORTABLE, DType::Bf16, 64, false),
    ] {
        let weight = Matrix::zeros_of(&memory, rows, 4, dtype);
        assert_eq!(Context::cpu(isa, 1).fuses_gates(&weight), fuses, "{isa:?} {dtype:?} {rows}");
    }
}

#[test]
fn the_thread_count_defaults_to_the_cores_of_the_process() {
    let context = Context::from_env_with(Some(Device::Cpu), Some(2)).unwrap();
    assert_eq!((context.threads(), context.memory().device()), (2, Device::Cpu));
    assert_eq!(Context::from_env_with(Some(Device::Meta), Some(1)).unwrap().memory().device(), Device::Meta);
    let refused = Context::from_env_with(Some(Device::Cpu), Some(4097)).err().unwrap().to_string();
    assert_eq!(refused, "threads: must be at most 4096, got 4097; one thread per core is best");
    if std::env::var_os("LOCKSTEP_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        assert_eq!(threads_from_env().unwrap(), cores);
    }
}
