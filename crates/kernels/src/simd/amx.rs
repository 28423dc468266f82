//! AMX, the matrix unit of x86-64: whether this process may use it, and the tile matmuls ([`TileMatmul`]) in AMX
//! instructions.
//!
//! Stable Rust has no intrinsics for AMX, so this is inline assembly. The tile registers and their configuration live
//! from `ldtilecfg` to `tilerelease`, both inside one `asm!` block: the compiler, which knows nothing of that state,
//! places no code in between, and the system never has to save the tiles of an idle thread.

use super::tiles::{self, Rows, SIDE, TILE, TileMatmul};
use half::bf16;
use std::arch::asm;
use std::sync::OnceLock;

/// The configuration of the eight tile registers: C in 0 to 3 (upper left, upper right, lower left, lower right), A in
/// 4 (upper) and 5 (lower), B in 6 (left) and 7 (right).
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// The configuration for blocks with these rows. Tile registers without rows stay unconfigured, and no instruction
    /// may name them.
    fn new(Rows { upper, lower }: Rows) -> Config {
        let tile_rows = [upper, upper, lower, lower, upper, lower, SIDE as u8, SIDE as u8];
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (tile, rows) in tile_rows.into_iter().enumerate().filter(|(_, rows)| *rows > 0) {
            (config.rows[tile], config.row_bytes[tile]) = (rows, 64);
        }
        config
    }
}

/// The reason that [`refusal`] gives for a processor whose AMX differs from Intel's manual.
const OTHER_BITS: &str = "the processor has AMX, but its results differ from the formula in Intel's manual";

/// The reason why this process may not use AMX; `None` if it may.
///
/// AMX may be used if the processor supports it, the operating system grants it, and its results have the bits of
/// [`tiles::emulated`]. Determined once.
pub fn refusal() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&'static str>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if !processor_has_it() {
            return Some("this processor has no AMX for bf16");
        }
        if !granted() {
            return Some("the processor has AMX, but the system does not let this process use it");
        }
        // SAFETY: the processor supports the instructions, and the system has granted their use.
        let agrees = self_test(|matmuls| unsafe { run(matmuls) });
        (!agrees).then_some(OTHER_BITS)
    })
}

/// Whether CPUID reports AMX-TILE and AMX-BF16, and the operating system saves tile registers (XCR0).
fn processor_has_it() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    if __cpuid(0).eax < 7 {
        return false;
    }
    let (features, extended) = (__cpuid(1).ecx, __cpuid_count(7, 0).edx);
    let (xsave, os_xsave) = (features >> 26 & 1, features >> 27 & 1);
    let (amx_bf16, amx_tile) = (extended >> 22 & 1, extended >> 24 & 1);
    if [xsave, os_xsave, amx_bf16, amx_tile].contains(&0) {
        return false;
    }
    /// # Safety
    /// The processor supports XGETBV, and the system has enabled it.
    #[target_feature(enable = "xsave")]
    unsafe fn enabled() -> u64 {
        // SAFETY: the caller upholds this function's safety contract, and register 0 always exists.
        unsafe { _xgetbv(0) }
    }
    const TILES: u64 = 3 << 17;
    // SAFETY: XSAVE and OSXSAVE were checked above.
    (unsafe { enabled() }) & TILES == TILES
}

/// Asks Linux for the right to use tiles, for all threads of the process (`arch_prctl(ARCH_REQ_XCOMP_PERM,
/// XFEATURE_XTILEDATA)`).
#[cfg(target_os = "linux")]
fn granted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: this system call takes two integers and accesses no memory of this process. A kernel without this call
    // returns an error. The call clobbers rcx and r11, as declared.
    unsafe {
        asm!("syscall", inout("rax") result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result == 0
}

/// False: other systems lack this call.
#[cfg(not(target_os = "linux"))]
fn granted() -> bool {
    false
}

/// Computes the matmuls with AMX instructions.
///
/// # Safety
/// Same as for [`tiles::Unit`]. Also, [`refusal`] returns `None`, or is calling this function.
pub unsafe fn run(matmuls: &[TileMatmul]) {
    tiles::check(matmuls);
    let Some(first) = matmuls.first() else { return };
    let config = Config::new(first.rows);
    // There are two versions, for two rows of tiles and for one, because an instruction must not name a tile that is
    // not configured.
    if first.rows.lower > 0 {
        // SAFETY: tile loads and stores access the configured rows of 64 bytes from `a`, `b` and `c` at their strides,
        // which the caller guarantees. All registers used are declared, including the tiles, and the tiles are released
        // at the end of the block.
        unsafe {
            asm!(
                "ldtilecfg [{steps}]",
                "6:",
                "mov {a}, [{matmul} + {a_start}]",
                "mov {c}, [{matmul} + {c_start}]",
                "mov {c_stride}, [{matmul} + {c_row}]",
                "mov {a_row}, [{matmul} + {a_line}]",
                "mov {blocks}, [{matmul} + {block_count}]",
                "2:",
                "mov {c_low}, {c_stride}",
                "shl {c_low}, 4",
                "add {c_low}, {c}",
                "cmp qword ptr [{matmul} + {from_c}], 0",
                "je 3f",
                "tileloadd tmm0, [{c} + {c_stride}]",
                "tileloadd tmm1, [{c} + {c_stride} + 64]",
                "tileloadd tmm2, [{c_low} + {c_stride}]",
                "tileloadd tmm3, [{c_low} + {c_stride} + 64]",
                "jmp 4f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "4:",
                "mov {up}, {a}",
                "mov {low}, {a}",
                "add {low}, [{matmul} + {a_lower}]",
                "mov {b}, [{matmul} + {b_start}]",
                "mov {steps}, [{matmul} + {depth}]",
                ".p2align 5",
                "5:",
                "tileloadd tmm4, [{up} + {a_row}]",
                "tileloadd tmm6, [{b} + {b_row}]",
                "tileloadd tmm5, [{low} + {a_row}]",
                "tileloadd tmm7, [{b} + {b_row} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {up}, [{matmul} + {a_step}]",
                "add {low}, [{matmul} + {a_step}]",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 5b",
                "tilestored [{c} + {c_stride}], tmm0",
                "tilestored [{c} + {c_stride} + 64], tmm1",
                "tilestored [{c_low} + {c_stride}], tmm2",
                "tilestored [{c_low} + {c_stride} + 64], tmm3",
                "add {a}, [{matmul} + {a_block}]",
                "add {c}, [{matmul} + {c_block}]",
                "dec {blocks}",
                "jnz 2b",
                "add {matmul}, {size}",
                "dec {matmuls}",
                "jnz 6b",
                "tilerelease",
                steps = inout(reg) &config => _,
                matmul = inout(reg) matmuls.as_ptr() => _,
                matmuls = inout(reg) matmuls.len() => _,
                a = out(reg) _,
                c = out(reg) _,
                c_stride = out(reg) _,
                blocks = out(reg) _,
                a_row = out(reg) _,
                b_row = in(reg) 128usize,
                up = out(reg) _,
                low = out(reg) _,
                b = out(reg) _,
                a_lower = const std::mem::offset_of!(TileMatmul, a_lower),
                size = const size_of::<TileMatmul>(),
                a_start = const std::mem::offset_of!(TileMatmul, a),
                c_start = const std::mem::offset_of!(TileMatmul, c),
                c_row = const std::mem::offset_of!(TileMatmul, c_stride),
                a_line = const std::mem::offset_of!(TileMatmul, a_row),
                block_count = const std::mem::offset_of!(TileMatmul, blocks),
                a_step = const std::mem::offset_of!(TileMatmul, a_step),
                b_start = const std::mem::offset_of!(TileMatmul, b),
                depth = const std::mem::offset_of!(TileMatmul, depth),
                from_c = const std::mem::offset_of!(TileMatmul, from_c),
                a_block = const std::mem::offset_of!(TileMatmul, a_block),
                c_block = const std::mem::offset_of!(TileMatmul, c_block),
                c_low = out(reg) _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    } else {
        // SAFETY: tile loads and stores access the configured rows of 64 bytes from `a`, `b` and `c` at their strides,
        // which the caller guarantees. All registers used are declared, including the tiles, and the tiles are released
        // at the end of the block.
        unsafe {
            asm!(
                "ldtilecfg [{steps}]",
                "6:",
                "mov {a}, [{matmul} + {a_start}]",
                "mov {c}, [{matmul} + {c_start}]",
                "mov {c_stride}, [{matmul} + {c_row}]",
                "mov {a_row}, [{matmul} + {a_line}]",
                "mov {blocks}, [{matmul} + {block_count}]",
                "2:",
                "cmp qword ptr [{matmul} + {from_c}], 0",
                "je 3f",
                "tileloadd tmm0, [{c} + {c_stride}]",
                "tileloadd tmm1, [{c} + {c_stride} + 64]",
                "jmp 4f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "4:",
                "mov {up}, {a}",
                "mov {b}, [{matmul} + {b_start}]",
                "mov {steps}, [{matmul} + {depth}]",
                ".p2align 5",
                "5:",
                "tileloadd tmm4, [{up} + {a_row}]",
                "tileloadd tmm6, [{b} + {b_row}]",
                "tileloadd tmm7, [{b} + {b_row} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {up}, [{matmul} + {a_step}]",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 5b",
                "tilestored [{c} + {c_stride}], tmm0",
                "tilestored [{c} + {c_stride} + 64], tmm1",
                "add {a}, [{matmul} + {a_block}]",
                "add {c}, [{matmul} + {c_block}]",
                "dec {blocks}",
                "jnz 2b",
                "add {matmul}, {size}",
                "dec {matmuls}",
                "jnz 6b",
                "tilerelease",
                steps = inout(reg) &config => _,
                matmul = inout(reg) matmuls.as_ptr() => _,
                matmuls = inout(reg) matmuls.len() => _,
                a = out(reg) _,
                c = out(reg) _,
                c_stride = out(reg) _,
                blocks = out(reg) _,
                a_row = out(reg) _,
                b_row = in(reg) 128usize,
                up = out(reg) _,
                b = out(reg) _,
                size = const size_of::<TileMatmul>(),
                a_start = const std::mem::offset_of!(TileMatmul, a),
                c_start = const std::mem::offset_of!(TileMatmul, c),
                c_row = const std::mem::offset_of!(TileMatmul, c_stride),
                a_line = const std::mem::offset_of!(TileMatmul, a_row),
                block_count = const std::mem::offset_of!(TileMatmul, blocks),
                a_step = const std::mem::offset_of!(TileMatmul, a_step),
                b_start = const std::mem::offset_of!(TileMatmul, b),
                depth = const std::mem::offset_of!(TileMatmul, depth),
                from_c = const std::mem::offset_of!(TileMatmul, from_c),
                a_block = const std::mem::offset_of!(TileMatmul, a_block),
                c_block = const std::mem::offset_of!(TileMatmul, c_block),
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Floating-point operations of one call of [`spin`].
pub fn spin_flops(rounds: usize) -> f64 {
    (rounds.max(1) * 8 * 2 * SIDE * TILE) as f64
}

/// Runs `rounds` times eight tile multiplications without touching memory, to measure the peak of the AMX unit.
///
/// # Safety
/// [`refusal`] returns `None`.
pub unsafe fn spin(rounds: usize) {
    let config = Config::new(Rows { upper: SIDE as u8, lower: SIDE as u8 });
    // SAFETY: the block only reads the configuration from memory. All registers used are declared, and the tiles are
    // released at the end of the block.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            ".p2align 5",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7",
            "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {rounds}",
            "jnz 2b",
            "tilerelease",
            config = in(reg) &config,
            rounds = inout(reg) rounds.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Whether `unit` gives the bits of the formula in `tiles.rs` for every kind of block, sums that continue, incomplete
/// tiles, and large and small numbers.
fn self_test(unit: impl Fn(&[TileMatmul])) -> bool {
    const DEPTH: usize = 3;
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    // Numbers from 2^-20 to 2^11; one in 64 is so small that its products are flushed to 0.
    let mut number = || {
        let (bits, exponent) = (next(), next());
        let exponent = if exponent.is_multiple_of(64) { 1 } else { 107 + exponent / 64 % 32 };
        bf16::from_bits(((bits & 1) << 15 | exponent << 7 | (bits >> 1 & 0x7f)) as u16)
    };
    let a: Vec<bf16> = (0..4 * DEPTH * TILE).map(|_| number()).collect();
    let b: Vec<bf16> = (0..2 * DEPTH * TILE).map(|_| number()).collect();
    let start: Vec<f32> = (0..64 * 40).map(|_| number().to_f32()).collect();
    let shapes = [(16, 16, 2), (16, 1, 1), (16, 0, 2), (5, 0, 1), (1, 0, 1)];
    shapes.into_iter().all(|(upper, lower, blocks)| {
        [(1, 0), (DEPTH, 0), (DEPTH, 1)].into_iter().all(|(depth, from_c)| {
            let of = |unit: &dyn Fn(&[TileMatmul])| {
                let mut c = start.clone();
                let rows = if lower > 0 { 2 * SIDE } else { SIDE };
                let tall = TileMatmul {
                    a: a.as_ptr(),
                    b: b.as_ptr(),
                    c: c.as_mut_ptr(),
                    a_row: size_of_val(&a[..tiles::DEPTH]),
                    a_lower: size_of_val(&a[..depth * TILE]),
                    a_step: size_of_val(&a[..TILE]),
                    c_stride: size_of::<[f32; 40]>(),
                    a_block: size_of_val(&a[..rows / SIDE * depth * TILE]),
                    c_block: rows * size_of::<[f32; 40]>(),
                    depth,
                    blocks,
                    from_c,
                    rows: Rows { upper, lower },
                };
                // First the layout in which a step's rows are contiguous, then the layout of a row-major matrix.
                let (side, lines) = (size_of_val(&a[..TILE]), size_of_val(&a[..rows / SIDE * blocks * TILE]));
                let line = depth * tall.a_row;
                let row_major = TileMatmul {
                    c: c[4..].as_mut_ptr(),
                    a_row: line,
                    a_lower: SIDE * line,
                    a_step: tall.a_row,
                    a_block: rows * line,
                    ..tall
                };
                let step_lines = TileMatmul {
                    c: c[8..].as_mut_ptr(),
                    a_lower: side,
                    a_step: lines,
                    a_block: rows / SIDE * side,
                    from_c: 1,
                    ..tall
                };
                unit(&[tall, step_lines, row_major]);
                c.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            };
            // SAFETY: the operands hold at most four tiles of rows of A, `DEPTH` deep, as many steps of B, and 64 rows
            // of 40 columns of C.
            of(&unit) == of(&|matmuls| unsafe { tiles::emulated(matmuls) })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit that skips a step of depth, or ignores the previous contents of C, fails the self-test; the emulation
    /// passes.
    #[test]
    fn the_self_test_detects_wrong_results() {
        // SAFETY: the matmuls are those of the self-test, or parts of them.
        let emulated = |matmuls: &[TileMatmul]| unsafe { tiles::emulated(matmuls) };
        let spoiled = |spoil: fn(&TileMatmul) -> TileMatmul| {
            self_test(|matmuls| matmuls.iter().for_each(|w| emulated(&[spoil(w)])))
        };
        assert!(self_test(emulated) && spoiled(|w| *w));
        assert!(!spoiled(|w| TileMatmul { from_c: 0, ..*w }));
        assert!(!spoiled(|w| TileMatmul { depth: 1, ..*w }));
        assert!(!spoiled(|w| TileMatmul { blocks: 1, ..*w }));
        assert!(!spoiled(|w| TileMatmul { a_step: size_of::<[bf16; TILE]>(), ..*w }));
        assert!(!spoiled(|w| TileMatmul { a_row: size_of::<[bf16; tiles::DEPTH]>(), ..*w }));
        assert!(!self_test(|matmuls| emulated(&matmuls[..1])));
    }

    /// Runs the AMX instructions that measure the peak, where AMX is present. The self-test ran all others.
    #[test]
    fn the_amx_peak_measurement_runs() {
        match refusal() {
            // SAFETY: `refusal` has checked that AMX may be used.
            None => unsafe { spin(3) },
            Some(why) => eprintln!("skipped: {why}"),
        }
        assert_eq!(spin_flops(3), 3.0 * 8.0 * 16.0 * 16.0 * 32.0 * 2.0);
    }

    #[test]
    fn tile_registers_without_rows_are_not_configured() {
        let both = Config::new(Rows { upper: 16, lower: 5 });
        assert_eq!((both.palette, both.start_row, both.reserved), (1, 0, [0; 14]));
        assert_eq!(both.rows, [16, 16, 5, 5, 16, 5, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(both.row_bytes, [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0]);
        let upper = Config::new(Rows { upper: 3, lower: 0 });
        assert_eq!(upper.rows, [3, 3, 0, 0, 3, 0, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(upper.row_bytes, [64, 64, 0, 0, 64, 0, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((size_of::<Config>(), spin_flops(0), spin_flops(1)), (64, 131_072.0, 131_072.0));
    }

    /// The probe must find AMX if and only if Linux reports it.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_amx_probe_agrees_with_linux() {
        let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") else { return };
        let Some(flags) = text.lines().find(|line| line.starts_with("flags")) else { return };
        let has = |flag: &str| flags.split_whitespace().any(|own| own == flag);
        if !has("amx_tile") || !has("amx_bf16") {
            assert!(!processor_has_it());
            assert_eq!(refusal(), Some("this processor has no AMX for bf16"));
        }
    }
}
