//! Which instruction set the kernels use, chosen once at run time.
//!
//! Every [`crate::simd::Simd`] implementation computes the same 16-lane formula with fused multiply-adds, so in f32 the
//! bits agree on all of them; what differs is speed. AMX, whose bf16 products have a formula of their own, is an instruction
//! set above AVX-512: those products run on tiles, and everything else as on AVX-512.

use crate::simd::{Kernel, portable, tiles};
#[cfg(target_arch = "x86_64")]
use crate::simd::{amx, avx2, avx512};
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
    /// AVX-512, and AMX with bf16 for the products of numbers in bf16.
    Amx,
    /// The bits of [`Isa::Amx`] on any machine, with its tiles in plain Rust: slow, for checks.
    AmxEmulated,
}

impl Isa {
    /// Those that a machine may have, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// The fastest that this machine has.
    pub fn best() -> Isa {
        *Isa::present().last().expect("portable is always present")
    }

    /// Those that this machine has, slowest first.
    pub fn present() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_present()).collect()
    }

    /// Whether products of numbers in bf16 run on tiles, with the formula of [`crate::simd::tiles`] in place of the chains
    /// that all others share.
    pub fn has_tiles(self) -> bool {
        self.tiles().is_some()
    }

    /// What does them.
    pub(crate) fn tiles(self) -> Option<tiles::Unit> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Some(amx::run),
            Isa::AmxEmulated => Some(tiles::emulated),
            _ => None,
        }
    }

    /// Why this process may not use AMX; nothing if it may.
    pub fn amx_refusal() -> Option<&'static str> {
        if !Isa::Avx512.is_present() {
            return Some("this processor has no AVX-512");
        }
        #[cfg(target_arch = "x86_64")]
        let refusal = amx::refusal();
        #[cfg(not(target_arch = "x86_64"))]
        let refusal = Some("this processor is not of x86-64");
        refusal
    }

    /// The fastest of those that compute with vectors alone, for what runs as on them.
    fn vectors(self) -> Isa {
        match self {
            Isa::Amx => Isa::Avx512,
            Isa::AmxEmulated => *[Isa::Avx512, Isa::Avx2].iter().find(|isa| isa.is_present()).unwrap_or(&Isa::Portable),
            other => other,
        }
    }

    /// Whether this machine has it.
    pub fn is_present(self) -> bool {
        match self {
            Isa::Portable | Isa::AmxEmulated => true,
            Isa::Amx => Isa::amx_refusal().is_none(),
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
            Isa::Amx => "amx",
            Isa::AmxEmulated => "amx-emulated",
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
        let mut named = Isa::ALL.into_iter().chain([Isa::AmxEmulated]);
        let isa = named.find(|isa| isa.name() == name).ok_or_else(|| {
            Error::Isa(format!("LOCKSTEP_ISA={name}: no such instruction set; this machine has: {}", present()))
        })?;
        if !isa.is_present() {
            let why = Isa::amx_refusal().filter(|_| isa == Isa::Amx).map_or(String::new(), |why| format!(" ({why})"));
            return Err(Error::Isa(format!("LOCKSTEP_ISA={name}: this machine lacks it{why}; it has: {}", present())));
        }
        Ok(isa)
    }

    /// Runs `kernel` compiled for this instruction set.
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.vectors() {
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
            _ => unreachable!("{self:?} cannot be present on this architecture"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_refused_with_a_reason() {
        for isa in Isa::present().into_iter().chain([Isa::AmxEmulated]) {
            assert_eq!(Isa::from_name(isa.name()).unwrap(), isa);
        }
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_present()) {
            let refused = Isa::from_name(isa.name()).unwrap_err().to_string();
            assert!(refused.contains("this machine lacks it"), "{refused}");
            let why = Isa::amx_refusal().filter(|_| isa == Isa::Amx);
            assert!(why.is_none_or(|why| refused.contains(why)), "{refused}");
        }
        let unknown = Isa::from_name("mmx").unwrap_err().to_string();
        assert!(unknown.contains("no such instruction set") && unknown.contains("portable"), "{unknown}");
    }

    #[test]
    fn tiles_in_plain_rust_are_never_chosen() {
        assert!(!Isa::present().contains(&Isa::AmxEmulated) && Isa::AmxEmulated.has_tiles());
        assert_eq!(Isa::Amx.is_present(), Isa::amx_refusal().is_none());
        assert_eq!(Isa::best() == Isa::Amx, Isa::Amx.is_present());
    }
}
