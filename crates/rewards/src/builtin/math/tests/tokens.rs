//! Tests of the splitting of answers into tokens. In the expected tokens, `#` precedes a number, `\` precedes a
//! command, and quotes enclose a text.

use super::super::lex::{Token, tokens};

fn split(text: &str, thousands: bool) -> String {
    let words = tokens(text, thousands).into_iter().map(|token| match token {
        Token::Number(digits) => format!("#{digits}"),
        Token::Command(name) => format!("\\{name}"),
        Token::Text(text) => format!("\"{text}\""),
        Token::Char(c) => c.to_string(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn check(thousands: bool, cases: &[(&str, &str)]) {
    let cases = cases.iter().map(|&(text, expected)| (text, split(text, thousands), expected));
    let wrong: Vec<_> = cases.filter(|(_, found, expected)| found != expected).collect();
    assert!(wrong.is_empty(), "text, got, expected: {wrong:#?}");
}

#[test]
fn commas_before_three_digits_separate_thousands_outside_brackets() {
    check(
        true,
        &[
            ("1,234", "#1234"),
            ("12,345", "#12345"),
            ("123,456", "#123456"),
            ("1234,567", "#1234 , #567"),
            ("1,234,567", "#1234567"),
            ("1,234.5", "#1234.5"),
            ("1,23", "#1 , #23"),
            ("1,2345", "#1 , #2345"),
            ("1,234,56", "#1 , #234 , #56"),
            ("1,234,", "#1 , #234 ,"),
            ("0,123", "#0 , #123"),
            ("100,200", "#100200"),
            ("(1,234)", "( #1 , #234 )"),
            ("[1,234)", "[ #1 , #234 )"),
            (r"\{1,234\}", r"\{ #1 , #234 \}"),
            ("(1)1,234", "( #1 ) #1234"),
            ("((1)1,234", "( ( #1 ) #1 , #234"),
            (r"\{1\}1,234", r"\{ #1 \} #1234"),
            (r"\{\{1\}1,234", r"\{ \{ #1 \} #1 , #234"),
            ("]1,234", "] #1234"),
            (r"\}1,234", r"\} #1234"),
            (r"\text{1,234}", "#1234"),
            // In LaTeX, a thin space may separate thousands.
            (r"12\,345", "#12345"),
            (r"123\,456", "#123456"),
            (r"1234\,567", "#1234 #567"),
            (r"1\,234\,567", "#1234567"),
            (r"10\,123", "#10123"),
            (r"0\,123", "#0 #123"),
            (r"1\,23", "#1 #23"),
            (r"1\,2345", "#1 #2345"),
            (r"x\,123", "x #123"),
            (r"\,123", "#123"),
            (r"12x\,345", "#12 x #345"),
            (r"1{,}000", "#1000"),
            (r"1,\!000", "#1000"),
            (r"1,\! 000", "#1000"),
        ],
    );
    check(false, &[("1,234", "#1 , #234"), (r"\text{1,234}", "#1 , #234"), (r"1{,}000", "#1000")]);
}

#[test]
fn a_number_has_at_most_one_point_and_an_exponent() {
    let cases = [
        ("1.5", "#1.5"),
        (".5", "#.5"),
        ("x.5", "x #.5"),
        ("5.", "#5"),
        ("5.x", "#5 x"),
        ("1.2.3", "#1.2 #.3"),
        (".", "."),
        (".x", ". x"),
        (r"5.\overline{3}", r"#5. \overline { #3 }"),
        (r".\overline{3}", r"#. \overline { #3 }"),
        (r".\bar3", r"#. \overline #3"),
        (r".\frac12", r". \frac #12"),
        ("5\\", "#5"),
        ("1e3", "#1000"),
        ("1e+2", "#100"),
        ("1E2", "#100"),
        ("1e-3", "#0.001"),
        ("1.5e3", "#1500.0"),
        ("1.5e0", "#1.5"),
        ("1.25e-1", "#0.125"),
        ("2.5e-3", "#0.0025"),
        ("2E-3", "#0.002"),
        ("2e5", "#200000"),
        ("1e3x", "#1000 x"),
        ("1e", "#1 e"),
        ("1e-", "#1 e -"),
        ("1ex", "#1 e x"),
        ("1e401", "#1 e #401"),
        ("1e-401", "#1 e - #401"),
    ];
    check(true, &cases);
    check(false, &cases);
    let zeros = "0".repeat(400);
    check(true, &[("1e400", format!("#1{zeros}").as_str()), ("12e-3", "#00.012"), ("2e-3", "#0.002")]);
    assert_eq!(split("1e-400", true), format!("#0.{}1", &zeros[1..]));
    // With `thousands` off (the second reading), the `e` is Euler's number.
    check(false, &[("2e-3", "#2 e - #3"), ("12e+3", "#12 e + #3"), ("2.0e-3", "#0.0020")]);
}

#[test]
fn commands_texts_and_words_are_split_into_tokens() {
    check(
        true,
        &[
            ("", ""),
            (r"\frac12", r"\frac #12"),
            (r"\dfrac1\tfrac2\cfrac3", r"\frac #1 \frac #2 \frac #3"),
            (r"\%\$\|\{\}", r"\% \$ \| \{ \}"),
            (r"\&\_", "& _"),
            (r"1\\2", r"#1 \ #2"),
            (r"1\\ 2", r"#1 \ #2"),
            (r"1\\,2", r"#1 \ , #2"),
            (r"\cdot\times\ast\div", "* * * /"),
            (r"\lbrack\rbrack\lbrace\rbrace", r"[ ] \{ \}"),
            (r"\lvert\rvert\mid\vert", "| | | |"),
            (r"\leq\leqslant\geq\geqslant\neq", r"\le \le \ge \ge \ne"),
            (r"\lt\gt\bmod\varnothing\degree", r"< > \mod \emptyset ^ \circ"),
            (r"\dbinom\tbinom", r"\binom \binom"),
            // The argument of `\text` extends to its closing brace.
            (r"\text{abc}", "\"abc\""),
            (r"\text {abc}x", "\"abc\" x"),
            (r"\text{a{b}c}d", "\"a{b}c\" d"),
            (r"\text{abc", "\"abc\""),
            (r"\text5", "\"\" #5"),
            (r"\text{x}", "\"x\""),
            (r"\mathbf{x}\mathit{y}\textbf{z}\textit{ w }", "x y z w"),
            (r"\mathbf{xy}", "\"xy\""),
            (r"\mathrm{x}", "x"),
            (r"\mathrm{m}", "\"m\""),
            (r"\mathrm{1}", "#1"),
            (r"\text{ mod }", r"\mod"),
            (r"\text{\%}\text{ % }", r"\% \%"),
            (r"\text{ 5 cm }", "#5 \"cm\""),
            (r"\operatorname{abc}", "\"abc\""),
            (r"\textcolor{red}{5}", "{ #5 }"),
            (r"\color{red}5", "#5"),
            // Words.
            ("max(1", r"\max ( #1"),
            ("gcd(lcm(min(", r"\gcd ( \lcm ( \min ("),
            ("max", "m a x"),
            ("x_{max}", "x _ { m a x }"),
            ("inf oo infinity", r"\infty \infty \infty"),
            ("sqrt pi sin", r"\sqrt \pi \sin"),
            ("1 and 2 or 3", "#1 \"and\" #2 \"or\" #3"),
            ("Yes no ODD even", "\"Yes\" \"no\" \"ODD\" \"even\""),
            ("ab", "a b"),
            ("abc", "a b c"),
            ("abcd", "\"abcd\""),
            ("5 m", "#5 m"),
            ("5 cm", "#5 \"cm\""),
            ("5 min", "#5 \"min\""),
            ("été", "é t é"),
        ],
    );
}

#[test]
fn spacing_is_removed_and_signs_become_commands() {
    check(
        true,
        &[
            (r"\left(1\right)", "( #1 )"),
            (r"\leftarrow", r"\leftarrow"),
            (r"\left\lfloor", r"\lfloor"),
            (r"a\!b\quad c\qquad", "a b c"),
            (r"\quad\quad x", "x"),
            (r"\(5\)", "#5"),
            ("$5$", "#5"),
            ("$$5$$", "#5"),
            (r"\$5", r"\$ #5"),
            (r"$\$5$", r"\$ #5"),
            ("2**3", "#2 ^ #3"),
            ("5² − ½", r"#5 ^ #2 - \frac { #1 } { #2 }"),
            ("≈π·√2", r"\approx \pi * \sqrt #2"),
            ("x ≤ 5°", r"x \le #5 ^ \circ"),
            ("a~b", "a b"),
        ],
    );
}
