//! Tests of each function that searches for a number.

use super::*;

/// Each case has a text, the number found if the text is in tags or a box, and the number found if it begins a line.
#[test]
fn equations_give_their_result_and_explanations_are_ignored() {
    for (text, only, first) in [
        ("42", "42", "42"),
        ("42 43", "", ""),
        ("42 apples of 43", "", "42"),
        ("x = 42", "42", "42"),
        ("42 = x", "42", "42"),
        ("6*7 = 42", "42", "42"),
        ("42 = 6*7", "42", "42"),
        ("1 = 2 = 42", "42", "42"),
        ("41 = 42", "42", "42"),
        ("x = 42 of 43", "", "42"),
        ("42 of 43 = x", "", "42"),
        ("41 != 42", "", ""),
        ("41 <= 42", "", ""),
        ("41 >= 42", "", ""),
        ("41 /= 42", "", ""),
        ("42 <= x", "", ""),
        ("\\frac{84}{2}", "42", "42"),
        ("42 because 43", "", "42"),
        ("42, since 43", "", "42"),
        ("42; 43", "", "42"),
        ("42 (43)", "", "42"),
        ("42, which is 43", "", "42"),
        ("42. 43", "", "42"),
        ("so 42 as 43", "", "42"),
        ("42 is wrong", "", ""),
        ("1/0", "", ""),
        ("none", "", ""),
    ] {
        let shown = |number: Option<Number>| number.map(|number| number.to_string()).unwrap_or_default();
        assert_eq!((&*shown(only_number(text)), &*shown(first_number(text))), (only, first), "{text}");
    }
    assert_eq!((only_number("1{,}000"), only_number("1\\,000")), (number("1000"), number("1000")));
    for (text, expected) in
        [("42", true), (" **$42", true), (": .5", true), ("(\\$-4", true), ("x42", false), ("", false)]
    {
        assert_eq!(begins_with_number(text), expected, "{text}");
    }
}

#[test]
fn the_mark_with_the_highest_priority_counts() {
    for (text, expected) in [
        ("<answer>43</answer> #### 42", "42"),
        ("#### none <answer>42</answer>", "42"),
        ("#### none, the answer is 42", "42"),
        ("<answer>none</answer> the answer is 42", ""),
        ("The answer is 42 of 43", "42"),
        ("The answer is: we have 42 of 43", "43"),
        ("The answer is that we have 42\n43", "42"),
        ("The answer is unknown\n43", "43"),
        ("42 or 42", "42"),
        ("42 and 42", "42"),
        ("42.0 or 42", "42"),
        ("41 or 42", ""),
        ("42 nor 42", ""),
        ("either 42 or 42", ""),
        ("42 apples or 42", ""),
    ] {
        assert_eq!(answer(text), if expected.is_empty() { None } else { number(expected) }, "{text}");
    }
}

#[test]
fn text_after_a_number_can_make_it_incomplete() {
    let stands_in = |text: &str| stands(text, &groups(text).next().unwrap());
    for text in
        ["42", "42 apples", "42, so", "42.", "42 and more", "42 - x", "42 x", "42 hundredths", "42; so", "42 to go"]
    {
        assert!(stands_in(text), "{text}");
    }
    for text in [
        "42:30",
        "42^2",
        "42_5",
        "42\u{bd}",
        "42\\pi",
        "42{}\\sqrt2",
        "42 \\times 2",
        "42\u{3c0}",
        "42 43",
        "42 + 1",
        "42-1",
        "42*(1",
        "42 \u{2013} 43",
        "42 x 3",
        "42 and a half",
        "42 million",
        "42 dozens",
        "42, 43",
        "42,43",
        "42; 43",
        "42 & 43",
        "42 and 43",
        "42 to -43",
        "42 through $43",
        "not 42",
    ] {
        assert!(!stands_in(text), "{text}");
    }
}
