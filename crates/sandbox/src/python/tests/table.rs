//! Tests with ordinary solutions, right and wrong, with ordinary tests, and with programs that try to pass without
//! being right. The cases are tables in `cases/`, whose headers describe the format.

use crate::judge::tests::{again_as_an_ordinary_user, scored_with_prompts as score};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;
use testing::installed;

const RIGHT_AND_WRONG: [&str; 5] = [
    include_str!("../cases/values.txt"),
    include_str!("../cases/objects.txt"),
    include_str!("../cases/classes.txt"),
    include_str!("../cases/others.txt"),
    include_str!("../cases/surroundings.txt"),
];
/// Includes cases with programs that get no score (`any`).
const RIGHT_WRONG_AND_ANY: [&str; 5] = [
    include_str!("../cases/deciding.txt"),
    include_str!("../cases/own-classes.txt"),
    include_str!("../cases/around.txt"),
    include_str!("../cases/reaching.txt"),
    include_str!("../cases/styles.txt"),
];
const ATTACKS: [&str; 4] = [
    include_str!("../cases/attacks.txt"),
    include_str!("../cases/attacks-process.txt"),
    include_str!("../cases/attacks-outside.txt"),
    include_str!("../cases/attacks-tried.txt"),
];

#[derive(Clone, Default)]
struct Case {
    name: String,
    /// The programs of the case, and the text around its tests.
    parts: BTreeMap<String, String>,
    tests: Vec<String>,
    /// The argument of the function `check` in the tests.
    check: Option<String>,
}

fn cases(texts: &[&str]) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut part = String::new();
    for line in texts.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with("# ")) {
        if let Some(name) = line.strip_prefix("= ") {
            cases.push(Case { name: name.to_owned(), ..Case::default() });
            continue;
        }
        let case = cases.last_mut().expect("a case begins with its name");
        if let Some(word) = line.strip_prefix("< ") {
            let (word, argument) = word.split_once(' ').unwrap_or((word, ""));
            part = word.to_owned();
            match word {
                "check" => {
                    case.check = Some(argument.to_owned());
                    case.tests.push(String::new());
                }
                "test" => case.tests.push(String::new()),
                _ => drop(case.parts.insert(part.clone(), String::new())),
            }
            continue;
        }
        let text = match part.as_str() {
            "test" | "check" => case.tests.last_mut().unwrap(),
            other => case.parts.get_mut(other).unwrap(),
        };
        text.push_str(line);
        text.push('\n');
    }
    for i in 1..cases.len() {
        // A case without tests has the tests of the previous case.
        if cases[i].tests.is_empty() && !cases[i].parts.contains_key("columns") {
            (cases[i].tests, cases[i].check) = (cases[i - 1].tests.clone(), cases[i - 1].check.clone());
            for part in ["setup", "prompt", "columns", "entry"] {
                if let Some(text) = cases[i - 1].parts.get(part).cloned() {
                    cases[i].parts.entry(part.to_owned()).or_insert(text);
                }
            }
        }
    }
    cases
}

/// Whether the tests of a case can run on this machine: some need numpy.
fn can_run(case: &Case) -> bool {
    let there = std::path::Path::new("/usr/lib/python3/dist-packages/numpy").exists();
    there || !["np ", "numpy", "evalplus"].iter().any(|begin| case.name.starts_with(begin))
}

/// The cases whose tests have many forms.
fn forms() -> Vec<Case> {
    cases(&RIGHT_WRONG_AND_ANY).into_iter().filter(can_run).collect()
}

/// The columns of a case's row, and its prompt.
fn row(case: &Case) -> (&str, Value) {
    let part = |name: &str| case.parts.get(name).map_or("", String::as_str);
    let (setup, prompt) = (part("setup"), part("prompt"));
    let entry = case.parts.get("entry").map(|name| name.trim_end());
    match (&case.check, case.parts.get("columns")) {
        (_, Some(columns)) => (prompt, serde_json::from_str(columns).unwrap()),
        (Some(name), None) => {
            (if prompt.is_empty() { setup } else { prompt }, json!({"t": case.tests[0], "entry_point": name}))
        }
        _ => (prompt, json!({"t": case.tests, "test_setup_code": setup, "entry_point": entry})),
    }
}

/// The scores of the programs of some cases, and why the programs failed.
fn scores(cases: &[Case], programs: &[(usize, &str)], options: Value) -> Vec<(Option<f64>, String)> {
    let row = |(case, part): &(usize, &str)| {
        let (prompt, columns) = row(&cases[*case]);
        (prompt, cases[*case].parts[*part].as_str(), columns)
    };
    let (scores, failures) = score(options, &programs.iter().map(row).collect::<Vec<_>>());
    scores.values.into_iter().zip(failures).collect()
}

fn options(isolation: &str, timeout_s: f64) -> Value {
    json!({"language": "python", "column": "t", "timeout_s": timeout_s, "isolation": isolation})
}

/// Checks that each right program of these cases scores 1, each wrong one 0, and any other none. Returns the number of
/// programs.
fn sweep(cases: &[Case], isolation: &str) -> usize {
    let kinds = [("right", Some(1.0)), ("wrong", Some(0.0)), ("any", None)];
    let all = (0..cases.len()).flat_map(|i| kinds.map(|(part, expected)| (i, part, expected)));
    let all: Vec<_> = all.filter(|(i, part, _)| cases[*i].parts.contains_key(*part)).collect();
    // Under landlock, programs cannot write files.
    let only = |i: usize| isolation != "bubblewrap" && cases[i].parts.contains_key("bubblewrap");
    let all: Vec<_> = all.into_iter().filter(|(i, ..)| !only(*i)).collect();
    let programs: Vec<_> = all.iter().map(|(i, part, _)| (*i, *part)).collect();
    let results = scores(cases, &programs, options(isolation, 600.0));
    let others = all.iter().zip(&results).filter(|((.., expected), (value, _))| value != expected);
    let others: Vec<_> = others.map(|((i, part, _), (value, why))| (&cases[*i].name, part, value, why)).collect();
    assert!(others.is_empty(), "{isolation}: {others:#?}");
    programs.len()
}

/// Checks that none of these attacks scores. Returns the number of attacks.
fn attack(cases: &[Case], isolation: &str) -> usize {
    let programs: Vec<_> = (0..cases.len()).map(|i| (i, "attack")).collect();
    let results = scores(cases, &programs, options(isolation, 4.0));
    let expected = |case: &Case| if case.parts.contains_key("unscored") { None } else { Some(0.0) };
    let others = programs.iter().zip(&results).filter(|((i, _), (value, _))| *value != expected(&cases[*i]));
    let others: Vec<_> = others.map(|((i, _), (value, why))| (&cases[*i].name, value, why)).collect();
    assert!(others.is_empty(), "{isolation}: {others:#?}");
    programs.len()
}

/// Runs a part of the tables; the test below runs all of them.
#[test]
fn right_programs_pass_wrong_ones_do_not_and_attacks_earn_nothing() {
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    let part = |texts, every: usize| cases(texts).into_iter().filter(can_run).step_by(every).collect::<Vec<_>>();
    assert_eq!(sweep(&part(&RIGHT_AND_WRONG, 6), "bubblewrap"), 34);
    assert!(sweep(&forms().into_iter().step_by(12).collect::<Vec<_>>(), "bubblewrap") >= 30);
    attack(&part(&ATTACKS, 6), "bubblewrap");
}

/// Runs the tables as root and as an ordinary user.
#[test]
#[ignore = "minutes: cargo xtask nightly sandbox"]
fn the_complete_tables_in_both_isolations_as_both_users() {
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    let (ordinary, forms) = (cases(&RIGHT_AND_WRONG), forms());
    let attacks: Vec<_> = cases(&ATTACKS).into_iter().filter(can_run).collect();
    assert!(ordinary.len() >= 100);
    let user = rustix::process::geteuid().as_raw();
    for isolation in ["bubblewrap", "landlock"] {
        let start = Instant::now();
        let programs = sweep(&ordinary, isolation) / 2;
        println!("python, {isolation}, user {user}: {programs} right 1, as many wrong 0, {:.0?}", start.elapsed());
        let start = Instant::now();
        let programs = sweep(&forms, isolation);
        println!("python, {isolation}, user {user}: {programs} programs on forms of tests, {:.0?}", start.elapsed());
        let start = Instant::now();
        let programs = attack(&attacks, isolation);
        println!("python, {isolation}, user {user}: {programs} attacks earned nothing, {:.0?}", start.elapsed());
    }
    let own = "python::tests::table::the_complete_tables_in_both_isolations_as_both_users";
    println!("{}", again_as_an_ordinary_user(own));
}
