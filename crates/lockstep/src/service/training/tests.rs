//! The state that clients and the owner share, without an owner.

use super::*;
use proptest::prelude::*;
use std::sync::mpsc::{Receiver, channel};

const MOST_OF_MODEL: usize = 3000;
const MOST_OF_ALL: usize = 5000;

fn training() -> Training {
    let training = Training::new(PathBuf::new(), PathBuf::new(), "base".to_owned(), 1, 1);
    training.lock().room = Room::new(MOST_OF_MODEL, MOST_OF_ALL);
    training
}

/// A pass over about this many bytes.
fn pass(bytes: usize) -> Job {
    let datum = Datum { ids: vec![0; bytes / size_of::<u32>()], targets: Vec::new(), width: 1, inputs: Vec::new() };
    Job::Pass { datums: vec![datum], loss: None, samplers: Vec::new(), needs_on_policy: false }
}

fn reply() -> (Reply, Receiver<Result<Done, Failure>>) {
    let (send, received) = channel();
    (Box::new(move |result| drop(send.send(result))), received)
}

/// The ids of new models, whose first requests are computed.
fn models(training: &Training, count: u64) -> Vec<String> {
    let session = training.open_session();
    let create = |number| {
        let spec = AdapterSpec { rank: 1, seed: None, train_attn: true, train_mlp: true };
        let (model, submitted) =
            training.create((&session, number), Value::Null, (number, 0), Job::Create(spec), reply().0).unwrap();
        assert_eq!(submitted, Submitted::New);
        assert!(matches!(training.next(|_| true), Some((_, Next::Job(_)))));
        model
    };
    (0..count).map(create).collect()
}

fn submit(training: &Training, model: &str, number: u64, bytes: usize) -> Submitted {
    training.submit((model, number), (number, u128::from(number)), pass(bytes), reply().0).unwrap()
}

#[test]
fn a_full_queue_does_not_use_up_the_number_of_a_request() {
    let training = training();
    let models = models(&training, 3);
    assert_eq!(submit(&training, &models[0], 1, 2000), Submitted::New);
    assert_eq!(submit(&training, &models[0], 2, 2000), Submitted::Full, "of one model");
    assert_eq!(submit(&training, &models[1], 2, 2000), Submitted::New);
    assert_eq!(submit(&training, &models[2], 1, 2000), Submitted::Full, "of all models");
    assert_eq!(submit(&training, &models[0], 1, 2000), Submitted::Repeated(1), "repeated requests need no room");
    // Request 2 of the second model waits for request 1, which is therefore accepted.
    assert_eq!(submit(&training, &models[1], 1, 2000), Submitted::New);
    let status = training.status();
    assert_eq!((status.waiting, status.counts.requests, status.sessions), (3, 3, 1));
    assert!(status.bytes > 6000 && status.longest_wait > Duration::ZERO);
    let mut running = Vec::new();
    for model in [&models[1], &models[1], &models[0]] {
        let next = training.next(|id| id == model);
        assert!(matches!(next, Some((_, Next::Job(_)))));
        running.push(next);
    }
    assert_eq!(submit(&training, &models[2], 1, 2000), Submitted::Full, "requests that are computed count");
    let status = training.status();
    assert_eq!((status.waiting, status.counts.requests, status.longest_wait), (0, 6, Duration::ZERO));
    assert_eq!((status.counts.passes, status.counts.steps), (0, 0), "only those that succeeded count");
    assert!(status.bytes > 6000 && status.counts.waited > Duration::ZERO);
    running.clear();
    assert_eq!(training.status().bytes, 0);
    assert_eq!(submit(&training, &models[2], 1, 2000), Submitted::New);
    assert_eq!(submit(&training, &models[0], 2, 2000), Submitted::New);
    // Requests that wait at the end of their session are dropped, with their bytes.
    training.end();
    assert_eq!(training.lock().room.bytes(), 0);
}

#[test]
fn a_model_beyond_the_largest_number_may_be_created_later() {
    let training = training();
    let ids = models(&training, MOST_MODELS as u64);
    let (session, spec) =
        (training.open_session(), AdapterSpec { rank: 1, seed: None, train_attn: true, train_mlp: true });
    let create = || training.create((&session, 0), Value::Null, (1, 1), Job::Create(spec), reply().0);
    assert_eq!(create().unwrap_err().cause, Cause::Load);
    training.close_session(ids[0].split(':').next().unwrap());
    assert_eq!(training.retire(|_| true).len(), MOST_MODELS);
    assert_eq!(create().unwrap().1, Submitted::New);
}

#[test]
fn a_request_that_is_taken_keeps_the_server_busy() {
    let training = training();
    let model = models(&training, 1).remove(0);
    training.set_busy(false);
    assert!(!training.is_busy());
    assert_eq!(submit(&training, &model, 1, 0), Submitted::New);
    assert!(training.is_busy());
    let taken = training.next(|_| true);
    assert!(taken.is_some() && !training.is_ready() && training.is_busy());
}

#[test]
fn a_model_that_was_not_created_makes_room_for_others() {
    let training = training();
    let ids = models(&training, 2);
    assert_eq!(submit(&training, &ids[0], 1, 0), Submitted::New);
    training.not_created(&ids[0]);
    training.not_created(&ids[1]);
    assert_eq!(training.retire(|_| true), ids[1..], "a request that waits is replied to first");
    assert!(training.next(|_| true).is_some());
    assert_eq!(training.retire(|_| true), ids[..1]);
}

#[test]
fn nothing_is_created_after_the_owner_has_ended() {
    let training = training();
    let session = training.open_session();
    training.end();
    let spec = AdapterSpec { rank: 1, seed: None, train_attn: true, train_mlp: true };
    let created = training.create((&session, 0), Value::Null, (1, 1), Job::Create(spec), reply().0);
    assert_eq!(created.unwrap_err().cause, Cause::Server);
}

#[test]
fn the_bytes_of_a_request_include_its_texts() {
    let text = "a".repeat(1000);
    let inputs = vec![(text.clone(), vec![0.0; 10])];
    let datum = Datum { ids: Vec::new(), targets: Vec::new(), width: 1, inputs };
    let samplers = vec![text.clone()];
    let pass = Job::Pass { datums: vec![datum], loss: None, samplers, needs_on_policy: false };
    assert!(pass.bytes() > 2040);
    assert!(Job::Load { path: text.clone(), optimizer: false }.bytes() > 1000);
    assert!(Job::SaveForSampler { name: text, ttl_seconds: None }.bytes() > 1000);
}

proptest! {
    /// Requests of any size that arrive in any order, and again after they did not fit, are computed in order, and
    /// memory is bounded.
    #[test]
    fn requests_that_did_not_fit_are_computed_later(
        sizes in prop::collection::vec(prop::collection::vec(0usize..MOST_OF_MODEL - 400, 10), 3),
        order in Just((0..30).collect::<Vec<usize>>()).prop_shuffle(),
        pops in prop::collection::vec(any::<bool>(), 1..40),
    ) {
        let training = training();
        let ids = models(&training, 3);
        let mut left: Vec<(usize, u64)> = order.into_iter().map(|i| (i % 3, 1 + (i / 3) as u64)).collect();
        let (mut computed, mut pops) = (vec![Vec::new(); 3], pops.into_iter().cycle());
        while !left.is_empty() || computed.iter().any(|of: &Vec<usize>| of.len() < 10) {
            let before = (left.len(), computed.concat().len());
            left.retain(|&(model, number)| {
                let size = sizes[model][number as usize - 1];
                let is_full = submit(&training, &ids[model], number, size) == Submitted::Full;
                if pops.next() == Some(true)
                    && let Some((id, Next::Job(pending))) = training.next(|_| true)
                {
                    let model = ids.iter().position(|other| *other == id).unwrap();
                    computed[model].push(pending.job.bytes());
                }
                is_full
            });
            // One request of each model, for which others wait, may be accepted beyond the limit.
            prop_assert!(training.lock().room.bytes() <= MOST_OF_ALL + 3 * MOST_OF_MODEL);
            if before == (left.len(), computed.concat().len()) {
                let next = training.next(|_| true);
                let Some((id, Next::Job(pending))) = next else { panic!("no request is accepted or computed") };
                let model = ids.iter().position(|other| *other == id).unwrap();
                computed[model].push(pending.job.bytes());
            }
        }
        let expected: Vec<Vec<usize>> =
            sizes.iter().map(|of| of.iter().map(|&size| pass(size).bytes()).collect()).collect();
        prop_assert_eq!(computed, expected);
    }
}
