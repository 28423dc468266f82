use super::*;

/// Checks a function on a table of texts and expected results. Fails with a list of all rows that differ.
fn check<'t>(rows: &[(&'t str, &str)], function: impl Fn(&'t str) -> String) {
    let wrong: Vec<_> =
        rows.iter().map(|(text, expected)| (text, function(text), expected)).filter(|row| row.1 != *row.2).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn decoration_is_removed_and_mathematics_is_kept() {
    check(
        &[
            ("**5**", "5"),
            ("*5* and _6_", "5 and 6"),
            ("***5***", "5"),
            ("__5__", "5"),
            ("**Answer:** 5", "Answer: 5"),
            ("**Answer:**5", "Answer:5"),
            ("**Answer: *5***", "Answer: 5"),
            ("(**5**)", "(5)"),
            ("\"**5**\".", "\"5\"."),
            ("**-5**", "-5"),
            ("`5`, ``6``", "5, 6"),
            ("`a*b*c` and `__init__`", "a*b*c and __init__"),
            ("```\n**5**\n```\n6", "**5**\n6"),
            ("```python\nx = 5\n```", "x = 5\n"),
            ("<answer>```\n5\n```</answer>", "<answer>\n5\n</answer>"),
            ("~~5~~ 6", " 6"),
            ("~~**5**~~ 6", " 6"),
            ("<b>5</b>", "5"),
            ("<B class=\"x\">5</B>", "5"),
            ("<p>5</p>", "\n5\n"),
            ("5<br>6<br/>7", "5\n6\n7"),
            ("<s>5</s>6<del><b>7</b></del>", "6"),
            ("7<sup>2</sup> H<sub>2</sub>O", "7^{2} H_{2}O"),
            ("&lt;5&nbsp;&times; 6 &amp; 7", "<5 × 6 & 7"),
            ("✅ 5 🎉", "  5  "),
            ("7️⃣3️⃣", "73"),
            ("Answer: → 5", "Answer:   5"),
            ("5 \\checkmark ✓", "5    "),
            // These characters have a meaning in the answer, so they stay.
            ("2*3*4", "2*3*4"),
            ("2 * 3 * 4", "2 * 3 * 4"),
            ("2 *3* 4", "2 *3* 4"),
            ("(1 + 2) *3* 4", "(1 + 2) *3* 4"),
            ("2x**2 + 3x**2", "2x**2 + 3x**2"),
            ("x_1 + x_2", "x_1 + x_2"),
            ("$x_{1}_a$ _", "$x_{1}_a$ _"),
            ("$_{10}C_{3}$", "$_{10}C_{3}$"),
            ("z^* and w^*", "z^* and w^*"),
            ("a_b_c", "a_b_c"),
            ("* one\n* two", "* one\n* two"),
            ("\\*5\\* \\_6\\_", "\\*5\\* \\_6\\_"),
            ("**5 and 6", "**5 and 6"),
            ("5 ** 6", "5 ** 6"),
            ("____", "____"),
            ("~5~", "~5~"),
            ("a<b>c", "a<b>c"),
            ("</b>5<b>", "</b>5<b>"),
            ("<answer>5</answer>", "<answer>5</answer>"),
            ("x → 5", "x → 5"),
            ("❌ 5 × 6 ÷ 7 ➕ 8 ①❷", "❌ 5 × 6 ÷ 7 ➕ 8 ①❷"),
            ("5°", "5°"),
            ("", ""),
        ],
        |text| undecorated(text).into_owned(),
    );
    assert!(matches!(undecorated("5 + 6 = é"), Cow::Borrowed(_)));
    assert_eq!(emphasized("<b>**5**</b> ~~6~~ ✅"), "**5**   ");
}

#[test]
fn enclosing_signs_and_final_punctuation_are_removed() {
    check(
        &[
            ("5", "5"),
            (" : 5. ", "5"),
            ("\"5\"", "5"),
            ("\"5.\"", "5"),
            ("“5”.", "5"),
            ("'5'", "5"),
            ("«5»", "5"),
            ("「5」。", "5"),
            ("`\"5\"`", "5"),
            ("$5$", "5"),
            ("$$5$$.", "5"),
            ("\\(5\\)", "5"),
            ("\\[ 5 \\].", "5"),
            ("5,", "5"),
            ("→ 5", "5"),
            (" \"Paris\"}", "Paris"),
            (" 73}", "73"),
            ("73.\"", "73"),
            ("Paris!”", "Paris"),
            ("Paris!", "Paris"),
            ("Paris?", "Paris"),
            // These characters belong to the answer and stay.
            ("5!", "5!"),
            ("n!", "n!"),
            ("5...", "5..."),
            ("5\"", "5\""),
            ("f'", "f'"),
            ("\"5\" or \"6\"", "\"5\" or \"6\""),
            ("$5$ or $6$", "$5$ or $6$"),
            ("$5", "$5"),
            ("\\{5\\}", "\\{5\\}"),
            ("\\frac{1}{2}", "\\frac{1}{2}"),
            ("(1, 2]", "(1, 2]"),
            ("5\\,", "5\\,"),
            ("\\left\\{x\\right.", "\\left\\{x\\right."),
            ("\"\"", "\"\""),
            ("", ""),
            (".", ""),
        ],
        |text| bare(text).to_owned(),
    );
    check(&[("5!", "5"), ("Paris!", "Paris"), ("n!", "n!"), ("(2n)!", "(2n)!"), ("5?!", "5")], |text| {
        bare_sentence(text).to_owned()
    });
    check(
        &[
            ("\\text{Paris}", "Paris"),
            ("$\\textbf{Paris}$.", "Paris"),
            ("\\mathbf{\\text{Paris}}", "Paris"),
            ("\\text{a} \\text{b}", "\\text{a} \\text{b}"),
            ("\\text{a{b}c}", "a{b}c"),
            ("\\frac{1}", "\\frac{1}"),
            ("\\text{Paris", "\\text{Paris"),
        ],
        |text| unstyled(text).to_owned(),
    );
}

/// A search from each mark to the end of the text for its closing mark would take hours.
#[test]
fn a_megabyte_of_open_marks_is_searched_in_linear_time() {
    let units = [
        "*a ", "**", "_", "_a ", "`", "`` ` ", "~~a ", "~~", "<b>", "</b>", "<b></i>", "<s>", "\"", "“‘", "$", "\\(",
        "✅", ": → ", "&lt;", "}", "{", "\\text{", "*a* ", "**a*", "_*a", "```\n", "**a\n",
    ];
    for unit in units {
        let text = unit.repeat(1_000_000 / unit.len());
        let plain = undecorated(&text);
        assert!(plain.len() <= text.len(), "{unit}");
        assert!(bare(&text).len() <= text.len() && unstyled(&text).len() <= text.len(), "{unit}");
    }
}
