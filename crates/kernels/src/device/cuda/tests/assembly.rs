//! Checks inline assembly in the text of the sources: each instruction has one wrapper, for which the emulator has a
//! function of the same name, and lists its operands in order.

use super::load::SOURCES;
use crate::device::cuda::emulated::EMULATOR;
use crate::device::cuda::sources::HEADERS;

/// The operands of an assembly statement, as written: `c[0]`, `c[1]`, ...
fn operands(statement: &str) -> Vec<&str> {
    let constraint = |text: &&str| text.len() <= 3 && !text.is_empty() && text.bytes().all(|b| b"+=rflhd".contains(&b));
    let mut parts = statement.split('"').skip(1).peekable();
    let mut found = Vec::new();
    while let Some(text) = parts.next() {
        let Some(rest) = parts.next() else { break };
        if constraint(&text)
            && let Some((operand, _)) = rest.trim_start_matches('(').split_once(')')
        {
            found.push(operand);
        }
    }
    found
}

/// The faults of all assembly statements in a text.
fn faults(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("asm volatile(").or_else(|| rest.find("asm(")) {
        let before = &text[..text.len() - rest.len() + at];
        let statement = rest[at..].split(";\n").next().unwrap_or("");
        let wrapper =
            before.rfind("\nDEVICE ").and_then(|at| before[at + 8..].split('(').next()?.split(' ').next_back());
        let wrapper = wrapper.unwrap_or("no function");
        let emulated = EMULATOR.iter().any(|(_, text)| text.contains(&format!("#define {wrapper}(")));
        if !name.ends_with(".cuh") || !emulated || before.rfind("#ifndef EMULATED") < before.rfind("\n}\n") {
            found.push(format!("{name}: assembly in {wrapper}, which has no emulated meaning"));
        }
        let operands = operands(statement);
        // Registers of one operand are the elements of one array, in ascending order.
        let mut next = (String::new(), 0);
        for operand in &operands {
            let (array, index) = operand.split_once('[').map_or((*operand, "0]"), |(array, index)| (array, index));
            let expected = if array == next.0 { next.1 } else { 0 };
            if index != format!("{expected}]") {
                found.push(format!("{name}: {wrapper} has {operand} where {array}[{expected}] is expected"));
            }
            next = (array.to_owned(), expected + 1);
        }
        // The instruction names operands in ascending order; it may repeat the first ones at its end.
        let numbers = statement.split('%').skip(1).map(|part| part.chars().take_while(char::is_ascii_digit).collect());
        let numbers: Vec<usize> = numbers.map(|digits: String| digits.parse().unwrap()).collect();
        if !numbers.iter().enumerate().all(|(i, &number)| number == i % operands.len()) {
            found.push(format!("{name}: {wrapper} has operands {numbers:?} in its instruction"));
        }
        rest = &rest[at + 4..];
    }
    found
}

#[test]
fn every_instruction_of_assembly_has_one_wrapper_and_ordered_operands() {
    let sources = SOURCES.iter().map(|source| (format!("{}.cu", source.name), source.text));
    let all: Vec<(String, &str)> = HEADERS.iter().map(|&(name, text)| (name.to_owned(), text)).chain(sources).collect();
    let found: Vec<String> = all.iter().flat_map(|(name, text)| faults(name, text)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let (name, text) = all.iter().find(|(_, text)| text.contains("asm volatile(")).expect("mma.cuh has assembly");
    for (from, to, expected) in [
        ("\"r\"(a[1]), \"r\"(a[2])", "\"r\"(a[2]), \"r\"(a[1])", "has a[2] where a[1] is expected"),
        ("{%8,%9}", "{%9,%8}", "has operands"),
        ("void mma_bf16(", "void mma_other(", "no emulated meaning"),
    ] {
        assert!(text.contains(from), "{from}");
        let bug = faults(name, &text.replace(from, to));
        assert!(bug.iter().any(|fault| fault.contains(expected)), "{from}: {bug:?}");
    }
    assert!(!faults("linear.cu", text).is_empty(), "assembly outside a header");
}
