//! Models that clients train.

mod lifetimes;

use super::*;
use crate::service::training::{
    AdamParams, AdapterSpec, Cause, ClipRange, Datum, Done, Failure, Job, Passed, StatePath, Submitted, TokenLoss,
};
use std::sync::mpsc::{Receiver, channel};

/// A client with one model.
struct Client<'a> {
    service: &'a Service,
    session: String,
    model: String,
    /// The number of the next request.
    next: u64,
    samplers: u64,
}

type Result = std::result::Result<Done, Failure>;
/// The ids and log-probabilities of a sequence.
type Drawn = (Vec<u32>, Vec<f32>);

const SPEC: AdapterSpec = AdapterSpec { rank: 4, seed: None, train_attn: true, train_mlp: true };

impl<'a> Client<'a> {
    fn new(service: &'a Service, spec: AdapterSpec) -> Client<'a> {
        Client::begin(service, Job::Create(spec)).unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    fn begin(service: &'a Service, job: Job) -> std::result::Result<Client<'a>, Failure> {
        let session = service.training().open_session();
        let (send, received) = channel();
        let reply = Box::new(move |result| send.send(result).unwrap());
        let (model, submitted) = service.create((&session, 0), serde_json::Value::Null, (1, 1), job, reply).unwrap();
        assert_eq!((&model, submitted), (&format!("{session}:train:0"), Submitted::New));
        testing::receive("a result", &received).map(|done| {
            assert!(matches!(done, Done::Created | Done::Loaded(_)), "{done:?}");
            Client { service, session, model, next: 1, samplers: 0 }
        })
    }

    /// Submits a request under a number.
    fn submit(&self, number: u64, job: Job) -> Receiver<Result> {
        let (send, received) = channel();
        let reply = Box::new(move |result| drop(send.send(result)));
        let identity = (number, u128::from(number));
        assert_eq!(self.service.submit((&self.model, number), identity, job, reply), Ok(Submitted::New));
        received
    }

    fn send(&mut self, job: Job) -> Receiver<Result> {
        self.next += 1;
        self.submit(self.next - 1, job)
    }

    fn call(&mut self, job: Job) -> Result {
        testing::receive("a result", &self.send(job))
    }

    fn pass(&mut self, job: Job) -> Passed {
        match self.call(job) {
            Ok(Done::Passed(passed)) => passed,
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self) {
        let done = self.call(Job::Step(ADAM));
        assert!(matches!(done, Ok(Done::Stepped { grad_norm, .. }) if grad_norm > 0.0), "{done:?}");
    }

    fn sampler(&mut self) -> String {
        self.samplers += 1;
        match self.call(Job::Sampler { number: self.samplers - 1 }) {
            Ok(Done::Sampler(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    fn saved(&mut self, job: Job) -> StatePath {
        match self.call(job) {
            Ok(Done::Saved(path)) => path,
            other => panic!("{other:?}"),
        }
    }

    /// The bytes of the adapter's file.
    fn adapter(&mut self, name: &str) -> Vec<u8> {
        let path = self.saved(Job::SaveForSampler { name: name.to_owned(), ttl_seconds: None });
        std::fs::read(self.service.training().store.dir(&path).join("adapter_model.safetensors")).unwrap()
    }
}

const ADAM: AdamParams =
    AdamParams { learning_rate: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-12, weight_decay: 0.0, grad_clip_norm: 0.0 };

fn datum(ids: &[u32], inputs: &[(&str, &[f32])]) -> Datum {
    let targets = ids[1..].to_vec();
    let inputs = inputs.iter().map(|(name, values)| ((*name).to_owned(), values.to_vec())).collect();
    Datum { ids: ids[..ids.len() - 1].to_vec(), targets, width: 1, inputs }
}

fn supervised(ids: &[u32]) -> Job {
    let datums = vec![datum(ids, &[("weights", &vec![0.5; ids.len() - 1])])];
    Job::Pass { datums, loss: Some(TokenLoss::CrossEntropy), samplers: Vec::new(), needs_on_policy: false }
}

/// Draws two sequences of a prompt from a sampler.
fn draw(service: &Service, sampler: &str, number: u64, prompt: &[u32]) -> Vec<Drawn> {
    let of = service.training().sampler(sampler).unwrap();
    let generate = Generate { prompts: vec![prompt.to_vec()], n: 2, max_tokens: Some(12), ..Generate::default() };
    let (send, received) = channel();
    let _ticket = service.sample(&of, number, generate, move |event| send.send(event).is_ok()).unwrap();
    let mut out = vec![(Vec::new(), Vec::new()); 2];
    loop {
        match testing::receive("an event", &received) {
            Event::Token(token) => {
                out[token.sample].0.push(token.token.id);
                out[token.sample].1.push(token.token.logp);
            }
            Event::Ended { .. } => return out,
            Event::Failed(message) => panic!("{message}"),
            Event::Cancelled => panic!("cancelled"),
        }
    }
}

/// A pass over drawn sequences, with alternating advantages.
fn policy(prompt: &[u32], drawn: &[Drawn], samplers: &[&str], loss: Option<TokenLoss>) -> Job {
    let datums = drawn.iter().enumerate().map(|(i, (ids, logps))| {
        let before = vec![0.0; prompt.len() - 1];
        let advantages = [&before[..], &vec![if i % 2 == 0 { 1.0 } else { -0.5 }; ids.len()]].concat();
        let ids = [prompt, ids].concat();
        datum(&ids, &[("logprobs", &[&before[..], logps].concat()), ("advantages", &advantages)])
    });
    let samplers = samplers.iter().map(|id| (*id).to_owned()).collect();
    Job::Pass { datums: datums.collect(), loss, samplers, needs_on_policy: loss.is_some() }
}

/// Trains for three steps on a client's own samples. Returns the adapter's file and everything that was drawn.
fn learn(client: &mut Client<'_>, name: &str) -> (Vec<u8>, Vec<Drawn>) {
    let mut all = Vec::new();
    let prompt = [3, 5, 8, 2];
    for step in 0..3 {
        let sampler = client.sampler();
        let drawn = draw(client.service, &sampler, step, &prompt);
        client.pass(policy(&prompt, &drawn, &[&sampler], Some(TokenLoss::ImportanceSampling)));
        client.step();
        all.extend(drawn);
    }
    (client.adapter(name), all)
}

#[test]
fn sampler_and_training_have_the_same_log_probabilities() {
    let home = Home::new();
    let service = home.start(&home.options());
    let mut client = Client::new(&service, SPEC);
    client.pass(supervised(&[1, 2, 3, 4, 5, 6]));
    client.step();
    let (sampler, prompt) = (client.sampler(), [3, 5, 8, 2]);
    let drawn = draw(&service, &sampler, 0, &prompt);
    let forward = client.pass(policy(&prompt, &drawn, &[], None));
    for ((_, sampled), logps) in drawn.iter().zip(&forward.logps) {
        assert_eq!(logps[prompt.len() - 1..], sampled[..]);
    }
    // With the weights that sampled, every ratio is 1, and the loss is the negative sum of advantages.
    let passed = client.pass(policy(&prompt, &drawn, &[&sampler], Some(TokenLoss::ImportanceSampling)));
    let tokens = [drawn[0].0.len(), drawn[1].0.len()];
    assert_eq!((passed.loss, passed.logps), (tokens[1] as f64 / 2.0 - tokens[0] as f64, forward.logps));
    assert_eq!((passed.compared.tokens, passed.compared.mismatches), ((tokens[0] + tokens[1]) as u64, 0));
    let Ok(Done::Stepped { compared, .. }) = client.call(Job::Step(ADAM)) else { panic!("a step") };
    assert_eq!(compared, passed.compared);
    // After the step they are tokens of other weights.
    let late = client.call(policy(&prompt, &drawn, &[&sampler], Some(TokenLoss::ImportanceSampling))).unwrap_err();
    assert!(late.cause == Cause::Request && late.message.contains("importance_sampling, ppo or cispo"), "{late:?}");
    let range = ClipRange::default();
    let Job::Pass { datums, .. } = policy(&prompt, &drawn, &[], None) else { unreachable!() };
    assert!(matches!(client.call(Job::Step(ADAM)), Err(failure) if failure.message.contains("no step was taken")));
    let samplers = vec![sampler];
    let job = Job::Pass { datums, loss: Some(TokenLoss::Ppo(range)), samplers, needs_on_policy: false };
    assert_eq!(client.pass(job).compared.tokens, 0, "nothing to compare with other weights");
    client.step();
}

#[test]
fn other_clients_and_the_order_of_arrival_change_no_bit() {
    let home = Home::new();
    let alone = learn(&mut Client::new(&home.start(&home.options()), SPEC), "final");
    let service = home.start(&home.options());
    std::thread::scope(|scope| {
        for rank in [1, 3, 8] {
            let service = &service;
            scope.spawn(move || learn(&mut Client::new(service, AdapterSpec { rank, ..SPEC }), "other"));
        }
        let beside = learn(&mut Client::new(&service, SPEC), "final");
        assert!(alone == beside);
    });
    // Another seed of the server draws other tokens.
    let other = learn(&mut Client::new(&home.start(&ServiceOptions { seed: 6, ..home.options() }), SPEC), "final");
    assert_ne!(other.1, alone.1);

    let jobs = |from: u32| [supervised(&[from, 2, 3, 4]), Job::Step(ADAM)];
    let mut one = Client::new(&service, SPEC);
    let in_order = jobs(1).into_iter().chain(jobs(7)).map(|job| one.send(job)).collect::<Vec<_>>();
    for received in &in_order {
        testing::receive("a result", received).unwrap();
    }
    let mut other = Client::new(&service, SPEC);
    let numbered: Vec<(u64, Job)> = (1..).zip(jobs(1).into_iter().chain(jobs(7))).collect();
    let reversed: Vec<_> = numbered.into_iter().rev().map(|(number, job)| other.submit(number, job)).collect();
    for received in &reversed {
        testing::receive("a result", received).unwrap();
    }
    other.next = 5;
    assert!(one.adapter("a") == other.adapter("b"));
}

#[test]
fn a_saved_state_continues_with_the_same_bits_after_a_restart() {
    let home = Home::new();
    let (whole, path) = {
        let service = home.start(&home.options());
        let mut client = Client::new(&service, SPEC);
        learn(&mut client, "half");
        let path = client.saved(Job::Save { name: "half".to_owned(), overwrite: false, ttl_seconds: None });
        let twice =
            client.call(Job::Save { name: "half".to_owned(), overwrite: false, ttl_seconds: None }).unwrap_err();
        assert!(twice.message.contains("exists: choose another name, or set overwrite"), "{twice:?}");
        client.saved(Job::Save { name: "half".to_owned(), overwrite: true, ttl_seconds: None });
        (learn(&mut client, "whole"), path)
    };
    let service = home.start(&home.options());
    let load = |path: &str, optimizer| Client::begin(&service, Job::Load { path: path.to_owned(), optimizer });
    let mut client = load(&path.to_string(), true).unwrap_or_else(|failure| panic!("{failure:?}"));
    assert_eq!(service.training().info(&client.model).unwrap().spec, SPEC);
    assert!(learn(&mut client, "whole") == whole);
    // Without moments the first steps differ.
    let mut fresh = load(&path.to_string(), false).unwrap_or_else(|failure| panic!("{failure:?}"));
    assert!(learn(&mut fresh, "whole").0 != whole.0);
    let of = StatePath { kind: crate::service::training::Kind::Sampler, ..path.clone() };
    for (path, why) in [
        (of.to_string(), "was saved for sampling, without the optimizer's moments"),
        (format!("{path}x"), "nothing is saved as"),
        ("half".to_owned(), "is not of the form"),
    ] {
        let failure = load(&path, true).err().unwrap();
        assert!(failure.message.contains(why), "{failure:?}");
    }
    // Two samplers of a saved adapter draw the same sequences.
    let session = service.training().open_session();
    let saved = service.sampler(&session, 0, Some(&of)).unwrap();
    assert_eq!(service.sampler(&session, 0, Some(&of)), Ok(saved.clone()), "once for each number");
    let again = service.sampler(&session, 1, Some(&of)).unwrap();
    assert_eq!(draw(&service, &saved, 5, &[1, 2]), draw(&service, &again, 5, &[1, 2]));
    // Everything that was saved is listed until it is deleted.
    let store = &service.training().store;
    assert_eq!(store.list(&path.model).iter().filter(|listed| listed.path == path).count(), 1);
    store.delete(&path).unwrap();
    assert!(store.saved(&path).unwrap_err().message.contains("the latest of this model is"));
}

#[test]
fn a_pass_that_fails_takes_its_step_with_it() {
    let home = Home::new();
    let service = home.start(&home.options());
    let (mut client, mut other) = (Client::new(&service, SPEC), Client::new(&service, SPEC));
    client.pass(supervised(&[1, 2, 3]));
    let outside = client.call(supervised(&[1, 2, 40])).unwrap_err();
    assert_eq!(outside, Failure::request("sample 0: token id 40 is outside the vocabulary of 40 tokens"));
    let step = client.call(Job::Step(ADAM)).unwrap_err();
    assert!(step.message.contains("token id 40") && step.message.contains("discarded"), "{step:?}");
    // A pass after the one that failed is discarded, too.
    client.pass(supervised(&[1, 2, 3]));
    client.call(supervised(&[1, 2, 40])).unwrap_err();
    client.pass(supervised(&[4, 5, 6]));
    client.call(Job::Step(ADAM)).unwrap_err();
    // The gradient before the failed pass is gone, too.
    for client in [&mut client, &mut other] {
        client.pass(supervised(&[5, 6, 7]));
        client.step();
    }
    assert!(client.adapter("a") == other.adapter("a"));
    let empty = client.call(Job::Step(ADAM)).unwrap_err();
    assert!(empty.message.contains("there is no forward_backward since the last step"), "{empty:?}");
    // A refused number, too, may have been a part of the step.
    client.pass(supervised(&[5, 6, 7]));
    for is_data in [false, true] {
        service.refuse((&client.model, client.next), is_data);
        client.next += 1;
        if !is_data {
            client.step();
            client.pass(supervised(&[5, 6, 7]));
        }
    }
    let step = client.call(Job::Step(ADAM)).unwrap_err();
    assert!(step.message.contains("was refused or never arrived"), "{step:?}");
}

#[test]
fn wrong_requests_are_refused_with_the_value() {
    let home = Home::new();
    let service = home.start(&home.options());
    let create = |spec| Client::begin(&service, Job::Create(spec)).err().unwrap().message;
    assert!(create(AdapterSpec { rank: 0, ..SPEC }).contains("rank 0: expected 1 to 512 (full fine-tuning is not"));
    assert!(create(AdapterSpec { train_attn: false, train_mlp: false, ..SPEC }).contains("both false"));
    let mut client = Client::new(&service, AdapterSpec { train_mlp: false, ..SPEC });
    client.pass(supervised(&[1, 2, 3]));
    let step = |client: &mut Client<'_>, params| client.call(Job::Step(params)).unwrap_err().message;
    assert_eq!(step(&mut client, AdamParams { beta1: 1.0, ..ADAM }), "beta1 is 1: expected 0 or more, below 1");
    let infinite = AdamParams { learning_rate: f64::INFINITY, ..ADAM };
    assert_eq!(step(&mut client, infinite), "learning_rate is inf: expected 0 or more");
    client.step(); // the gradient is still there
    let none = Job::Pass { datums: Vec::new(), loss: None, samplers: Vec::new(), needs_on_policy: false };
    assert_eq!(client.call(none).unwrap_err().message, "there are no datums");
    let long = client.call(supervised(&vec![1; 258])).unwrap_err().message;
    assert_eq!(long, "sample 0: 257 tokens, but the model's context is 256");
    let name = client.call(Job::SaveForSampler { name: "../x".to_owned(), ttl_seconds: None }).unwrap_err().message;
    assert!(name.contains("`../x` must have"), "{name}");
    let unknown = |failure: Failure| assert!(failure.message.contains("earlier run of the server"), "{failure:?}");
    unknown(service.training().info("s:train:0").unwrap_err());
    unknown(service.training().sampler("s:sample:0").err().unwrap());
    unknown(service.sampler("s", 0, None).unwrap_err());
}

#[test]
fn a_closed_session_ends_its_models_and_old_samplers_lose_their_weights() {
    let home = Home::new();
    let service = home.start(&home.options());
    let mut client = Client::new(&service, SPEC);
    let samplers: Vec<String> = (0..9).map(|_| client.sampler()).collect();
    let of = |id: &str| service.training().sampler(id).unwrap();
    let generate = Generate { prompts: vec![vec![1]], max_tokens: Some(1), ..Generate::default() };
    let old = service.sample(&of(&samplers[0]), 0, generate.clone(), |_| true).err().unwrap().to_string();
    assert!(old.contains("the 8 newest samplers are kept"), "{old}");
    assert!(service.sample(&of(&samplers[1]), 0, generate, |_| true).is_ok());
    // A sampler's number belongs to its weights.
    let other = service.sampler(&client.session, 0, None).unwrap_err();
    assert!(other.message.contains("another sampler with the number 0"), "{other:?}");
    // Requests that wait for a number end with the session.
    let waits = client.submit(client.next + 1, supervised(&[1, 2, 3]));
    assert!(service.close_session(&client.session) && !service.training().heartbeat(&client.session));
    let failure = testing::receive("a result", &waits).unwrap_err();
    assert!(failure.message.contains("has ended"), "{failure:?}");
    assert!(service.training().info(&client.model).is_err());
}
