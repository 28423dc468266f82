//! The processor's settings for floating-point numbers, on every thread that computes.

/// Round to nearest, denormals kept, while it lives: a caller's own settings (flush-to-zero, say) must not change bits.
/// (Miri knows no assembly, and no other settings.)
pub(super) struct FloatEnvironment {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    callers: u32,
}

impl FloatEnvironment {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub fn set() -> Self {
        const DEFAULT: u32 = 0x1f80;
        let mut callers = 0u32;
        // SAFETY: stores and loads the SSE control word, which is per thread; `Drop` restores the caller's. The
        // compiler assumes the default word, which is what is set here.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &mut callers, options(nostack));
            std::arch::asm!("ldmxcsr [{}]", in(reg) &DEFAULT, options(nostack));
        }
        FloatEnvironment { callers }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub fn set() -> Self {
        FloatEnvironment {}
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Drop for FloatEnvironment {
    fn drop(&mut self) {
        // SAFETY: restores the word that `set` saved on this thread.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &self.callers, options(nostack)) }
    }
}
