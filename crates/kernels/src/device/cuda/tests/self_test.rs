//! Tests the comparison of a device's tensor cores with their formula: which devices pass, which errors it detects, and
//! how many dot products it needs.

use crate::device::Device;
use crate::device::cuda::Cuda;
use crate::device::cuda::self_test::{compare, run};
use crate::device::cuda::tensor_core::{AMPERE, Family, HOPPER, VOLTA};
use crate::device::cuda::tests::{device, emulated_as};

#[test]
fn the_emulator_matches_the_formula_of_its_family() {
    for family in [AMPERE, HOPPER] {
        let Some(cuda) = emulated_as(0, family) else { return };
        assert_eq!(run(&cuda, family), Ok(()));
        let report = compare(&cuda, family, 7, 40).unwrap();
        assert!(report.compared == 40 * 128 && report.differ == 0, "{report:?}");
        assert_eq!(cuda.tensor_cores().unwrap(), family);
    }
}

/// A device that differs in any one of the formula's parameters is refused, and the error shows the operands.
#[test]
fn a_device_that_differs_from_the_formula_is_refused() {
    let claims: [(&str, Family); 4] = [
        ("a bit more", Family { fraction: 26, ..HOPPER }),
        ("a bit less", Family { fraction: 24, ..HOPPER }),
        ("two steps", Family { depth: 8, ..HOPPER }),
        ("zeros elsewhere", Family { zero: -126, ..HOPPER }),
    ];
    for (what, claimed) in claims {
        let Some(cuda) = emulated_as(0, HOPPER) else { return };
        let error = run(&cuda, claimed).expect_err(what);
        assert!(error.contains("differ from the formula of \"hopper\"") && error.contains("The first: c "), "{error}");
    }
}

/// For a machine with a GPU: compares `LOCKSTEP_PRODUCTS` dot products, split over several seeds, on the device that
/// `LOCKSTEP_DEVICE` names, and prints the mismatches.
#[test]
fn the_requested_dot_products_equal_the_formula() {
    let number = |name: &str, default: usize| match std::env::var(name) {
        Ok(text) if !text.is_empty() => text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected an integer")),
        _ => default,
    };
    let (products, seed) = (number("LOCKSTEP_PRODUCTS", 2048), number("LOCKSTEP_SEED", 1));
    let Some(cuda) = device(0) else { return };
    let family = match cuda.stream().tensor_cores(|_| Ok(())) {
        Ok(family) => family,
        Err(why) => return println!("no products in bf16: {why}"),
    };
    let report = compare(&cuda, family, seed as u64, products.div_ceil(128)).unwrap();
    println!(
        "{}: {} products of 16 terms, formula {}, {} differ",
        name(&cuda),
        report.compared,
        family.name,
        report.differ
    );
    report.first.iter().for_each(|line| println!("{line}"));
    if report.differ > 0 {
        println!("parameters with the fewest differences in 32768 dot products:");
        closest(&cuda, family, 256).iter().take(5).for_each(|(differ, it)| println!("{differ} differ with {it:?}"));
    }
    assert_eq!(report.differ, 0);
}

/// Tries formulas on `instructions` instructions, and lists each formula with the number of dot products that differ
/// from it, the closest formula first. The list shows how to correct a family.
fn closest(cuda: &Cuda, family: Family, instructions: usize) -> Vec<(usize, Family)> {
    let zeros = [VOLTA.zero, AMPERE.zero, HOPPER.zero, -126];
    let parameters = (23..=30).flat_map(|fraction| [4, 8, 16].map(|depth| (fraction, depth)));
    let all = parameters.flat_map(|(fraction, depth)| zeros.map(|zero| Family { fraction, depth, zero, ..family }));
    let differ = |tried| (compare(cuda, tried, 1, instructions).unwrap().differ, tried);
    let mut found: Vec<(usize, Family)> = all.map(differ).collect();
    found.sort_by_key(|&(differ, _)| differ);
    found
}

/// On a device whose formula differs from its family's, the search finds the device's parameters.
#[test]
fn closest_finds_the_parameters_of_a_device_that_differs() {
    let Some(cuda) = emulated_as(0, AMPERE) else { return };
    let found = closest(&cuda, HOPPER, 16);
    let best: Vec<_> = found.iter().filter(|(differ, _)| *differ == 0).map(|(_, it)| (it.fraction, it.depth)).collect();
    assert!(!best.is_empty() && best.iter().all(|&found| found == (AMPERE.fraction, AMPERE.depth)), "{found:?}");
}

fn name(cuda: &Cuda) -> &'static str {
    match cuda.device() {
        Device::CudaEmulated => "EMULATED on the CPU",
        device => device.name(),
    }
}
