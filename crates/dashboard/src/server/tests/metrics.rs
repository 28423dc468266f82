//! The route `/metrics`.

use super::*;

#[test]
fn metrics_are_exported_for_prometheus() {
    let site = listening(10);
    let run = site.dir.path().join("a");
    std::fs::write(run.join("config.toml"), "max_steps = 20\nrun_name = \"the \\\"first\\\"\"\n").unwrap();
    let mut log = std::fs::OpenOptions::new().append(true).open(run.join("metrics.jsonl")).unwrap();
    let alarm = |id: &str, more: Value| {
        let mut alarm = json!({ "id": id, "since": 3, "evidence": "", "remedy": "" });
        more.as_object().unwrap().iter().for_each(|(key, value)| alarm[key] = value.clone());
        json!({ "step": 10, "alarm": alarm })
    };
    let lines = [
        json!({ "step": 11, "rewards/a b/mean": 0.25, "my/own": -1e300, "num_tokens": 1234 }),
        alarm("not_finite", json!({ "subject": "x" })),
        alarm("truncated", json!({ "quiet": true })),
        alarm("kl_blow_up", json!({ "until": 5 })),
    ];
    for line in lines {
        writeln!(log, "{line}").unwrap();
    }
    std::fs::create_dir(site.dir.path().join("b")).unwrap();
    std::fs::write(site.dir.path().join("b/config.toml"), "").unwrap();
    let (status, text) = site.get("/metrics");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(status == 200 && head.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
    let (samples, types) = testing::prometheus::read(body).unwrap_or_else(|error| panic!("{error}\n{body}"));
    let values = |name: &str, run: &str| -> Vec<(f64, String)> {
        let of = samples.iter().filter(|sample| sample.name == name && sample.labels["run"] == run);
        let others = |sample: &testing::prometheus::Sample| {
            let labels = sample.labels.iter().filter(|(label, _)| *label != "run");
            labels.map(|(label, text)| format!("{label}={text}")).collect::<Vec<_>>().join(",")
        };
        of.map(|sample| (sample.value, others(sample))).collect()
    };
    let plain = |value: f64| vec![(value, String::new())];
    assert_eq!(
        values("lockstep_reward", "a"),
        plain(1.0),
        "step 11 lacks the metric, so the last earlier value is exported"
    );
    assert_eq!(values("lockstep_rewards_mean", "a"), [(0.25, "name=a b".to_owned())]);
    assert_eq!(values("lockstep_my_own", "a"), [(-1e300, "metric=my/own".to_owned())]);
    assert_eq!(
        (values("lockstep_num_tokens_total", "a"), &*types["lockstep_num_tokens_total"]),
        (plain(1234.0), "counter")
    );
    assert_eq!(values("lockstep_run_alarms", "a"), plain(1.0));
    assert_eq!(values("lockstep_run_alarm", "a"), [(1.0, "alarm=not_finite,subject=x,weight=broken".to_owned())]);
    assert_eq!(values("lockstep_run_info", "a"), [(1.0, "name=the \"first\"".to_owned())]);
    assert_eq!(
        (values("lockstep_run_steps_total", "a"), values("lockstep_run_planned_steps", "a")),
        (plain(11.0), plain(20.0))
    );
    let states = |run: &str| values("lockstep_run_state", run);
    assert!(states("a").contains(&(1.0, "state=stopped".to_owned())) && states("b").len() == 3);
    assert_eq!((values("lockstep_reward", "b"), values("lockstep_run_steps_total", "b")), (Vec::new(), plain(0.0)));
    assert_eq!(site.get_as("/metrics", "evil.example").0, 421);
}

#[test]
fn the_metrics_route_requires_the_token() {
    let server = Server::bind("0.0.0.0", 0, Runs::new(Vec::new())).unwrap();
    let (port, token) =
        (server.listener.local_addr().unwrap().port(), server.url.split_once("#token=").unwrap().1.to_owned());
    std::thread::spawn(move || server.run());
    let status = |header: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: box:{port}\r\n{header}Connection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!((&*status(""), &*status("Authorization: Bearer 0\r\n")), ("401", "401"));
    assert_eq!(status(&format!("Authorization: Bearer {token}\r\n")), "200");
}
