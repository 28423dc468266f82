//! The latest requests of a sequence of numbers, to recognise those that arrive again.

use std::collections::{BTreeMap, HashMap};

/// The state of a request after its submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The request is new, and waits for its turn.
    New,
    /// The request arrived before, as the request with this id.
    Repeated(u64),
    /// Another request has this number.
    Conflict,
    /// The number is so old that its request is forgotten, or the queue no longer waits for it.
    Old,
    /// The number is too far ahead, or there is no room. The number is not used up: the request may arrive again.
    Full,
}

/// The latest numbers that are used up: by requests that were accepted, and by those that were refused for good.
#[derive(Debug)]
pub(super) struct Seen {
    /// The largest number of requests that are remembered.
    most: usize,
    numbers: HashMap<u64, Number>,
    /// The numbers in the order of their arrival. The first one is forgotten first.
    order: BTreeMap<u64, u64>,
    /// The number of arrivals so far.
    arrivals: u64,
}

#[derive(Debug)]
struct Number {
    arrival: u64,
    /// The id and the fingerprint of the request; `None` if it was refused.
    request: Option<(u64, u128)>,
}

impl Seen {
    /// Remembers the latest `most` numbers.
    pub(super) fn new(most: usize) -> Seen {
        Seen { most, numbers: HashMap::new(), order: BTreeMap::new(), arrivals: 0 }
    }

    /// Compares a request with the one that has its number. `None`: the number is not known.
    pub(super) fn find(&self, number: u64, fingerprint: u128) -> Option<Submitted> {
        Some(match self.numbers.get(&number)?.request {
            Some((id, same)) if same == fingerprint => Submitted::Repeated(id),
            _ => Submitted::Conflict,
        })
    }

    /// Notes the request `id`, unless its number is known.
    pub(super) fn submit(&mut self, number: u64, id: u64, fingerprint: u128) -> Submitted {
        self.find(number, fingerprint).unwrap_or_else(|| {
            self.add(number, Some((id, fingerprint)));
            Submitted::New
        })
    }

    /// Notes that a number is used up by a request that was refused. False: the number is known.
    pub(super) fn refuse(&mut self, number: u64) -> bool {
        let is_new = !self.numbers.contains_key(&number);
        if is_new {
            self.add(number, None);
        }
        is_new
    }

    /// Forgets a number, so that a request may have it again.
    pub(super) fn forget(&mut self, number: u64) {
        if let Some(Number { arrival, .. }) = self.numbers.remove(&number) {
            self.order.remove(&arrival);
        }
    }

    fn add(&mut self, number: u64, request: Option<(u64, u128)>) {
        self.arrivals += 1;
        self.numbers.insert(number, Number { arrival: self.arrivals, request });
        self.order.insert(self.arrivals, number);
        if self.order.len() > self.most
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.numbers.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An act on a number.
    #[derive(Clone, Copy, Debug)]
    enum Act {
        Submit { fingerprint: u128 },
        Refuse,
        Forget,
    }

    fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
        let act = prop_oneof![
            3 => (0u128..2).prop_map(|fingerprint| Act::Submit { fingerprint }),
            1 => Just(Act::Refuse),
            1 => Just(Act::Forget),
        ];
        prop::collection::vec((0u64..12, act), 0..120)
    }

    proptest! {
        /// The latest numbers are remembered, and no others, as in a list that is searched from its beginning.
        #[test]
        fn the_latest_numbers_are_remembered(acts in acts(), most in 1usize..8) {
            let mut seen = Seen::new(most);
            let mut expected: Vec<(u64, Option<(u64, u128)>)> = Vec::new();
            for (id, (number, act)) in acts.into_iter().enumerate() {
                let id = id as u64;
                let known = expected.iter().find(|(other, _)| *other == number).map(|(_, request)| *request);
                match act {
                    Act::Submit { fingerprint } => {
                        let answer = match known {
                            None => Submitted::New,
                            Some(Some((id, same))) if same == fingerprint => Submitted::Repeated(id),
                            Some(_) => Submitted::Conflict,
                        };
                        prop_assert_eq!(seen.submit(number, id, fingerprint), answer);
                        if known.is_none() {
                            expected.push((number, Some((id, fingerprint))));
                        }
                    }
                    Act::Refuse => {
                        prop_assert_eq!(seen.refuse(number), known.is_none());
                        if known.is_none() {
                            expected.push((number, None));
                        }
                    }
                    Act::Forget => {
                        seen.forget(number);
                        expected.retain(|(other, _)| *other != number);
                    }
                }
                expected.drain(..expected.len().saturating_sub(most));
                prop_assert_eq!((seen.numbers.len(), seen.order.len()), (expected.len(), expected.len()));
            }
        }
    }
}
