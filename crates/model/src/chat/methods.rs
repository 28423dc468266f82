//! Methods of Python's strings, lists and dictionaries that minijinja lacks or defines differently. The caller charges
//! the size of their inputs to the rendering's budget; additions to a string are charged here.

use super::letters;
use super::limits::charge;
use super::python::{self, refused};
use minijinja::Error;
use minijinja::value::{Tuple, Value, ValueKind};

type Outcome = std::result::Result<Value, Error>;

/// The arguments of a call, positional or by name.
pub(super) struct Arguments<'a> {
    call: &'a str,
    places: &'a [Value],
    named: Option<&'a Value>,
}

impl<'a> Arguments<'a> {
    /// The arguments of the method or filter `call`. Keyword arguments are the last element of `all`.
    pub(super) fn of(call: &'a str, all: &'a [Value]) -> Arguments<'a> {
        match all.split_last() {
            Some((last, places)) if last.is_kwargs() => Arguments { call, places, named: Some(last) },
            _ => Arguments { call, places: all, named: None },
        }
    }

    /// The arguments by their names; `None` for a missing argument. An argument without a name is positional only.
    /// Fails if there are other arguments.
    pub(super) fn by_name<const N: usize>(&self, names: [&str; N]) -> Result<[Option<Value>; N], Error> {
        let mut found = [const { None }; N];
        if self.places.len() > N {
            return Err(refused(format!("{}: too many arguments", self.call)));
        }
        found.iter_mut().zip(self.places).for_each(|(found, value)| *found = Some(value.clone()));
        for name in self.named.map(Value::try_iter).transpose()?.into_iter().flatten() {
            let place = names.iter().position(|known| !known.is_empty() && Some(*known) == name.as_str());
            match place.filter(|&place| found[place].is_none()) {
                Some(place) => found[place] = self.named.map(|named| named.get_item(&name)).transpose()?,
                None => return Err(refused(format!("{}: unexpected argument {name}", self.call))),
            }
        }
        Ok(found)
    }

    fn text(&self, value: Option<Value>) -> Result<String, Error> {
        let text = value.as_ref().and_then(Value::as_str).map(str::to_owned);
        text.ok_or_else(|| refused(format!("{}: expected a string", self.call)))
    }

    /// An integer; `None` if the argument is missing or Python's `None`.
    fn number(&self, value: Option<Value>) -> Result<Option<i64>, Error> {
        let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
        let number = value.as_i64().filter(|_| value.is_integer() || value.kind() == ValueKind::Bool);
        number.map(Some).ok_or_else(|| refused(format!("{}: expected an integer", self.call)))
    }
}

/// Calls a method as Python does; `None` if this module does not define the method.
pub(super) fn call(value: &Value, method: &str, all: &[Value]) -> Option<Outcome> {
    let arguments = Arguments::of(method, all);
    match value.as_str() {
        Some(text) => text_method(text, method, &arguments),
        None if matches!(value.kind(), ValueKind::Seq | ValueKind::Map) => collection_method(value, method, &arguments),
        None => None,
    }
}

fn collection_method(value: &Value, method: &str, arguments: &Arguments<'_>) -> Option<Outcome> {
    let is_list = value.kind() == ValueKind::Seq;
    match method {
        "copy" if !value.is_tuple() => Some(arguments.by_name([]).map(|_| value.clone())),
        "index" if is_list => Some(index_in_list(value, arguments)),
        _ => None,
    }
}

fn index_in_list(value: &Value, arguments: &Arguments<'_>) -> Outcome {
    let [wanted, start, end] = arguments.by_name(["", "", ""])?;
    let wanted = wanted.ok_or_else(|| refused("index: expected a value"))?;
    let length = value.len().unwrap_or(0) as i64;
    let bound = |value, default| -> Result<usize, Error> {
        let place = arguments.number(value)?.unwrap_or(default);
        Ok(if place < 0 { place.saturating_add(length) } else { place }.clamp(0, length) as usize)
    };
    let (start, end) = (bound(start, 0)?, bound(end, length)?);
    for (place, item) in value.try_iter()?.enumerate().take(end).skip(start) {
        if item == wanted {
            return Ok(Value::from(place));
        }
    }
    Err(refused("index: the value is not in the list"))
}

fn text_method(text: &str, method: &str, arguments: &Arguments<'_>) -> Option<Outcome> {
    let is = |holds: bool| arguments.by_name([]).map(|_| Value::from(holds));
    let changed = |change: &dyn Fn(&str) -> Result<String, Error>| {
        arguments.by_name([])?;
        Ok(Value::from(change(text)?))
    };
    Some(match method {
        "split" => split(text, arguments, false),
        "rsplit" => split(text, arguments, true),
        "splitlines" => split_lines(text, arguments),
        "partition" => partition(text, arguments, false),
        "rpartition" => partition(text, arguments, true),
        "removeprefix" => without(text, arguments, |text, affix| text.strip_prefix(affix)),
        "removesuffix" => without(text, arguments, |text, affix| text.strip_suffix(affix)),
        "find" | "rfind" | "index" | "rindex" => find(text, method, arguments),
        "count" => count(text, arguments),
        "startswith" => begins_or_ends(text, arguments, |text, affix| text.starts_with(affix)),
        "endswith" => begins_or_ends(text, arguments, |text, affix| text.ends_with(affix)),
        "strip" => strip(text, arguments, [true, true]),
        "lstrip" => strip(text, arguments, [true, false]),
        "rstrip" => strip(text, arguments, [false, true]),
        "replace" => replace(text, arguments),
        "join" => join(text, arguments),
        "center" | "ljust" | "rjust" => justify(text, method, arguments),
        "zfill" => fill_with_zeros(text, arguments),
        "expandtabs" => expand_tabs(text, arguments),
        "swapcase" => changed(&|text| Ok(letters::swap_case(text))),
        "casefold" => changed(&|text| Ok(letters::fold_case(text))),
        "title" => changed(&letters::title),
        "capitalize" => changed(&letters::capitalize),
        "istitle" => is(letters::is_title(text)),
        "isspace" => is(!text.is_empty() && text.chars().all(letters::is_space)),
        "isdigit" | "isdecimal" | "isnumeric" | "isalpha" | "isalnum" | "isidentifier" | "isprintable" => {
            is(letters::is_all(method, text))
        }
        _ => return None,
    })
}

fn list<'t>(pieces: impl IntoIterator<Item = &'t str>) -> Value {
    pieces.into_iter().map(Value::from).collect()
}

fn split(text: &str, arguments: &Arguments<'_>, from_right: bool) -> Outcome {
    let [separator, most] = arguments.by_name(["sep", "maxsplit"])?;
    // A negative number of splits means no limit.
    let most = arguments.number(most)?.and_then(|most| usize::try_from(most).ok());
    let Some(separator) = separator.filter(|separator| !separator.is_none()) else {
        return Ok(list(split_at_spaces(text, most, from_right)));
    };
    let separator = arguments.text(Some(separator))?;
    if separator.is_empty() {
        return Err(refused(format!("{}: the separator must not be empty", arguments.call)));
    }
    let pieces = most.map_or(usize::MAX, |most| most.saturating_add(1));
    if !from_right {
        return Ok(list(text.splitn(pieces, &*separator)));
    }
    let mut found: Vec<&str> = text.rsplitn(pieces, &*separator).collect();
    found.reverse();
    Ok(list(found))
}

/// Splits a string at whitespace into at most `most` + 1 pieces. If the string has more words than pieces, the last
/// piece keeps the spaces at its end.
fn split_at_spaces(text: &str, most: Option<usize>, from_right: bool) -> Vec<&str> {
    let (mut rest, mut found) = (text, Vec::new());
    loop {
        rest = if from_right {
            rest.trim_end_matches(letters::is_space)
        } else {
            rest.trim_start_matches(letters::is_space)
        };
        if rest.is_empty() {
            break;
        }
        let space = if from_right { rest.rfind(letters::is_space) } else { rest.find(letters::is_space) };
        let Some(space) = space.filter(|_| most.is_none_or(|most| found.len() < most)) else {
            found.push(rest);
            break;
        };
        let width = rest[space..].chars().next().map_or(0, char::len_utf8);
        let (before, after) = (&rest[..space], &rest[space + width..]);
        found.push(if from_right { after } else { before });
        rest = if from_right { before } else { &rest[space..] };
    }
    if from_right {
        found.reverse();
    }
    found
}

fn split_lines(text: &str, arguments: &Arguments<'_>) -> Outcome {
    let [keep] = arguments.by_name(["keepends"])?;
    Ok(list(lines(text, keep.is_some_and(|keep| keep.is_true()))))
}

/// The lines of a string, split as by Python's `splitlines`.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    let (mut rest, mut lines) = (text, Vec::new());
    while let Some(end) = rest.find(letters::ends_line) {
        let width =
            if rest[end..].starts_with("\r\n") { 2 } else { rest[end..].chars().next().map_or(0, char::len_utf8) };
        lines.push(&rest[..if keep { end + width } else { end }]);
        rest = &rest[end + width..];
    }
    lines.extend(Some(rest).filter(|rest| !rest.is_empty()));
    lines
}

fn partition(text: &str, arguments: &Arguments<'_>, from_right: bool) -> Outcome {
    let [separator] = arguments.by_name([""])?;
    let separator = arguments.text(separator)?;
    if separator.is_empty() {
        return Err(refused(format!("{}: the separator must not be empty", arguments.call)));
    }
    let found = if from_right { text.rsplit_once(&*separator) } else { text.split_once(&*separator) };
    let parts = match found {
        Some((before, after)) => [before, &separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from).to_vec())))
}

fn without(text: &str, arguments: &Arguments<'_>, cut: for<'t> fn(&'t str, &str) -> Option<&'t str>) -> Outcome {
    let [affix] = arguments.by_name([""])?;
    Ok(Value::from(cut(text, &arguments.text(affix)?).unwrap_or(text)))
}

/// The part of a string from the character `start` to `end`, with the number of characters before it. `None` if the
/// part begins after its end.
fn part<'t>(
    text: &'t str,
    arguments: &Arguments<'_>,
    bounds: [Option<Value>; 2],
) -> Result<Option<(usize, &'t str)>, Error> {
    let length = text.chars().count() as i64;
    let [start, end] = bounds;
    let bound = |value, default| -> Result<i64, Error> {
        let place = arguments.number(value)?.unwrap_or(default);
        Ok(if place < 0 { place.saturating_add(length).max(0) } else { place })
    };
    let (start, end) = (bound(start, 0)?, bound(end, length)?.min(length));
    if start > end {
        return Ok(None);
    }
    let byte = |place: i64| text.char_indices().nth(place as usize).map_or(text.len(), |(byte, _)| byte);
    Ok(Some((start as usize, &text[byte(start)..byte(end)])))
}

fn find(text: &str, method: &str, arguments: &Arguments<'_>) -> Outcome {
    let [wanted, start, end] = arguments.by_name(["", "", ""])?;
    let wanted = arguments.text(wanted)?;
    let found = part(text, arguments, [start, end])?.and_then(|(before, part)| {
        let byte = if method.starts_with('r') { part.rfind(&*wanted) } else { part.find(&*wanted) };
        byte.map(|byte| before + part[..byte].chars().count())
    });
    match found {
        Some(place) => Ok(Value::from(place)),
        None if method.ends_with("index") => Err(refused(format!("{method}: {wanted:?} is not in the string"))),
        None => Ok(Value::from(-1)),
    }
}

fn count(text: &str, arguments: &Arguments<'_>) -> Outcome {
    let [wanted, start, end] = arguments.by_name(["", "", ""])?;
    let wanted = arguments.text(wanted)?;
    Ok(Value::from(part(text, arguments, [start, end])?.map_or(0, |(_, part)| part.matches(&*wanted).count())))
}

fn begins_or_ends(text: &str, arguments: &Arguments<'_>, has: fn(&str, &str) -> bool) -> Outcome {
    let [affix, start, end] = arguments.by_name(["", "", ""])?;
    let affixes = match affix {
        Some(tuple) if tuple.is_tuple() => tuple.try_iter()?.map(|affix| arguments.text(Some(affix))).collect(),
        other => arguments.text(other).map(|affix| vec![affix]),
    }?;
    let part = part(text, arguments, [start, end])?;
    Ok(Value::from(part.is_some_and(|(_, part)| affixes.iter().any(|affix| has(part, affix)))))
}

fn strip(text: &str, arguments: &Arguments<'_>, [left, right]: [bool; 2]) -> Outcome {
    let [characters] = arguments.by_name([""])?;
    let characters = characters.filter(|characters| !characters.is_none());
    let characters = characters.map(|characters| arguments.text(Some(characters))).transpose()?;
    let goes = |c: char| characters.as_ref().map_or_else(|| letters::is_space(c), |characters| characters.contains(c));
    let text = if left { text.trim_start_matches(goes) } else { text };
    Ok(Value::from(if right { text.trim_end_matches(goes) } else { text }))
}

fn replace(text: &str, arguments: &Arguments<'_>) -> Outcome {
    let [from, to, most] = arguments.by_name(["", "", "count"])?;
    let (from, to) = (arguments.text(from)?, arguments.text(to)?);
    let most = arguments.number(most)?.and_then(|most| usize::try_from(most).ok());
    Ok(Value::from(text.replacen(&*from, &to, most.unwrap_or(usize::MAX))))
}

fn join(text: &str, arguments: &Arguments<'_>) -> Outcome {
    let [items] = arguments.by_name([""])?;
    let items = items.ok_or_else(|| refused("join: expected a list"))?;
    let pieces = match items.as_str() {
        Some(letters) => letters.chars().map(String::from).collect(),
        None => items.try_iter()?.map(|item| arguments.text(Some(item))).collect::<Result<Vec<_>, _>>()?,
    };
    Ok(Value::from(pieces.join(text)))
}

fn justify(text: &str, method: &str, arguments: &Arguments<'_>) -> Outcome {
    let [width, fill] = arguments.by_name(["", ""])?;
    let width = arguments.number(width)?.ok_or_else(|| refused(format!("{method}: expected a width")))?;
    let fill = fill.map_or(Ok(" ".to_owned()), |fill| arguments.text(Some(fill)))?;
    if fill.chars().count() != 1 {
        return Err(refused(format!("{method}: the fill must be one character")));
    }
    justified(text, method, width, &fill).map(Value::from)
}

/// Pads a string to at least `width` characters as Python's method `method` does.
pub(super) fn justified(text: &str, method: &str, width: i64, fill: &str) -> Result<String, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(text.chars().count());
    charge(missing.saturating_mul(fill.len()))?;
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // If the padding is odd, the extra character is on the side where Python's `center` puts it.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok([&fill.repeat(left), text, &fill.repeat(missing - left)].concat())
}

fn fill_with_zeros(text: &str, arguments: &Arguments<'_>) -> Outcome {
    let [width] = arguments.by_name([""])?;
    let width = arguments.number(width)?.ok_or_else(|| refused("zfill: expected a width"))?;
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    Ok(Value::from(sign.to_owned() + &justified(digits, "rjust", width - sign.len() as i64, "0")?))
}

fn expand_tabs(text: &str, arguments: &Arguments<'_>) -> Outcome {
    let [size] = arguments.by_name(["tabsize"])?;
    let size = usize::try_from(arguments.number(size)?.unwrap_or(8)).unwrap_or(0);
    charge(text.matches('\t').count().saturating_mul(size))?;
    let (mut out, mut column) = (String::with_capacity(text.len()), 0);
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\t' => {}
            _ => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::from(out))
}

/// The filter `replace`.
pub(super) fn replace_filter(all: &[Value]) -> Outcome {
    let arguments = Arguments::of("replace", all);
    let [value, from, to, most] = arguments.by_name(["", "old", "new", "count"])?;
    let [text, from, to] = [value, from, to].map(|value| python::print(&value.unwrap_or_default()));
    let most = arguments.number(most)?.and_then(|most| usize::try_from(most).ok());
    Ok(Value::from(text?.replacen(&*from?, &to?, most.unwrap_or(usize::MAX))))
}

/// The filter `indent`.
pub(super) fn indent(all: &[Value]) -> Outcome {
    let arguments = Arguments::of("indent", all);
    let [value, width, first, blank] = arguments.by_name(["", "width", "first", "blank"])?;
    let text = arguments.text(value)? + "\n";
    let space = match width.as_ref().and_then(Value::as_str) {
        Some(space) => space.to_owned(),
        None => {
            let width = usize::try_from(arguments.number(width)?.unwrap_or(4)).unwrap_or(0);
            charge(width)?;
            " ".repeat(width)
        }
    };
    let is = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let (first, blank, lines) = (is(first), is(blank), lines(&text, false));
    charge(lines.len().saturating_mul(space.len() + 1))?;
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        out.push_str(if at > 0 { "\n" } else { "" });
        let indented = if at == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if indented { &space } else { "" });
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// The filter `wordcount`.
pub(super) fn word_count(all: &[Value]) -> Outcome {
    let [value] = Arguments::of("wordcount", all).by_name([""])?;
    Ok(Value::from(letters::words(&python::print(&value.unwrap_or_default())?)))
}

/// The filter `center`.
pub(super) fn center(all: &[Value]) -> Outcome {
    let arguments = Arguments::of("center", all);
    let [value, width] = arguments.by_name(["", "width"])?;
    let width = arguments.number(width)?.unwrap_or(80);
    justified(&python::print(&value.unwrap_or_default())?, "center", width, " ").map(Value::from)
}
