//! The floating-point control word of a thread (MXCSR). This module sets rounding and denormals for the duration of a
//! call, and restores the caller's settings.
//!
//! The compiler does not know about the control word and may move arithmetic past the instructions that set it. So the
//! word is set around calls that cannot be inlined, never between operations.

use super::Kernel;
use std::hint::black_box;

/// While a value of this type exists, its thread rounds to nearest and treats denormals in a fixed way, so that
/// settings made by other libraries cannot change bits. (Miri supports neither assembly nor other settings.)
pub(crate) struct FloatEnvironment {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    callers: u32,
}

/// The control word that the compiler assumes: all exceptions masked, round to nearest, denormals kept.
const KEEPS_DENORMALS: u32 = 0x1f80;
/// The control word with flush-to-zero and denormals-are-zero.
#[cfg(target_arch = "x86_64")]
const FLUSHES_DENORMALS: u32 = KEEPS_DENORMALS | 1 << 15 | 1 << 6;

impl FloatEnvironment {
    /// Sets round to nearest with denormals kept, which the compiler assumes.
    pub(crate) fn set() -> Self {
        FloatEnvironment::with(KEEPS_DENORMALS)
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn with(word: u32) -> Self {
        let mut callers = 0u32;
        // SAFETY: the SSE control word belongs to the thread, and `Drop` restores the caller's word.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &mut callers, options(nostack));
            std::arch::asm!("ldmxcsr [{}]", in(reg) &word, options(nostack));
        }
        FloatEnvironment { callers }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn with(_word: u32) -> Self {
        FloatEnvironment {}
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Drop for FloatEnvironment {
    fn drop(&mut self) {
        // SAFETY: this restores the word that `with` saved on the same thread.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &self.callers, options(nostack)) }
    }
}

/// Calls `run` with a control word that makes vector operations treat denormal inputs and results as zeros of their
/// sign (tininess is detected after rounding).
///
/// # Safety
/// Same as for `run`.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
pub(crate) unsafe fn flushing<K: Kernel>(run: unsafe fn(K) -> K::Output, kernel: K) -> K::Output {
    let _environment = FloatEnvironment::with(FLUSHES_DENORMALS);
    // SAFETY: the caller upholds this function's safety contract. The compiler cannot see through `black_box`, so it
    // does not inline `run`.
    unsafe { black_box(run)(kernel) }
}
