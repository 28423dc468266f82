use super::super::equal::equal;
use super::*;

mod parts;

fn found(completion: &str) -> Option<&str> {
    answer_of(completion, false)
}

#[test]
fn an_announced_answer_ends_before_its_explanation() {
    for (completion, answer) in [
        ("The answer is 5, because of that.", "5"),
        ("The answer is $5$, because of that.", "5"),
        ("The answer is 5 because 2 + 3 = 5.", "5"),
        ("The answer is x = 5, since 2 + 3 = 5.", "x = 5"),
        ("The answer is 5, so we are done.", "5"),
        ("The answer is **5** because 2 + 3 = 5.", "5"),
        ("The answer is **$5$** because", "5"),
        ("The answer is *5* because 2*3 = 6.", "5"),
        ("**The answer is: 5**", "5"),
        ("**Answer:** **5** apples", "5"),
        ("**Answer:**\n\n5", "5"),
        ("Answer: 12 (twelve)", "12"),
        ("Answer: 12 (twelve) times x", "12 (twelve) times x"),
        ("The answer is n! This is great.", "n!"),
        ("Answer: 125 (one hundred and twenty-five)", "125"),
        ("Answer: 2x**2", "2x**2"),
        ("The answer is 5!", "5"),
        ("The answer is 5!!", "5"),
        ("The answer is 12 cm!", "12 cm"),
        ("The answer is **5**!", "5"),
        ("The answer is 5! This is great.", "5"),
        ("The answer is n!", "n!"),
        ("The answer is (2n)!", "(2n)!"),
        ("The answer is $5!$", "5!"),
        ("The answer is 3! = 6.", "3! = 6"),
        ("The answer is 1, 2, and 3.", "1, 2, and 3"),
        ("The answer is x=1, or x=2.", "x=1, or x=2"),
    ] {
        assert_eq!(found(completion), Some(answer), "{completion}");
    }
    // Words that are not an explanation change the answer.
    for completion in [
        "The answer is 5 times as large as x.",
        "The answer is not 5, but 6.",
        "Answer: 5 (thousand)",
        "The answer is 5x, because of that.",
        "The answer is 5 or 6, because both are right.",
        "The answer is 5!, because all orders count.",
    ] {
        assert!(!equal("5", found(completion).unwrap()), "{completion}");
    }
}

#[test]
fn the_last_formula_is_found_in_every_notation() {
    for (completion, answer) in [
        ("The answer is $$5$$.", "5"),
        ("The answer is $$\n5\n$$\nas 2 + 3 = 5", "5"),
        ("The answer is:\n\\[\n5\n\\]", "5"),
        ("The answer is: \\[\n\\frac{1}{2}\n\\]\nThis is less than 1.", "\\frac{1}{2}"),
        ("The answer is \\(x + 1\\), said in 5 words.", "x + 1"),
        ("The answer is $\\$5$ of 10.", "\\$5"),
        ("The answer is $5 per day.", "5 per day"),
        ("The answer is $5.", "5"),
        ("The answer is\n\\[ 5", "5"),
        ("so $x$ and then \\(x + 1\\), 2 of them", "x + 1"),
        ("so $x$ and then $$x + 2$$, 2 of them", "x + 2"),
        ("so \\[x\\] and $x$$y$", "y"),
        ("so $x + 5 $ and so on", "x + 5"),
        ("an open \\( and $x + 5$", "x + 5"),
        ("it is $a$, that is $b = 5 \\text{ of the ten}$", "b = 5 \\text{ of the ten}"),
        ("it is $5\\\\[2pt] 6$", "5\\\\[2pt] 6"),
        // This formula cannot be parsed. The answer is still the formula, not its last number.
        ("it is $\\begin{foo} 5$", "\\begin{foo} 5"),
    ] {
        assert_eq!(found(completion), Some(answer), "{completion}");
    }
    for completion in ["The answer is $$ $$.", "The answer is \\[", "The answer is $"] {
        assert_eq!(found(completion), None, "{completion}");
    }
}

#[test]
fn dollar_signs_of_prices_do_not_delimit_formulas() {
    for (completion, answer) in [
        ("She spends $3 on eggs and $4 on milk, so she spends 7 in total.", "7"),
        ("She spends $3 and $4, so she spends $7.", "7"),
        ("It costs $3. He pays 5 $ of 7", "7"),
        ("Eggs are 3$ and milk is 4$ so 7", "7"),
        ("It costs 5$ or 6$ and a bag 7", "7"),
        ("The answer is $3 for eggs and $4 for milk.", "3 for eggs and $4 for milk"),
        ("It costs \\$3 and \\$4, in all $x = 7$ of them", "x = 7"),
        ("It costs $3 and then we get $x = 7$ of 8", "x = 7"),
    ] {
        assert_eq!(found(completion), Some(answer), "{completion}");
    }
}

#[test]
fn the_last_number_includes_sign_fraction_exponent_and_percent() {
    for (completion, answer) in [
        ("read pages 3-5", "5"),
        ("it is 7 -2", "2"),
        ("it is -5", "-5"),
        ("it is \u{2212}5", "\u{2212}5"),
        ("it is -$5", "-$5"),
        ("we need 1 1/2 cups", "1 1/2"),
        ("we need -1 1/2 cups", "-1 1/2"),
        ("we need 2\u{bd} cups", "2\u{bd}"),
        ("in step 3 12/5", "12/5"),
        ("we need 3, 1/2", "1/2"),
        ("it is -3/4 of them", "-3/4"),
        ("on 12/25/2020", "12/25/2020"),
        ("in all 1,234 ways", "1,234"),
        ("the roots 1,2,3", "1,2,3"),
        ("the points 1,2345", "1,2345"),
        ("it is 1.5e-5", "1.5e-5"),
        ("it is 1E5.", "1E5"),
        ("it is 0.5%", "0.5%"),
        ("it is 50\\% of them", "50\\%"),
        ("it is 5, or so", "5"),
        ("version 1.2.3", "3"),
        ("it is .5.", ".5"),
    ] {
        assert_eq!(found(completion), Some(answer), "{completion}");
    }
    for (gold, completion, expected) in [
        ("5", "read pages 3-5", true),
        ("-5", "read pages 3-5", false),
        ("-5", "it is \u{2212}5", true),
        ("5", "it is \u{2212}5", false),
        ("\\frac{3}{2}", "we need 1 1/2 cups", true),
        ("\\frac12", "we need 1 1/2 cups", false),
        ("\\frac52", "we need 2\u{bd} cups", true),
        ("2", "we need 2\u{bd} cups", false),
        ("0.5", "it is 50%", true),
        ("0.5", "it is 0.5%", false),
        ("3", "the roots 1,2,3", false),
        ("1,2,3", "the roots 1,2,3", true),
        ("5", "it is 1e5", false),
    ] {
        assert_eq!(equal(gold, found(completion).unwrap()), expected, "{gold}: {completion}");
    }
}

#[test]
fn strict_accepts_only_boxes_and_answer_tags() {
    for completion in ["The answer is 5.", "#### 5", "$5$", "\\[5\\]", "5", "\\boxed{5"] {
        assert_eq!(answer_of(completion, true), None, "{completion}");
    }
    for completion in ["\\boxed{5}", "\\boxed {5}", "\\fbox{5}", "$\\boxed 5$ of 6"] {
        assert_eq!(answer_of(completion, true), Some("5"), "{completion}");
    }
}

#[test]
fn solutions_without_a_marked_answer_have_no_answer() {
    let gold = |text: &str| gold(&text.into());
    for answer in [
        "5",
        "x = 5 or x = 7",
        "\\text{Monday and then Tuesday}",
        "Dr. Smith",
        "St. Louis, Missouri",
        "12 miles per hour",
        "the set of all primes",
        "\\begin{cases} x & \\text{if it is so} \\\\\n y & \\text{if it is not so. Else} \\end{cases}",
        "no solution.",
        "- \\sin x + \\cos y + \\tan z + 3 \\ln x",
    ] {
        assert_eq!(gold(answer).as_deref(), Some(answer), "{answer}");
    }
    assert_eq!(gold("so \\boxed {5}.").as_deref(), Some("5"));
    assert_eq!(gold("so #### 5").as_deref(), Some("5"));
    for solution in [
        "We add 3 and 4 to get 7.",
        "First we add 3 and 4. That is 7",
        "We add the two numbers\nand get 7",
        "so we have to add 3 and 4 and then get the number 7",
        "so \\boxed{5",
        "so \\boxed{}",
        "so ####",
        " ",
    ] {
        assert_eq!(gold(solution), None, "{solution}");
    }
    assert_eq!(gold(&"5".repeat(2000)), Some("5".repeat(2000)));
    assert_eq!(gold(&"5".repeat(2001)), None);
    assert_eq!(gold(&format!("{}\\boxed{{5}}", "so ".repeat(1000))).as_deref(), Some("5"));
    assert_eq!(super::gold(&true.into()), None);
}

/// A search from each sign to the end of the text would take minutes.
#[test]
fn thousands_of_open_formulas_are_searched_in_linear_time() {
    for unit in
        ["$", "$ ", "$$ ", "$x", "\\(", "\\[ ", "\\( $", "1/", "1 ", "1,", "* ", "**a ", "answer is ", "\\text{"]
    {
        let text = unit.repeat(400_000 / unit.len());
        let message = format!("The answer is {text}");
        for text in [&text, &message] {
            assert!(answer_of(text, true).is_none() && found(text).is_none_or(|answer| answer.len() <= text.len()));
        }
        assert_eq!(gold(&text.into()), None, "{unit}");
    }
}

/// A number without a mark is not an answer if the words around it retract it.
#[test]
fn a_retracted_number_is_not_an_answer() {
    for completion in [
        "The answer cannot be 5",
        "It is not 5.",
        "x \u{2260} 5",
        "x != 5",
        "$x$ < 5",
        "the 5th",
        "it is 4 or 5",
        "at least 5",
        "5 is wrong",
        "x5",
        "at 9:05",
        "2^5",
    ] {
        assert!(found(completion).is_none_or(|answer| !equal("5", answer)), "{completion}");
    }
    assert!(!equal("5", found("\\boxed{5 \\text{ is wrong}}").unwrap()));
    for completion in [
        "It is 5",
        "She did not eat. She has 5",
        "it is 5kg",
        "4 is wrong, so 5",
        "<answer>5</answer> of 7",
        "<answer>\\boxed{5}</answer>",
        "<answer>The answer is 5</answer>",
        "<SOLUTION>$5$</SOLUTION>",
        "answer = 5",
        "**Answer**: 5",
    ] {
        assert!(equal("5", found(completion).unwrap()), "{completion}");
    }
}
