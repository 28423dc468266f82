//! The requests of one model, in the order of their numbers.
//!
//! A client numbers the requests of a model 0, 1, 2, … They may arrive in another order, several times, or never, and
//! they must be computed once each, in the order of the numbers. The queue is a pure state machine: it knows neither
//! clocks nor models.
//!
//! - A request that arrives again is not computed again.
//! - A request that was refused has used up its number.
//! - Requests after a number that has not arrived wait. [`give_up`](OrderedQueue::give_up) ends the wait.

use super::seen::{Seen, Submitted};
use std::collections::BTreeMap;
use std::ops::Range;

/// Requests whose numbers are this far ahead of the next one are refused.
const MOST_AHEAD: u64 = 1 << 8;
/// The number of answered requests that are remembered, to recognise those that arrive again.
const MOST_SEEN: usize = 1 << 12;

/// The next request to compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// A request.
    Job(T),
    /// Nothing will come under these numbers.
    Missing {
        /// The numbers.
        numbers: Range<u64>,
        /// Whether data may be missing.
        is_data: bool,
    },
}

/// A number that is used up.
#[derive(Debug)]
enum Slot<T> {
    Job(T),
    Refused { is_data: bool },
}

/// The queue of one model.
#[derive(Debug)]
pub struct OrderedQueue<T> {
    /// The number of the request that is computed next.
    next: u64,
    waiting: BTreeMap<u64, Slot<T>>,
    seen: Seen,
}

impl<T> OrderedQueue<T> {
    /// A queue that begins with the number `first`.
    pub fn new(first: u64) -> OrderedQueue<T> {
        OrderedQueue { next: first, waiting: BTreeMap::new(), seen: Seen::new(MOST_SEEN) }
    }

    /// Accepts the request `number` with the id `id`. Requests that arrive again have the same fingerprint. `job` is
    /// called for a new request, and is `None` if there is no room for it; its argument is whether others wait for it.
    pub fn submit(
        &mut self,
        number: u64,
        (id, fingerprint): (u64, u128),
        job: impl FnOnce(bool) -> Option<T>,
    ) -> Submitted {
        if let Some(known) = self.seen.find(number, fingerprint) {
            return known;
        }
        if !self.is_in_range(number) {
            return if number < self.next { Submitted::Old } else { Submitted::Full };
        }
        let Some(job) = job(number == self.next && self.has_gap()) else { return Submitted::Full };
        self.waiting.insert(number, Slot::Job(job));
        self.seen.submit(number, id, fingerprint)
    }

    /// Uses up a number whose request was refused. `is_data`: the request had data for the next step. False: the
    /// number is too far ahead, and is not used up.
    pub fn refuse(&mut self, number: u64, is_data: bool) -> bool {
        if self.is_in_range(number) && self.seen.refuse(number) {
            self.waiting.insert(number, Slot::Refused { is_data });
        }
        number <= self.next.saturating_add(MOST_AHEAD)
    }

    fn is_in_range(&self, number: u64) -> bool {
        (self.next..=self.next.saturating_add(MOST_AHEAD)).contains(&number)
    }

    /// Removes the next request, if it has arrived.
    pub fn pop(&mut self) -> Option<Next<T>> {
        let first = self.waiting.first_entry()?;
        if *first.key() != self.next {
            return None;
        }
        let number = self.next;
        self.next += 1;
        Some(match first.remove() {
            Slot::Job(job) => Next::Job(job),
            Slot::Refused { is_data } => Next::Missing { numbers: number..number + 1, is_data },
        })
    }

    /// Whether requests wait for a number that has not arrived.
    pub fn has_gap(&self) -> bool {
        self.waiting.first_key_value().is_some_and(|(number, _)| *number != self.next)
    }

    /// The requests that wait.
    pub fn waiting(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().filter_map(|slot| match slot {
            Slot::Job(job) => Some(job),
            Slot::Refused { .. } => None,
        })
    }

    /// Whether the next request has arrived.
    pub fn is_ready(&self) -> bool {
        self.waiting.contains_key(&self.next)
    }

    /// Stops waiting for the numbers before the first request that has arrived.
    pub fn give_up(&mut self) -> Option<Next<T>> {
        let (&number, _) = self.waiting.first_key_value()?;
        let numbers = self.next..number;
        self.next = number;
        (!numbers.is_empty()).then_some(Next::Missing { numbers, is_data: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn missing<T>(numbers: Range<u64>, is_data: bool) -> Next<T> {
        Next::Missing { numbers, is_data }
    }

    #[test]
    fn a_refused_request_uses_up_its_number() {
        let mut queue = OrderedQueue::new(1);
        assert_eq!(queue.submit(2, (10, 0), |_| Some('b')), Submitted::New);
        assert_eq!((queue.pop(), queue.has_gap(), queue.is_ready()), (None, true, false));
        queue.refuse(1, false);
        assert_eq!((queue.has_gap(), queue.is_ready()), (false, true));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(missing(1..2, false)), Some(Next::Job('b')), None));
        // A request that was accepted is not refused later, and old numbers change nothing.
        assert_eq!(queue.submit(3, (11, 0), |_| Some('c')), Submitted::New);
        assert!((0..4).all(|number| queue.refuse(number, true)));
        assert_eq!((queue.pop(), queue.pop()), (Some(Next::Job('c')), None));
        // The number of a refused request is not free.
        queue.refuse(4, true);
        assert_eq!(queue.submit(4, (12, 0), |_| Some('d')), Submitted::Conflict);
        // A number that is too far ahead is not used up.
        assert_eq!((queue.refuse(4 + MOST_AHEAD, true), queue.refuse(5 + MOST_AHEAD, true)), (true, false));
    }

    #[test]
    fn a_request_is_recognised_by_number_and_fingerprint() {
        let mut queue = OrderedQueue::new(0);
        assert_eq!(queue.submit(0, (7, 1), |_| Some('a')), Submitted::New);
        assert_eq!(
            (queue.submit(0, (8, 1), |_| Some('a')), queue.submit(0, (8, 2), |_| Some('b'))),
            (Submitted::Repeated(7), Submitted::Conflict)
        );
        assert_eq!(queue.pop(), Some(Next::Job('a')));
        assert_eq!((queue.submit(0, (9, 1), |_| Some('a')), queue.pop()), (Submitted::Repeated(7), None));
        assert_eq!(queue.submit(2 + MOST_AHEAD, (10, 1), |_| Some('c')), Submitted::Full);
        assert_eq!(queue.submit(1 + MOST_AHEAD, (10, 1), |_| Some('c')), Submitted::New);
        let mut queue = OrderedQueue::new(1);
        for number in 1..=MOST_SEEN as u64 {
            assert_eq!(queue.submit(number, (number, 0), |_| Some('d')), Submitted::New);
            assert_eq!(queue.pop(), Some(Next::Job('d')));
        }
        assert_eq!(queue.submit(0, (11, 1), |_| Some('a')), Submitted::Old, "forgotten, and not computed again");
    }

    #[test]
    fn a_gap_ends_on_request() {
        let mut queue = OrderedQueue::new(0);
        assert_eq!(queue.give_up(), None);
        assert_eq!(queue.submit(3, (1, 0), |_| Some('d')), Submitted::New);
        assert_eq!((queue.give_up(), queue.has_gap()), (Some(missing(0..3, true)), false));
        assert_eq!((queue.give_up(), queue.pop()), (None, Some(Next::Job('d'))));
        assert_eq!(queue.submit(1, (2, 0), |_| Some('b')), Submitted::Old);
    }

    proptest! {
        /// A model and a sampler recognise the same requests, as long as the numbers are in the model's range.
        #[test]
        fn models_and_samplers_recognise_the_same_requests(
            arrivals in prop::collection::vec((0u64..9, 0u128..2), 0..60),
        ) {
            let (mut queue, mut sampler) = (OrderedQueue::new(0), Seen::new(64));
            for (id, (number, fingerprint)) in arrivals.into_iter().enumerate() {
                let answer = sampler.submit(number, id as u64, fingerprint);
                prop_assert_eq!(queue.submit(number, (id as u64, fingerprint), |_| Some(())), answer);
                if id.is_multiple_of(3) {
                    queue.pop();
                }
            }
        }

        /// Whatever the order of arrival, and however often each request arrives, each is computed once, in order.
        #[test]
        fn requests_are_computed_once_and_in_order(
            arrivals in prop::collection::vec((0u64..20, any::<bool>()), 0..200),
            refused in prop::collection::btree_set(0u64..20, 0..6),
        ) {
            let mut queue = OrderedQueue::new(0);
            let mut computed = Vec::new();
            let mut ids = BTreeMap::new();
            let all = arrivals.into_iter().chain((0..20).map(|number| (number, true)));
            for (id, (number, pops)) in all.enumerate() {
                let id = id as u64;
                if refused.contains(&number) {
                    queue.refuse(number, number.is_multiple_of(2));
                } else {
                    let expected = ids.get(&number).map_or(Submitted::New, |id| Submitted::Repeated(*id));
                    prop_assert_eq!(queue.submit(number, (id, u128::from(number)), |_| Some(number)), expected);
                    ids.entry(number).or_insert(id);
                }
                while let Some(next) = pops.then(|| queue.pop()).flatten() {
                    computed.push(next);
                }
            }
            let of = |number: u64| match refused.get(&number) {
                Some(_) => missing(number..number + 1, number.is_multiple_of(2)),
                None => Next::Job(number),
            };
            prop_assert_eq!(computed, (0..20).map(of).collect::<Vec<_>>());
            prop_assert!(!queue.has_gap() && !queue.is_ready());
        }
    }
}
