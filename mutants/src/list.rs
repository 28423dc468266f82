//! Reads and writes lists of mutants, and inserts mutants into a source file. A list looks like this:
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
//! After `-` comes the text of an expression, after `+` its replacement. The text must occur once in the file, or the
//! first occurrence after the text behind `@` counts. Without `+` the text is a statement that is removed; `<` is a
//! statement inserted before it. In a text of several lines each line begins with the mark. `= why` explains that no
//! test can notice the mutant.

use std::ops::Range;

/// A mutant: a change of one expression or statement in a source file.
#[derive(Clone, Debug, Default)]
pub struct Mutant {
    pub id: usize,
    pub file: String,
    pub what: String,
    pub after: Option<String>,
    pub from: String,
    pub change: Change,
    pub equivalent: Option<String>,
}

/// How a mutant changes the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Change {
    /// The statement is removed.
    #[default]
    Dropped,
    /// The expression is replaced by this one.
    Becomes(String),
    /// This statement is inserted before the text.
    Before(String),
}

pub fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let (mut all, mut file): (Vec<Mutant>, _) = (Vec::new(), String::new());
    // The mark of the line before, whose text this line may continue.
    let mut mark = "";
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let add = |text: &mut String| {
            if mark == first {
                text.push('\n');
            }
            text.push_str(rest);
        };
        match (first, all.last_mut(), first.parse()) {
            ("file", ..) => file = rest.to_owned(),
            (_, _, Ok(id)) => {
                all.push(Mutant { id, file: file.clone(), what: rest.to_owned(), ..Mutant::default() });
            }
            ("@", Some(mutant), _) => add(mutant.after.get_or_insert_default()),
            ("-", Some(mutant), _) => add(&mut mutant.from),
            ("+", Some(Mutant { change: Change::Becomes(to), .. }), _) => add(to),
            ("+", Some(mutant), _) => mutant.change = Change::Becomes(rest.to_owned()),
            ("<", Some(mutant), _) => mutant.change = Change::Before(rest.to_owned()),
            ("=", Some(mutant), _) => mutant.equivalent = Some(rest.to_owned()),
            _ => return Err(format!("line {}: {line}", number + 1)),
        }
        mark = first;
    }
    let mut ids: Vec<usize> = all.iter().map(|mutant| mutant.id).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two mutants have the number {}", pair[0])),
        None => Ok(all),
    }
}

/// Formats mutants as a list that [`parse`] can read.
pub fn write(mutants: &[Mutant]) -> String {
    let mut out = String::new();
    let mut add = |mark: &str, text: &str| text.split('\n').for_each(|line| out += &format!("{mark} {line}\n"));
    for mutant in mutants {
        add("file", &mutant.file);
        add(&mutant.id.to_string(), &mutant.what);
        mutant.after.iter().for_each(|text| add("@", text));
        add("-", &mutant.from);
        match &mutant.change {
            Change::Dropped => {}
            Change::Becomes(to) => add("+", to),
            Change::Before(statement) => add("<", statement),
        }
        mutant.equivalent.iter().for_each(|why| add("=", why));
    }
    out
}

/// A source file with switches for its mutants, and the byte range of each mutant.
pub struct Planted {
    pub text: String,
    pub places: Vec<(usize, Range<usize>)>,
}

/// Inserts all mutants into `source`, each behind its switch.
pub fn plant(source: &str, mutants: &[&Mutant]) -> Result<Planted, String> {
    let mut places: Vec<(Range<usize>, &Mutant)> = Vec::new();
    for mutant in mutants {
        places.push((place(source, mutant).map_err(|e| format!("mutant {}: {e}", mutant.id))?, mutant));
    }
    places.sort_by_key(|(range, mutant)| (range.start, range.end, mutant.id));
    if let Some(pair) = places.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
        return Err(format!("mutants {} and {} overlap", pair[0].1.id, pair[1].1.id));
    }
    let mut planted = Planted { text: String::new(), places: Vec::new() };
    let mut copied = 0;
    for (range, mutant) in places {
        let (id, from) = (mutant.id, &source[range.clone()]);
        planted.text.push_str(&source[copied..range.start]);
        let start = planted.text.len();
        planted.text.push_str(&match &mutant.change {
            Change::Becomes(to) => format!("(if crate::mutant({id}) {{ {to} }} else {{ {from} }})"),
            Change::Dropped => format!("if !crate::mutant({id}) {{ {from} }}"),
            Change::Before(statement) => format!("if crate::mutant({id}) {{ {statement} }} {from}"),
        });
        planted.places.push((id, start..planted.text.len()));
        copied = range.end;
    }
    planted.text.push_str(&source[copied..]);
    Ok(planted)
}

fn place(source: &str, mutant: &Mutant) -> Result<Range<usize>, String> {
    let begin = match &mutant.after {
        Some(after) => source.find(after).ok_or_else(|| format!("`{after}` is nowhere"))? + after.len(),
        None => 0,
    };
    if mutant.after.is_some() && source[begin..].starts_with(&mutant.from) {
        return Ok(begin..begin + mutant.from.len());
    }
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

    fn planted(list: &str, source: &str) -> Result<String, String> {
        plant(source, &parse(list).unwrap().iter().collect::<Vec<_>>()).map(|planted| planted.text)
    }

    #[test]
    fn mutants_are_planted_behind_switches() {
        let source = "fn e() { a + b } fn f() { n += 1; a + b }";
        let expected = "fn e() { a + b } fn f() { if !crate::mutant(8) { n += 1; } \
                        (if crate::mutant(7) { b - a } else { a + b }) }";
        assert_eq!(planted(LIST, source).unwrap(), expected);
        let early = "file a.rs\n9 nothing is done\n@ fn f() {\n-\n< return;\n";
        assert_eq!(planted(early, "fn f() { g(); }").unwrap(), "fn f() {if crate::mutant(9) { return; }  g(); }");
    }

    #[test]
    fn what_is_not_there_once_is_refused() {
        let error = |list: &str, source: &str| planted(list, source).unwrap_err();
        assert!(error(LIST, "fn f() { n += 1; }").contains("mutant 7: `a + b` is nowhere"));
        assert!(error(LIST, "fn f() { a + b; n += 1; n += 1; }").contains("mutant 8"));
        let overlap = "file a.rs\n1 x\n- a + b\n+ a\n2 y\n- b\n+ c\n";
        assert!(error(overlap, "a + b").contains("1 and 2 overlap"));
        assert!(parse("file a.rs\n1 x\n1 y\n").unwrap_err().contains("number 1"));
        assert!(parse("file a.rs\n- x\n").unwrap_err().contains("line 2"));
    }

    #[test]
    fn a_list_is_written_as_it_is_read() {
        let mut mutants = parse(LIST).unwrap();
        mutants[0].after = Some("fn f(\n\n    x)".to_owned());
        mutants[0].change = Change::Becomes("b\n - a".to_owned());
        mutants[1].change = Change::Before("return;".to_owned());
        let again = parse(&write(&mutants)).unwrap();
        assert_eq!(format!("{again:?}"), format!("{mutants:?}"));
    }
}
