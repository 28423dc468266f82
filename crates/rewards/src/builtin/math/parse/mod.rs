//! Parses tokens into a [`Node`]. The grammar is that of short answers. A text must be parsed completely.

mod atoms;
mod terms;

use super::super::rational::Rational;
use super::lex::{Token, tokens};
use super::units::{introduces, never_unit};
use terms::{Units, negative};

/// An operation that computes a value from others: a sum, a root, …
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Add,
    Neg,
    Mul,
    Div,
    Pow,
    /// `a ± b`: its operands are a and b.
    PlusMinus,
    /// A root; its operands are the degree and the radicand.
    Root,
    Factorial,
    Binomial,
    Abs,
    Floor,
    Ceil,
    /// The remainder of a division.
    Mod,
    /// The maximum of several values.
    Max,
    Min,
    Gcd,
    Lcm,
}

/// A parsed answer, as a tree.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Number(Rational),
    /// An integer that does not fit a [`Rational`], as digits.
    Large(String),
    Symbol(String),
    Infinity,
    Op(Op, Vec<Node>),
    /// A function such as `sin` of one argument; for `log` also the base.
    Function(String, Box<Node>, Option<Box<Node>>),
    /// Digits of a number in the given base.
    Based(String, u32),
    Text(String),
    /// A list of values in brackets `(…)`, `[…)`, `{…}`, …; `open` and `close` are spaces for a list without brackets.
    List {
        open: char,
        close: char,
        items: Vec<Node>,
    },
    Union(Vec<Node>),
    /// A ratio such as `3:2`.
    Ratio(Vec<Node>),
    /// A time such as `12:30`, or a ratio in the same notation. The flag is true if a part has a leading zero, as in
    /// `:05`.
    Clock(Vec<Node>, bool),
    Matrix(Vec<Vec<Node>>),
    /// A relation: its sides, and the signs between them: `=`, `<`, `>`, `≤`, `≥`, `≠`.
    Relation(Vec<Node>, Vec<char>),
    /// Membership, x ∈ S: the element and the set.
    Member(Box<Node>, Box<Node>),
    Unit(Box<Node>, String),
    Percent(Box<Node>),
}

/// The maximum nesting depth of an answer.
const MAX_DEPTH: usize = 60;

/// The maximum number of tokens of an answer: the tree of `5!!!…` is as deep as the text is long, and comparison
/// recurses once per level.
const MAX_TOKENS: usize = 600;

/// The choice between two meanings of a notation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// Whether a comma before exactly three digits belongs to the number.
    pub thousands: bool,
    /// Whether `\log` without a base has base 10, not e.
    pub decimal_log: bool,
}

/// Parses an answer; `None` if any part of `text` cannot be parsed.
pub(super) fn parse(text: &str, reading: Reading) -> Option<Node> {
    // The dots in "42..." are an unknown continuation, so such an answer is not parsed.
    if ["..", "…", "\\dots", "\\ldots", "\\cdots"]
        .iter()
        .any(|dots| text.trim_end_matches(['$', ' ', '}']).ends_with(dots))
    {
        return None;
    }
    let mut tokens = tokens(text, reading.thousands);
    for at in 0..tokens.len() {
        if reading.decimal_log
            && tokens[at] == Token::Command("log".into())
            && tokens.get(at + 1) != Some(&Token::Char('_'))
        {
            tokens[at] = Token::Command("lg".into());
        }
    }
    let congruence = tokens.contains(&Token::Command("equiv".into()));
    let mut parser = Parser { tokens, at: 0, depth: 0, bars: 0, mixed: None, congruence };
    if parser.tokens.len() > MAX_TOKENS {
        return None;
    }
    while parser.tokens.last().is_some_and(|t| matches!(t, Token::Char('.' | ',' | ';'))) {
        parser.tokens.pop();
    }
    let node = parser.list()?;
    (parser.at == parser.tokens.len()).then_some(node)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    /// Number of open `|` bars.
    bars: usize,
    /// The position where the last mixed number began.
    mixed: Option<usize>,
    /// Whether the text contains `\equiv`; `\mod` then belongs to that relation and is not a remainder.
    congruence: bool,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn peek_char(&self) -> Option<char> {
        match self.peek()? {
            Token::Char(c) => Some(*c),
            _ => None,
        }
    }

    fn peek_command(&self) -> Option<&str> {
        match self.peek()? {
            Token::Command(name) => Some(name),
            _ => None,
        }
    }

    fn take(&mut self) -> Option<Token> {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned()
    }

    fn skip(&mut self, c: char) -> bool {
        let found = self.peek_char() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn skip_command(&mut self, name: &str) -> bool {
        let found = self.peek_command() == Some(name);
        self.at += usize::from(found);
        found
    }

    fn separator(&mut self) -> bool {
        let mut found = false;
        loop {
            let word =
                matches!(self.peek(), Some(Token::Text(word)) if matches!(word.trim(), "and" | "or" | "," | ", "));
            if !(word || matches!(self.peek_char(), Some(',' | ';'))) {
                return found;
            }
            self.at += 1;
            found = true;
        }
    }

    /// Parses answers separated by commas; a single answer does not become a list.
    fn list(&mut self) -> Option<Node> {
        let start = self.at;
        let mut items = self.items()?;
        // "x < 2 or x > 3" is a union, but "and" would be an intersection.
        let and = self.tokens[start..self.at].iter().any(|t| matches!(t, Token::Text(word) if word.trim() == "and"));
        if items.len() > 1 && !and && items.iter().all(is_inequality) {
            return Some(Node::Union(items));
        }
        Some(if items.len() == 1 { items.remove(0) } else { Node::List { open: ' ', close: ' ', items } })
    }

    fn items(&mut self) -> Option<Vec<Node>> {
        let mut items = vec![self.relation()?];
        while self.separator() {
            items.push(self.relation()?);
        }
        Some(items)
    }

    fn relation(&mut self) -> Option<Node> {
        // Skips a relation sign at the start: "≈ 5", "= 5".
        let _ = self.skip_command("approx") || self.skip('=');
        // Skips words before mathematics: "about 5", "the answer is 5".
        if let (Some(Token::Text(text)), Some(next)) = (self.peek().cloned(), self.tokens.get(self.at + 1)) {
            let named = matches!(next, Token::Char('=')) || matches!(next, Token::Command(sign) if sign == "approx");
            let starts = !named
                && introduces(&text)
                && !matches!(next, Token::Char(',' | ';' | ')' | '}' | ']' | '&') | Token::Text(_));
            if !(named || starts) {
                self.at += 1;
                return self.words(text);
            }
            self.at += usize::from(starts);
        }
        // Skips a name before the value: "Area = 25".
        let start = self.at;
        let first = match self.peek() {
            Some(Token::Text(_)) => self.primary()?,
            _ => self.sum()?,
        };
        if self.peek_char() == Some(':') && !matches!(first, Node::Text(_)) {
            let (mut parts, mut starts) = (vec![first], vec![start]);
            while self.skip(':') {
                starts.push(self.at);
                parts.push(self.sum()?);
            }
            return Some(match self.clock(&starts) {
                Some(padded) => Node::Clock(parts, padded),
                None => Node::Ratio(parts),
            });
        }
        if self.skip_command("in") {
            return Some(Node::Member(first.into(), self.sum()?.into()));
        }
        let (mut sides, mut signs) = (vec![first], Vec::new());
        while let Some(sign) = self.sign() {
            signs.push(sign);
            sides.push(self.sum()?);
        }
        Some(if signs.is_empty() { sides.remove(0) } else { Node::Relation(sides, signs) })
    }

    /// Whether the parts that begin at these tokens, separated by `:`, are written like a time: `12:30`, `1:05:00`, or
    /// any numbers with a part such as `:05`. `None` if they are not; otherwise whether there is a part such as `:05`.
    fn clock(&self, starts: &[usize]) -> Option<bool> {
        let ends = starts[1..].iter().map(|start| start - 1).chain([self.at]);
        let digits: Vec<&str> = starts
            .iter()
            .zip(ends)
            .filter_map(|(&start, end)| match self.tokens.get(start..end)? {
                // Words such as "am" may follow the last part.
                [Token::Number(digits), rest @ ..] if rest.iter().all(|token| matches!(token, Token::Text(_))) => {
                    Some(&**digits)
                }
                _ => None,
            })
            .filter(|digits| !digits.contains('.'))
            .collect();
        if digits.len() < starts.len() {
            return None;
        }
        let time = digits.len() <= 3
            && digits[0].len() <= 2
            && digits[1..].iter().all(|digits| digits.len() == 2 && *digits < "60");
        let padded = digits[1..].iter().any(|digits| digits.len() > 1 && digits.starts_with('0'));
        (time || padded).then_some(padded)
    }

    /// Parses the words after `first` into one text.
    fn words(&mut self, first: String) -> Option<Node> {
        let mut text = first;
        while let Some(Token::Text(more)) = self.peek() {
            if matches!(more.trim(), "and" | "or") {
                break;
            }
            text = format!("{text} {more}");
            self.at += 1;
        }
        Some(Node::Text(text))
    }

    fn sign(&mut self) -> Option<char> {
        let sign = match self.peek()? {
            Token::Char(c @ ('=' | '<' | '>')) => *c,
            Token::Command(name) => match name.as_str() {
                "le" => '≤',
                "ge" => '≥',
                "ne" => '≠',
                "approx" | "equiv" => '=',
                _ => return None,
            },
            _ => return None,
        };
        self.at += 1;
        let or_equal = matches!(sign, '<' | '>') && self.skip('=');
        Some(match sign {
            '<' if or_equal => '≤',
            '>' if or_equal => '≥',
            sign => sign,
        })
    }

    fn sum(&mut self) -> Option<Node> {
        let mut sum: Option<Node> = None;
        let mut units = Units::default();
        loop {
            let (minus, both) = match self.peek()? {
                Token::Char('+') => (false, false),
                Token::Char('-') => (true, false),
                Token::Command(name) if name == "pm" || name == "mp" => (false, true),
                _ if sum.is_none() => (false, false),
                _ => break,
            };
            let signed = matches!(self.peek()?, Token::Char('+' | '-')) || both;
            self.at += usize::from(signed);
            let term = self.product()?;
            let last = !matches!(self.peek(), Some(Token::Char('+' | '-')));
            let term = units.add_term(term, last && sum.is_some())?;
            sum = Some(match (sum, minus, both) {
                (None, false, false) => term,
                (None, true, _) => negative(term),
                (None, _, true) => Node::Op(Op::PlusMinus, vec![Node::Number(Rational::new(0, 1)?), term]),
                (Some(sum), _, true) => Node::Op(Op::PlusMinus, vec![sum, term]),
                (Some(sum), true, _) => Node::Op(Op::Add, vec![sum, Node::Op(Op::Neg, vec![term])]),
                (Some(sum), _, _) => Node::Op(Op::Add, vec![sum, term]),
            });
            if self.peek().is_none() {
                break;
            }
        }
        let mut sum = units.apply_to(sum?);
        while self.skip_command("cup") {
            let mut parts = if let Node::Union(parts) = sum { parts } else { vec![sum] };
            parts.push(self.product()?);
            sum = Node::Union(parts);
        }
        Some(sum)
    }

    fn product(&mut self) -> Option<Node> {
        let mut product = self.signed_power()?;
        loop {
            if self.skip('*') {
                product = Node::Op(Op::Mul, vec![product, self.signed_power()?]);
            } else if self.skip('/') {
                let whole = self.at;
                let divisor = self.signed_power()?;
                // 1/2\frac12 is ambiguous: it could be a quarter, or one over 2½.
                if self.mixed == Some(whole) {
                    return None;
                }
                product = Node::Op(Op::Div, vec![product, divisor]);
            } else if let Some(Token::Text(text)) = self.peek().cloned() {
                if matches!(text.trim(), "and" | "or") {
                    return Some(product);
                }
                self.at += 1;
                let Node::Text(name) = self.words(text)? else { return None };
                if never_unit(&name) {
                    return None;
                }
                let power = if self.skip('^') { Some(self.argument()?) } else { None };
                let power = power.and_then(|power| if let Node::Number(n) = power { n.integer() } else { None });
                product = Node::Unit(product.into(), power.map_or(name.clone(), |power| format!("{name}^{power}")));
            } else if self.peek_command() == Some("$")
                && !matches!(self.tokens.get(self.at + 1), Some(Token::Number(_)))
            {
                self.at += 1;
                product = Node::Unit(product.into(), "dollar".into());
            } else if !self.congruence && self.skip_command("mod") {
                product = Node::Op(Op::Mod, vec![product, self.signed_power()?]);
            } else if self.starts_factor() {
                product = Node::Op(Op::Mul, vec![product, self.power()?]);
            } else {
                return Some(product);
            }
        }
    }

    fn starts_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Char('|')) => self.bars == 0,
            Some(Token::Char(c)) => c.is_alphabetic() || matches!(c, '(' | '{' | '['),
            Some(Token::Command(name)) => !matches!(
                name.as_str(),
                "in" | "mod"
                    | "le"
                    | "ge"
                    | "ne"
                    | "approx"
                    | "equiv"
                    | "pm"
                    | "mp"
                    | "cup"
                    | "}"
                    | "rfloor"
                    | "rceil"
                    | "end"
            ),
            // A factorial may be followed by a number: 2!3!.
            Some(Token::Number(_)) => self.at > 0 && matches!(self.tokens[self.at - 1], Token::Char('!')),
            Some(Token::Text(_)) | None => false,
        }
    }

    fn signed_power(&mut self) -> Option<Node> {
        if self.skip('-') {
            return Some(Node::Op(Op::Neg, vec![self.signed_power_again()?]));
        }
        self.skip('+');
        self.power()
    }

    fn signed_power_again(&mut self) -> Option<Node> {
        self.depth += 1;
        let node = if self.depth > MAX_DEPTH { None } else { self.signed_power() };
        self.depth -= 1;
        node
    }
}

fn is_inequality(node: &Node) -> bool {
    matches!(node, Node::Relation(_, signs) if !signs.iter().any(|sign| matches!(sign, '=' | '≠')))
}
