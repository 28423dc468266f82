//! A list of mutants, and a source file with its mutants in it.
//!
//! ```text
//! file crates/train/src/gae.rs
//!
//! 120 γ is missing before λ
//! @ fn estimate
//! - delta + gamma * lambda * next_advantage
//! + delta + lambda * next_advantage
//! ```
//!
//! `-` is the text of an expression, `+` what it becomes. It must occur once, or is the first one after the text `@`.
//! Without `+` it is a statement that is left out. `= why` says that no test can notice it.

use std::ops::Range;

/// A change of one expression or statement.
#[derive(Debug, Default)]
pub struct Mutant {
    pub id: usize,
    pub file: String,
    pub what: String,
    after: Option<String>,
    from: String,
    to: Option<String>,
    pub equivalent: Option<String>,
}

pub fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let (mut all, mut file): (Vec<Mutant>, _) = (Vec::new(), String::new());
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let Some((first, rest)) = line.split_once(' ') else { return Err(format!("line {}: {line}", number + 1)) };
        match (first, all.last_mut(), first.parse()) {
            ("file", ..) => file = rest.to_owned(),
            (_, _, Ok(id)) if (1..1000).contains(&id) => {
                all.push(Mutant { id, file: file.clone(), what: rest.to_owned(), ..Mutant::default() });
            }
            ("@", Some(mutant), _) => mutant.after = Some(rest.to_owned()),
            ("-", Some(mutant), _) => mutant.from = rest.to_owned(),
            ("+", Some(mutant), _) => mutant.to = Some(rest.to_owned()),
            ("=", Some(mutant), _) => mutant.equivalent = Some(rest.to_owned()),
            _ => return Err(format!("line {}: {line}", number + 1)),
        }
    }
    let mut ids: Vec<usize> = all.iter().map(|mutant| mutant.id).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two mutants have the number {}", pair[0])),
        None => Ok(all),
    }
}

/// `source` with all of its mutants behind their switches.
pub fn plant(source: &str, mutants: &[&Mutant]) -> Result<String, String> {
    let mut places: Vec<(Range<usize>, &Mutant)> = Vec::new();
    for mutant in mutants {
        places.push((place(source, mutant).map_err(|e| format!("mutant {}: {e}", mutant.id))?, mutant));
    }
    places.sort_by_key(|(range, mutant)| (range.start, mutant.id));
    if let Some(pair) = places.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
        return Err(format!("mutants {} and {} overlap", pair[0].1.id, pair[1].1.id));
    }
    let mut out = source.to_owned();
    for (range, mutant) in places.into_iter().rev() {
        let (id, from) = (mutant.id, &source[range.clone()]);
        out.replace_range(
            range,
            &match &mutant.to {
                Some(to) => format!("(if crate::mutant({id}) {{ {to} }} else {{ {from} }})"),
                None => format!("if !crate::mutant({id}) {{ {from} }}"),
            },
        );
    }
    Ok(out)
}

fn place(source: &str, mutant: &Mutant) -> Result<Range<usize>, String> {
    let begin = match &mutant.after {
        Some(after) => source.find(after).ok_or_else(|| format!("`{after}` is nowhere"))? + after.len(),
        None => 0,
    };
    // What follows of the tests has no part.
    let end = source.find("mod tests {").unwrap_or(source.len()).max(begin);
    let mut found =
        source[begin..end].match_indices(&mutant.from).map(|(at, from)| begin + at..begin + at + from.len());
    match (found.next(), found.next(), &mutant.after) {
        (None, ..) => Err(format!("`{}` is nowhere", mutant.from)),
        (Some(_), Some(_), None) => Err(format!("`{}` occurs more than once: say after what", mutant.from)),
        (Some(range), ..) => Ok(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "file a.rs\n\n7 swapped\n@ fn f\n- a + b\n+ b - a\n\n8 forgotten\n- n += 1;\n";

    #[test]
    fn mutants_are_planted_behind_switches() {
        let mutants = parse(LIST).unwrap();
        let source = "fn e() { a + b } fn f() { n += 1; a + b }";
        let planted = plant(source, &mutants.iter().collect::<Vec<_>>()).unwrap();
        let expected = "fn e() { a + b } fn f() { if !crate::mutant(8) { n += 1; } \
                        (if crate::mutant(7) { b - a } else { a + b }) }";
        assert_eq!(planted, expected);
    }

    #[test]
    fn what_is_not_there_once_is_refused() {
        let error =
            |list: &str, source: &str| plant(source, &parse(list).unwrap().iter().collect::<Vec<_>>()).unwrap_err();
        assert!(error(LIST, "fn f() { n += 1; }").contains("mutant 7: `a + b` is nowhere"));
        assert!(error(LIST, "fn f() { a + b; n += 1; n += 1; }").contains("mutant 8"));
        let overlap = "file a.rs\n1 x\n- a + b\n+ a\n2 y\n- b\n+ c\n";
        assert!(error(overlap, "a + b").contains("1 and 2 overlap"));
        assert!(parse("file a.rs\n1 x\n1 y\n").unwrap_err().contains("number 1"));
        assert!(parse("file a.rs\n- x\n").unwrap_err().contains("line 2"));
    }
}
