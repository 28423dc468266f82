//! The floating-point control word of a thread (MXCSR), set for as long as a value of it lives.
//!
//! The compiler knows nothing of the word and moves arithmetic past the instructions that set it: it is set around
//! calls that cannot be inlined, never between operations.

use super::Kernel;
use std::hint::black_box;

/// Rounds to nearest, and says what becomes of denormals, while it lives: a caller's own settings must not change bits.
/// (Miri knows no assembly, and no other settings.)
pub(crate) struct FloatEnvironment {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    callers: u32,
}

/// All exceptions masked, round to nearest.
const KEEPS_DENORMALS: u32 = 0x1f80;
/// The control word with flush-to-zero and denormals-are-zero.
#[cfg(target_arch = "x86_64")]
const FLUSHES_DENORMALS: u32 = KEEPS_DENORMALS | 1 << 15 | 1 << 6;

impl FloatEnvironment {
    /// Denormals are kept: what the compiler assumes.
    pub(crate) fn set() -> Self {
        FloatEnvironment::with(KEEPS_DENORMALS)
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn with(word: u32) -> Self {
        let mut callers = 0u32;
        // SAFETY: stores and loads the SSE control word, which is per thread; `Drop` restores the caller's.
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
        // SAFETY: restores the word that `with` saved on this thread.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &self.callers, options(nostack)) }
    }
}

/// Calls `run`, whose vector operations take and leave denormals as zeros of their sign (tininess after rounding).
///
/// # Safety
/// As for `run`.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
pub(crate) unsafe fn flushing<K: Kernel>(run: unsafe fn(K) -> K::Output, kernel: K) -> K::Output {
    let _environment = FloatEnvironment::with(FLUSHES_DENORMALS);
    // SAFETY: the caller's promise. Through a pointer that the compiler cannot see through, so that it inlines nothing.
    unsafe { black_box(run)(kernel) }
}
