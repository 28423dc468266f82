//! Tests of the events between scans.

use super::*;
use crate::testing::{job, name};

const CONTENT: Option<(Lineage, Answer)> = Some((Lineage([1; 16]), Answer { fingerprint: 5, more: false }));

fn alive(incarnation: u64, progress: u64) -> Seen {
    Seen { incarnation, alive: true, progress, ..Seen::default() }
}

/// A scan of dev1, given the numbers of the pending jobs, of dev1's jobs, and of dev1's results.
fn scan(seen: Seen, pending: &[u64], processing: &[u64], results: &[u64]) -> Scan {
    let of = |number: &u64| (name("dev1"), job(*number));
    Scan {
        pending: pending.iter().map(|number| job(*number)).collect(),
        processing: processing.iter().map(of).collect(),
        results: results.iter().map(|number| (of(number), CONTENT)).collect(),
        workers: BTreeMap::from([(name("dev1"), seen)]),
    }
}

fn describe(events: Vec<Event>) -> String {
    let one = |event: &Event| match event {
        Event::Joined(worker) => format!("{worker} joined"),
        Event::Progress(worker) => format!("{worker} continues"),
        Event::Ended { worker, how } => format!("{worker} ended: {how:?}"),
        Event::Claimed(worker, job) => format!("{worker} claimed {job}"),
        Event::Returned { worker, job, faulty } => format!("{worker} returned {job} {faulty}"),
        Event::Lost(job) => format!("lost {job}"),
        Event::Result { worker, job, lineage, answer } => {
            assert_eq!(Some((*lineage, *answer)), CONTENT);
            format!("{worker} did {job}")
        }
        other => panic!("{other:?}"),
    };
    events.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[test]
fn each_change_is_reported_as_an_event_once() {
    let mut observer = Observer::default();
    let look = |observer: &mut Observer, scan: Scan| describe(observer.compare(scan));
    observer.offered(job(0));
    assert_eq!(look(&mut observer, scan(Seen::default(), &[0], &[], &[])), "", "dev1 has not joined yet");
    assert_eq!(look(&mut observer, scan(alive(1, 0), &[0], &[], &[])), "dev1 joined");
    assert_eq!(look(&mut observer, scan(alive(1, 0), &[0], &[], &[])), "");
    assert_eq!(look(&mut observer, scan(alive(1, 1), &[], &[0], &[])), "dev1 continues; dev1 claimed 000000.0");
    assert_eq!(look(&mut observer, scan(alive(1, 1), &[], &[0], &[])), "");
    assert_eq!(look(&mut observer, scan(alive(1, 1), &[], &[], &[0])), "dev1 did 000000.0");
    assert!(observer.knows(&name("dev1"), job(0)) && !observer.knows(&name("dev2"), job(0)));
    assert_eq!(look(&mut observer, scan(alive(1, 1), &[], &[], &[0])), "", "the result was reported before");
    observer.discarded(&name("dev1"), job(0));
    assert_eq!(look(&mut observer, scan(alive(1, 1), &[], &[], &[0])), "dev1 did 000000.0");
    observer.offered(job(0));
    assert_eq!(
        look(&mut observer, scan(alive(1, 1), &[], &[], &[0])),
        "dev1 did 000000.0",
        "the job was offered again, so this is a new result"
    );
    let mut known = scan(alive(1, 1), &[], &[], &[]);
    known.results.insert((name("dev1"), job(4)), None);
    assert_eq!(look(&mut observer, known), "", "a result without content was reported before");
    assert!(!observer.knows(&name("dev1"), job(0)) && observer.knows(&name("dev1"), job(4)));
    // One job is returned; the other one has a result from another worker.
    look(&mut observer, scan(alive(1, 1), &[], &[1, 2], &[]));
    let mut others = scan(alive(1, 1), &[1], &[], &[]);
    others.results.insert((name("dev2"), job(2)), CONTENT);
    assert_eq!(
        look(&mut observer, others),
        "dev2 did 000002.0; dev1 returned 000001.0 false; dev1 returned 000002.0 false"
    );
}

#[test]
fn a_job_is_lost_if_two_scans_miss_it() {
    let mut observer = Observer::default();
    let look = |observer: &mut Observer, pending: &[u64], processing: &[u64], results: &[u64]| {
        describe(observer.compare(scan(Seen::default(), pending, processing, results)))
    };
    observer.offered(job(0));
    assert_eq!(look(&mut observer, &[], &[], &[]), "");
    assert_eq!(look(&mut observer, &[0], &[], &[]), "", "a rename hid the job");
    assert_eq!(look(&mut observer, &[], &[], &[]), "");
    assert_eq!(look(&mut observer, &[], &[], &[]), "lost 000000.0");
    assert_eq!([look(&mut observer, &[], &[], &[]), look(&mut observer, &[], &[], &[])], ["", "lost 000000.0"]);
    observer.offered(job(0));
    assert_eq!(look(&mut observer, &[], &[], &[]), "", "the job was offered again");
    assert_eq!(look(&mut observer, &[], &[0], &[]), "dev1 claimed 000000.0");
    assert_eq!(look(&mut observer, &[], &[], &[0]), "dev1 did 000000.0");
    assert_eq!(
        [look(&mut observer, &[], &[], &[]), look(&mut observer, &[], &[], &[])],
        ["", ""],
        "job 0 has a result"
    );
    observer.offered(job(1));
    observer.withdrawn(job(1));
    assert_eq!(
        [look(&mut observer, &[], &[], &[]), look(&mut observer, &[], &[], &[])],
        ["", ""],
        "job 1 was withdrawn"
    );
}

#[test]
fn the_end_of_a_worker_is_reported_before_its_successor_joins() {
    let before = Seen { failures: 1, ..alive(1, 0) };
    let gone = Seen { alive: false, ..before };
    let next = |failures| Seen { failures, ..alive(2, 0) };
    let cases = [
        (gone, "dev1 ended: Vanished"),
        (Seen { ended: true, ..gone }, "dev1 ended: Asked"),
        (Seen { failures: 2, ..gone }, "dev1 ended: Failed"),
        (next(1), "dev1 ended: Vanished; dev1 joined; dev1 claimed 000000.0"),
        (next(2), "dev1 ended: Failed; dev1 joined; dev1 claimed 000000.0"),
        // The next process has ended already, but that does not show how the previous one ended.
        (Seen { alive: false, ended: true, ..next(1) }, "dev1 ended: Vanished"),
        (Seen { ended: true, ..before }, ""),
    ];
    for (now, expected) in cases {
        let mut observer = Observer::default();
        observer.compare(scan(before, &[], &[0], &[]));
        let processing: &[u64] = if now.incarnation == 2 && now.alive { &[0] } else { &[] };
        // The jobs of the old process are not returned, because the next process still has them.
        let events: Vec<Event> = observer.compare(scan(now, &[], processing, &[]));
        let is_not_returned = |event: &Event| !matches!(event, Event::Returned { .. });
        assert_eq!(describe(events.into_iter().filter(is_not_returned).collect()), expected, "{now:?}");
    }
    let mut observer = Observer::default();
    observer.compare(scan(before, &[], &[0], &[]));
    assert_eq!(
        describe(observer.compare(scan(gone, &[], &[], &[]))),
        "dev1 ended: Vanished",
        "the job of a dead worker is not returned"
    );
    assert_eq!(describe(observer.compare(Scan::default())), "", "once");
    let mut observer = Observer::default();
    observer.compare(scan(before, &[], &[], &[]));
    assert_eq!(
        describe(observer.compare(Scan::default())),
        "dev1 ended: Vanished",
        "the worker is missing from the scan"
    );
}

#[test]
fn a_released_job_that_a_worker_has_again_is_a_new_claim() {
    let take: [&dyn Fn(&mut Observer); 2] =
        [&|observer| observer.released(&name("dev1"), job(0)), &|observer| observer.withdrawn(job(0))];
    for take in take {
        let mut observer = Observer::default();
        let look = |observer: &mut Observer| describe(observer.compare(scan(alive(1, 0), &[], &[0, 1], &[])));
        look(&mut observer);
        take(&mut observer);
        assert_eq!([look(&mut observer), look(&mut observer)], ["dev1 claimed 000000.0", ""]);
    }
}
