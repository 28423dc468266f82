//! Checks the units of the terms in a sum: 3 apples plus 4 oranges is not 7.

use super::super::units::{power, unit};
use super::{Node, Op};

/// The negative of a node. The sign is moved inside the unit: −5 cm is the number −5 with the unit cm.
pub(super) fn negative(node: Node) -> Node {
    match node {
        Node::Unit(inside, name) => Node::Unit(negative(*inside).into(), name),
        Node::Percent(inside) => Node::Percent(negative(*inside).into()),
        other => Node::Op(Op::Neg, vec![other]),
    }
}

/// The units of the terms of a sum that have been parsed so far.
#[derive(Default)]
pub(super) struct Units {
    name: Option<String>,
    /// Whether one of the terms had no unit.
    plain: bool,
    /// Whether the last term's unit applies to the whole sum.
    applies_to_all: bool,
}

impl Units {
    /// Returns the term if its unit agrees with the units of the other terms, else `None`. If only the last term has a
    /// unit, that unit applies to the whole sum: `1+2\sqrt3 \text{ cm}`. A term with a variable agrees with any unit.
    pub fn add_term(&mut self, term: Node, last: bool) -> Option<Node> {
        match name_of(&term) {
            Some(name) if self.name.as_ref().is_some_and(|other| *other != name) => None,
            Some(name) => {
                let first = self.name.replace(name).is_none();
                match term {
                    Node::Unit(inside, name) if last && first && name != "degree" => {
                        self.applies_to_all = true;
                        self.name = Some(name);
                        Some(*inside)
                    }
                    _ if self.plain => None,
                    term => Some(term),
                }
            }
            None if has_variable(&term) => Some(term),
            None => {
                self.plain = true;
                self.name.is_none().then_some(term)
            }
        }
    }

    pub fn apply_to(self, sum: Node) -> Node {
        match self.name {
            Some(name) if self.applies_to_all => Node::Unit(sum.into(), name),
            _ => sum,
        }
    }
}

/// The canonical name of a product's unit.
fn name_of(node: &Node) -> Option<String> {
    match node {
        Node::Unit(_, name) => {
            Some(unit(name).map_or_else(|| name.trim().to_lowercase(), |unit| format!("{unit}^{}", power(name))))
        }
        Node::Op(Op::Neg | Op::Div, parts) => name_of(&parts[0]),
        Node::Op(Op::Mul, parts) => parts.iter().find_map(name_of),
        _ => None,
    }
}

fn has_variable(node: &Node) -> bool {
    match node {
        Node::Symbol(name) => !["pi", "e", "i"].contains(&name.as_str()),
        Node::Op(_, parts) => parts.iter().any(has_variable),
        Node::Function(_, argument, _) | Node::Percent(argument) | Node::Unit(argument, _) => has_variable(argument),
        _ => false,
    }
}
