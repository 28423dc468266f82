//! Tokens to a [`Node`]: the grammar of short answers, of which a whole text or nothing is understood.

mod atoms;
mod terms;

use super::super::rational::Rational;
use super::lex::{Token, tokens};
use super::units::{introduces, never_unit};
use terms::{Units, negative};

/// How a sum, a root, … is made of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Add,
    Neg,
    Mul,
    Div,
    Pow,
    /// First one value, then the other.
    PlusMinus,
    /// The degree, then what is under the root.
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

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Number(Rational),
    /// A number without room in a [`Rational`].
    Large(String),
    Symbol(String),
    Infinity,
    Op(Op, Vec<Node>),
    /// `sin`, …, of one argument; `log` with its base.
    Function(String, Box<Node>, Option<Box<Node>>),
    /// Digits in a base.
    Based(String, u32),
    Text(String),
    /// `(…)`, `[…)`, `{…}`, … of several, or a list without brackets (both spaces).
    List {
        open: char,
        close: char,
        items: Vec<Node>,
    },
    Union(Vec<Node>),
    /// `3:2`
    Ratio(Vec<Node>),
    Matrix(Vec<Vec<Node>>),
    /// Sides, and the signs between them: `=`, `<`, `>`, `≤`, `≥`, `≠`.
    Relation(Vec<Node>, Vec<char>),
    /// The second, of which the first is an element.
    Member(Box<Node>, Box<Node>),
    Unit(Box<Node>, String),
    Percent(Box<Node>),
}

/// Deeper answers are not understood.
const MAX_DEPTH: usize = 60;

/// Nor are longer ones: `5!!!…` is as deep as it is long, and what compares answers takes a step for each level.
const MAX_TOKENS: usize = 600;

/// How what may be read in two ways is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// A comma before exactly three digits belongs to the number.
    pub thousands: bool,
    /// `\log` without a base has base 10, not e.
    pub decimal_log: bool,
}

/// The answer that `text` writes; none if any part of it is not understood.
pub(super) fn parse(text: &str, reading: Reading) -> Option<Node> {
    // "42..." continues, nobody knows how.
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
    /// Open `|`.
    bars: usize,
    /// Where the last mixed number began.
    mixed: Option<usize>,
    /// There is a `\equiv`, of which `\mod` says in what sense.
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

    /// Answers between commas: one stands for itself.
    fn list(&mut self) -> Option<Node> {
        let start = self.at;
        let mut items = self.items()?;
        // "x < 2 or x > 3", of which "and" would say something else.
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
        // "≈ 5", "= 5"
        let _ = self.skip_command("approx") || self.skip('=');
        // "about 5", "the answer is 5": words before mathematics.
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
        // "Area = 25"
        let first = match self.peek() {
            Some(Token::Text(_)) => self.primary()?,
            _ => self.sum()?,
        };
        if self.peek_char() == Some(':') && !matches!(first, Node::Text(_)) {
            let mut parts = vec![first];
            while self.skip(':') {
                parts.push(self.sum()?);
            }
            return Some(Node::Ratio(parts));
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

    /// Words that follow `first`.
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
            let term = units.of_term(term, last && sum.is_some())?;
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
        let mut sum = units.of_sum(sum?);
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
                // Is 1/2\frac12 a quarter, or one over 2½?
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
            Some(Token::Number(_) | Token::Text(_)) | None => false,
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
