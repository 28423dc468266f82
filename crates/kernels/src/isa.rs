//! Which instruction set the kernels use, chosen once at run time.
//!
//! Every `Simd` implementation computes the same 16-lane formula with fused multiply-adds, so in f32 the
//! bits agree on all of them; what differs is speed. AMX, whose bf16 matmuls have a formula of their own, is an
//! instruction set above AVX-512: those matmuls run on tiles, and everything else as on AVX-512. Another above it
//! takes two terms of such matmuls at once, with the bits of all others.

use crate::simd::{Kernel, portable, tiles};
#[cfg(target_arch = "x86_64")]
use crate::simd::{amx, avx2, avx512, control};
use crate::{Error, Result};

/// An instruction set that this process may use, slowest first.
///
/// Code that holds one may run its instructions: a value is made only where the processor was asked first, or where
/// none is needed ([`Isa::PORTABLE`], [`Isa::AMX_EMULATED`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isa(Kind);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    /// Plain Rust, any architecture.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512, and its dot products of pairs of bf16.
    Avx512Bf16,
    /// AVX-512, and AMX with bf16 for the matmuls in bf16.
    Amx,
    /// The bits of `Amx` on any machine, with its tiles in plain Rust: slow, for checks.
    AmxEmulated,
    /// The ways of `Avx512Bf16` on any machine.
    #[cfg(test)]
    DotsEmulated,
}

/// The least [`Isa::dots_gain`] for which dot products of pairs are chosen.
const WORTH: f64 = 1.25;

impl Kind {
    /// The instruction sets that a machine may have, slowest first.
    const HARDWARE: [Kind; 5] = [Kind::Portable, Kind::Avx2, Kind::Avx512, Kind::Avx512Bf16, Kind::Amx];

    /// As written in `LOCKSTEP_ISA` and in a run's record.
    fn name(self) -> &'static str {
        match self {
            Kind::Portable => "portable",
            Kind::Avx2 => "avx2",
            Kind::Avx512 => "avx512",
            Kind::Avx512Bf16 => "avx512-bf16",
            Kind::Amx => "amx",
            Kind::AmxEmulated => "amx-emulated",
            #[cfg(test)]
            Kind::DotsEmulated => "avx512-bf16-emulated",
        }
    }

    fn is_present(self) -> bool {
        match self {
            Kind::Portable | Kind::AmxEmulated => true,
            #[cfg(test)]
            Kind::DotsEmulated => true,
            Kind::Avx512Bf16 => Isa::dots_refusal().is_none(),
            Kind::Amx => Isa::amx_refusal().is_none(),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => {
                Kind::Avx2.is_present()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The only way to an instruction set that a machine may lack.
    fn checked(self) -> Option<Isa> {
        self.is_present().then_some(Isa(self))
    }
}

impl Isa {
    /// Plain Rust, any architecture.
    pub const PORTABLE: Isa = Isa(Kind::Portable);
    /// The bits of AMX on any machine, its tiles in plain Rust: slow, for checks.
    pub const AMX_EMULATED: Isa = Isa(Kind::AmxEmulated);
    /// Dot products of pairs without their instruction.
    #[cfg(test)]
    pub(crate) const DOTS_EMULATED: Isa = Isa(Kind::DotsEmulated);

    /// The fastest that this machine has: dot products of pairs only where they were measured to be.
    pub fn best() -> Isa {
        let worth = |kind: &Kind| *kind != Kind::Avx512Bf16 || Isa::dots_gain().is_some_and(|gain| gain >= WORTH);
        let mut fastest_first = Kind::HARDWARE.into_iter().rev().filter(|kind| kind.is_present());
        Isa(fastest_first.find(worth).expect("portable is always present"))
    }

    /// The instruction sets that this machine has, slowest first.
    pub fn present() -> Vec<Isa> {
        Kind::HARDWARE.into_iter().filter_map(Kind::checked).collect()
    }

    /// Whether matmuls run on the tiles of the processor itself.
    pub(crate) fn is_amx(self) -> bool {
        self.0 == Kind::Amx
    }

    /// Whether matmuls in bf16 run on tiles, with the formula of [`crate::simd::tiles`] in place of the
    /// chains that all others share.
    pub(crate) fn has_tiles(self) -> bool {
        self.tiles().is_some()
    }

    /// Whether matmuls in bf16 take two terms at once: the chains' bits, sooner.
    #[inline(always)]
    pub(crate) fn has_dots(self) -> bool {
        #[cfg(test)]
        if self.0 == Kind::DotsEmulated {
            return true;
        }
        self.0 == Kind::Avx512Bf16
    }

    /// What runs matmuls on tiles, if they do.
    pub(crate) fn tiles(self) -> Option<tiles::Unit> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => Some(amx::run),
            Kind::AmxEmulated => Some(tiles::emulated),
            _ => None,
        }
    }

    /// Why this process may not use AMX; nothing if it may.
    pub fn amx_refusal() -> Option<&'static str> {
        if !Kind::Avx512.is_present() {
            return Some("this processor has no AVX-512");
        }
        #[cfg(target_arch = "x86_64")]
        let refusal = amx::refusal();
        #[cfg(not(target_arch = "x86_64"))]
        let refusal = Some("this processor is not of x86-64");
        refusal
    }

    /// Why this process may not use the dot products of pairs of AVX-512; nothing if it may. That it may does not make
    /// it the best: see [`Isa::best`].
    pub fn dots_refusal() -> Option<&'static str> {
        if !Kind::Avx512.is_present() {
            return Some("this processor has no AVX-512");
        }
        #[cfg(target_arch = "x86_64")]
        let refusal = crate::simd::dots::refusal();
        #[cfg(not(target_arch = "x86_64"))]
        let refusal = Some("this processor is not of x86-64");
        refusal
    }

    /// How many times the multiply-adds of FMA the dot products of pairs do, measured once; nothing where they may not
    /// be used. On processors on which it is about 1 [`Isa::best`] does without: what is rounded or zipped for them
    /// would be lost.
    pub fn dots_gain() -> Option<f64> {
        #[cfg(target_arch = "x86_64")]
        let gain = if Kind::Avx512.is_present() { crate::simd::dots::gain() } else { None };
        #[cfg(not(target_arch = "x86_64"))]
        let gain = None;
        gain
    }

    /// As written in `LOCKSTEP_ISA` and in a run's record.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// The instruction set that `LOCKSTEP_ISA` names, or the best one. Naming one that the machine lacks is an error.
    pub fn from_env() -> Result<Isa> {
        match std::env::var("LOCKSTEP_ISA") {
            Ok(name) if !name.is_empty() => Isa::from_name(&name),
            _ => Ok(Isa::best()),
        }
    }

    /// The instruction set of this name, if the machine has it.
    pub fn from_name(name: &str) -> Result<Isa> {
        let present = || Isa::present().iter().map(|i| i.name()).collect::<Vec<_>>().join(", ");
        let mut named = Kind::HARDWARE.into_iter().chain([Kind::AmxEmulated]);
        let kind = named.find(|kind| kind.name() == name).ok_or_else(|| {
            Error::Isa(format!("LOCKSTEP_ISA={name}: no such instruction set; this machine has: {}", present()))
        })?;
        kind.checked().ok_or_else(|| {
            let why = match kind {
                Kind::Amx => Isa::amx_refusal(),
                Kind::Avx512Bf16 => Isa::dots_refusal(),
                _ => None,
            };
            let why = why.map_or(String::new(), |why| format!(" ({why})"));
            Error::Isa(format!("LOCKSTEP_ISA={name}: this machine lacks it{why}; it has: {}", present()))
        })
    }

    /// Runs `kernel` compiled for this instruction set: AMX is for matmuls alone, all else runs on the vectors below
    /// it.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.vectors() {
            Kind::Portable => portable::run(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `vectors` gives what the processor has.
            Kind::Avx2 => unsafe { avx2::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Avx512 => unsafe { avx512::run(kernel) },
            _ => unreachable!("{self:?} cannot be present on this architecture"),
        }
    }

    /// [`run`](Self::run) with denormals taken and left as zeros of their sign by additions, multiplications and
    /// multiply-adds: the arithmetic of matmuls of bf16, which `kernel` is. What else it computes with vectors is not
    /// promised.
    pub(crate) fn run_flushing<K: Kernel>(self, kernel: K) -> K::Output {
        match self.vectors() {
            Kind::Portable => portable::run_flushing(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `vectors` gives what the processor has.
            Kind::Avx2 => unsafe { control::flushing(avx2::run::<K>, kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Avx512 => unsafe { control::flushing(avx512::run::<K>, kernel) },
            _ => unreachable!("{self:?} cannot be present on this architecture"),
        }
    }

    /// [`run_flushing`](Self::run_flushing) of a kernel that multiplies words ([`Simd::dot`](crate::simd::Simd::dot)),
    /// for an instruction set that [has them](Self::has_dots). What it computes beside them flushes only if it says so:
    /// the instruction heeds no control word, which takes time to set.
    pub(crate) fn run_dots<K: Kernel>(self, kernel: K, adds: bool) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind is only made by `Kind::checked`, which asked the processor.
            Kind::Avx512Bf16 if adds => unsafe { control::flushing(avx512::run_dots::<K>, kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Avx512Bf16 => unsafe { avx512::run_dots(kernel) },
            #[cfg(test)]
            Kind::DotsEmulated => self.run_flushing(kernel),
            _ => unreachable!("{self:?} does not multiply words"),
        }
    }

    /// The vectors that it computes with. An `Isa` of a kind that a machine may lack, or of one above it, is only made
    /// by `Kind::checked`, which asked the processor; for the emulated tiles it is asked here.
    fn vectors(self) -> Kind {
        match self.0 {
            Kind::Avx512Bf16 | Kind::Amx => Kind::Avx512,
            Kind::AmxEmulated => {
                *[Kind::Avx512, Kind::Avx2].iter().find(|kind| kind.is_present()).unwrap_or(&Kind::Portable)
            }
            #[cfg(test)]
            Kind::DotsEmulated => Isa::AMX_EMULATED.vectors(),
            other => other,
        }
    }
}

impl std::fmt::Debug for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_refused_with_a_reason() {
        for isa in Isa::present().into_iter().chain([Isa::AMX_EMULATED]) {
            assert_eq!(Isa::from_name(isa.name()).unwrap(), isa);
        }
        for kind in Kind::HARDWARE.into_iter().filter(|kind| !kind.is_present()) {
            assert!(!Isa::present().iter().any(|isa| isa.0 == kind));
            let refused = Isa::from_name(kind.name()).unwrap_err().to_string();
            assert!(refused.contains("this machine lacks it"), "{refused}");
            let why = Isa::amx_refusal().filter(|_| kind == Kind::Amx);
            assert!(why.is_none_or(|why| refused.contains(why)), "{refused}");
        }
        let unknown = Isa::from_name("mmx").unwrap_err().to_string();
        assert!(unknown.contains("no such instruction set") && unknown.contains("portable"), "{unknown}");
    }

    #[test]
    fn tiles_in_plain_rust_are_never_chosen() {
        assert!(!Isa::present().contains(&Isa::AMX_EMULATED) && Isa::AMX_EMULATED.has_tiles());
        assert_eq!(Isa::best().is_amx(), Isa::amx_refusal().is_none());
    }

    /// Whichever is chosen, it is there; pairs only if they are worth it.
    #[test]
    fn the_best_is_the_last_that_is_worth_it() {
        let (present, best) = (Isa::present(), Isa::best());
        let pairs = present.iter().any(|isa| isa.has_dots());
        assert_eq!((pairs, pairs), (Isa::dots_refusal().is_none(), Isa::dots_gain().is_some()));
        let worth = Isa::dots_gain().is_none_or(|gain| gain >= WORTH);
        let expected = present.into_iter().rfind(|isa| worth || !isa.has_dots());
        assert_eq!(Some(best), expected);
    }
}
