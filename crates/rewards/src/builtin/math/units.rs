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
