//! Problems with right, wrong, ill-typed, unparsable and looping solutions, and solutions that would rather pass.

use super::super::tests::{installed, scored};
use super::refused;
use serde_json::{Value, json};
use std::sync::LazyLock;

struct Problem {
    name: &'static str,
    tests: Vec<&'static str>,
    /// Kind, its number, the solution.
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
fn each_solution_is_scored_by_its_stage() {
    if !installed(&["bwrap", "ocamlc"]) {
        return;
    }
    let problems = problems();
    assert!(problems.len() >= 30 && problems.iter().all(|p| p.tests.len() == 3 && p.solutions.len() == 5));
    // What loops is given less time than what has to end.
    for (kinds, timeout_s) in [("RWIU", 30.0), ("L", 2.0)] {
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
            // A right solution may lose for its style: one-liners are long.
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
fn style_and_degenerate_completions_cost() {
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
        assert!((value - score).abs() < 1e-6, "{name}: {value} and not {score}, {}", failures[i]);
    }
}

/// Prints what new bytes hold of what was in memory before, if it looks like a nonce. What is alive is moved by
/// compaction, and leaves a copy where it was.
const SEARCH: &str = r#"let hex c = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')
let scan b =
  let start = ref (-1) in
  for i = 0 to Bytes.length b - 1 do
    if hex (Bytes.get b i) then (if !start < 0 then start := i)
    else begin
      if !start >= 0 && i - !start = 32 then print_endline (Bytes.sub_string b !start 32);
      start := -1
    end
  done
let search policy =
  Gc.set { (Gc.get ()) with Gc.allocation_policy = policy };
  for round = 1 to 2 do
    let holes = ref (List.init 50 (fun i -> Bytes.create (2100 + 997 * i))) in
    Gc.full_major ();
    ignore (Sys.opaque_identity (List.length !holes));
    holes := [];
    Gc.compact ();
    List.iter (fun n -> List.iter scan (List.init 10 (fun _ -> Bytes.create n))) [4000; 9000; 20000; 60000; 200000]
  done
let () = List.iter search [2; 0; 1]
let f _ = 0"#;

/// The same while tests run.
static SEARCH_IN_A_TEST: LazyLock<String> =
    LazyLock::new(|| SEARCH.replace("let () =", "let all () =").replace("let f _ = 0", "let f _ = all (); 0"));

/// Solutions that get at what decides, and still earn no test.
#[test]
fn results_cannot_be_forged() {
    if !installed(&["bwrap", "ocamlc"]) {
        return;
    }
    let attacks = [
        ("exit before the tests", "let f x = x let () = exit 0"),
        ("exit in a test", "let f _ = exit 0"),
        ("equal to all", "let ( = ) _ _ = true let f x = x"),
        ("not, and, or", "let not _ = true let ( && ) _ _ = true let ( || ) _ _ = true let f x = x"),
        ("a library of its own", "module Stdlib = struct let ( = ) _ _ = true end let ( = ) _ _ = true let f x = x"),
        ("a list of its own", "module List = struct let length _ = 3 end let f x = x"),
        ("forged lines", "let () = for i = 0 to 99 do Printf.printf \"%032x\\n\" i done let f x = x"),
        ("reading what is given", "let line = read_line () let f x = print_endline line; x"),
        ("an exception", "exception E let f _ = raise E"),
        ("at the end", "let () = at_exit (fun () -> print_endline \"1\") let f x = x"),
        ("no output", "let () = close_out stdout let f x = 2 * x"),
        ("another type", "type t = true | false let f x = x"),
        ("stack", "let rec f x = 1 + f x"),
        ("memory that was another's", SEARCH),
        ("memory that was another's, in a test", SEARCH_IN_A_TEST.as_str()),
    ];
    let tests = json!({"tests": ["assert (f 4 = 8)", "f 3 = 6 && List.length [f 1] = 3 - 2 && f 2 = 4"]});
    let rows: Vec<_> = attacks.iter().map(|attack| (attack.1, tests.clone())).collect();
    let options = json!({"language": "ocaml", "partial": true, "timeout_s": 20.0});
    let (scores, failures) = scored(options.clone(), &rows);
    assert!(scores.problems.is_empty(), "{:?}", scores.problems);
    for (i, (name, _)) in attacks.iter().enumerate() {
        assert!(scores.values[i] == Some(0.0) && !failures[i].is_empty(), "{name}: {:?}", scores.values[i]);
    }
    // What could reach memory is not even compiled.
    let reaching = [
        "let f : int -> int = Obj.magic 1",
        "open Stdlib let f x = Stdlib__Obj.magic x + x",
        "module O = Obj let f x = O.magic (2 * x)",
        "let f x = let open Obj in magic (2 * x)",
        "external f : int -> int = \"caml_obj_dup\"",
        "module M = struct external f : 'a -> 'b = \"%identity\" end let f x = M.f (2 * x)",
        "let f x = Array.unsafe_get [| 2 * x |] 0",
        "let f x = String.(unsafe_get) \"a\" 0 |> ignore; 2 * x",
        "let f x = ignore (open_in \"/proc/self/mem\"); 2 * x",
        "let f x = ignore (Sys.command \"true\"); 2 * x",
        "open Sys let f x = ignore (command \"true\"); 2 * x",
        "let f x = Marshal.from_string (Marshal.to_string (2 * x) []) 0",
        "let f x = ignore (CamlinternalFormat.make_printf); 2 * x",
        "let f x = ignore (read_line ()); 2 * x",
        "let f x = ignore (input_char Stdlib.stdin); 2 * x",
        "module S = Scanf let f x = S.scanf \"%d\" (fun _ -> 2 * x)",
        "let f x = ignore Scanf.Scanning.open_in; 2 * x",
        "let f x = ignore (Arg.read_arg \"/proc/self/fd/0\"); 2 * x",
    ];
    let rows: Vec<_> = reaching.iter().map(|source| (*source, tests.clone())).collect();
    let (scores, failures) = scored(options.clone(), &rows);
    for (i, source) in reaching.iter().enumerate() {
        assert_eq!(scores.values[i], Some(0.0), "{source}");
        assert!(failures[i].ends_with("is not allowed here"), "{source}: {}", failures[i]);
    }
    // Their names in texts and comments are no use of them.
    let harmless = "(* Obj external *) (** Marshal *) let f x = ignore \"Obj.magic\"; ignore (Sys.time ());
        Scanf.sscanf (string_of_int x) \"%d\" (fun x -> 2 * x)";
    let (scores, failures) = scored(options, &[(harmless, tests)]);
    assert_eq!(scores.values, [Some(1.0)], "{failures:?}");
}

#[test]
fn a_name_of_the_standard_library_can_be_asked_for() {
    if !installed(&["bwrap", "ocamlc"]) {
        return;
    }
    let row = json!({"tests": ["assert (max 1 2 = 3)"], "entry_point": "max"});
    let options = json!({"language": "ocaml"});
    let (scores, failures) = scored(options.clone(), &[("let max a b = a + b", row.clone()), ("let min = 1", row)]);
    assert_eq!(scores.values, [Some(1.0), Some(0.0)], "{failures:?}");
    // Tests that cannot be parsed say nothing of the solution.
    let (scores, _) = scored(options, &[("let f x = x", json!({"tests": ["assert (f 1 = "], "entry_point": "f"}))]);
    assert_eq!(scores.values, [None]);
    assert!(scores.problems[0].message.contains("tests cannot be compiled"), "{}", scores.problems[0].message);
}

#[test]
fn names_are_refused_in_trees() {
    let line = |name: &str| format!("      Pexp_ident \"{name}\" (solution.ml[1,0+0]..[1,0+3])\n");
    for name in ["Obj.repr", "Stdlib.Obj", "Sys", "Sys.remove", "F(Obj).t", "unsafe_get", "Stdlib.open_out_gen"] {
        assert_eq!(refused(&line(name)).as_deref(), Some(name));
    }
    for name in ["Object.repr", "Sys.time", "Stdlib.Sys.max_int", "open_tree", "obj"] {
        assert_eq!(refused(&line(name)), None);
    }
}
