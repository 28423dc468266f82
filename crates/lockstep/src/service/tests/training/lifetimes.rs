//! How long weights, requests and saved states stay.

use super::*;
use std::time::Duration;

/// The bytes that are allocated.
fn used(home: &Home) -> usize {
    home.ctx.memory().usage().values().map(|usage| usage.bytes).sum()
}

#[test]
fn a_saved_adapter_is_loaded_by_the_owner_alone() {
    let home = Home::new();
    let service = home.start(&home.options());
    let path = {
        let mut client = Client::new(&service, SPEC);
        client.saved(Job::SaveForSampler { name: "a".to_owned(), ttl_seconds: None })
    };
    let used = || used(&home);
    let session = service.training().open_session();
    // The owner waits for a client that takes its first token late.
    let (entered, waiting) = channel();
    let (go, gone) = channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let slow = move |event| {
        if matches!(event, Event::Token(Token { .. })) {
            let _ = entered.send(());
            let _ = gone.lock().unwrap().recv();
        }
        true
    };
    let _ticket = service.generate(Generate { max_tokens: Some(1), n: 1, ..request(0) }, slow).unwrap();
    testing::receive("the first token", &waiting);
    let before = used();
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..8)
            .map(|number| {
                scope.spawn({
                    let (service, session, path) = (&service, &session, &path);
                    move || service.sampler(session, number, Some(path))
                })
            })
            .collect();
        // Without the owner nothing is allocated, however long it takes.
        std::thread::sleep(Duration::from_millis(100));
        assert!(used() == before && loads.iter().all(|load| !load.is_finished()));
        drop(go);
        for (number, load) in loads.into_iter().enumerate() {
            assert_eq!(load.join().unwrap(), Ok(format!("{session}:sample:{number}")));
        }
    });
    assert!(used() > before);
}

#[test]
fn samplers_of_saved_adapters_release_their_weights() {
    let home = Home::new();
    let service = home.start(&home.options());
    let mut client = Client::new(&service, SPEC);
    client.pass(supervised(&[1, 2, 3, 4]));
    client.step();
    let path = client.saved(Job::SaveForSampler { name: "a".to_owned(), ttl_seconds: None });
    let session = service.training().open_session();
    let samplers = |numbers: std::ops::Range<u64>| -> Vec<String> {
        numbers.map(|number| service.sampler(&session, number, Some(&path)).unwrap()).collect()
    };
    let first = samplers(0..1).remove(0);
    let (expected, one) = (draw(&service, &first, 0, &[1, 2]), used(&home));
    let others = samplers(1..8);
    let eight = used(&home);
    assert!(eight > one);
    samplers(8..20);
    assert_eq!(used(&home), eight);
    // The first one reads its weights again.
    assert_eq!(draw(&service, &first, 1, &[1, 2]).len(), 2);
    assert!(draw(&service, &others[0], 0, &[1, 2]) == expected);
    assert_eq!(used(&home), eight);
    // The session's end releases all weights, and its samplers may still be used.
    assert!(service.close_session(&session));
    assert!(used(&home) < one);
    assert!(draw(&service, &others[1], 0, &[1, 2]) == expected);
    // Other weights under the same name are not those of the sampler.
    client.pass(supervised(&[1, 2, 3, 4]));
    client.step();
    client.saved(Job::SaveForSampler { name: "a".to_owned(), ttl_seconds: None });
    let of = service.training().sampler(&others[2]).unwrap();
    let generate = Generate { prompts: vec![vec![1]], max_tokens: Some(1), ..Generate::default() };
    let replaced = service.sample(&of, 1, generate, |_| true).err().unwrap().to_string();
    assert!(replaced.contains("was replaced after this sampler was made"), "{replaced}");
    assert!(draw(&service, &others[1], 0, &[1, 2]) == expected, "weights that are held stay");
}

#[test]
fn sequences_of_a_client_that_has_left_are_cancelled() {
    let home = Home::new();
    let service = home.start(&home.options());
    let begin = |session: &str| {
        let sampler = service.sampler(session, 0, None).unwrap();
        let of = service.training().sampler(&sampler).unwrap();
        let (send, received) = channel();
        let slow = move |event| {
            std::thread::sleep(Duration::from_millis(5));
            send.send(event).is_ok()
        };
        let ticket = service.sample(&of, 0, long(), slow).unwrap();
        assert!(matches!(testing::receive("a token", &received), Event::Token(_)));
        (ticket, received, sampler)
    };
    let is_cancelled = |received: &Receiver<Event>| loop {
        match testing::receive("an event", received) {
            Event::Token(_) => {}
            other => break other == Event::Cancelled,
        }
    };
    let [closed, silent, lively] = [(); 3].map(|()| service.training().open_session());
    let (_lively, events, _) = begin(&lively);
    let (_closed, received, sampler) = begin(&closed);
    assert!(service.close_session(&closed));
    assert!(is_cancelled(&received));
    assert_eq!(draw(&service, &sampler, 1, &[1, 2]).len(), 2, "clones of the client may continue");
    let (_silent, received, _) = begin(&silent);
    service.training().age(&silent, Duration::from_secs(121));
    assert!(is_cancelled(&received));
    testing::wait_until("both are counted", || service.status().cancelled == 2);
    // A client that asks for its result has not left.
    service.training().age(&lively, Duration::from_secs(60));
    service.training().waits(&lively);
    service.training().age(&lively, Duration::from_secs(60));
    assert!(!is_cancelled(&events));
    wait_until_idle(&service);
}

#[test]
fn a_saved_state_is_deleted_when_its_time_has_come() {
    let home = Home::new();
    let service = home.start(&home.options());
    let mut client = Client::new(&service, SPEC);
    let save = |name: &str, ttl_seconds| Job::Save { name: name.to_owned(), overwrite: true, ttl_seconds };
    // A state that expires later has time until then, however slow the machine is.
    let [soon, replaced, longer, late] = [("soon", 1), ("replaced", 1), ("longer", 60), ("late", 3600)]
        .map(|(name, ttl_seconds)| client.saved(save(name, Some(ttl_seconds))));
    client.saved(save("replaced", None));
    let store = &service.training().store;
    let expires = |path: &StatePath| store.saved(path).unwrap().expires;
    let before = expires(&longer).unwrap();
    service.expire(&longer, Some(3600)).unwrap();
    assert!(expires(&longer).unwrap() > before + 3000);
    service.expire(&late, Some(1)).unwrap();
    testing::wait_until("two states are deleted", || !store.dir(&soon).exists() && !store.dir(&late).exists());
    assert!(store.saved(&soon).unwrap_err().message.contains("nothing is saved as"));
    let names: Vec<String> = store.list(&client.model).into_iter().map(|listed| listed.path.name).collect();
    assert_eq!(names, ["longer", "replaced"]);
    service.expire(&longer, None).unwrap();
    assert_eq!((expires(&longer), expires(&replaced)), (None, None));
    // A state whose time comes while no server runs is deleted by the next one.
    service.expire(&longer, Some(1)).unwrap();
    let dir = store.dir(&longer);
    drop(client);
    drop(service);
    std::thread::sleep(Duration::from_millis(1100));
    let service = home.start(&home.options());
    assert!(service.training().store.saved(&longer).is_err());
    testing::wait_until("the state is deleted", || !dir.exists());
}
