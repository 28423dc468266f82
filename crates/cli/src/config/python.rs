//! Enough of Python to read the literal keyword arguments of a call: strings, numbers, booleans, None, lists, tuples,
//! dictionaries, and names that were given a literal earlier in the script. Everything else is handed back as its text.

use std::collections::BTreeMap;
use toml::Value;

/// An argument's value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    /// A value that TOML can hold.
    Value(Value),
    /// None.
    None,
    /// Anything else: the expression as it is written, on one line.
    Expression(String),
}

/// A call's arguments: name (empty for a positional one) and value.
pub(super) type Arguments = Vec<(String, Literal)>;

/// The arguments of the first call of `function` in `script`.
pub(super) fn call(script: &str, function: &str) -> Option<Arguments> {
    let code = blank_comments(script);
    let start = find_call(&blank_strings(&code), function)?;
    Some(arguments(&code[start..], &assignments(&code)))
}

/// A call that stands in a script.
pub(super) struct Call {
    pub name: String,
    /// From 1.
    pub line: usize,
    pub arguments: Arguments,
}

/// The calls of functions that `wanted` names, in their order.
pub(super) fn calls(script: &str, wanted: impl Fn(&str) -> bool) -> Vec<Call> {
    let code = blank_comments(script);
    let (names, bare) = (assignments(&code), blank_strings(&code));
    let mut found = Vec::new();
    for (open, _) in bare.match_indices('(') {
        let before = bare[..open].trim_end();
        let start = before
            .rfind(|c: char| !(c.is_alphanumeric() || c == '_'))
            .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
        let (name, defined) = (&before[start..], before[..start].trim_end());
        let name = if defined.ends_with('.') { &before[start - 1..] } else { name };
        let wanted = wanted(name) || wanted(name.trim_start_matches('.'));
        if wanted && !defined.ends_with("class") && !defined.ends_with("def") {
            let line = 1 + code[..start].matches('\n').count();
            let name = name.trim_start_matches('.').to_owned();
            found.push(Call { name, line, arguments: arguments(&code[open + 1..], &names) });
        }
    }
    found
}

/// The arguments that `text` begins with, up to the parenthesis that closes them.
fn arguments(text: &str, names: &BTreeMap<String, Literal>) -> Arguments {
    let mut reader = Reader { text, at: 0, names };
    let mut arguments = Vec::new();
    loop {
        reader.space();
        match reader.peek() {
            None | Some(')') => return arguments,
            Some(',') => reader.at += 1,
            Some(_) => {
                let name = reader.keyword().unwrap_or_default();
                arguments.push((name, reader.value(&[',', ')'])));
            }
        }
    }
}

/// The texts given to `load_dataset("…")` in the script: the dataset's name and its configuration.
pub(super) fn positional_strings(script: &str, function: &str) -> Vec<String> {
    let arguments = call(script, function).unwrap_or_default();
    let text = |(name, value): (String, Literal)| match value {
        Literal::Value(Value::String(text)) if name.is_empty() => Some(text),
        _ => None,
    };
    arguments.into_iter().map_while(text).collect()
}

/// Where the arguments of the first call of `function` begin: after its parenthesis.
fn find_call(code: &str, function: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = code[from..].find(function) {
        let (start, end) = (from + found, from + found + function.len());
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let before = code[..start].chars().next_back();
        let rest = code[end..].trim_start();
        let defines = code[..start].trim_end().ends_with("class") || code[..start].trim_end().ends_with("def");
        if !before.is_some_and(word) && rest.starts_with('(') && !defines {
            return Some(code.len() - rest.len() + 1);
        }
        from = end;
    }
    None
}

/// `NAME = literal` at the beginning of lines.
fn assignments(code: &str) -> BTreeMap<String, Literal> {
    let mut names = BTreeMap::new();
    let mut at = 0;
    for line in code.split_inclusive('\n') {
        let indent = line.len() - line.trim_start().len();
        if let Some((name, value)) = line.trim_start().split_once('=') {
            let name = name.trim_end();
            let name = name.split(':').next().unwrap_or(name).trim();
            if !value.starts_with('=') && is_name(name) {
                let begin = at + indent + (line.trim_start().len() - value.len());
                let literal = Reader { text: &code[begin..], at: 0, names: &names }.value(&['\n', ';']);
                names.insert(name.to_owned(), literal);
            }
        }
        at += line.len();
    }
    names
}

fn is_name(text: &str) -> bool {
    text.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// The script with comments as spaces, so that places stay.
fn blank_comments(script: &str) -> String {
    let mut out = String::with_capacity(script.len());
    let mut quote: Option<String> = None;
    let mut rest = script;
    while let Some(c) = rest.chars().next() {
        let mut take = c.len_utf8();
        match &quote {
            Some(_) if c == '\\' => take += rest[take..].chars().next().map_or(0, char::len_utf8),
            Some(q) if rest.starts_with(q.as_str()) => {
                take = q.len();
                quote = None;
            }
            // A string in one pair of quotes ends with its line, whatever else is wrong.
            Some(q) if c == '\n' && q.len() == 1 => quote = None,
            Some(_) => {}
            None if c == '#' => {
                let end = rest.find('\n').unwrap_or(rest.len());
                out.extend(std::iter::repeat_n(' ', end));
                rest = &rest[end..];
                continue;
            }
            None if c == '"' || c == '\'' => {
                let triple: String = std::iter::repeat_n(c, 3).collect();
                let opened = if rest.starts_with(&triple) { triple } else { c.to_string() };
                take = opened.len();
                quote = Some(opened);
            }
            None => {}
        }
        out.push_str(&rest[..take]);
        rest = &rest[take..];
    }
    out
}

/// The script with what is in strings as spaces, so that places stay. Comments are none any more.
fn blank_strings(code: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(code.len()), code);
    while let Some(at) = rest.find(['"', '\'']) {
        let quote = &rest[at..at + 1];
        let triple = rest[at..].starts_with(&quote.repeat(3));
        let quote = quote.repeat(if triple { 3 } else { 1 });
        let begin = at + quote.len();
        out.push_str(&rest[..begin]);
        let mut end = begin;
        while let Some(c) = rest[end..].chars().next() {
            if rest[end..].starts_with(&quote) || (c == '\n' && !triple) {
                break;
            }
            let escaped = if c == '\\' { rest[end + 1..].chars().next().map_or(0, char::len_utf8) } else { 0 };
            end += c.len_utf8() + escaped;
        }
        out.extend(rest[begin..end].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        let closing = if rest[end..].starts_with(&quote) { quote.len() } else { 0 };
        out.push_str(&rest[end..end + closing]);
        rest = &rest[end + closing..];
    }
    out + rest
}

/// The script with the names of its calls as they were before `import A as B` and `B = A`, for every A that `wanted`
/// names. Lines stay what they are.
pub(super) fn without_aliases(script: &str, wanted: impl Fn(&str) -> bool) -> String {
    let bare = blank_strings(&blank_comments(script));
    let words: Vec<(usize, &str)> = bare
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .map(|word| (word.as_ptr() as usize - bare.as_ptr() as usize, word))
        .collect();
    let between = |a: usize, b: usize| bare[words[a].0 + words[a].1.len()..words[b].0].trim();
    let mut aliases: Vec<(&str, &str)> = Vec::new();
    for i in 0..words.len() {
        let (_, name) = words[i];
        if !wanted(name) {
            continue;
        }
        if i + 2 < words.len() && words[i + 1].1 == "as" && between(i, i + 1).is_empty() {
            aliases.push((words[i + 2].1, name));
        }
        // `B = A`, or `B = trl.A`.
        let ends = bare[words[i].0 + name.len()..].trim_start_matches(' ').starts_with(['\n', ';']);
        let start = if i > 0 && between(i - 1, i) == "." { i - 1 } else { i };
        if ends && start > 0 && between(start - 1, start) == "=" {
            aliases.push((words[start - 1].1, name));
        }
    }
    let mut out = script.to_owned();
    for (at, word) in words.iter().rev() {
        let called = bare[at + word.len()..].trim_start_matches(' ').starts_with('(');
        if let Some((_, name)) = aliases.iter().find(|(alias, name)| alias == word && alias != name && called) {
            out.replace_range(*at..at + word.len(), name);
        }
    }
    out
}

/// Reads values from a text.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    names: &'a BTreeMap<String, Literal>,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }
    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }
    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Space, but for what ends the value.
    fn space_before(&mut self, ends: &[char]) {
        while let Some(c) = self.peek().filter(|c| c.is_whitespace() && !ends.contains(c)) {
            self.at += c.len_utf8();
        }
    }

    /// `name =` before a value.
    fn keyword(&mut self) -> Option<String> {
        let (name, after) = self.rest().split_once('=')?;
        let trimmed = name.trim();
        if !is_name(trimmed) || after.starts_with('=') {
            return None;
        }
        let (result, length) = (trimmed.to_owned(), name.len() + 1);
        self.at += length;
        Some(result)
    }

    /// A value up to one of `ends` outside brackets and strings.
    fn value(&mut self, ends: &[char]) -> Literal {
        self.space_before(ends);
        let start = self.at;
        let literal = self.literal();
        self.space_before(ends);
        if let Some(literal) = literal
            && self.peek().is_none_or(|c| ends.contains(&c))
        {
            return literal;
        }
        self.at = start;
        self.skip(ends);
        let words: Vec<&str> = self.text[start..self.at].split_whitespace().collect();
        Literal::Expression(words.join(" "))
    }

    /// Goes to the next of `ends` outside brackets and strings.
    fn skip(&mut self, ends: &[char]) {
        let mut depth = 0usize;
        while let Some(c) = self.peek() {
            if depth == 0 && ends.contains(&c) {
                return;
            }
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                '"' | '\'' if self.string().is_some() => continue,
                _ => {}
            }
            self.at += c.len_utf8();
        }
    }

    fn literal(&mut self) -> Option<Literal> {
        match self.peek()? {
            '"' | '\'' => {
                let mut text = self.string()?;
                // Neighbouring strings are one.
                loop {
                    let here = self.at;
                    self.space();
                    match self.string() {
                        Some(more) => text.push_str(&more),
                        None => {
                            self.at = here;
                            return Some(Literal::Value(Value::String(text)));
                        }
                    }
                }
            }
            open @ ('[' | '(') => {
                self.at += 1;
                let close = if open == '[' { ']' } else { ')' };
                let mut items = Vec::new();
                let mut commas = 0;
                loop {
                    self.space();
                    match self.peek()? {
                        c if c == close => {
                            self.at += 1;
                            // A parenthesis around one value is no tuple.
                            let single = open == '(' && commas == 0 && items.len() == 1;
                            let value = if single { items.pop()? } else { Value::Array(items) };
                            return Some(Literal::Value(value));
                        }
                        ',' => {
                            commas += 1;
                            self.at += 1;
                        }
                        _ => match self.value(&[',', close]) {
                            Literal::Value(value) => items.push(value),
                            _ => return None,
                        },
                    }
                }
            }
            '{' => {
                self.at += 1;
                let mut table = toml::Table::new();
                loop {
                    self.space();
                    match self.peek()? {
                        '}' => {
                            self.at += 1;
                            return Some(Literal::Value(Value::Table(table)));
                        }
                        ',' => self.at += 1,
                        _ => {
                            let key = self.string()?;
                            self.space();
                            if self.peek()? != ':' {
                                return None;
                            }
                            self.at += 1;
                            match self.value(&[',', '}']) {
                                Literal::Value(value) => table.insert(key, value),
                                _ => return None,
                            };
                        }
                    }
                }
            }
            _ => self.word(),
        }
    }

    /// A number, a constant, or a name that has a literal.
    fn word(&mut self) -> Option<Literal> {
        let inside = |c: char| c.is_alphanumeric() || "_.+-".contains(c);
        let end = self.rest().find(|c| !inside(c)).unwrap_or(self.rest().len());
        let word = self.rest()[..end].to_owned();
        let literal = match word.as_str() {
            "True" => Literal::Value(Value::Boolean(true)),
            "False" => Literal::Value(Value::Boolean(false)),
            "None" => Literal::None,
            _ => {
                let digits = word.replace('_', "");
                if let Ok(n) = digits.parse::<i64>() {
                    Literal::Value(Value::Integer(n))
                } else if let Some(x) = digits.parse::<f64>().ok().filter(|x| x.is_finite()) {
                    Literal::Value(Value::Float(x))
                } else {
                    match self.names.get(&word)? {
                        Literal::Expression(_) => return None,
                        known => known.clone(),
                    }
                }
            }
        };
        self.at += end;
        Some(literal)
    }

    /// A string literal without prefix; `None` (nothing read) if there is none.
    fn string(&mut self) -> Option<String> {
        let quote = self.peek().filter(|c| *c == '"' || *c == '\'')?;
        let triple: String = std::iter::repeat_n(quote, 3).collect();
        let rest = self.rest();
        let close = if rest.starts_with(&triple) { triple } else { quote.to_string() };
        let mut text = String::new();
        let mut body = &rest[close.len()..];
        while !body.starts_with(&close) {
            let c = body.chars().next()?;
            body = &body[c.len_utf8()..];
            if c != '\\' {
                text.push(c);
                continue;
            }
            let escaped = body.chars().next()?;
            body = &body[escaped.len_utf8()..];
            match escaped {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                '0' => text.push('\0'),
                '\n' => {}
                '\\' | '\'' | '"' => text.push(escaped),
                // Python keeps the backslash of an escape that it does not know.
                other => text.extend(['\\', other]),
            }
        }
        let read = rest.len() - body.len() + close.len();
        self.at += read;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Literal {
        call(&format!("f(x={text})"), "f").unwrap().pop().unwrap().1
    }

    #[test]
    fn literals() {
        let string = |s: &str| Literal::Value(Value::String(s.to_owned()));
        assert_eq!(value("3"), Literal::Value(Value::Integer(3)));
        assert_eq!(value("1_000"), Literal::Value(Value::Integer(1000)));
        assert_eq!(value("-1e-6"), Literal::Value(Value::Float(-1e-6)));
        assert_eq!(value("True"), Literal::Value(Value::Boolean(true)));
        assert_eq!(value("None"), Literal::None);
        assert_eq!(value("'it\\'s' \"\\n\""), string("it's\n"));
        assert_eq!(value("\"\"\"a\n\"b\"\"\"\""), Literal::Expression("\"\"\"a \"b\"\"\"\"".to_owned()));
        assert_eq!(value("('a')"), string("a"));
        let list = Value::Array(vec![Value::Integer(1), Value::String("a, b)".to_owned())]);
        assert_eq!(value("[1, 'a, b)',]"), Literal::Value(list.clone()));
        assert_eq!(value("(1, 'a, b)')"), Literal::Value(list));
        let table = value("{'enable_thinking': False, \"n\": [1]}");
        assert!(matches!(table, Literal::Value(Value::Table(t)) if t.len() == 2));
        assert_eq!(value("os.path.join('a', \"b)\")"), Literal::Expression("os.path.join('a', \"b)\")".to_owned()));
        assert_eq!(value("2 * 3"), Literal::Expression("2 * 3".to_owned()));
        assert_eq!(value("f'{a}'"), Literal::Expression("f'{a}'".to_owned()));
    }

    #[test]
    fn calls_among_comments_names_and_definitions() {
        let script = "# GRPOConfig(beta=1)\nclass GRPOConfig(Base): pass\nG: int = 4  # group\nOUT = \"runs/é # 1\"\n\
                      args = trl.GRPOConfig(\n    OUT, # where\n    num_generations=G,\n    learning_rate=lr(), \
                      **more)\n";
        let arguments = call(script, "GRPOConfig").unwrap();
        assert_eq!(arguments[0], (String::new(), Literal::Value(Value::String("runs/é # 1".to_owned()))));
        assert_eq!(arguments[1], ("num_generations".to_owned(), Literal::Value(Value::Integer(4))));
        assert_eq!(arguments[2], ("learning_rate".to_owned(), Literal::Expression("lr()".to_owned())));
        assert_eq!(arguments[3].1, Literal::Expression("**more".to_owned()));
        assert!(call(script, "SFTConfig").is_none());
        assert!(call("x = 1\nclass SFTConfig(Base): pass\n", "SFTConfig").is_none(), "a definition is no call");
    }

    /// Whatever the script, reading ends without a panic.
    #[test]
    fn torn_and_garbled_scripts() {
        let script = "X = [1,\u{a0}'é']\nf(\u{2003}a = {'k' :\u{a0}(1, 2)}, b='x' \"\"\"y\"\"\", c=X, **d) # é\n";
        let whole = call(script, "f").unwrap();
        assert_eq!(whole.len(), 4);
        for (end, _) in script.char_indices() {
            call(&script[..end], "f");
        }
        let mut random = kernels::rng::Stream::new(1, 2);
        let alphabet: Vec<char> = "f(){}[],:=#'\"\\\n 1.e-aXé\u{a0}".chars().collect();
        for _ in 0..3000 {
            let mut chars: Vec<char> = script.chars().collect();
            for _ in 0..=random.below(6) {
                let at = random.below(chars.len() as u64) as usize;
                chars[at] = alphabet[random.below(alphabet.len() as u64) as usize];
            }
            call(&chars.into_iter().collect::<String>(), "f");
        }
    }
}
