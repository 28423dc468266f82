//! The instruction set that the kernels use. It is chosen once at run time.
//!
//! Every `Simd` implementation computes the same 16-lane formula with fused multiply-adds, so in f32 the bits agree on
//! all instruction sets; only the speed differs. AMX is the exception: it runs bf16 matmuls on tiles, with a different
//! formula, and everything else as AVX-512 does. AVX-512 BF16 multiplies two terms of a bf16 matmul at once, but gives
//! the same bits as the other instruction sets.

use crate::simd::{Kernel, portable, tiles};
#[cfg(target_arch = "x86_64")]
use crate::simd::{amx, avx2, avx512, control};
use crate::{Error, Result};

/// An instruction set that this process may use, slowest first.
///
/// A value of this type proves that its instructions may be run. A value is created only after the processor was
/// queried, or for an instruction set that needs no hardware support ([`Isa::PORTABLE`], [`Isa::AMX_EMULATED`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isa(Kind);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    /// Plain Rust, for any architecture.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with AVX-512 BF16: dot products of pairs of bf16.
    Avx512Bf16,
    /// AVX-512, with AMX for matmuls in bf16.
    Amx,
    /// The same bits as `Amx` on any machine, with tiles in plain Rust. Slow; for tests.
    AmxEmulated,
    /// The code paths of `Avx512Bf16` on any machine, for tests.
    #[cfg(test)]
    DotsEmulated,
}

/// AVX-512 BF16 is preferred to AVX-512 if [`Isa::dots_gain`] is at least this.
const WORTH: f64 = 1.25;

impl Kind {
    /// The instruction sets that a machine may have, slowest first.
    const HARDWARE: [Kind; 5] = [Kind::Portable, Kind::Avx2, Kind::Avx512, Kind::Avx512Bf16, Kind::Amx];

    /// The instruction set's name in `LOCKSTEP_ISA` and in a training run's record.
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

    /// This instruction set, if the machine has it. Only this function creates an [`Isa`] that a machine may lack.
    fn checked(self) -> Option<Isa> {
        self.is_present().then_some(Isa(self))
    }
}

impl Isa {
    /// The instruction set of plain Rust, which any architecture has.
    pub const PORTABLE: Isa = Isa(Kind::Portable);
    /// The same bits as AMX on any machine, with tiles in plain Rust. Slow; for tests.
    pub const AMX_EMULATED: Isa = Isa(Kind::AmxEmulated);
    /// The code paths of AVX-512 BF16 without its instruction, for tests.
    #[cfg(test)]
    pub(crate) const DOTS_EMULATED: Isa = Isa(Kind::DotsEmulated);

    /// The fastest instruction set of this machine. AVX-512 BF16 is chosen only if it was measured to be faster
    /// ([`Isa::dots_gain`]).
    pub fn best() -> Isa {
        let worth = |kind: &Kind| *kind != Kind::Avx512Bf16 || Isa::dots_gain().is_some_and(|gain| gain >= WORTH);
        let mut fastest_first = Kind::HARDWARE.into_iter().rev().filter(|kind| kind.is_present());
        Isa(fastest_first.find(worth).expect("portable is always present"))
    }

    /// The instruction sets that this machine has, slowest first.
    pub fn present() -> Vec<Isa> {
        Kind::HARDWARE.into_iter().filter_map(Kind::checked).collect()
    }

    /// Whether bf16 matmuls run on the processor's own AMX tiles.
    pub(crate) fn is_amx(self) -> bool {
        self.0 == Kind::Amx
    }

    /// Whether bf16 matmuls run on tiles (AMX, real or emulated), with the formula of [`crate::simd::tiles`] instead of
    /// the chains of multiply-adds of all other instruction sets.
    pub(crate) fn has_tiles(self) -> bool {
        self.tiles().is_some()
    }

    /// Whether bf16 matmuls multiply two terms at once (AVX-512 BF16). The bits equal those of one multiply-add after
    /// another.
    #[inline(always)]
    pub(crate) fn has_dots(self) -> bool {
        #[cfg(test)]
        if self.0 == Kind::DotsEmulated {
            return true;
        }
        self.0 == Kind::Avx512Bf16
    }

    /// The function that runs bf16 matmuls on tiles, for instruction sets that have them.
    pub(crate) fn tiles(self) -> Option<tiles::Unit> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => Some(amx::run),
            Kind::AmxEmulated => Some(tiles::emulated),
            _ => None,
        }
    }

    /// The reason why this process may not use AMX; `None` if it may.
    pub fn amx_refusal() -> Option<&'static str> {
        if !Kind::Avx512.is_present() {
            return Some("this processor has no AVX-512");
        }
        #[cfg(target_arch = "x86_64")]
        let refusal = amx::refusal();
        #[cfg(not(target_arch = "x86_64"))]
        let refusal = Some("this processor is not x86-64");
        refusal
    }

    /// The reason why this process may not use AVX-512 BF16; `None` if it may. Even then it may not be the fastest: see
    /// [`Isa::best`].
    pub fn dots_refusal() -> Option<&'static str> {
        if !Kind::Avx512.is_present() {
            return Some("this processor has no AVX-512");
        }
        #[cfg(target_arch = "x86_64")]
        let refusal = crate::simd::dots::refusal();
        #[cfg(not(target_arch = "x86_64"))]
        let refusal = Some("this processor is not x86-64");
        refusal
    }

    /// Speed of AVX-512 BF16's dot products of pairs relative to FMA's, measured once; `None` if they may not be used.
    /// If it is about 1, [`Isa::best`] does not use them, because rounding and interleaving their operands would waste
    /// time.
    pub fn dots_gain() -> Option<f64> {
        #[cfg(target_arch = "x86_64")]
        let gain = if Kind::Avx512.is_present() { crate::simd::dots::gain() } else { None };
        #[cfg(not(target_arch = "x86_64"))]
        let gain = None;
        gain
    }

    /// The instruction set's name in `LOCKSTEP_ISA` and in a training run's record.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// The instruction set that `LOCKSTEP_ISA` names, or the best one if it is not set. Fails if the machine lacks it.
    pub fn from_env() -> Result<Isa> {
        match std::env::var("LOCKSTEP_ISA") {
            Ok(name) if !name.is_empty() => Isa::from_name(&name),
            _ => Ok(Isa::best()),
        }
    }

    /// The instruction set with this name. Fails if the machine lacks it.
    pub fn from_name(name: &str) -> Result<Isa> {
        let present = || Isa::present().iter().map(|i| i.name()).collect::<Vec<_>>().join(", ");
        let mut named = Kind::HARDWARE.into_iter().chain([Kind::AmxEmulated]);
        let kind = named.find(|kind| kind.name() == name).ok_or_else(|| {
            Error::Isa(format!("LOCKSTEP_ISA={name}: unknown instruction set; this machine has: {}", present()))
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

    /// Runs `kernel` compiled for this instruction set's vectors. AMX has no vector type, so kernels use AVX-512
    /// vectors there.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.vectors() {
            Kind::Portable => portable::run(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `vectors` only returns kinds that the processor supports.
            Kind::Avx2 => unsafe { avx2::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `vectors` only returns kinds that the processor supports.
            Kind::Avx512 => unsafe { avx512::run(kernel) },
            _ => unreachable!("{self:?} cannot be present on this architecture"),
        }
    }

    /// [`run`](Self::run) for bf16 matmuls, whose additions, multiplications and multiply-adds treat denormal inputs
    /// and results as zeros of their sign. Other vector operations in `kernel` may or may not do so.
    pub(crate) fn run_flushing<K: Kernel>(self, kernel: K) -> K::Output {
        match self.vectors() {
            Kind::Portable => portable::run_flushing(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `vectors` only returns kinds that the processor supports.
            Kind::Avx2 => unsafe { control::flushing(avx2::run::<K>, kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `vectors` only returns kinds that the processor supports.
            Kind::Avx512 => unsafe { control::flushing(avx512::run::<K>, kernel) },
            _ => unreachable!("{self:?} cannot be present on this architecture"),
        }
    }

    /// Like [`run_flushing`](Self::run_flushing), but for a kernel that multiplies two terms at once
    /// ([`Simd::dot`](crate::simd::Simd::dot)), on an instruction set that [supports this](Self::has_dots). The dot
    /// product itself flushes denormals. Set `adds` if the kernel's other operations must flush them too, which
    /// requires setting a control word and costs time.
    pub(crate) fn run_dots<K: Kernel>(self, kernel: K, adds: bool) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Kind::checked` checks the processor before it creates an `Isa` of this kind.
            Kind::Avx512Bf16 if adds => unsafe { control::flushing(avx512::run_dots::<K>, kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Kind::checked` checks the processor before it creates an `Isa` of this kind.
            Kind::Avx512Bf16 => unsafe { avx512::run_dots(kernel) },
            #[cfg(test)]
            Kind::DotsEmulated => self.run_flushing(kernel),
            _ => unreachable!("{self:?} does not multiply words"),
        }
    }

    /// The instruction set whose vectors this one uses. For real instruction sets, `Kind::checked` has already queried
    /// the processor. For emulated instruction sets, it is queried here.
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
    fn unknown_and_missing_instruction_sets_are_refused_with_a_reason() {
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
        assert!(unknown.contains("unknown instruction set") && unknown.contains("portable"), "{unknown}");
    }

    #[test]
    fn emulated_tiles_are_never_chosen_by_default() {
        assert!(!Isa::present().contains(&Isa::AMX_EMULATED) && Isa::AMX_EMULATED.has_tiles());
        assert_eq!(Isa::best().is_amx(), Isa::amx_refusal().is_none());
    }

    /// The chosen instruction set is present on this machine, and AVX-512 BF16 is chosen only if it is fast enough.
    #[test]
    fn the_best_instruction_set_is_present_and_fast_enough() {
        let (present, best) = (Isa::present(), Isa::best());
        let pairs = present.iter().any(|isa| isa.has_dots());
        assert_eq!((pairs, pairs), (Isa::dots_refusal().is_none(), Isa::dots_gain().is_some()));
        let worth = Isa::dots_gain().is_none_or(|gain| gain >= WORTH);
        let expected = present.into_iter().rfind(|isa| worth || !isa.has_dots());
        assert_eq!(Some(best), expected);
    }
}
