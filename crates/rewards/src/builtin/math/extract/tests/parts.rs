//! Tests of each function that searches for an answer.

use super::super::*;

#[test]
fn a_text_with_sentences_or_many_words_is_a_solution() {
    for (text, expected) in [
        ("We add three.", false),
        ("We add three four.", true),
        ("We add three four!", true),
        ("We add three four?", true),
        ("We add three four", false),
        ("we add three four.", false),
        (" We add three four.\n", true),
        ("aa bb cc dd ee ff gg hh", false),
        ("aa bb cc dd ee ff gg hh ii", true),
        ("aa, bb, cc, dd, ee, ff, gg, hh, ii", false),
        ("aa bb\ncc dd", true),
        ("aa bb cc", false),
        ("aa bb\ncc", false),
        ("aa bb. cc dd", true),
        ("aa bb? Cc dd", true),
        ("5. Cc dd ee ff", true),
        ("5 \\boxed", true),
        ("5 \\fbox", true),
        ("5", false),
    ] {
        assert_eq!(is_solution(text), expected, "{text}");
    }
}

#[test]
fn the_end_of_a_sentence_is_not_part_of_the_answer() {
    for (text, expected) in [
        ("5", "5"),
        ("5.", "5"),
        ("5..", "5"),
        ("5!", "5"),
        ("5?!", "5"),
        ("ab!", "ab"),
        ("n!", "n!"),
        ("5n!", "5n!"),
        ("(2n)!", "(2n)!"),
        ("!", "!"),
        ("5**", "5"),
        ("5*!", "5"),
        ("5.**", "5"),
        ("n!.", "n!"),
    ] {
        assert_eq!(without_end(text), expected, "{text}");
    }
    for (text, expected) in [
        ("5", "5"),
        (" : 5 ", "5 "),
        (":5:", "5:"),
        ("**5** because", "5"),
        ("*5* because", "5"),
        ("**5 because", "5 because"),
        ("** 5", "5"),
        (":** *5* x", "5"),
        ("**a\nb**", "a\nb**"),
        ("****5", "5"),
        ("**5*", "5*"),
        ("**", ""),
        ("", ""),
    ] {
        assert_eq!(emphasized(text), expected, "{text}");
    }
}

#[test]
fn formulas_are_found_between_their_delimiters() {
    let found = |text: &str| {
        formulas(text).map(|formula| format!("{}:{}", formula.start, formula.inside)).collect::<Vec<_>>().join(" ")
    };
    for (text, expected) in [
        ("$x$", "0:x"),
        ("a $x$ b $y$", "2:x 8:y"),
        ("$ x $", "0:x"),
        ("$$x$$", "0:x"),
        ("a $$x$$ $y$", "2:x 8:y"),
        ("\\(x\\) \\[y\\]", "0:x 6:y"),
        ("\\[x\\)", ""),
        ("\\(x\\]y\\)", "0:x\\]y"),
        ("\\(x \\(y\\)", "4:y"),
        ("$x \\(y\\)", "3:y"),
        ("\\(\\)", ""),
        ("\\( \\)\\(x\\)", "5:x"),
        ("$$ $$", ""),
        ("\\)x\\(", ""),
        ("x\\)\\(y\\)", "3:y"),
        ("$x\\$y$", "0:x\\$y"),
        ("\\\\(x\\)", ""),
        ("\\\\\\(x\\)", "2:x"),
        ("\\é$x$", "3:x"),
        ("$x$5", ""),
        ("$x$5 $y$", "2:5"),
        ("$3 and $4", ""),
        ("$", ""),
        ("\\", ""),
        ("", ""),
    ] {
        assert_eq!(found(text), expected, "{text}");
    }
}

#[test]
fn two_consecutive_words_make_a_text_prose() {
    for (text, expected) in [
        ("ab cd", true),
        ("ab  cd", true),
        ("ab, cd", false),
        ("ab", false),
        ("x y", false),
        ("ab x cd", false),
        ("5 cm per", true),
        ("12 miles per hour", false),
        ("ab cm", false),
        ("cm ab", false),
        ("and x", true),
        ("x and", true),
        (" x and ", true),
        ("x and y", false),
        ("x or y of", true),
        ("\\text{ab cd}", false),
        ("\\sin xx \\cos yy", false),
        ("5. x", true),
        ("5.x", false),
        ("", false),
    ] {
        assert_eq!(is_prose(text), expected, "{text}");
    }
    let words = |text: &'static str| plain_words(text).map(|word| &text[word]).collect::<Vec<_>>();
    assert_eq!(words("ab \\sin cd \\text{ef gh} i \\mbox {j} été"), ["ab", "cd", "été"]);
}

#[test]
fn the_last_number_includes_adjacent_parts() {
    for (text, expected) in [
        ("3 1/2", Some("3 1/2")),
        ("3 5/5", Some("5/5")),
        ("3 4/5", Some("3 4/5")),
        ("3 6/5", Some("6/5")),
        ("3  1/2", Some("1/2")),
        ("3\n1/2", Some("1/2")),
        ("1.5 1/2", Some("1/2")),
        ("3 1/2.5", Some("1/2.5")),
        ("2 3 1/2", Some("3 1/2")),
        ("1/2 3", Some("3")),
        ("1/2 3/4", Some("3/4")),
        ("4 1,2/3", Some("1,2/3")),
        ("1/2/3", Some("1/2/3")),
        ("1, 2", Some("2")),
        ("1,2", Some("1,2")),
        ("4e5", Some("4e5")),
        ("4E5", Some("4E5")),
        ("4e+5", Some("4e+5")),
        ("4E+5", Some("4E+5")),
        ("4e-5", Some("4e-5")),
        ("4E-5", Some("4E-5")),
        ("4f5", None),
        ("5½", Some("5½")),
        ("5 ¼", Some("5 ¼")),
        ("5¾", Some("5¾")),
        ("5 ½ x", Some("5 ½")),
        ("5½%", Some("5½%")),
        ("5%½", Some("5%")),
        ("5\\%", Some("5\\%")),
        ("5 %", Some("5")),
        ("not 5", None),
        ("x", None),
    ] {
        assert_eq!(last_number(text), expected, "{text}");
    }
}

#[test]
fn tags_and_the_last_announcement_have_priority() {
    for (completion, strict, expected) in [
        ("<answer>5</answer> so the answer is 6", false, Some("5")),
        ("<answer>5</answer> so the answer is 6", true, Some("5")),
        ("<answer>The answer is 5.</answer>", true, Some("5")),
        ("<answer>the answer is \\frac12.</answer>", true, Some("the answer is \\frac12.")),
        ("<answer>the answer is</answer>", true, Some("the answer is")),
        ("#### 5\nthe answer is 6", false, Some("6")),
        ("the answer is 6\n#### 5", false, Some("5")),
        ("the answer is\n#### 5 $7$", false, Some("5 $7$")),
        ("#### \nit is $7$ or 8", false, Some("it is $7$ or 8")),
        ("#### ", false, None),
        ("$5$ and 6", false, Some("5")),
        ("$5$ and $6$ and 7", false, Some("6")),
        ("5 and 6", false, Some("6")),
        ("5 and 6", true, None),
    ] {
        assert_eq!(answer_of(completion, strict), expected, "{completion}");
    }
    for (answer, expected) in [
        (Value::from(5), Some("5")),
        (Value::from(-2.5), Some("-2.5")),
        ("  5 ".into(), Some("5")),
        ("\\boxed{ 5 } #### 6".into(), Some("5")),
        ("#### 5 #### 6 ".into(), Some("6")),
        ("We add three four. #### 7".into(), Some("7")),
        ("We add three four. \\boxed{7}".into(), Some("7")),
        ("We add three four.".into(), None),
        ("\\boxed{}".into(), None),
        (Value::Null, None),
        (serde_json::json!(["5"]), None),
    ] {
        assert_eq!(gold(&answer).as_deref(), expected, "{answer}");
    }
}
