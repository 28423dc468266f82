//! Values, JSON and dates as Python writes them. The expected strings come from Python.

use super::*;

/// The error of a template that is rendered with these variables.
fn refused(template: &str, kwargs: Value) -> String {
    render_with(template, json!([{"role": "user"}]), kwargs).unwrap_err().to_string()
}

#[test]
fn floats_print_as_pythons_repr() {
    for (x, text) in [
        (1e16, "1e+16"),
        (1e15, "1000000000000000.0"),
        (9_999_999_999_999_998.0, "9999999999999998.0"),
        (1e-4, "0.0001"),
        (1e-5, "1e-05"),
        (1.5e-7, "1.5e-07"),
        (1e100, "1e+100"),
        (-2.5, "-2.5"),
        (123_456_789.125, "123456789.125"),
        (-1e-300, "-1e-300"),
        (0.0, "0.0"),
        (5e22, "5e+22"),
    ] {
        assert_eq!(render("{{ x }}|{{ x | tojson }}", json!({"x": x})), format!("{text}|{text}"));
    }
    let big = json!({"x": 1e308});
    assert_eq!(render("{{ x * 10 }} {{ x * -10 }} {{ x * 10 - x * 10 }}", big.clone()), "inf -inf nan");
    let written = render("{{ [x * 10, x * -10, x * 10 - x * 10] | tojson }}", big);
    assert_eq!(written, "[Infinity, -Infinity, NaN]");
    assert_eq!(render("{{ x }} {{ y }}", json!({"x": u64::MAX, "y": i64::MIN})), format!("{} {}", u64::MAX, i64::MIN));
}

#[test]
fn strings_in_lists_are_quoted_and_escaped() {
    for (x, text) in [
        ("a\\b\n\r\t\u{1}\u{7f}\u{1f} ~", r"['a\\b\n\r\t\x01\x7f\x1f ~']"),
        ("'", "[\"'\"]"),
        ("\"", "['\"']"),
        ("'\"", r#"['\'"']"#),
        ("", "['']"),
    ] {
        assert_eq!(render("{{ [x] }}", json!({"x": x})), text);
        assert_eq!(render("{{ x }}", json!({"x": x})), x, "a string by itself prints without quotes");
    }
}

#[test]
fn lists_tuples_and_dicts_print_as_in_python() {
    let x = json!({"x": 1, "t": true, "n": null});
    assert_eq!(
        render("{{ (x,) }} {{ (x, t) }} {{ [x, [t, n]] }} {{ [] }}", x.clone()),
        "(1,) (1, True) [1, [True, None]] []"
    );
    assert_eq!(render("{{ {'a': x, 'b': (x,)} }} {{ [gone] }}", x), "{'a': 1, 'b': (1,)} [Undefined]");
    let nested = |n: usize| (0..n).fold(json!(1), |inner, _| json!([inner]));
    assert_eq!(render("{{ x }}", json!({"x": nested(200)})).len(), 401);
    assert_eq!(render("{{ x | tojson }}", json!({"x": nested(200)})).len(), 401);
    assert!(refused("{{ x }}", json!({"x": nested(201)})).contains("nested lists: templates must not build"));
    assert!(refused("{{ x | tojson }}", json!({"x": nested(201)})).contains("tojson: nested too deeply"));
    let maps = |n: usize| (0..n).fold(json!(1), |inner, _| json!({"k": inner}));
    assert!(render("{{ x }}", json!({"x": maps(200)})).starts_with("{'k': {'k': "));
    assert!(render("{{ x | tojson }}", json!({"x": maps(200)})).starts_with("{\"k\": {\"k\": "));
    for template in ["{{ x }}", "{{ x | tojson }}"] {
        refused(template, json!({"x": maps(201)}));
    }
}

#[test]
fn json_strings_and_keys_are_escaped_as_in_python() {
    let x = json!({"x": "\u{8}\u{c}\r\t\u{1f} \u{7f}/é", "one": 1, "t": true, "n": null, "f": 1.5});
    assert_eq!(render("{{ x | tojson }}", x.clone()), "\"\\b\\f\\r\\t\\u001f \u{7f}/é\"");
    assert_eq!(render("{{ x | tojson(true) }}", x.clone()), "\"\\b\\f\\r\\t\\u001f \\u007f/\\u00e9\"");
    let keys = "{{ {one: 2, n: 4, f: 5} | tojson }}";
    assert_eq!(render(keys, x.clone()), r#"{"1": 2, "null": 4, "1.5": 5}"#);
    assert_eq!(render("{{ {t: 3} | tojson }}", x), r#"{"true": 3}"#);
}

#[test]
fn tojson_takes_positional_and_keyword_arguments() {
    let x = || json!({"x": {"b": [1, "é"], "a": 2}});
    let lines = "{\n  \"b\": [\n    1,\n    \"é\"\n  ],\n  \"a\": 2\n}";
    for (arguments, text) in [
        ("", "{\"b\": [1, \"é\"], \"a\": 2}"),
        ("true", "{\"b\": [1, \"\\u00e9\"], \"a\": 2}"),
        ("ensure_ascii=true", "{\"b\": [1, \"\\u00e9\"], \"a\": 2}"),
        ("false, 2", lines),
        ("indent=2", lines),
        ("indent='  '", lines),
        ("none, none, (';', ':')", "{\"b\":[1;\"é\"];\"a\":2}"),
        ("separators=(';', ':')", "{\"b\":[1;\"é\"];\"a\":2}"),
        ("indent=none, separators=none", "{\"b\": [1, \"é\"], \"a\": 2}"),
        ("none, none, none, true", "{\"a\": 2, \"b\": [1, \"é\"]}"),
        ("sort_keys=true", "{\"a\": 2, \"b\": [1, \"é\"]}"),
        ("false, 0", "{\n\"b\": [\n1,\n\"é\"\n],\n\"a\": 2\n}"),
        ("indent=1, separators=('; ', ' = ')", "{\n \"b\" = [\n  1; \n  \"é\"\n ]; \n \"a\" = 2\n}"),
    ] {
        assert_eq!(render(&format!("{{{{ x | tojson({arguments}) }}}}"), x()), text, "{arguments}");
    }
    assert_eq!(render("{{ [1] | tojson(indent=64) }}", x()), format!("[\n{}1\n]", " ".repeat(64)));
    let (number, pair) = ("indent must be a small number or a string", "separators must be two strings");
    for (arguments, why) in [
        ("false, none, none, true, 1", "too many arguments"),
        ("indent=65", number),
        ("indent=[1]", number),
        ("separators=(',', ':', ';')", pair),
        ("separators=(',',)", pair),
        ("separators=(1, ':')", pair),
        ("separators=(',', 1)", pair),
        ("sort=true", "sort"),
    ] {
        let error = refused(&format!("{{{{ x | tojson({arguments}) }}}}"), x());
        assert!(error.contains(why), "{arguments}: {error}");
    }
    assert!(
        refused("{{ gone | tojson }}", x()).contains("tojson: a value of kind undefined cannot be written as JSON")
    );
}

/// Compares every day from 1970 into the next 400-year cycle with a calendar that counts days.
#[test]
fn strftime_advances_by_one_day_over_400_years() {
    let days = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let (mut year, mut month, mut day, mut day_of_year) = (1970_u64, 1, 1, 1);
    for n in 0..160_000_u64 {
        if !(3..=27).contains(&day) || n % 97 == 0 {
            let found = python::strftime("%Y-%m-%d %j %a", n * 86_400 + n % 86_400);
            let expected = format!("{year}-{month:02}-{day:02} {day_of_year:03} {}", days[(n % 7) as usize]);
            assert_eq!(found, expected, "day {n}");
        }
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = match month {
            2 => 28 + u64::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        (day, day_of_year) = (day + 1, day_of_year + 1);
        if day > length {
            (month, day) = (month + 1, 1);
        }
        if month > 12 {
            (year, month, day_of_year) = (year + 1, 1, 1);
        }
    }
    assert!(year > 2400, "the tested days must cross the 400-year cycle");
}

#[test]
fn strftime_conversions_match_python() {
    for (seconds, text) in [
        (0, "12 AM 00:00:00"),
        (59, "12 AM 00:00:59"),
        (60, "12 AM 00:01:00"),
        (3599, "12 AM 00:59:59"),
        (3600, "01 AM 01:00:00"),
        (43_199, "11 AM 11:59:59"),
        (43_200, "12 PM 12:00:00"),
        (46_800, "01 PM 13:00:00"),
        (86_399, "11 PM 23:59:59"),
    ] {
        for days in [0, 400] {
            let at = days * 86_400 + seconds;
            assert_eq!(python::strftime("%I %p %H:%M:%S", at), text);
            assert_eq!(python::strftime("%T", at), text[6..]);
        }
    }
    // 1 March 2005, a Tuesday.
    let at = |format: &str| python::strftime(format, 1_109_635_200);
    assert_eq!(at("%y %m %h %b %B %a %A %F"), "05 03 Mar Mar March Tue Tuesday 2005-03-01");
    assert_eq!(at("100%% %q %é%"), "100% %q %é%", "unknown conversions are kept");
    let year: u64 = render("{{ strftime_now('%Y') }}", json!({})).parse().unwrap();
    assert!((2024..2200).contains(&year), "{year}");
}

#[test]
fn comparisons_match_python() {
    let x = json!({"n": 1, "a": "a"});
    let template = "{{ n < 1 }} {{ n <= 1 }} {{ n > 1 }} {{ n >= 1 }} {{ n < 2 }} {{ n > 0 }} {{ n == 1 }} \
                    {{ n != 1 }} {{ n <= 0 }} {{ n >= 2 }} {{ a == 'b' }} {{ a != 'b' }}";
    let expected = "False True False True True True True False False False False True";
    assert_eq!(render(template, x), expected);
}
