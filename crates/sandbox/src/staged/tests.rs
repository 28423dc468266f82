use super::*;

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

#[test]
fn a_solution_that_does_not_build_scores_its_types() {
    for (why, types) in [
        (NotBuilt::Syntax, 0.0),
        (NotBuilt::TooMuch, 0.0),
        (NotBuilt::Types(1), 0.2),
        (NotBuilt::Types(3), 0.1),
        (NotBuilt::Types(5), 0.0),
        (NotBuilt::Types(6), 0.0),
        (NotBuilt::Tests, 0.25),
    ] {
        let staged = Staged::not_built(why);
        assert!(near(staged.types, types) && near(staged.score(), types), "{why:?}: {staged:?}");
        assert_eq!(Staged { types: 0.0, ..staged }, Staged::default());
    }
}

#[test]
fn a_tested_solution_scores_its_passed_share_minus_style() {
    let long = "x".repeat(101);
    let fits = "é".repeat(100);
    for (passed, of, warnings, solution, score) in [
        (3, 3, 0, "let x = 1", 1.0),
        (0, 3, 0, "let x = 1", 0.35),
        (1, 3, 0, "let x = 1", 0.35 + 0.65 / 3.0),
        (2, 4, 9, &*long, 0.35 + 0.325),
        (3, 3, 1, "", 0.98),
        (3, 3, 5, "", 0.9),
        (3, 3, 6, "", 0.9),
        (3, 3, 0, &*long, 0.99),
        (3, 3, 0, &*fits, 1.0),
        (3, 3, 2, "a \nb\t\nc", 0.94),
        (3, 3, 0, " a", 1.0),
    ] {
        let staged = Staged::tested(passed, of, warnings, solution);
        assert!((staged.score() - score).abs() < 1e-8, "{passed} of {of}, {warnings}, {solution}: {}", staged.score());
        assert!(near(staged.types, 0.25) && near(staged.compile, 0.1) && staged.degenerate.is_none());
        assert!(near(staged.tests, 0.65 * passed as f64 / of as f64));
    }
    let right = Staged::tested(1, 1, 0, "let f x = x");
    assert_eq!(right.clone().of("let f x = x", "let f x = x"), right);
    let degenerate = right.of("x", "x");
    assert!(degenerate.degenerate == Some("a stub") && near(degenerate.score(), 0.3));
}

#[test]
fn a_degenerate_completion_has_its_reason() {
    let good = "let f x = x";
    let fences = |count: usize| "```\nx\n".repeat(count) + good;
    let words = |repeats: usize| {
        let other = (0..60 - repeats).map(|i| format!("let{i} ")).collect::<String>();
        format!("let {other}{}", "x ".repeat(repeats))
    };
    let letters = |count: usize| "a".repeat(count);
    let program = format!("let f x = {}", "a".repeat(95));
    for (completion, solution, expected) in [
        (good.to_owned(), good, None),
        (fences(8), good, None),
        (fences(9), good, Some("more than four code blocks")),
        ("  ```\n".repeat(9), good, Some("more than four code blocks")),
        ("x ".repeat(59), good, None),
        ("x ".repeat(60), good, Some("repetition")),
        (words(20), good, None),
        (words(50), good, Some("repetition")),
        (letters(400), good, None),
        (letters(401), good, Some("prose")),
        (letters(400), &*program, None),
        (letters(401), &*program, Some("prose")),
        (letters(401), "let f x = x (* aaa *)", Some("prose")),
    ] {
        assert_eq!(degenerate(&completion, solution), expected, "{completion} {solution}");
    }
    let stub = Some("a stub");
    for (solution, expected) in [
        ("let f x = failwith \"x\"", stub),
        ("let f x = assert false", stub),
        ("let f x = (raise Not_found);;", stub),
        ("let f x = invalid_arg \"x\"", stub),
        ("let f x = exit 1", stub),
        ("let f x = ", stub),
        ("let f x = ()", stub),
        ("f x", stub),
        ("", stub),
        ("let f x = x", None),
        ("let f x = if x then exit 1", None),
        ("let f x = if x then raise Not_found else x", None),
        ("let f x = raise_it x", None),
        ("let f x =\n  failwith \"x\"", stub),
        ("let f x = failwith\n  \"x\"", None),
        ("let f x = x\nlet g x = exit 1", stub),
        ("let f x = x\nlet h x = x\nlet g x = exit 1", None),
        ("let f x = x\nlet g x = exit 1\nlet h x = exit 2", stub),
        ("(* let f x = x *)", stub),
    ] {
        assert_eq!(degenerate("x", solution), expected, "{solution}");
    }
    for (source, expected) in [
        ("a (* b *) c", "a  c"),
        ("a (* b (* c *) d *) e", "a  e"),
        ("a *) b", "a *) b"),
        ("a (* b", "a "),
        ("(*)é*)b", "b"),
        ("é(**)", "é"),
        ("(a * b)", "(a * b)"),
        ("", ""),
    ] {
        assert_eq!(without_comments(source), expected, "{source}");
    }
}
