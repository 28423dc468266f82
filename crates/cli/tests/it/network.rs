//! Workers that join over a NATS server. (`cargo xtask check release` tests a program without NATS.)

use crate::support::runs::{arguments, directory, directory_of, good, metrics, same_but_workers};
use crate::support::{command, refused};
use fleet::status;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testing::{NATS_TOKEN as TOKEN, NatsServer};

/// Starts a worker on a "host", which is a separate directory in these tests.
fn worker(root: &Path, url: &str, host: &str, name: &str) -> Child {
    let host = root.join(host);
    std::fs::create_dir_all(&host).unwrap();
    let mut worker = command(root, &["worker", "--join", url, "--name", name, "--threads", "1"]);
    worker.env("LOCKSTEP_NATS_TOKEN", TOKEN).env("TMPDIR", host);
    worker.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn learner(root: &Path, url: &str, out: &str, set: &[&str]) -> Child {
    let mut all = arguments("train", out, set);
    all[0] = "learner";
    all.extend(["--nats", url, "--listen", "127.0.0.1:0"]);
    let mut learner = command(root, &all);
    learner.env("LOCKSTEP_NATS_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
fn end(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}");
    printed
}

/// Compares a run in one process with a run by workers on two hosts.
#[track_caller]
fn same(set: &[&str]) {
    let Some(server) = NatsServer::start() else { return };
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "one", set));
    // One worker starts before the learner, the others with it.
    let mut workers = vec![worker(root, &server.url(), "host-a", "dev1")];
    let learner = learner(root, &server.url(), "many", set);
    workers
        .extend([("host-a", "dev2"), ("host-b", "dev3")].map(|(host, name)| worker(root, &server.url(), host, name)));
    end(learner);
    for worker in workers {
        end(worker);
    }
    same_but_workers(&root.join("one"), &root.join("many"));
    let status = status::read(&root.join("many")).unwrap();
    assert!(!status.learner_alive && status.workers.iter().all(|worker| worker.alive.is_none()), "{status:?}");
    assert_eq!(status.learner.unwrap().counts.differing, 0);
    let ended = |worker: &status::WorkerLine| worker.status.as_ref().is_some_and(|status| status.ended);
    assert!(status.workers.iter().all(ended), "{:?}", status.workers);
}

#[test]
fn workers_over_nats_without_staleness_match_a_single_process() {
    same(&["max_staleness=0", "beta=0.1", "record_rollouts=true"]);
}

#[test]
fn stale_batches_and_adapters_over_nats_match_a_single_process() {
    same(&["max_staleness=2", "record_rollouts=true", "num_iterations=2", "steps_per_generation=2"]);
    same(&["max_staleness=2", "use_peft=true", "lora_r=2", "dtype=bf16"]);
}

#[test]
fn kills_of_workers_and_of_an_emptied_server_change_no_bit() {
    let Some(mut server) = NatsServer::start() else { return };
    let dir = directory();
    let root = dir.path();
    let set = ["max_staleness=2", "max_steps=120"];
    good(root, &arguments("train", "one", &set));
    let url = server.url();
    let mut workers: Vec<Child> = ["dev1", "dev2"].map(|name| worker(root, &url, "host", name)).into();
    let mut learner = learner(root, &url, "many", &set);
    let step = || status::read(&root.join("many")).ok().and_then(|s| s.learner).map_or(0, |learner| learner.batch.0);
    for at in [10, 30, 50] {
        testing::wait_until("the run continues", || {
            let is_there = step() >= at;
            assert!(is_there || learner.try_wait().unwrap().is_none(), "it ends at {}", step());
            is_there
        });
        server.empty();
        if at == 30 {
            let mut first = workers.remove(0);
            first.kill().unwrap();
            first.wait().unwrap();
            // The killed worker's name becomes free once the worker has been silent for a while; until then, a
            // different name is used.
            workers.push(worker_when(&mut server, root, "dev3"));
            continue;
        }
        std::thread::sleep(Duration::from_millis(800));
        server.begin();
    }
    end(learner);
    for worker in workers {
        end(worker);
    }
    same_but_workers(&root.join("one"), &root.join("many"));
}

/// Starts a worker once the server is up, since a worker without a server exits.
fn worker_when(server: &mut NatsServer, root: &Path, name: &str) -> Child {
    server.begin();
    worker(root, &server.url(), "host", name)
}

#[test]
fn a_killed_learner_resumes_with_the_existing_workers() {
    let Some(server) = NatsServer::start() else { return };
    let dir = directory();
    let root = dir.path();
    let set = ["max_staleness=2", "max_steps=80"];
    good(root, &arguments("train", "one", &set));
    let workers = ["dev1", "dev2"].map(|name| worker(root, &server.url(), "host", name));
    let mut first = learner(root, &server.url(), "many", &set);
    testing::wait_until("a checkpoint", || root.join("many/checkpoints/step-000020").is_dir());
    first.kill().unwrap();
    first.wait().unwrap();
    // The server considers a learner alive until the learner has been silent for a while; then the name is free.
    std::thread::sleep(Duration::from_millis(500));
    let mut next = command(root, &["learner", "--resume", "many", "--nats", &server.url(), "--listen", "127.0.0.1:0"]);
    end(next.env("LOCKSTEP_NATS_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    for worker in workers {
        end(worker);
    }
    let last = |run: &str| std::fs::read(root.join(run).join("model/model.safetensors")).unwrap();
    assert!(last("many") == last("one"));
}

#[test]
fn wrong_servers_tokens_and_addresses_are_refused() {
    let Some(server) = NatsServer::start() else { return };
    let dir = directory();
    let root = dir.path();
    let url = server.url();
    std::fs::write(root.join("wrong"), "wrong\n").unwrap();
    let join = ["worker", "--join", &url, "--name", "dev1"];
    refused(root, &join, &["requires a token", "--nats-token-file"]);
    refused(root, &[&join[..], &["--nats-token-file", "wrong"]].concat(), &["refuses the token"]);
    refused(root, &[&join[..], &["--nats-token-file", "missing"]].concat(), &["missing"]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = format!("nats://127.0.0.1:{port}");
    refused(root, &["worker", "--join", &nobody, "--name", "dev1"], &["no NATS server answers"]);
    let mut learner = arguments("train", "out", &[]);
    learner[0] = "learner";
    learner.extend(["--nats", &url, "--listen", "127.0.0.1:0", "--nats-token-file", "wrong"]);
    refused(root, &learner, &["refuses the token"]);
    let mut open = arguments("train", "out", &[]);
    open[0] = "learner";
    open.extend(["--nats", &nobody, "--listen", "0.0.0.0:0"]);
    refused(root, &open, &["to anyone"]);
}

/// A worker whose matmuls use a different arithmetic.
#[test]
fn a_worker_with_a_different_arithmetic_is_refused() {
    let Some(server) = NatsServer::start() else { return };
    let dir = directory();
    let root = dir.path();
    let set = ["dtype=bf16", "max_steps=60"];
    let url = server.url();
    let mut other = command(root, &["worker", "--join", &url, "--name", "dev9", "--threads", "1"]);
    other.env("LOCKSTEP_NATS_TOKEN", TOKEN).env("LOCKSTEP_ISA", "portable").env("TMPDIR", root);
    let other = other.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut run = learner(root, &url, "out", &set);
    let output = other.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let best = crate::support::lockstep(root, &["doctor"]).out;
    if best.contains("amx") {
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains("cannot work for this run") && printed.contains("arithmetic"), "{printed}");
    }
    let _ = run.kill();
    run.wait().unwrap();
}

fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-ec", line]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{line}\n{printed}");
    printed
}

/// Machines whose network can be cut: network namespaces on one bridge.
struct Machines(Vec<String>);

impl Machines {
    fn new(count: usize) -> Machines {
        let machines = Machines((0..count).map(|i| format!("lsn{i}")).collect());
        machines.remove();
        sh("ip link add lsbr0 type bridge && ip addr add 10.77.0.254/24 dev lsbr0 && ip link set lsbr0 up");
        for (i, name) in machines.0.iter().enumerate() {
            sh(&format!(
                "ip netns add {name}; ip link add {name}v type veth peer name eth0 netns {name}; ip link set \
                 {name}v master lsbr0 up; ip -n {name} addr add 10.77.0.{}/24 dev eth0; ip -n {name} link set \
                 eth0 up; ip -n {name} link set lo up",
                i + 1
            ));
        }
        machines
    }

    fn cut(&self, machine: usize, up: bool) {
        sh(&format!("ip link set {}v {}", self.0[machine], if up { "up" } else { "down" }));
    }

    fn remove(&self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
            let _ = Command::new("ip").args(["link", "del", &format!("{name}v")]).stderr(Stdio::null()).status();
        }
        let _ = Command::new("ip").args(["link", "del", "lsbr0"]).stderr(Stdio::null()).status();
    }

    /// A command on a machine, in the directory `cd`, which cannot see the directories `hidden`.
    fn command(&self, machine: usize, command: &Command, hidden: &[PathBuf], cd: &Path) -> Command {
        let hide: Vec<String> = hidden.iter().map(|path| format!("mount -t tmpfs none {}; ", path.display())).collect();
        let script = format!("{}cd {}; exec \"$@\"", hide.concat(), cd.display());
        let mut outer = Command::new("ip");
        outer.args(["netns", "exec", &self.0[machine], "unshare", "-m", "sh", "-ec", &script, "sh"]);
        outer.arg(command.get_program()).args(command.get_args()).env("HF_HUB_OFFLINE", "1");
        outer
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.remove();
    }
}

const SEVEN_MILLION: &str = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40,
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 9, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "attention_bias": false,
    "bos_token_id": null, "eos_token_id": 0}"#;

/// Needs root, iproute2 and nats-server. The server is on the learner's machine. Three other machines have two workers
/// each, and see neither the learner's directory nor its model. Each machine is disconnected once for longer than every
/// limit.
#[test]
#[ignore = "needs root and some minutes: `cargo xtask nightly network`"]
fn network_cuts_change_no_bit_and_each_machine_fetches_each_version_once() {
    const CUT: Duration = Duration::from_secs(25);
    let dir = directory_of(SEVEN_MILLION);
    let root = dir.path();
    let quiet = ["max_staleness=2", "max_steps=12", "save_steps=6"];
    good(root, &arguments("train", "one", &quiet));
    let machines = Machines::new(4);
    let store = root.join("store");
    let mut server = Command::new("nats-server");
    server.args(["-a", "10.77.0.1", "-p", "4222", "--auth", TOKEN, "-js", "-sd"]).arg(&store);
    let mut server = machines.command(0, &server, &[], root);
    let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _server = NatsServer::of(server, 4222);
    std::thread::sleep(Duration::from_secs(1));
    let url = "nats://10.77.0.1:4222";
    let hidden = [root.to_owned()];
    let hosts: Vec<tempfile::TempDir> =
        (0..4).map(|_| tempfile::Builder::new().prefix("lockstep-host").tempdir_in("/var/tmp").unwrap()).collect();
    let join = |machine: usize, name: &str| {
        let worker = command(root, &["worker", "--join", url, "--name", name, "--threads", "1"]);
        let mut worker = machines.command(machine, &worker, &hidden, Path::new("/"));
        worker.env("LOCKSTEP_NATS_TOKEN", TOKEN).env("TMPDIR", hosts[machine].path());
        worker.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let join_all = || -> Vec<Child> {
        (1..4).flat_map(|machine| ["a", "b"].map(|which| join(machine, &format!("dev{machine}{which}")))).collect()
    };
    let learn = |out: &str, set: &[&str]| {
        let mut all = arguments("train", out, set);
        all[0] = "learner";
        all.extend(["--nats", url, "--listen", "0.0.0.0:7070"]);
        let mut learner = machines.command(0, &command(root, &all), &[], root);
        learner.env("LOCKSTEP_NATS_TOKEN", TOKEN);
        learner.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // Without disconnections, each machine fetches each version once, although it has two workers.
    let workers = join_all();
    end(learn("many", &quiet));
    for worker in workers {
        end(worker);
    }
    same_but_workers(&root.join("one"), &root.join("many"));
    let text = std::fs::read_to_string(root.join("many/fleet/learner.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&text).unwrap();
    let fetched = state["shared"]["bytes_fetched"].as_u64().unwrap();
    let weights = std::fs::metadata(root.join("one/model/model.safetensors")).unwrap().len();
    // Batches use twelve versions. A machine does not fetch a version whose batch is already complete.
    let copies = fetched as f64 / weights as f64;
    eprintln!("{fetched} bytes fetched by three machines: {copies:.2} times the weights of {weights} bytes");
    assert!(copies <= 36.1, "{copies}: at most one copy of 12 versions for each machine");
    // The machines are disconnected one after another.
    let cut = ["max_staleness=2", "max_steps=600", "save_steps=200", "eval_strategy=no", "logging_steps=50"];
    good(root, &arguments("train", "one-cut", &cut));
    let workers = join_all();
    let mut learner = learn("cut", &cut);
    let step = || status::read(&root.join("cut")).ok().and_then(|s| s.learner).map_or(0, |learner| learner.batch.0);
    while step() < 5 {
        assert!(learner.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    for machine in [1, 0, 2] {
        machines.cut(machine, false);
        std::thread::sleep(CUT);
        assert!(learner.try_wait().unwrap().is_none(), "the run ended before the cut, at step {}", step());
        machines.cut(machine, true);
        eprintln!("machine {machine} was cut off until step {}", step());
        std::thread::sleep(Duration::from_secs(5));
    }
    end(learner);
    for worker in workers {
        end(worker);
    }
    let model = |run: &str| std::fs::read(root.join(run).join("model/model.safetensors")).unwrap();
    assert!(model("one-cut") == model("cut"));
    assert_eq!(metrics(&root.join("one-cut")), metrics(&root.join("cut")));
    let counts = status::read(&root.join("cut")).unwrap().learner.unwrap().counts;
    eprintln!("three cuts of {} s: remade {}, twice {}", CUT.as_secs(), counts.remade, counts.twice);
    assert_eq!((counts.differing, counts.died), (0, 0));
}
