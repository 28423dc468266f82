use super::super::{Identity, Shared, SlotPlace};
use super::serve::{Serving, model_file_name, slot_name};
use super::*;
use fleet::blobs::Client;
use fleet::{Lineage, Version};
use kernels::memory::slot::{Contents, SlotFiller, SlotOptions, SlotReader};
use model::io::ModelFiles;
use std::collections::BTreeMap;
use std::sync::Mutex;

const RUN: [u8; 16] = [7; 16];
/// The size of a test slot: more than one block, but not a multiple of the block size.
const BYTES: usize = (5 << 20) + 4096;

/// A learner without a training run: slots, its state, and its HTTP server.
struct Fake {
    dir: tempfile::TempDir,
    slots: BTreeMap<u64, SlotFiller>,
    base: SlotFiller,
    serving: Serving,
    says: Arc<Mutex<Option<LearnerState>>>,
}

fn server(token: Option<&str>) -> NatsServer {
    NatsServer { url: "nats://127.0.0.1/x".to_owned(), token: token.map(str::to_owned), certificates: None }
}

fn slot(number: u64, layout: &str, bytes: usize) -> SlotFiller {
    let options = SlotOptions { run: RUN, layout, bytes, dir: None, sealed_later: false, lent: false };
    let mut slot = SlotFiller::create(options).unwrap();
    slot.write_at(0, &content(number, bytes)).unwrap();
    let (version, lineage) = (number + 10, [number as u8; 16]);
    slot.publish(Contents { number, version, lineage, checksum: None }).unwrap();
    slot
}

fn content(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|i| (i * (number + 3) % 251) as u8).collect()
}

impl Fake {
    fn start() -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        std::fs::create_dir(&model).unwrap();
        for (name, text) in [("config.json", "{}"), ("tokenizer.json", "words"), ("model.safetensors", "numbers")] {
            std::fs::write(model.join(name), text).unwrap();
        }
        std::fs::write(dir.path().join("config.toml"), "seed = 1\n").unwrap();
        let listen = ([127, 0, 0, 1], 0).into();
        let network = Network { server: server(Some("secret")), listen, advertise: None };
        let files = Arc::new(ModelFiles::read(&model).unwrap());
        let serving = Serving::open(&network, &dir.path().join("config.toml"), files, "127.0.0.1:4222").unwrap();
        let (slots, base) = (BTreeMap::new(), slot(0, "base", 1000));
        Fake { dir, slots, base, serving, says: Arc::default() }
    }

    /// Publishes the versions with these numbers.
    fn says(&mut self, numbers: &[u64]) {
        self.slots.retain(|number, _| numbers.contains(number));
        for number in numbers {
            self.slots.entry(*number).or_insert_with(|| slot(*number, "adapter", BYTES));
        }
        let place = |(number, slot): (&u64, &SlotFiller)| {
            let path = slot.path().to_owned();
            (Version(*number), SlotPlace { path, stored_as: *number, lineage: Lineage([*number as u8; 16]) })
        };
        let shared = Shared {
            identity: Identity {
                program: "1".to_owned(),
                build: Default::default(),
                arithmetic: "f32".to_owned(),
                files: BTreeMap::new(),
                settings: String::new(),
            },
            run: RUN,
            base: Some(self.base.path().to_owned()),
            slots: self.slots.iter().map(place).collect(),
            rewards: Vec::new(),
            network: Some(self.serving.place()),
            longest_prompt: 1,
            prompt_time_s: 1,
            weight_sync_bytes_copied: 0,
            bytes_fetched: 0,
        };
        self.serving.publish(&shared.slots, shared.base.as_deref());
        let state = serde_json::json!({
            "pid": 1, "step": numbers.last(), "batches": 9, "groups": 1, "max_staleness": 1,
            "lineage": Lineage([0; 16]), "slots": [], "ended": false,
            "checkpoints": {"last": null, "waiting": []}, "counts": fleet::exchange::Counts::default(),
            "shared": shared,
        });
        *self.says.lock().unwrap() = Some(serde_json::from_value(state).unwrap());
    }

    fn host(&self, name: &str, token: &str) -> Host {
        let says = self.says.clone();
        Host::open_in(self.dir.path().join(name), &server(Some(token)), Arc::new(move || says.lock().unwrap().clone()))
            .unwrap()
    }
}

/// Waits until the host has exactly these versions, and reads them.
#[track_caller]
fn has(host: &Host, numbers: &[u64]) {
    let shared = testing::wait_for(&format!("the host has the versions {numbers:?}"), || {
        assert!(!host.has_failed(), "{:?}", host.failure());
        let bytes = std::fs::read(fleet::exchange::spool::Layout::in_run(host.dir()).learner());
        let state = bytes.ok().and_then(|bytes| serde_json::from_slice::<LearnerState>(&bytes).ok());
        let shared = state.and_then(|state| serde_json::from_value::<Shared>(state.shared).ok());
        shared.filter(|shared| shared.slots.keys().map(|version| &version.0).eq(numbers))
    });
    let read = |path: &Path, number: u64, bytes: usize| {
        let slot = SlotReader::open(path).unwrap();
        let pin = slot.pin().unwrap().unwrap();
        assert_eq!((slot.run(), pin.contents().number, pin.contents().version), (RUN, number, number + 10));
        let mut found = vec![0; bytes];
        pin.read_at(0, &mut found).unwrap();
        assert!(found == content(number, bytes), "the bytes of {number}");
    };
    shared.slots.iter().for_each(|(version, place)| read(&place.path, version.0, BYTES));
    read(&shared.base.unwrap(), 0, 1000);
}

#[test]
fn a_host_fetches_each_version_once_and_the_base_once() {
    let mut learner = Fake::start();
    learner.says(&[3]);
    let one = learner.host("host", "secret");
    has(&one, &[3]);
    assert!(one.is_ready(RUN) && !one.is_ready([8; 16]));
    assert_eq!(std::fs::read_to_string(one.dir().join("config.toml")).unwrap(), "seed = 1\n");
    assert_eq!(std::fs::read_to_string(one.model().join("tokenizer.json")).unwrap(), "words");
    assert!(!one.model().join("model.safetensors").exists(), "weights are read from slots");
    // A second worker of this host reads the fetched weights.
    let two = learner.host("host", "secret");
    has(&two, &[3]);
    learner.says(&[3, 4]);
    has(&one, &[3, 4]);
    learner.says(&[4, 5]);
    has(&two, &[4, 5]);
    let small = "seed = 1\n".len() + "{}".len() + "words".len() + 1000;
    assert_eq!(learner.serving.bytes_sent() as usize, small + 3 * BYTES);
    // When the fetching worker ends, the other worker takes over.
    drop(one);
    learner.says(&[5, 6]);
    has(&two, &[5, 6]);
}

#[test]
fn a_pinned_version_on_the_host_is_not_overwritten() {
    let mut learner = Fake::start();
    learner.says(&[1]);
    let host = learner.host("host", "secret");
    has(&host, &[1]);
    let bytes = std::fs::read(fleet::exchange::spool::Layout::in_run(host.dir()).learner()).unwrap();
    let state: LearnerState = serde_json::from_slice(&bytes).unwrap();
    let shared: Shared = serde_json::from_value(state.shared).unwrap();
    let slot = SlotReader::open(&shared.slots[&Version(1)].path).unwrap();
    let pin = slot.pin().unwrap().unwrap();
    for number in 2..6 {
        learner.says(&[number]);
        has(&host, &[number]);
    }
    let mut found = vec![0; BYTES];
    pin.read_at(0, &mut found).unwrap();
    assert!(pin.contents().number == 1 && found == content(1, BYTES));
}

#[test]
fn a_wrong_token_is_refused_with_an_error() {
    let mut learner = Fake::start();
    learner.says(&[1]);
    let host = learner.host("host", "Secret");
    testing::wait_until("the host fails", || host.has_failed());
    let error = host.failure().unwrap();
    assert!(crate::error::is_bad_input(&error) && error.to_string().contains("refuses the token"), "{error:#}");
    assert_eq!(learner.serving.bytes_sent(), 0);
}

/// Weights that were withdrawn cannot be fetched by their old name.
#[test]
fn a_slot_with_other_weights_is_not_served() {
    let mut learner = Fake::start();
    learner.says(&[1]);
    let client = Client::new(&learner.serving.place().address, Some(&fleet::blobs::bearer("secret")), |_| ());
    let never = || false;
    let head = client.head(&slot_name(1), &never).unwrap().unwrap();
    let filler = learner.slots.get_mut(&1).unwrap();
    assert!(filler.try_lock().unwrap());
    filler.publish(Contents { number: 2, version: 12, ..Contents::default() }).unwrap();
    assert!(!client.fetch(&slot_name(1), &head, &mut |_, _| Ok(()), &never).unwrap());
    assert!(client.head(&slot_name(1), &never).unwrap().is_none());
}

#[test]
fn a_public_server_without_a_token_is_refused() {
    let listen = ([0, 0, 0, 0], 7070).into();
    let network = Network { server: server(None), listen, advertise: None };
    let error = network.check().unwrap_err();
    assert!(crate::error::is_bad_input(&error) && error.to_string().contains("to anyone"), "{error:#}");
    // The advertised address: this machine's address, a name, or a name with a port.
    let of = |advertise: Option<&str>, bound: SocketAddr| {
        let network = Network { advertise: advertise.map(str::to_owned), ..network.clone() };
        network.advertised(bound, "127.0.0.1:4222").unwrap()
    };
    assert_eq!(of(None, listen), "127.0.0.1:7070");
    assert_eq!(of(None, ([10, 0, 0, 5], 7070).into()), "10.0.0.5:7070");
    assert_eq!(of(Some("node-1"), listen), "node-1:7070");
    assert_eq!(of(Some("node-1:99"), listen), "node-1:99");
}

/// A learner serves only the files of its model that it has read.
#[test]
fn files_are_served_as_the_learner_has_read_them() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir_all(model.join("additional_chat_templates")).unwrap();
    let listed = ["config.json", "chat_template.jinja", "additional_chat_templates/ä b.jinja"];
    let others = ["notes.json", "model.safetensors", "vocab.json", "additional_chat_templates/notes.txt", ".hidden"];
    listed.iter().chain(&others).for_each(|name| std::fs::write(model.join(name), name).unwrap());
    std::fs::write(dir.path().join("config.toml"), "seed = 2\n").unwrap();
    let network =
        Network { server: server(Some("t")), listen: ([127, 0, 0, 1], 0).into(), advertise: Some("h".into()) };
    let files = Arc::new(ModelFiles::read(&model).unwrap());
    // A later change of a file is not served, since the learner has not read it either.
    std::fs::write(model.join("chat_template.jinja"), "changed").unwrap();
    let serving = Serving::open(&network, &dir.path().join("config.toml"), files, "127.0.0.1:4222").unwrap();
    let NetworkPlace { address, files } = serving.place();
    assert_eq!(files, listed);
    let port = address.strip_prefix("h:").and_then(|port| port.parse::<u16>().ok()).unwrap();
    let client = Client::new(&format!("127.0.0.1:{port}"), Some(&fleet::blobs::bearer("t")), |_| ());
    let bytes = |name: &str| client.bytes(name, &|| false).unwrap().map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(bytes("config.toml").as_deref(), Some("seed = 2\n"));
    for name in listed {
        assert_eq!(bytes(&model_file_name(name)).as_deref(), Some(name));
    }
    for name in others {
        assert_eq!(bytes(&model_file_name(name)), None, "{name}");
    }
    let sent: usize = listed.iter().map(|name| name.len()).sum();
    assert_eq!(serving.bytes_sent(), ("seed = 2\n".len() + sent) as u64);
    assert_eq!((model_file_name("x"), slot_name(7)), ("model-x".to_owned(), "slot-7".to_owned()));
    assert_eq!(model_file_name("a/~b"), "model-a~2f~7eb");
}

/// Only the last published weights are served.
#[test]
fn withdrawn_versions_are_not_served() {
    let mut learner = Fake::start();
    learner.says(&[1, 2]);
    let client = Client::new(&learner.serving.place().address, Some(&fleet::blobs::bearer("secret")), |_| ());
    let head = |name: &str| client.head(name, &|| false).unwrap();
    assert!(head(&slot_name(1)).is_some() && head(&slot_name(2)).is_some() && head("base").is_some());
    let about = head(&slot_name(2)).unwrap().about;
    assert_eq!((&about["number"], &about["version"], &about["layout"]), (&2.into(), &12.into(), &"adapter".into()));
    learner.says(&[2]);
    assert!(head(&slot_name(1)).is_none() && head(&slot_name(2)).is_some());
    learner.serving.publish(&BTreeMap::new(), None);
    assert!(head(&slot_name(2)).is_none() && head("base").is_none() && head("config.toml").is_some());
}

#[test]
fn workers_get_the_advertised_or_own_address() {
    let network = |advertise: Option<&str>| Network {
        server: server(Some("t")),
        listen: ([0, 0, 0, 0], 70).into(),
        advertise: advertise.map(str::to_owned),
    };
    let told = |advertise, bound: ([u8; 4], u16), server: &str| {
        network(advertise).advertised(bound.into(), server).map_err(|error| error.to_string())
    };
    let any = ([0, 0, 0, 0], 70);
    assert_eq!(told(Some("h:99999"), any, "x"), Ok("h:99999:70".to_owned()), "99999 is not a port");
    assert_eq!(told(Some("h:0"), any, "x"), Ok("h:0".to_owned()));
    assert_eq!(told(None, ([10, 0, 0, 5], 71), "x"), Ok("10.0.0.5:71".to_owned()));
    assert_eq!(told(None, any, "127.0.0.1:4222"), Ok("127.0.0.1:70".to_owned()));
    let unknown = "--listen 0.0.0.0:70: set --advertise HOST to the name by which workers reach it";
    assert_eq!(told(None, any, "no address"), Err(unknown.to_owned()));
}
