//! Parses the factors of a product: numbers, variables, brackets, commands, matrices.

use super::super::super::rational::Rational;
use super::super::lex::Token;
use super::{MAX_DEPTH, Node, Op, Parser};

const FUNCTIONS: [&str; 27] = [
    "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos", "arctan", "arcsec", "arccsc",
    "lg", "sinh", "cosh", "tanh", "coth", "sech", "csch", "arsinh", "arcosh", "artanh", "arcsinh", "arccosh",
    "arctanh",
];

const LETTERS: [&str; 25] = [
    "pi",
    "theta",
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "lambda",
    "mu",
    "nu",
    "omega",
    "phi",
    "varphi",
    "psi",
    "rho",
    "sigma",
    "tau",
    "xi",
    "zeta",
    "eta",
    "kappa",
    "Delta",
    "Omega",
    "ell",
];

impl Parser {
    pub(super) fn power(&mut self) -> Option<Node> {
        let start = self.at;
        let mut base = self.primary()?;
        if let Some(fraction) = self.fraction_of(start) {
            base = Node::Op(Op::Add, vec![base, fraction?]);
            self.mixed = Some(start);
            // In 22½° the degree sign applies to the whole number, but 2½² would be ambiguous.
            if self.peek_char() == Some('!') || self.peek_char() == Some('^') && self.circle().is_none() {
                return None;
            }
        }
        loop {
            if let Some(end) = self.circle() {
                self.at = end;
                base = Node::Unit(base.into(), "degree".into());
            } else if self.skip('^') {
                let power = self.exponent()?;
                base = Node::Op(Op::Pow, vec![base, power]);
            } else if self.skip('!') {
                base = Node::Op(Op::Factorial, vec![base]);
            } else if self.skip('%') || self.skip_command("%") {
                if matches!(base, Node::Percent(_)) {
                    return None;
                }
                base = Node::Percent(base.into());
            } else {
                return Some(base);
            }
        }
    }

    /// The position after a degree sign `^\circ` or `^{\circ}` at the current position.
    fn circle(&self) -> Option<usize> {
        let circ = |token: &Token| matches!(token, Token::Command(c) if c == "circ");
        match self.tokens.get(self.at..)? {
            [Token::Char('^'), c, ..] if circ(c) => Some(self.at + 2),
            [Token::Char('^'), Token::Char('{'), c, Token::Char('}'), ..] if circ(c) => Some(self.at + 4),
            _ => None,
        }
    }

    /// Parses the fraction of a mixed number: the 4/5 of `1 4/5` and of `1\frac{4}{5}`. There must be an integer at
    /// `start`, followed by a fraction of two integers, which is checked before it is parsed. Any other `\frac` is a
    /// factor. `4 10/3` is neither a mixed number nor a product.
    fn fraction_of(&mut self, start: usize) -> Option<Option<Node>> {
        let digits = |token: &Token| matches!(token, Token::Number(digits) if !digits.contains('.'));
        let (whole, rest) = self.tokens.get(start..)?.split_first()?;
        if !digits(whole) || self.at != start + 1 {
            return None;
        }
        if let [Token::Number(top), Token::Char('/'), Token::Number(bottom), ..] = rest {
            let number = |digits: &str| Rational::decimal(digits).filter(|n| n.integer().is_some()).map(Node::Number);
            let part = Node::Op(Op::Div, vec![number(top)?, number(bottom)?]);
            self.at += 3;
            return Some(Some(part).filter(is_proper));
        }
        let (Token::Command(name), mut rest) = rest.split_first()? else { return None };
        let mut wanted = if name == "frac" { 2 } else { return None };
        while wanted > 0 {
            (wanted, rest) = match rest {
                // \frac12 has both integers in one token.
                [number @ Token::Number(both), rest @ ..] if digits(number) => (wanted - both.len().min(wanted), rest),
                [Token::Char('{'), number, Token::Char('}'), rest @ ..] if digits(number) => (wanted - 1, rest),
                _ => return None,
            };
        }
        Some(self.primary().filter(is_proper))
    }

    /// Parses an exponent: `^2`, `^{-1}`, and the forms `^10` and `^-1` that models write.
    pub(super) fn exponent(&mut self) -> Option<Node> {
        match self.peek()? {
            Token::Number(_) => self.primary(),
            Token::Char('-') => self.signed_power(),
            _ => self.argument(),
        }
    }

    /// Parses an argument of a command: `{…}`, or one sign, so that `\frac12` is a half.
    pub(super) fn argument(&mut self) -> Option<Node> {
        if self.skip('{') {
            let node = self.list()?;
            return self.skip('}').then_some(node);
        }
        if let Some(Token::Number(digits)) = self.tokens.get_mut(self.at) {
            let first = digits.chars().next()?;
            digits.remove(0);
            if digits.is_empty() {
                self.at += 1;
            }
            return Some(Node::Number(Rational::new(first.to_digit(10)?.into(), 1)?));
        }
        self.primary()
    }

    pub(super) fn primary(&mut self) -> Option<Node> {
        self.depth += 1;
        let node = if self.depth > MAX_DEPTH { None } else { self.any_primary() };
        self.depth -= 1;
        node
    }

    fn any_primary(&mut self) -> Option<Node> {
        match self.take()? {
            Token::Number(digits) => self.number(digits),
            Token::Command(name) => self.command(&name),
            Token::Char(open @ ('(' | '[')) => self.brackets(open),
            Token::Char('{') => {
                let node = self.list()?;
                self.skip('}').then_some(node)
            }
            Token::Char('|') => {
                self.bars += 1;
                let inside = self.list()?;
                self.bars -= 1;
                self.skip('|').then_some(Node::Op(Op::Abs, vec![inside]))
            }
            Token::Char(c) if c.is_alphabetic() => self.symbol(c.to_string()),
            Token::Text(text) => Some(Node::Text(text)),
            Token::Char(_) => None,
        }
    }

    fn number(&mut self, digits: String) -> Option<Node> {
        if self.skip('_') {
            let Node::Number(base) = self.exponent()? else { return None };
            let base = u32::try_from(base.integer()?).ok().filter(|base| (2..=36).contains(base))?;
            return Some(Node::Based(digits, base));
        }
        if self.peek_command() == Some("overline") && digits.contains('.') {
            self.at += 1;
            return repeating(&digits, &self.braced_digits()?);
        }
        Some(Rational::decimal(&digits).map_or(Node::Large(digits), Node::Number))
    }

    fn braced_digits(&mut self) -> Option<String> {
        let braces = self.skip('{');
        let Token::Number(digits) = self.take()? else { return None };
        // In \bar36 the bar is only over the 3.
        let whole = if braces { self.skip('}') } else { digits.len() == 1 };
        (!digits.contains('.') && whole).then_some(digits)
    }

    fn symbol(&mut self, mut name: String) -> Option<Node> {
        if self.skip('_') {
            name = format!("{name}_{}", index(&self.argument()?)?);
        }
        Some(Node::Symbol(name))
    }

    /// Parses brackets: a group if they contain one value, a tuple or an interval if they contain several.
    fn brackets(&mut self, open: char) -> Option<Node> {
        let bars = std::mem::take(&mut self.bars);
        let mut items = self.items()?;
        self.bars = bars;
        let Token::Char(close @ (')' | ']')) = self.take()? else { return None };
        match items.len() {
            1 if (open == '(') == (close == ')') => Some(items.remove(0)),
            1 => None,
            _ => Some(Node::List { open, close, items }),
        }
    }

    fn command(&mut self, name: &str) -> Option<Node> {
        match name {
            "frac" => Some(Node::Op(Op::Div, vec![self.argument()?, self.argument()?])),
            "binom" => Some(Node::Op(Op::Binomial, vec![self.argument()?, self.argument()?])),
            "sqrt" => {
                let mut degree = Node::Number(Rational::new(2, 1)?);
                if self.skip('[') {
                    degree = self.list()?;
                    if !self.skip(']') {
                        return None;
                    }
                }
                let under = match self.peek()? {
                    // Models also write roots without LaTeX: sqrt 51, sqrt(51).
                    Token::Number(digits) if digits.len() > 1 && self.tokens.get(self.at + 1).is_none() => {
                        self.primary()?
                    }
                    _ => self.argument()?,
                };
                Some(Node::Op(Op::Root, vec![degree, under]))
            }
            "infty" => Some(Node::Infinity),
            "emptyset" => Some(Node::List { open: '{', close: '}', items: Vec::new() }),
            "$" => {
                let amount = self.power()?;
                Some(Node::Unit(amount.into(), "dollar".into()))
            }
            "{" => {
                if self.skip_command("}") {
                    return Some(Node::List { open: '{', close: '}', items: Vec::new() });
                }
                let bars = std::mem::take(&mut self.bars);
                let items = self.items()?;
                self.bars = bars;
                self.skip_command("}").then_some(Node::List { open: '{', close: '}', items })
            }
            "|" => {
                let inside = self.list()?;
                self.skip_command("|").then_some(Node::Op(Op::Abs, vec![inside]))
            }
            "lfloor" | "lceil" => {
                let inside = self.list()?;
                let (op, close) = if name == "lfloor" { (Op::Floor, "rfloor") } else { (Op::Ceil, "rceil") };
                self.skip_command(close).then_some(Node::Op(op, vec![inside]))
            }
            "angle" => {
                let mut name = "angle ".to_owned();
                while let Some(c) = self.peek_char().filter(|c| c.is_alphabetic()) {
                    name.push(c);
                    self.at += 1;
                }
                Some(Node::Symbol(name))
            }
            "begin" => self.matrix(),
            "mathbb" | "overline" | "vec" | "hat" | "mathcal" => {
                let Node::Symbol(inside) = self.argument()? else { return None };
                self.symbol(if name == "mathbb" { inside } else { format!("{name} {inside}") })
            }
            "max" => self.several_arguments(Op::Max),
            "min" => self.several_arguments(Op::Min),
            "gcd" => self.several_arguments(Op::Gcd),
            "lcm" => self.several_arguments(Op::Lcm),
            name if FUNCTIONS.contains(&name) => self.function(name),
            name if LETTERS.contains(&name) => self.symbol(name.to_owned()),
            _ => None,
        }
    }

    /// Parses the arguments `(1, 2)` or `\{1, 2\}` of an operation on several values, such as a maximum.
    fn several_arguments(&mut self, op: Op) -> Option<Node> {
        let braces = self.skip_command("{");
        if !(braces || self.skip('(')) {
            return None;
        }
        let items = self.items()?;
        let closed = if braces { self.skip_command("}") } else { self.skip(')') };
        closed.then_some(Node::Op(op, items))
    }

    fn function(&mut self, name: &str) -> Option<Node> {
        let base = if self.skip('_') { Some(Box::new(self.exponent()?)) } else { None };
        let power = if self.skip('^') { Some(self.exponent()?) } else { None };
        // "sin 2x" is the sine of 2x, but "sin(2)x" is a product.
        let bracket = matches!(self.peek_char(), Some('(' | '{' | '['));
        let mut argument = if bracket { self.primary()? } else { self.power()? };
        while !bracket && self.starts_factor() && !self.peek_command().is_some_and(|c| FUNCTIONS.contains(&c)) {
            argument = Node::Op(Op::Mul, vec![argument, self.power()?]);
        }
        let inverse = matches!(&power, Some(Node::Op(Op::Neg, one)) if one[0] == Node::Number(Rational::new(1, 1)?));
        if inverse && ["sin", "cos", "tan", "sinh", "cosh", "tanh"].contains(&name) {
            return Some(Node::Function(format!("arc{name}"), argument.into(), base));
        }
        let node = Node::Function(name.to_owned(), argument.into(), base);
        Some(match power {
            Some(power) => Node::Op(Op::Pow, vec![node, power]),
            None => node,
        })
    }

    fn matrix(&mut self) -> Option<Node> {
        let kind = self.environment()?;
        if kind == "array" {
            self.columns_of_array()?;
        } else if !["pmatrix", "bmatrix", "matrix", "Bmatrix", "smallmatrix", "psmallmatrix", "bsmallmatrix"]
            .contains(&kind.as_str())
        {
            return None;
        }
        let mut rows = vec![Vec::new()];
        loop {
            while self.skip_command("hline") {}
            if self.skip_command("end") {
                self.environment().filter(|end| *end == kind)?;
                break;
            }
            // There must be a cell between two signs.
            let item = self.relation()?;
            rows.last_mut()?.push(item);
            if self.skip('\\') {
                self.skip_row_space();
                rows.push(Vec::new());
            } else if !(self.skip('&') || self.peek_command() == Some("end")) {
                return None;
            }
        }
        rows.retain(|row| !row.is_empty());
        let width = rows.first()?.len();
        rows.iter().all(|row| row.len() == width).then_some(Node::Matrix(rows))
    }

    /// Skips the column specification of an array, such as `{c|c}` or `[t]{@{}rr@{}}`.
    fn columns_of_array(&mut self) -> Option<()> {
        if self.skip('[') {
            while !self.skip(']') {
                self.take()?;
            }
        }
        let mut depth = 0usize;
        loop {
            match self.take()? {
                Token::Char('{') => depth += 1,
                Token::Char('}') if depth <= 1 => return (depth == 1).then_some(()),
                Token::Char('}') => depth -= 1,
                _ if depth == 0 => return None,
                _ => {}
            }
        }
    }

    /// Skips the spacing after a row, such as `[4pt]`.
    fn skip_row_space(&mut self) {
        let Some([Token::Char('['), Token::Number(_), rest @ ..]) = self.tokens.get(self.at..) else { return };
        let letters = rest.iter().take_while(|token| match token {
            Token::Char(c) => c.is_alphabetic(),
            Token::Text(_) => true,
            _ => false,
        });
        let letters = letters.count();
        if letters > 0 && rest.get(letters) == Some(&Token::Char(']')) {
            self.at += letters + 3;
        }
    }

    /// Parses the name of an environment, such as `{pmatrix}`.
    fn environment(&mut self) -> Option<String> {
        if !self.skip('{') {
            return None;
        }
        let mut name = String::new();
        while !self.skip('}') {
            match self.take()? {
                Token::Text(text) => name.push_str(&text),
                Token::Char(c) => name.push(c),
                _ => return None,
            }
        }
        Some(name)
    }
}

/// Whether a fraction of two integers is below 1.
fn is_proper(fraction: &Node) -> bool {
    match fraction {
        Node::Op(Op::Div, parts) => {
            matches!(&parts[..], [Node::Number(top), Node::Number(bottom)] if top.to_f64() < bottom.to_f64())
        }
        _ => false,
    }
}

/// An index as text: `1`, or `max`, although it was parsed as a product of letters.
fn index(node: &Node) -> Option<String> {
    match node {
        Node::Number(n) => Some(n.integer()?.to_string()),
        Node::Symbol(name) | Node::Text(name) => Some(name.clone()),
        Node::Op(Op::Mul, parts) => Some(index(&parts[0])? + &index(parts.get(1)?)?),
        _ => None,
    }
}

/// The value of a repeating decimal: digits `0.1` and period `6` are 0.1666…
fn repeating(digits: &str, period: &str) -> Option<Node> {
    let start = Rational::decimal(digits)?;
    let places = digits.len() - digits.find('.')? - 1;
    let ten = Rational::new(10, 1)?;
    let nines = ten.pow(period.len() as i128)?.add(Rational::new(-1, 1)?)?;
    let rest = Rational::decimal(period)?.div(nines)?.div(ten.pow(places as i128)?)?;
    Some(Node::Number(start.add(rest)?))
}
