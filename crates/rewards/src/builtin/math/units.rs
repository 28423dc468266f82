//! Names of units: an answer may leave its unit out, but not give another.

/// Names of the same unit; the first stands for all.
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
    &["percent", "percents"],
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

/// The name that stands for all names of this unit.
pub(super) fn unit(name: &str) -> Option<&'static str> {
    let name = name.trim().trim_end_matches('.').to_lowercase();
    // Of "cm²" the power is left out as well.
    let name = ["square ", "sq ", "cubic "].iter().find_map(|power| name.strip_prefix(power)).unwrap_or(&name);
    UNITS.iter().find(|names| names.contains(&name)).map(|names| names[0])
}

/// Words after a number that are no unit, but change it or say of what kind an answer is.
const NEVER_UNITS: [&str; 35] = [
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

/// Whether `name` has a word that no unit has: 5 million are not 5.
pub(super) fn never_unit(name: &str) -> bool {
    words(name).any(|word| NEVER_UNITS.contains(&word.as_str()))
}

/// Words before a number that leave it what it is.
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

/// Whether an answer may begin with `text`, as with "about" or "the area is"; not with "less than" or "not".
pub(super) fn introduces(text: &str) -> bool {
    let words: Vec<String> = words(text).collect();
    let says = text.trim_end().ends_with(':') || words.last().is_some_and(|word| word == "is" || word == "equals");
    words.iter().all(|word| INTRODUCTIONS.contains(&word.as_str()) || says && !NEVER_UNITS.contains(&word.as_str()))
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}
