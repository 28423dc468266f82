//! Tests of the parsing of answers into trees, with the table `trees.tsv`. A line has an answer, a tab, and its tree,
//! or `-` if the answer cannot be parsed. The headings `## thousands` and `## decimal logarithm` select the reading of
//! the lines below them.

use super::super::parse::{Node, Reading, parse};

fn shown(node: &Node) -> String {
    let all = |nodes: &[Node], between: &str| nodes.iter().map(shown).collect::<Vec<_>>().join(between);
    match node {
        Node::Number(number) => match number.parts() {
            (n, 1) => n.to_string(),
            (n, d) => format!("{n}/{d}"),
        },
        Node::Large(digits) => format!("large {digits}"),
        Node::Symbol(name) => name.clone(),
        Node::Infinity => "inf".to_owned(),
        Node::Op(op, parts) => format!("({op:?} {})", all(parts, " ")),
        Node::Function(name, argument, base) => {
            let base = base.as_ref().map(|base| format!("[{}]", shown(base))).unwrap_or_default();
            format!("{name}{base}({})", shown(argument))
        }
        Node::Based(digits, base) => format!("{digits} base {base}"),
        Node::Text(text) => format!("\"{text}\""),
        Node::List { open: ' ', items, .. } => format!("list({})", all(items, ", ")),
        Node::List { open, close, items } => format!("{open}{}{close}", all(items, ", ")),
        Node::Union(parts) => format!("union({})", all(parts, ", ")),
        Node::Ratio(parts) => format!("ratio({})", all(parts, ", ")),
        Node::Clock(parts, _) => format!("clock({})", all(parts, ", ")),
        Node::Matrix(rows) => {
            format!("matrix({})", rows.iter().map(|row| all(row, " ")).collect::<Vec<_>>().join("; "))
        }
        Node::Relation(sides, signs) => {
            let signs = signs.iter().map(|sign| format!(" {sign} ")).chain([String::new()]);
            sides.iter().map(shown).zip(signs).map(|(side, sign)| side + &sign).collect()
        }
        Node::Member(element, set) => format!("{} in {}", shown(element), shown(set)),
        Node::Unit(inside, name) => format!("unit({}, {name})", shown(inside)),
        Node::Percent(inside) => format!("percent({})", shown(inside)),
    }
}

fn tree(text: &str, reading: Reading) -> String {
    parse(text, reading).map_or_else(|| "-".to_owned(), |node| shown(&node))
}

#[test]
fn answers_are_parsed_into_the_trees_of_the_table() {
    let mut reading = Reading::default();
    let mut wrong = Vec::new();
    for line in include_str!("trees.tsv").lines() {
        match line {
            "## thousands" => reading = Reading { thousands: true, decimal_log: false },
            "## decimal logarithm" => reading = Reading { thousands: false, decimal_log: true },
            _ if line.is_empty() || line.starts_with("# ") => {}
            _ => {
                let (text, expected) = line.split_once('\t').expect("two cells");
                let found = tree(text, reading);
                wrong.extend((found != expected).then(|| format!("{text}\t{found}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} unexpected trees:\n{}", wrong.len(), wrong.join("\n"));
}

/// An answer may have at most 60 levels, and at most 600 tokens before points and commas at its end are dropped.
#[test]
fn depth_and_length_of_parsed_answers_are_limited() {
    let is_parsed = |text: String| parse(&text, Reading::default()).is_some();
    for (open, close, most) in [("(", ")", 59), ("{", "}", 59), ("-", "", 60), ("\\sqrt{", "}", 59)] {
        let nested = |depth: usize| open.repeat(depth) + "x" + &close.repeat(depth);
        assert_eq!((is_parsed(nested(most)), is_parsed(nested(most + 1))), (true, false), "{open}");
    }
    // Levels that are closed are not counted.
    assert!(is_parsed("((x))+".repeat(70) + "x") && is_parsed("2*--x+".repeat(70) + "x"));
    assert_eq!((is_parsed("x ".repeat(600)), is_parsed("x ".repeat(601))), (true, false));
    assert_eq!((is_parsed("x ".repeat(599) + "."), is_parsed("x ".repeat(600) + ".")), (true, false));
}
