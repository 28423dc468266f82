//! Which instruction set the kernels use, chosen once at run time.
//!
//! Every [`crate::simd::Simd`] implementation computes the same 16-lane formula with fused multiply-adds, so in f32 the
//! bits agree on all of them; what differs is speed.

use crate::simd::{Kernel, portable};
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2, avx512};
use crate::{Error, Result};

/// An instruction set, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust, any architecture.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    /// All of them, slowest first.
    pub const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

    /// The fastest that this machine has.
    pub fn best() -> Isa {
        *Isa::present().last().expect("portable is always present")
    }

    /// Those that this machine has, slowest first.
    pub fn present() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_present()).collect()
    }

    /// Whether this machine has it.
    pub fn is_present(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_present()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// As written in `LOCKSTEP_ISA` and in a run's record.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// The one that `LOCKSTEP_ISA` names, or the best. Asking for one that the machine lacks is an error.
    pub fn from_env() -> Result<Isa> {
        match std::env::var("LOCKSTEP_ISA") {
            Ok(name) if !name.is_empty() => Isa::from_name(&name),
            _ => Ok(Isa::best()),
        }
    }

    /// The one of this name, if the machine has it.
    pub fn from_name(name: &str) -> Result<Isa> {
        let present = || Isa::present().iter().map(|i| i.name()).collect::<Vec<_>>().join(", ");
        let isa = Isa::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| {
            Error::Isa(format!("LOCKSTEP_ISA={name}: no such instruction set; this machine has: {}", present()))
        })?;
        if !isa.is_present() {
            return Err(Error::Isa(format!("LOCKSTEP_ISA={name}: this machine lacks it; it has: {}", present())));
        }
        Ok(isa)
    }

    /// Runs `kernel` compiled for this instruction set.
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Isa::Portable => portable::run(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` other than portable is only made by `present`/`from_name`, which checked CPUID; `ALL` is
            // filtered by callers through `is_present`. The debug assertion catches a hand-made one.
            Isa::Avx2 => unsafe {
                debug_assert!(self.is_present());
                avx2::run(kernel)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512 => unsafe {
                debug_assert!(self.is_present());
                avx512::run(kernel)
            },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("{self:?} cannot be present on this architecture"),
        }
    }
}
