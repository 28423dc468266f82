//! Names of units. An answer may omit the unit, but a different unit is wrong.

/// Groups of names for the same unit. The first name of each group is the canonical name.
const UNITS: [&[&str]; 29] = [
    &["cm", "centimeter", "centimeters", "centimetre", "centimetres"],
    &["mm", "millimeter", "millimeters"],
    &["km", "kilometer", "kilometers", "kilometre", "kilometres"],
    &["m", "meter", "meters", "metre", "metres"],
    &["inch", "inches"],
    &["ft", "foot", "feet"],
    &["yd", "yard", "yards"],
    &["mile", "miles", "mi"],
    &["mph", "miles per hour", "miles/hour"],
    &["dollar", "dollars", "usd"],
    &["cent", "cents"],
    &["degree", "degrees", "deg"],
    &["radian", "radians", "rad"],
    &["percent", "percents", "pct"],
    &["second", "seconds", "sec", "s"],
    &["minute", "minutes", "min"],
    &["hour", "hours", "hr", "hrs", "h"],
    &["day", "days"],
    &["week", "weeks"],
    &["month", "months"],
    &["year", "years"],
    &["g", "gram", "grams"],
    &["kg", "kilogram", "kilograms"],
    &["lb", "lbs", "pound", "pounds"],
    &["oz", "ounce", "ounces"],
    &["l", "liter", "liters", "litre", "litres"],
    &["ml", "milliliter", "milliliters"],
    &["gallon", "gallons"],
    &["unit", "units"],
];

/// The canonical name of the unit `name`, if it is known.
pub(super) fn unit(name: &str) -> Option<&'static str> {
    let name = name.split('^').next().unwrap_or_default().trim().trim_end_matches('.').to_lowercase();
    let name = ["square ", "sq ", "sq. ", "cubic "].iter().find_map(|power| name.strip_prefix(power)).unwrap_or(&name);
    UNITS.iter().find(|names| names.contains(&name)).map(|names| names[0])
}

/// The power in a unit's name: 2 for `cm^2` and "square cm", 3 for "cubic cm".
pub(super) fn power(name: &str) -> i128 {
    let words = name.trim().to_lowercase();
    let word_power = [("square ", 2), ("sq ", 2), ("sq. ", 2), ("cubic ", 3)];
    let word_power = word_power.iter().find(|(word, _)| words.starts_with(word)).map_or(1, |(_, power)| *power);
    words.split_once('^').and_then(|(_, power)| power.trim().parse().ok()).unwrap_or(word_power)
}

/// Whether `name` is a known unit.
pub(super) fn is_unit(name: &str) -> bool {
    unit(name).is_some()
}

/// Words after a number that are not units: they change the number or describe the answer.
const NEVER_UNITS: [&str; 42] = [
    "wrong",
    "incorrect",
    "false",
    "isn",
    "cannot",
    "impossible",
    "never",
    "ten",
    "tens",
    "dozen",
    "dozens",
    "hundred",
    "hundreds",
    "thousand",
    "thousands",
    "million",
    "millions",
    "billion",
    "billions",
    "trillion",
    "trillions",
    "half",
    "halves",
    "third",
    "thirds",
    "quarter",
    "quarters",
    "squared",
    "cubed",
    "factorial",
    "not",
    "than",
    "no",
    "yes",
    "odd",
    "or",
    "minus",
    "plus",
    "negative",
    "base",
    "mod",
    "root",
];

/// Whether `name` contains one of `NEVER_UNITS`: 5 million is not 5.
pub(super) fn never_unit(name: &str) -> bool {
    words(name).any(|word| NEVER_UNITS.contains(&word.as_str()))
}

/// Words before a number that do not change its meaning.
const INTRODUCTIONS: [&str; 33] = [
    "a",
    "about",
    "an",
    "answer",
    "approximately",
    "are",
    "around",
    "be",
    "equal",
    "equals",
    "exactly",
    "final",
    "hence",
    "in",
    "is",
    "it",
    "just",
    "of",
    "only",
    "or",
    "result",
    "roughly",
    "simply",
    "so",
    "solution",
    "that",
    "the",
    "therefore",
    "thus",
    "to",
    "total",
    "value",
    "we",
];

/// Whether `text` may precede an answer without changing the answer: true for "about" and "the area is", false for
/// "less than" and "not".
pub(super) fn introduces(text: &str) -> bool {
    let words: Vec<String> = words(text).collect();
    let says = text.trim_end().ends_with(':') || words.last().is_some_and(|word| word == "is" || word == "equals");
    words.iter().all(|word| INTRODUCTIONS.contains(&word.as_str()) || says && !NEVER_UNITS.contains(&word.as_str()))
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_a_canonical_name_and_a_power() {
        for (name, canonical, exponent) in [
            ("cm", Some("cm"), 1),
            (" Centimeters. ", Some("cm"), 1),
            ("cm^2", Some("cm"), 2),
            ("cm^ -1", Some("cm"), -1),
            ("cm^x", Some("cm"), 1),
            ("square cm", Some("cm"), 2),
            ("sq cm", Some("cm"), 2),
            ("sq. cm", Some("cm"), 2),
            ("Cubic meters", Some("m"), 3),
            ("square cm^3", Some("cm"), 3),
            ("squares", None, 1),
            ("apples", None, 1),
            ("apples^2", None, 2),
            ("", None, 1),
        ] {
            assert_eq!((unit(name), power(name), is_unit(name)), (canonical, exponent, canonical.is_some()), "{name}");
        }
    }

    #[test]
    fn words_that_change_a_number_are_not_units_or_introductions() {
        for (name, expected) in [
            ("million", true),
            ("half a Million", true),
            ("is-wrong", true),
            ("apples", false),
            ("millions5", true),
            ("millionaires", false),
            ("", false),
        ] {
            assert_eq!(never_unit(name), expected, "{name}");
        }
        for (text, expected) in [
            ("about", true),
            ("The answer is", true),
            ("so the total is exactly", true),
            ("the area", false),
            ("the area is", true),
            ("the area equals ", true),
            ("the area: ", true),
            ("the area is about", false),
            ("not", false),
            ("it is not", false),
            ("the root is", false),
            ("less than", false),
            ("", true),
        ] {
            assert_eq!(introduces(text), expected, "{text}");
        }
    }
}
