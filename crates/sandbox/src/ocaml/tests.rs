//! Tests with right, wrong, ill-typed, unparsable and looping solutions, and with solutions that try to cheat.

use crate::judge::tests::{Scores, again_as_an_ordinary_user, scored};
use serde_json::{Value, json};
use testing::installed;

mod reports;

struct Problem {
    name: &'static str,
    tests: Vec<&'static str>,
    /// The kind, the number among solutions of that kind, and the solution.
    solutions: Vec<(char, usize, &'static str)>,
}

fn problems() -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    for line in include_str!("problems.txt").lines().skip(3).filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix("# ") {
            problems.push(Problem { name, tests: vec![], solutions: vec![] });
            continue;
        }
        let (kind, text) = line.split_once(": ").unwrap();
        let kind = kind.chars().next().unwrap();
        let problem = problems.last_mut().unwrap();
        match kind {
            'T' => problem.tests.push(text),
            'R' | 'U' => problem.solutions.push((kind, 0, text)),
            _ => {
                let (number, text) = text.split_once(' ').unwrap();
                problem.solutions.push((kind, number.parse().unwrap(), text));
            }
        }
    }
    problems
}

fn staged(timeout_s: f64) -> Value {
    json!({"language": "ocaml", "column": "tests", "staged": true, "timeout_s": timeout_s})
}

#[test]
fn solutions_are_scored_by_their_stage() {
    stages(4);
}

#[test]
#[ignore = "minutes: cargo xtask nightly sandbox"]
fn each_solution_of_all_problems_is_scored_by_its_stage() {
    stages(1);
}

/// Scores the solutions of every `every`-th problem.
fn stages(every: usize) {
    if !installed(&["bwrap", "ocamlc"]) {
        return;
    }
    let problems = problems();
    assert!(problems.len() >= 30 && problems.iter().all(|p| p.tests.len() == 3 && p.solutions.len() == 5));
    let problems: Vec<Problem> = problems.into_iter().step_by(every).collect();
    // Solutions that loop get less time than solutions that end.
    for (kinds, timeout_s) in [("RWIU", 600.0), ("L", 2.0)] {
        let (mut rows, mut expected) = (Vec::new(), Vec::new());
        for problem in &problems {
            for (kind, number, solution) in problem.solutions.iter().filter(|solution| kinds.contains(solution.0)) {
                rows.push((*solution, json!({"tests": problem.tests})));
                let score = match kind {
                    'R' => 1.0,
                    'W' | 'L' => 0.35 + 0.65 * *number as f64 / 3.0,
                    'I' => 0.25 - 0.05 * *number as f64,
                    _ => 0.0,
                };
                expected.push((problem.name, *kind, score));
            }
        }
        let (scores, failures) = scored(staged(timeout_s), &rows);
        assert!(scores.problems.is_empty(), "{:?}", scores.problems);
        let mut wrong = Vec::new();
        for (i, (name, kind, score)) in expected.iter().enumerate() {
            // A right solution may lose points for its style, since one-liners are long.
            let style = if *kind == 'R' && rows[i].0.len() > 100 { 0.01 } else { 0.0 };
            if (scores.values[i].unwrap() - (score - style)).abs() > 1e-6 {
                wrong.push((name, kind, score, scores.values[i], &failures[i]));
            }
            let begins = ["not parsed", "test ", "ill-typed", "2 ill-typed", "3 ill-typed"];
            let named = begins.iter().any(|begin| failures[i].starts_with(begin));
            if named == (*kind == 'R') || failures[i].ends_with("timed out") != (*kind == 'L') {
                wrong.push((name, kind, score, scores.values[i], &failures[i]));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

#[test]
fn bad_style_and_degenerate_completions_cost_points() {
    if !installed(&["bwrap", "ocamlc"]) {
        return;
    }
    let right = "let twice x = 2 * x";
    let unused = "let twice x = let y = 1 in 2 * x";
    let untidy =
        "let twice x = 2 * x  \n".to_owned() + &(0..20).map(|i| format!("let a{i} = {i} \n")).collect::<String>();
    let prose =
        format!("{}\n```ocaml\n{right}\n```", "I think that the answer is a function of one number. ".repeat(20));
    let repeated = format!("{right}\n(* {} *)", "so we multiply it\n".repeat(40));
    let blocks = format!("```ocaml\n{right}\n```\n").repeat(5);
    let stub = "let twice x =\n  failwith \"TODO\"";
    let missing = "let double x = 2 * x";
    let cases = [
        ("right", right, 1.0),
        ("a warning", unused, 0.98),
        ("untidy", &untidy, 0.90),
        ("prose", &prose, 0.3),
        ("repetition", &repeated, 0.3),
        ("code blocks", &blocks, 0.3),
        ("a stub", stub, 0.3 * 0.35),
        ("nothing", "", 0.3 * 0.25),
        ("another name", missing, 0.25),
    ];
    let tests = json!({"tests": "assert (twice 2 = 4)\nassert (twice 0 = 1 - 1 &&\n  twice 1 = 2);;\n"});
    let rows: Vec<_> = cases.iter().map(|case| (case.1, tests.clone())).collect();
    let (scores, failures) = scored(staged(30.0), &rows);
    for (i, (name, _, score)) in cases.iter().enumerate() {
        let value = scores.values[i].unwrap();
        assert!((value - score).abs() < 1e-6, "{name}: {value}, expected {score}: {}", failures[i]);
    }
}

/// Items that begin with a letter and a colon, each with its continuation lines. An item that begins with `#` is not
/// changed.
fn lettered(text: &str) -> Vec<(&str, String)> {
    let mut items: Vec<(&str, String)> = Vec::new();
    for line in text.lines() {
        match (line.split_once(": "), line.strip_prefix("  "), line.starts_with('#')) {
            (_, _, true) => items.push(("#", line.to_owned())),
            (Some((letter, rest)), None, _) if letter.len() == 1 => items.push((letter, rest.to_owned())),
            (_, Some(rest), _) if !items.is_empty() => {
                let text = &mut items.last_mut().unwrap().1;
                text.push('\n');
                text.push_str(rest);
            }
            _ => {}
        }
    }
    items
}

/// Problems, each with its right solution, its wrong solution and its row.
fn ordinary() -> Vec<(String, [String; 2], Value)> {
    let mut problems: Vec<(String, [String; 2], Value)> = Vec::new();
    for (letter, text) in lettered(include_str!("ordinary.txt")) {
        if letter == "#" {
            problems.push((text, Default::default(), json!({"tests": [], "test_setup_code": "", "entry_point": null})));
            continue;
        }
        let Some((_, solutions, row)) = problems.last_mut() else { continue };
        match letter {
            "R" => solutions[0] = text,
            "W" => solutions[1] = text,
            "T" => row["tests"].as_array_mut().unwrap().push(text.into()),
            "X" => row["tests"] = text.into(),
            "S" => row["test_setup_code"] = text.into(),
            "E" => row["entry_point"] = text.into(),
            _ => panic!("{letter}"),
        }
    }
    problems
}

/// The share of scored tests that run with the full guarantee, for correct solutions.
fn share(scores: &Scores, failures: &[String]) -> f64 {
    let values = scores.values.iter().zip(failures);
    let full = values.filter(|(value, failure)| **value == Some(1.0) && failure.is_empty()).count();
    full as f64 / failures.len() as f64
}

/// MBPP's tests translated to OCaml, with memorized solutions. Runs every `step`-th of them.
fn share_of_mbpp(step: usize) {
    use std::process::{Command, Stdio};
    let Some(path) = testing::shared("data/mbpp/mbpp.jsonl") else { return };
    let mut python = Command::new("python3");
    python.args(["-I", "-c", include_str!("mbpp.py")]).stdin(std::fs::File::open(path).unwrap());
    let lines = String::from_utf8(python.stderr(Stdio::inherit()).output().unwrap().stdout).unwrap();
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() > 600, "{}", rows.len());
    let rows: Vec<&Value> = rows.iter().step_by(step).collect();
    let rows: Vec<_> =
        rows.iter().map(|row| (row["solution"].as_str().unwrap(), json!({"tests": row["tests"]}))).collect();
    let options = json!({"language": "ocaml"});
    let (scores, failures) = scored(options, &rows);
    let share = share(&scores, &failures);
    println!("ocaml, mbpp: {} rows, full guarantee {:.1} %", rows.len(), 100.0 * share);
    let other = rows.iter().zip(scores.values.iter().zip(&failures)).filter(|(_, (value, _))| **value != Some(1.0));
    let other: Vec<_> = other.take(10).collect();
    assert!(share >= 0.9, "{other:#?} {:?}", scores.problems);
}

#[test]
fn most_tests_of_mbpp_run_with_the_full_guarantee() {
    if installed(&["bwrap", "ocamlc", "python3"]) {
        share_of_mbpp(30);
    }
}

#[test]
#[ignore = "minutes: cargo xtask nightly sandbox"]
fn most_tests_of_all_mbpp_run_with_the_full_guarantee() {
    if installed(&["bwrap", "ocamlc", "python3"]) {
        share_of_mbpp(1);
    }
}

/// Runs every `step`-th ordinary problem.
fn ordinary_solutions(isolation: &str, step: usize) {
    let problems: Vec<_> = ordinary().into_iter().step_by(step).collect();
    let mut rows = Vec::new();
    for (_, solutions, row) in &problems {
        rows.extend(solutions.iter().map(|solution| (solution.as_str(), row.clone())));
    }
    let start = std::time::Instant::now();
    let options = json!({"language": "ocaml", "isolation": isolation});
    let (scores, failures) = scored(options, &rows);
    let mut wrong = Vec::new();
    for (i, (value, failure)) in scores.values.iter().zip(&failures).enumerate() {
        if *value != Some([1.0, 0.0][i % 2]) {
            wrong.push((&problems[i / 2].0, ["right", "wrong"][i % 2], value, failure));
        }
    }
    assert!(wrong.is_empty(), "{isolation}: {wrong:#?} {:?}", scores.problems);
    let right: Vec<_> = failures.iter().step_by(2).filter(|failure| failure.is_empty()).collect();
    assert!(right.len() * 10 >= problems.len() * 9, "{} of {} in full", right.len(), problems.len());
    let user = rustix::process::geteuid().as_raw();
    println!(
        "ocaml, {isolation}, user {user}: {} right 1, as many wrong 0, {} with the full guarantee, {:.0?}",
        problems.len(),
        right.len(),
        start.elapsed()
    );
}

#[test]
fn ordinary_solutions_are_right_or_wrong() {
    if installed(&["bwrap", "ocamlc"]) {
        assert!(ordinary().len() >= 100);
        ordinary_solutions("bubblewrap", 9);
    }
}

/// Runs all ordinary problems in both isolations, as root and as an ordinary user, which takes minutes.
#[test]
#[ignore = "minutes: cargo xtask nightly sandbox"]
fn all_ordinary_solutions_in_both_isolations_as_both_users() {
    if !installed(&["bwrap", "ocamlc"]) {
        return;
    }
    ordinary_solutions("bubblewrap", 1);
    ordinary_solutions("landlock", 1);
    let own = "ocaml::tests::all_ordinary_solutions_in_both_isolations_as_both_users";
    println!("{}", again_as_an_ordinary_user(own));
}

/// A solution that tries to cheat (A, or U if it gets no score) or is right (R), and its tests.
#[derive(Clone, Debug)]
struct Attack {
    letter: &'static str,
    source: String,
    tests: Vec<String>,
}

fn attacks() -> Vec<Attack> {
    let files = [include_str!("attacks.txt"), include_str!("attacks-outside.txt"), include_str!("attacks-tried.txt")];
    files.into_iter().flat_map(attacks_of).collect()
}

fn attacks_of(text: &str) -> Vec<Attack> {
    let (mut usual, mut attacks) = (Vec::new(), Vec::<Attack>::new());
    for (letter, text) in lettered(text) {
        match (["A", "U", "R"].into_iter().find(|known| *known == letter), letter, attacks.last_mut()) {
            (Some(letter), ..) => attacks.push(Attack { letter, source: text, tests: Vec::new() }),
            (_, "T", Some(attack)) => attack.tests.push(text),
            (_, "T", None) => usual.push(text),
            _ => {}
        }
    }
    for attack in attacks.iter_mut().filter(|attack| attack.tests.is_empty()) {
        attack.tests.clone_from(&usual);
    }
    attacks
}

fn attack(isolation: &str, attacks: &[Attack]) {
    // Some failing attacks never end, at run time or in the compiler. The time limits of other programs allow for a
    // busy machine.
    for (letters, timeout_s, compile_timeout_s) in [("A", 5.0, 20.0), ("RU", 600.0, 600.0)] {
        let attacks: Vec<_> = attacks.iter().filter(|attack| letters.contains(attack.letter)).collect();
        let rows: Vec<_> = attacks.iter().map(|one| (one.source.as_str(), json!({"tests": one.tests}))).collect();
        let options = json!({"language": "ocaml", "partial": true, "isolation": isolation, "timeout_s": timeout_s,
            "compile_timeout_s": compile_timeout_s});
        let (scores, failures) = scored(options, &rows);
        let results = attacks.iter().zip(scores.values.iter().zip(&failures));
        let is_expected = |attack: &Attack, value: Option<f64>, failure: &str| match attack.letter {
            "R" => value == Some(1.0),
            "U" => value.is_none(),
            _ => value == Some(0.0) && !failure.is_empty(),
        };
        let other: Vec<_> =
            results.filter(|(attack, (value, failure))| !is_expected(attack, **value, failure)).collect();
        assert!(other.is_empty(), "{isolation}: {other:#?} {:?}", scores.problems);
    }
}

#[test]
fn nothing_is_earned_by_attacks() {
    if installed(&["bwrap", "ocamlc"]) {
        let all = attacks();
        assert!(all.len() >= 300);
        attack("bubblewrap", &all.into_iter().step_by(12).collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "minutes: cargo xtask nightly sandbox"]
fn nothing_is_earned_by_all_attacks() {
    if installed(&["bwrap", "ocamlc"]) {
        let (all, user) = (attacks(), rustix::process::geteuid().as_raw());
        for isolation in ["bubblewrap", "landlock"] {
            attack(isolation, &all);
            println!("ocaml, {isolation}, user {user}: {} attacks earned nothing", all.len());
        }
        println!("{}", again_as_an_ordinary_user("ocaml::tests::nothing_is_earned_by_all_attacks"));
    }
}

#[test]
fn a_task_may_redefine_a_name_of_the_standard_library() {
    if !installed(&["bwrap", "ocamlc"]) {
        return;
    }
    let row = json!({"tests": ["assert (max 1 2 = 3)"], "entry_point": "max"});
    let options = json!({"language": "ocaml"});
    let (scores, failures) = scored(options.clone(), &[("let max a b = a + b", row.clone()), ("let min = 1", row)]);
    assert_eq!(scores.values, [Some(1.0), Some(0.0)], "{failures:?}");
    // Tests that cannot be parsed give no score.
    let (scores, _) = scored(options, &[("let f x = x", json!({"tests": ["assert (f 1 = "], "entry_point": "f"}))]);
    assert_eq!(scores.values, [None]);
    assert!(scores.problems[0].contains("tests cannot be compiled"), "{}", scores.problems[0]);
}

/// Each row has a label, the solution, the dataset row, and the score if the solution gets one.
#[test]
fn scores_depend_on_the_solution_and_on_each_column_of_its_tests() {
    if !installed(&["bwrap", "ocamlc"]) {
        return;
    }
    let listed = |tests: &[&str]| json!({"tests": tests});
    let with_setup = |setup: &str| json!({"tests": ["assert (f 5 = expected)"], "test_setup_code": setup});
    let identity = "let f x = x";
    let block = "let () =\n  let a = f 1 in\n  assert (a = 1);\n  begin assert (f 2 = 3); assert (f 3 = 3) end\n";
    let vectors = "module V = struct type t = { x : int } let make x = { x } let ( + ) a b = { x = a.x + b.x } end";
    let sum = "let open V in assert ((make 1 + make 2).x = 3)";
    let pairs = "let f0 x = (x, x) let f1 x = f0 (f0 x) let f2 x = f1 (f1 x) let f3 x = f2 (f2 x) let f4 x = f3 (f3 x)
        let f5 x = f4 (f4 x) let f x = f5 x";
    let check = "let check candidate = assert (candidate 3 = 3)";
    let cases = [
        ("a setup", identity, with_setup("let expected = 5"), Some(1.0)),
        ("another setup", identity, with_setup("let expected = 6"), Some(0.0)),
        ("no setup", identity, with_setup(""), Some(0.0)),
        (
            "an entry point",
            "let max a _ = a",
            json!({"tests": ["max 2 1 = 2", "max 1 2 = 1"], "entry_point": "max"}),
            Some(1.0),
        ),
        ("no entry point, nothing else", "let max a _ = a", listed(&["max 2 1 = 2", "max 1 2 = 1"]), Some(1.0)),
        (
            "no entry point, another name",
            "let max a _ = a let f x = x",
            listed(&["f (max 2 1) = 2", "f (max 1 2) = 1"]),
            Some(0.5),
        ),
        ("neither", identity, listed(&["assert (max 1 2 = 2)"]), Some(0.0)),
        ("a check", identity, json!({"tests": check, "entry_point": "f"}), Some(1.0)),
        ("`check` with a wrong solution", "let f x = -x", json!({"tests": check, "entry_point": "f"}), Some(0.0)),
        ("assertions of a block", identity, json!({"tests": block}), Some(2.0 / 3.0)),
        ("the same in a list", identity, listed(&[block]), Some(2.0 / 3.0)),
        ("ill-typed", "let f x = x + true", listed(&["f 1 = 1"]), Some(0.0)),
        ("another type", identity, listed(&["f 1 = 1", "f 2 + 1 = 3", "f (f 3 + 1) = 4", "f 1 = 2"]), Some(0.75)),
        ("a type that does not fit", "let f x = x ^ \"\"", listed(&["f 1 = 1"]), Some(0.0)),
        ("tests that fit nothing", identity, listed(&["assert (f 1 = \"a\" + 1)"]), None),
        ("tests that fit nothing, ill-typed", "let f x = x + true", listed(&["assert (f 1 = \"a\" + 1)"]), None),
        ("tests that do not parse", identity, listed(&["assert (f 1 = 1))"]), None),
        ("neither tests nor solution parse", "let f x =", listed(&["assert (f 1 = 1))"]), None),
        ("tests that do not call the solution", identity, listed(&["assert (1 + 1 = 2)"]), None),
        ("a test that fails by itself", identity, listed(&["assert (1 = 2 && f 1 = 1)"]), None),
        ("physical equality", identity, listed(&["let l = [ 1 ] in assert (f l == l)"]), None),
        (
            "`==` of numbers",
            identity,
            listed(&["assert (f 1 == 1)", "let a = [| 1 |] in assert (f a == a)"]),
            Some(1.0),
        ),
        (
            "a functor",
            "module F (X : sig val x : int end) = struct let y = X.x end",
            listed(&["let module M = F (struct let x = 2 end) in assert (M.y = 2)"]),
            None,
        ),
        ("an unused object", "let f x = object method m = x end", listed(&["ignore (f 1); true"]), Some(0.0)),
        ("the solution's operators", vectors, listed(&[sum]), None),
    ];
    let rows: Vec<_> = cases.iter().map(|case| (case.1, with_columns(&case.2))).collect();
    let options = |strict: bool| json!({"language": "ocaml", "partial": true, "strict": strict});
    let (scores, failures) = scored(options(true), &rows);
    for (i, (name, _, _, score)) in cases.iter().enumerate() {
        let value = scores.values[i];
        let same = value.zip(*score).map_or(value == *score, |(a, b): (f64, f64)| (a - b).abs() < 1e-9);
        assert!(same, "{name}: {value:?}, expected {score:?}: {}, {:?}", failures[i], scores.problems);
    }
    let (scores, failures) = scored(options(false), &[(vectors, with_columns(&listed(&[sum])))]);
    assert_eq!((scores.values[0], failures[0].contains("weaker guarantee")), (Some(1.0), true), "{failures:?}");
    let hurried = json!({"language": "ocaml", "partial": true, "compile_timeout_s": 15.0});
    let (scores, failures) = scored(hurried, &[(pairs, listed(&["assert (f 4 = 8)"]))]);
    assert_eq!(scores.values, [Some(0.0)], "the compiler runs out of time: {failures:?}");
}

/// Rows of one table must have the same columns.
fn with_columns(row: &Value) -> Value {
    json!({"tests": row["tests"], "test_setup_code": row["test_setup_code"], "entry_point": row["entry_point"]})
}

/// A solution may use `Obj` and file names.
#[test]
fn nothing_is_refused_by_name() {
    if !installed(&["bwrap", "ocamlc"]) {
        return;
    }
    let harmless = [
        "let f x = ignore (Obj.repr x); 2 * x",
        "let f x = Scanf.sscanf (string_of_int x) \"%d\" (fun x -> 2 * x)",
        "external id : 'a -> 'a = \"%identity\" let f x = id (2 * x)",
        "external f : int -> int = \"%negint\" let f x = -2 * f x",
        "let f x = (try ignore (open_in \"/etc/passwd\") with Sys_error _ -> ()); print_string \"P 0\"; 2 * x",
    ];
    let rows: Vec<_> = harmless.iter().map(|source| (*source, json!({"tests": ["assert (f 2 = 4)"]}))).collect();
    let (scores, failures) = scored(json!({"language": "ocaml"}), &rows);
    assert_eq!(scores.values, [Some(1.0); 5], "{failures:?} {:?}", scores.problems);
}

#[test]
fn solutions_and_tests_may_use_str_and_unix() {
    if !installed(&["bwrap", "ocamlc"]) {
        return;
    }
    let tests = |tests: &[&str]| json!({"tests": tests});
    let words = tests(&["assert (f \"a b\" = [ \"a\"; \"b\" ])"]);
    let year = tests(&["assert (f 0.0 = 70)"]);
    let matched = tests(&["assert (Str.string_match (Str.regexp \"a+$\") (f 3) 0)"]);
    let stream = json!({"tests": [{"input": "a b\n", "output": "b"}]});
    let rows = [
        ("let f s = Str.split (Str.regexp \" \") s", words.clone(), 1.0),
        ("let f s = Str.split (Str.regexp \"x\") s", words, 0.0),
        ("let f t = (Unix.gmtime t).Unix.tm_year", year.clone(), 1.0),
        ("let f t = (Unix.gmtime t).Unix.tm_mon", year, 0.0),
        ("let f n = String.make n 'a'", matched.clone(), 1.0),
        ("let f n = String.make n 'b'", matched, 0.0),
        ("let () = print_string (List.nth (Str.split (Str.regexp \" \") (read_line ())) 1)", stream, 1.0),
    ];
    for (solution, tests, expected) in rows {
        let (scores, failures) = scored(json!({"language": "ocaml"}), &[(solution, tests)]);
        assert_eq!(scores.values, [Some(expected)], "{solution}: {failures:?} {:?}", scores.problems);
    }
}
