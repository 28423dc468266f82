//! Tests of the learner's inbox and of names, without a server. The tests construct the received messages.

use super::inbox::{Inbox, Known, Offered, part};
use super::link::Link;
use super::*;
use crate::exchange::Seen;
use crate::job::{Answer, JobResult, Lineage};
use crate::testing::{job, name};
use async_nats::HeaderMap;
use async_nats::jetstream::Message;
use std::collections::BTreeSet;
use std::time::Instant;

fn beat(id: u64, progress: u64, jobs: &[u64]) -> Beat {
    let jobs = jobs.iter().map(|number| (job(*number), "sampling".to_owned())).collect();
    Beat { id, host: "box".to_owned(), status: WorkerStatus { pid: 7, progress, jobs, ..WorkerStatus::default() } }
}

fn result(number: u64) -> JobResult {
    let bytes = vec![number as u8; 9];
    JobResult { job: job(number), lineage: Lineage([1; 16]), worker: name("dev1"), answer: Answer::of(&bytes), bytes }
}

/// Constructs messages. Its client never connects.
struct Post(Link);

impl Post {
    fn new() -> Post {
        Post(Link::nowhere())
    }

    fn message(&self, subject: &str, headers: &[(&str, &str)], payload: Vec<u8>) -> Message {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.insert(*name, *value);
        }
        let message = async_nats::Message {
            subject: subject.into(),
            reply: None,
            length: payload.len(),
            payload: payload.into(),
            headers: Some(all),
            status: None,
            description: None,
        };
        Message { message, context: self.0.jetstream.clone() }
    }
}

fn subjects(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.subject.as_str()).collect()
}

#[test]
fn the_names_of_streams_and_subjects_are_fixed() {
    let names = Names::of(&Address::parse("nats://a/x").unwrap());
    assert_eq!((names.jobs.as_str(), names.results.as_str()), ("LOCKSTEP_x_JOBS", "LOCKSTEP_x_RESULTS"));
    let all = [names.state(), names.all_jobs(), names.job(job(3)), names.all_results()];
    assert_eq!(all, ["lockstep.x.state", "lockstep.x.jobs.>", "lockstep.x.jobs.000003.0", "lockstep.x.results.>"]);
    let worker_subjects = [names.result(&name("dev1"), job(3)), names.worker("*"), names.control(&name("dev1"))];
    assert_eq!(
        worker_subjects,
        ["lockstep.x.results.dev1.000003.0", "lockstep.x.workers.*", "lockstep.x.control.dev1"]
    );
    assert_eq!(names.job_of("lockstep.x.jobs.000003.0"), Some(job(3)));
    assert_eq!(
        ["lockstep.y.jobs.000003.0", "lockstep.x.jobs.x", "lockstep.x.state"].map(|text| names.job_of(text)),
        [None; 3]
    );
    assert!(number_of_process() % 2 == 1 && !host().is_empty());
}

#[test]
fn a_second_process_of_a_name_is_refused_while_the_first_is_alive() {
    let mut inbox = Inbox::default();
    let dev1 = name("dev1");
    assert!(inbox.hear(&dev1, beat(1, 0, &[])).is_none());
    let Some(Control::Refused(2, why)) = inbox.hear(&dev1, beat(2, 0, &[])) else {
        panic!("a second process must be refused")
    };
    assert_eq!(why, "a worker named dev1 is already running: process 7 on box. Choose another --name");
    assert_eq!(inbox.ids(), BTreeMap::from([(dev1.clone(), 1)]));
    let heard = |inbox: &mut Inbox, ago: u64| {
        inbox.workers.get_mut(&name("dev1")).unwrap().heard =
            Instant::now().checked_sub(Duration::from_secs(ago)).unwrap();
    };
    heard(&mut inbox, 4);
    assert!(inbox.hear(&dev1, beat(2, 0, &[])).is_some());
    heard(&mut inbox, 6);
    assert!(inbox.hear(&dev1, beat(2, 0, &[])).is_none(), "the first process has been silent");
    let mut ends = beat(2, 1, &[]);
    ends.status.ended = true;
    inbox.hear(&dev1, ends);
    assert!(inbox.all_have_ended() && inbox.hear(&dev1, beat(3, 0, &[])).is_none(), "the second process has ended");
    assert!(!inbox.all_have_ended());
    heard(&mut inbox, 11);
    assert!(inbox.all_have_ended(), "a silent worker counts as ended");
}

#[test]
fn a_withdrawal_is_sent_to_the_worker_of_the_job() {
    let mut inbox = Inbox::default();
    inbox.offer(job(0));
    inbox.offered(job(0), Some(40));
    inbox.offered(job(9), Some(41));
    assert_eq!((inbox.withdraw(job(0)), inbox.withdraw(job(0)), inbox.withdraw(job(9))), (Some(40), None, None));
    let Some(Control::Withdrawn(jobs)) = inbox.hear(&name("dev1"), beat(1, 0, &[0, 1])) else {
        panic!("the worker must be told about the withdrawal")
    };
    assert_eq!(jobs, [job(0)]);
    inbox.offer(job(0));
    assert!(inbox.hear(&name("dev1"), beat(1, 0, &[0, 1])).is_none(), "job 0 was offered again");
    for number in 0..=1 << 16 {
        let _ = inbox.withdraw(job(100 + number));
    }
    assert!(inbox.hear(&name("dev1"), beat(1, 0, &[100])).is_none(), "the withdrawal was long ago");
    assert!(inbox.hear(&name("dev1"), beat(1, 0, &[101])).is_some());
}

#[test]
fn jobs_missing_from_the_servers_list_are_lost() {
    let mut inbox = Inbox::default();
    (0..4).for_each(|number| inbox.offer(job(number)));
    (0..3).for_each(|number| inbox.offered(job(number), (number < 2).then_some(number)));
    let later = Instant::now() + Duration::from_secs(1);
    inbox.listed(&BTreeSet::from([job(1)]), later);
    let left: Vec<JobName> = inbox.offers.keys().copied().collect();
    assert_eq!(left, [job(1), job(3)], "job 3 was sent, and not confirmed yet");
    assert!(matches!(inbox.offers[&job(3)], Offered::Sent));
    assert_eq!((inbox.withdraw(job(0)), inbox.withdraw(job(1))), (None, Some(1)));
    // A list that was requested before a job was confirmed does not prove that the job is lost, unless the offer was
    // never confirmed.
    inbox.offer(job(5));
    inbox.offer(job(6));
    let asked = Instant::now();
    inbox.offered(job(5), Some(9));
    inbox.offered(job(6), None);
    inbox.listed(&BTreeSet::new(), asked);
    assert_eq!(inbox.offers.keys().copied().collect::<Vec<_>>(), [job(3), job(5)]);
}

#[test]
fn a_scan_contains_the_workers_and_their_jobs() {
    let mut inbox = Inbox::default();
    inbox.offer(job(0));
    inbox.hear(&name("dev1"), beat(3, 5, &[1, 2]));
    inbox.withdraw(job(2));
    let seen = |alive, progress| Seen { incarnation: 3, alive, ended: true, failures: 0, progress };
    let look = |inbox: &mut Inbox, is_connected| inbox.scan(is_connected, |_, _| false);
    let scan = look(&mut inbox, true);
    assert_eq!(scan.pending, BTreeSet::from([job(0)]));
    assert_eq!(scan.processing, BTreeSet::from([(name("dev1"), job(1))]));
    assert_eq!(scan.workers, BTreeMap::from([(name("dev1"), seen(true, 5))]));
    // While the learner is disconnected, silence does not count against a worker.
    let ago = |inbox: &mut Inbox, seconds| {
        let known: &mut Known = inbox.workers.get_mut(&name("dev1")).unwrap();
        known.heard = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
    };
    ago(&mut inbox, 60);
    assert_eq!(look(&mut inbox, false).workers[&name("dev1")], seen(true, 6), "an outage counts as progress");
    assert_eq!(look(&mut inbox, true).workers[&name("dev1")], seen(true, 6));
    ago(&mut inbox, 9);
    assert!(look(&mut inbox, true).workers[&name("dev1")].alive);
    ago(&mut inbox, 11);
    let scan = look(&mut inbox, true);
    assert_eq!((scan.workers[&name("dev1")], scan.processing.len()), (seen(false, 6), 0));
    // A dropped worker comes back when its counter changes, or as a new process.
    inbox.hear(&name("dev1"), beat(3, 5, &[1]));
    inbox.expel(&name("dev1"));
    inbox.expel(&name("nobody"));
    assert!(!look(&mut inbox, true).workers[&name("dev1")].alive);
    inbox.hear(&name("dev1"), beat(3, 5, &[1]));
    assert!(!look(&mut inbox, true).workers[&name("dev1")].alive, "its counter has not changed");
    inbox.hear(&name("dev1"), beat(3, 6, &[1]));
    assert!(look(&mut inbox, true).workers[&name("dev1")].alive);
    let mut ended = beat(3, 7, &[1]);
    ended.status.ended = true;
    inbox.hear(&name("dev1"), ended);
    assert!(!look(&mut inbox, true).workers[&name("dev1")].alive);
}

#[test]
fn results_are_kept_until_they_are_acknowledged() {
    let (post, mut inbox) = (Post::new(), Inbox::default());
    let run = [(RUN, "run")];
    let of = |number: u64, subject: &str| post.message(subject, &run, result(number).to_bytes());
    for headers in [&[][..], &[(RUN, "other")]] {
        let useless = inbox.receive("run", post.message("old", headers, result(0).to_bytes()));
        assert_eq!(subjects(&useless), ["old"], "the message belongs to another run");
    }
    assert!(inbox.receive("run", of(0, "first")).is_empty());
    assert!(inbox.receive("run", of(0, "again")).is_empty());
    assert!(inbox.receive("run", of(1, "other")).is_empty());
    assert_eq!(subjects(&inbox.kept()), ["again", "other"], "the last delivery of each");
    let knows = |_: &WorkerName, known: JobName| known == job(1);
    let scan = inbox.scan(true, knows);
    let content = Some((result(0).lineage, result(0).answer));
    assert_eq!(scan.results, BTreeMap::from([((name("dev1"), job(0)), content), ((name("dev1"), job(1)), None)]));
    assert_eq!((inbox.take(&name("dev1"), job(0)), inbox.take(&name("dev1"), job(0))), (Some(result(0)), None));
    assert_eq!(inbox.take(&name("dev2"), job(0)), None);
    assert_eq!(subjects(&inbox.acknowledge(&BTreeSet::from([job(0), job(7)]))), ["again"]);
    assert_eq!(subjects(&inbox.discard(&name("dev1"), job(1))), ["other"]);
    assert!(inbox.discard(&name("dev1"), job(1)).is_empty() && inbox.kept().is_empty());
    let torn = inbox.receive("run", post.message("torn", &run, b"half".to_vec()));
    assert_eq!(
        (subjects(&torn), &inbox.problems[..]),
        (vec!["torn"], &["torn: truncated: 4 bytes; the job is repeated".to_owned()][..])
    );
}

#[test]
fn a_split_result_is_reassembled_in_order() {
    let (post, mut inbox) = (Post::new(), Inbox::default());
    let bytes = result(4).to_bytes();
    let cut = bytes.chunks(bytes.len().div_ceil(3)).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let of = |index: usize, whole: &str| {
        post.message(&format!("s{index}"), &[(RUN, "run"), (PART, &part(index, 3, whole))], cut[index].clone())
    };
    let same = |index: usize, whole: &str| {
        let message = of(index, whole);
        Message { message: async_nats::Message { subject: "s".into(), ..message.message }, ..message }
    };
    assert_eq!(part(1, 3, "h"), "1/3 h");
    for (index, whole) in [(2, "h"), (0, "h"), (0, "h"), (1, "other")] {
        assert!(inbox.receive("run", same(index, whole)).is_empty());
    }
    assert_eq!((inbox.kept().len(), inbox.scan(true, |_, _| false).results.len()), (3, 0), "one part is missing");
    assert!(inbox.receive("run", same(1, "h")).is_empty());
    assert_eq!(inbox.take(&name("dev1"), job(4)), Some(result(4)));
    assert_eq!(inbox.acknowledge(&BTreeSet::from([job(4)])).len(), 3);
    assert_eq!(inbox.kept().len(), 1);
    for bad in ["", "1", "1/3", "3/3 h", "x/3 h", "1/x h", "0/65537 h"] {
        let useless = inbox.receive("run", post.message(bad, &[(RUN, "run"), (PART, bad)], cut[0].clone()));
        assert_eq!(useless.len(), 1, "{bad}");
    }
    assert!(inbox.receive("run", post.message("most", &[(RUN, "run"), (PART, "0/65536 h")], Vec::new())).is_empty());
}
