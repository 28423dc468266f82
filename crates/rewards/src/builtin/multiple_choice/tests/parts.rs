//! Tests of each function that searches for a letter.

use super::*;

/// The letter of a choice, or `-`.
fn letter(place: Option<usize>) -> char {
    place.map_or('-', |place| char::from(b'A' + place as u8))
}

fn check(cases: &[(&str, char)], found: impl Fn(&str) -> Option<usize>) {
    let cases = cases.iter().map(|&(text, expected)| (text, letter(found(text)), expected));
    let wrong: Vec<_> = cases.filter(|(_, found, expected)| found != expected).collect();
    assert!(wrong.is_empty(), "text, got, expected: {wrong:#?}");
}

#[test]
fn the_number_of_choices_must_be_2_to_26() {
    let built = |choices| MultipleChoice::build(MultipleChoiceOptions { choices, ..Default::default() });
    for choices in [0, 1, 27] {
        let message = built(choices).unwrap_err().to_string();
        assert_eq!(message, format!("reward `multiple_choice`: `choices` must be from 2 to 26, got {choices}"));
    }
    for (choices, last, next) in [(2, 'B', 'C'), (4, 'D', 'E'), (25, 'Y', 'Z')] {
        let reward = built(choices).unwrap();
        let all = |c: char| {
            let lower = c.to_ascii_lowercase();
            let texts = [format!("({c})"), format!("\\boxed{{{c}}}"), format!("\\boxed{{{lower}}}"), c.to_string()];
            let found: Vec<_> = texts.iter().map(|text| reward.choice(text)).collect();
            let gold = [c, lower].map(|c| reward.gold(&c.to_string().into()));
            assert!(found.iter().chain(&gold).all(|one| *one == gold[0]), "{c}: {found:?} {gold:?}");
            gold[0]
        };
        assert_eq!((all('A'), all(last), all(next)), (Some(0), Some(choices - 1), None), "{choices}");
        let (most, more) = (Value::from(choices - 1), Value::from(choices));
        assert_eq!((reward.gold(&most), reward.gold(&more)), (Some(choices - 1), None));
    }
    assert_eq!(built(26).unwrap().gold(&"Z".into()), Some(25));
}

#[test]
fn letters_of_dataset_answers_may_have_any_mark() {
    let reward = reward(4, false);
    let gold = |text: &str| reward.gold(&text.into());
    let cases = [
        ("B", 'B'),
        ("b", 'B'),
        (" (B) Paris", 'B'),
        ("[b]", 'B'),
        ("B. Paris", 'B'),
        ("B: Paris", 'B'),
        ("B, Paris", 'B'),
        ("B; Paris", 'B'),
        ("B Paris", 'B'),
        ("**B**", 'B'),
        ("$B$", 'B'),
        ("{B}", 'B'),
        ("\\text{B}", 'B'),
        ("\\textbf{(B)}", 'B'),
        ("Berlin", '-'),
        ("B-", '-'),
        ("the B", '-'),
        ("", '-'),
    ];
    check(&cases, gold);
    for other in [Value::from(-1), 1.5.into(), true.into(), vec!["B"].into(), Value::Null] {
        assert_eq!(reward.gold(&other), None, "{other}");
    }
    let message = scores(&reward, &["B"], [("answer", vec![7.into()])]).problems[0].to_string();
    let expected = "reward `multiple_choice` gave no score for 1 completion: no choice of 4 in column `answer`, for \
                    example in 7";
    assert_eq!(message, expected);
}

#[test]
fn a_letter_at_the_beginning_of_an_answer_must_be_separate() {
    let reward = reward(5, false);
    let both = [
        ("B", 'B'),
        (" B.", 'B'),
        ("is: B", 'B'),
        ("the correct option is B", 'B'),
        ("we choose B", 'B'),
        ("(b)", 'B'),
        ("[b]", 'B'),
        ("*b*", 'B'),
        ("`b`", 'B'),
        ("\"b\"", 'B'),
        ("“b”", 'B'),
        ("\\text{b}", 'B'),
        ("B, because", 'B'),
        ("B and so on", 'B'),
        ("A dog", 'A'),
        ("(a) dog", 'A'),
        ("(a dog", '-'),
        ("a dog", '-'),
        ("Bx", '-'),
        ("B1", '-'),
        ("B_1", '-'),
        ("B's", '-'),
        ("B’s", '-'),
        ("B-tree", '-'),
        ("B or C", '-'),
        ("B is wrong", '-'),
        ("F", '-'),
        ("Paris B", '-'),
        ("", '-'),
    ];
    check(&both, |text| reward.begins(text, true));
    check(&both, |text| reward.begins(text, false));
    // In running text only capitals are choices.
    check(&[("b", '-'), ("b.", '-'), ("$b$", '-'), ("'b'", '-')], |text| reward.begins(text, true));
    check(&[("b", 'B'), ("b.", 'B'), ("$b$", 'B'), ("'b'", '-')], |text| reward.begins(text, false));
    let cases = [
        ("<answer>b</answer>", 'B'),
        ("<answer>the answer is b</answer>", '-'),
        ("<answer>the answer is B</answer>", 'B'),
        ("<answer>the answer is (b)\nas c is wrong</answer>", 'B'),
        ("<answer>so\nB</answer>", 'B'),
        ("<answer>none</answer> #### B", '-'),
        ("#### b", '-'),
        ("#### B\n#### C\nD", 'C'),
        ("#### none\nB", '-'),
        ("I choose B. The answer is C", 'C'),
        ("The answer is C. I choose B", 'B'),
        ("The answer is that.\nB", 'B'),
        ("My choice would be B: Paris", 'B'),
        ("We'll go for B", 'B'),
        ("I’d opt for C now", 'C'),
    ];
    check(&cases, |text| reward.choice(text));
}

#[test]
fn an_alternative_choice_retracts_the_first() {
    let reward = reward(5, false);
    for (rest, expected) in [
        ("", false),
        (" or C", true),
        (" or (C)", true),
        (" or option C", true),
        (" or maybe C", true),
        (" or F", false),
        (" or Cats", false),
        (" or so", false),
        (", or C", true),
        (" and C", true),
        (" and so on", false),
        (", C", true),
        ("; C.", true),
        (", C or D", true),
        (", C is false", false),
        ("/C", true),
        (" & C is it", true),
        ("|C is it", true),
        ("+C is it", true),
        (") or C", true),
        ("** or **C**", true),
        ("\\text{ or } C", true),
        (" is wrong", true),
        (" is right", false),
        (". C is wrong", false),
    ] {
        assert_eq!(reward.takes_back(rest), expected, "{rest}");
    }
}

#[test]
fn a_letter_at_the_end_must_follow_an_announcement() {
    let reward = reward(5, false);
    let cases = [
        ("B", 'B'),
        ("(b)", 'B'),
        ("[b].", 'B'),
        ("x (B)", 'B'),
        ("x B)", 'B'),
        ("x b)", '-'),
        ("it is B", 'B'),
        ("it is b", '-'),
        ("it's **B**.", 'B'),
        ("so \"B\"!", 'B'),
        ("x: B", 'B'),
        ("x -> B", '-'),
        ("x => B", '-'),
        ("x → B", 'B'),
        ("x. B", 'B'),
        ("x; B", 'B'),
        ("x=B", 'B'),
        ("x\nB", 'B'),
        ("x\n  **B**", 'B'),
        ("vitamin B", '-'),
        ("xB", '-'),
        ("x\nA", 'A'),
        ("x\n A", 'A'),
        ("it is A", '-'),
        ("it is (A)", 'A'),
        ("it is A)", 'A'),
        ("not (B)", '-'),
        ("A, (B)", '-'),
        ("A / (B)", '-'),
        ("A & (B)", '-'),
        ("A | (B)", '-'),
        ("A + (B)", '-'),
        ("A and (B)", '-'),
        ("A and **(B)**", '-'),
        ("A or (B)", '-'),
        ("(F)", '-'),
        ("it is B or", '-'),
        ("", '-'),
    ];
    check(&cases, |text| reward.at_end(text));
    for (before, expected) in [("A and ", true), ("A and (**", true), ("AND", true), ("sand ", false), ("and A", false)]
    {
        assert_eq!(ends_with_and(before), expected, "{before}");
    }
}

#[test]
fn a_letter_at_the_beginning_of_a_completion_must_be_marked() {
    let reward = reward(5, false);
    let cases = [
        ("B", 'B'),
        ("B) Paris", 'B'),
        ("B. Paris", 'B'),
        ("B: Paris", 'B'),
        ("B Paris", '-'),
        ("b) Paris", '-'),
        ("(b) Paris", 'B'),
        ("[B] Paris", 'B'),
        ("(B Paris", '-'),
        ("(B\\) Paris", 'B'),
        ("**B**: Paris", 'B'),
        ("**B** Paris", 'B'),
        ("**b** Paris", '-'),
        ("`B`, Paris", 'B'),
        ("\"B\", Paris", 'B'),
        ("$B$, Paris", 'B'),
        ("**B Paris**", '-'),
        ("\"B's", '-'),
        ("Option B, Paris", 'B'),
        ("choice: B is it", 'B'),
        ("The letter B is it", 'B'),
        ("option b is it", '-'),
        ("Option Berlin", '-'),
        ("The B. is it", '-'),
        ("The B is it", '-'),
        ("B) is wrong", '-'),
        ("B) or C)", '-'),
        ("A) 3\nB) 4\nC) 5", '-'),
        ("A) 3\nB) 4", '-'),
        ("A) 3 B) 4 C) 5", '-'),
        ("A) 3 B) 4", 'A'),
        ("A) 3 and 4) 5", 'A'),
        ("F) Paris", '-'),
        ("", '-'),
    ];
    check(&cases, |text| reward.at_beginning(text));
    for (text, expected) in [
        ("A) 3 B) 4 C) 5", true),
        ("A) 3 B) 4", false),
        ("A) 3 A) 4 A) 5", false),
        ("(A) x [B] y C. z", true),
        ("A) 3\nB) 4", true),
        ("A) 3\nb", false),
        ("", false),
    ] {
        assert_eq!(reward.lists(text), expected, "{text}");
    }
}
