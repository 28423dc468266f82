use std::time::Duration;

use super::*;

fn paths(totals: &[StageTotal]) -> Vec<(&str, u64)> {
    totals.iter().map(|total| (total.path.as_str(), total.count)).collect()
}

#[test]
fn nested_spans_are_summed_for_the_step_and_the_run() {
    let stages = Stages::default();
    for _ in 0..2 {
        let step = stages.span("step");
        {
            let rollout = stages.span("rollout");
            let prefill = stages.span("prefill");
            std::thread::sleep(Duration::from_millis(2));
            drop(prefill);
            rollout.work(10.0, 1.0);
            rollout.work(5.0, 0.0);
        }
        let seconds = stages.span("update").end();
        assert!(seconds >= 0.0 && step.seconds() >= seconds);
        drop(step);
        let totals = stages.take_step().stages;
        let expected = [("step", 1), ("step/rollout", 1), ("step/rollout/prefill", 1), ("step/update", 1)];
        assert_eq!(paths(&totals), expected);
        assert_eq!((totals[0].flops, totals[1].flops, totals[2].flops, totals[0].bytes), (15.0, 15.0, 0.0, 1.0));
        assert!(totals[0].seconds >= totals[1].seconds && totals[1].seconds >= totals[2].seconds);
        assert!(totals[2].seconds > 0.0);
    }
    assert_eq!(stages.take_step(), StepTotals::default());
    let summary = stages.summary();
    assert_eq!(paths(&summary.stages)[2], ("step/rollout/prefill", 2));
    assert_eq!(summary.stages[0].flops, 30.0);
    assert!(summary.wall_s >= summary.stages[0].seconds);
}

#[test]
fn parts_of_spans_and_counts_are_summed_for_the_step() {
    let stages = Stages::default();
    for n in [1.0, 2.0] {
        let rollout = stages.span("rollout");
        rollout.part("decode", 0.25);
        rollout.part("decode", 0.5);
        stages.count("preemptions", n);
        drop(rollout);
        let StepTotals { stages, counts } = stages.take_step();
        assert_eq!(paths(&stages), [("rollout", 1), ("rollout/decode", 2)]);
        assert_eq!((stages[1].seconds, &counts["preemptions"]), (0.75, &n));
    }
    let summary = stages.summary();
    assert_eq!(summary.stages[1].seconds, 1.5);
}

#[test]
fn threads_have_separate_stacks_and_spans_may_end_out_of_order() {
    let stages = Stages::default();
    let outer = stages.span("outer");
    let other = stages.clone();
    std::thread::spawn(move || drop(other.span("worker"))).join().unwrap();
    let inner = stages.span("inner");
    drop(outer);
    drop(inner);
    drop(stages.span("after"));
    let summary = stages.summary();
    let mut names: Vec<_> = paths(&summary.stages);
    names.sort_unstable();
    assert_eq!(names, [("after", 1), ("outer", 1), ("outer/inner", 1), ("worker", 1)]);
}

/// The ended spans, collected by a sink: name, track, start and duration in microseconds, bytes.
type Spans = Arc<Mutex<Vec<(String, u64, f64, f64, f64)>>>;

struct Keep(Spans);

impl crate::Sink for Keep {
    fn receive(&mut self, event: &crate::Event) -> crate::Result<()> {
        let EventKind::Span { name, track, start_us, duration_us, bytes, .. } = &event.kind else {
            panic!("only spans: {event:?}");
        };
        self.0.lock().unwrap().push((name.clone(), *track, *start_us, *duration_us, *bytes));
        Ok(())
    }
}

fn kept() -> (Stages, Spans) {
    let (sinks, spans) = (Sinks::new(), Spans::default());
    sinks.add(Keep(Arc::clone(&spans)));
    (Stages::new(sinks), spans)
}

#[test]
fn overlapped_work_is_a_span_but_not_in_the_totals() {
    let (stages, spans) = kept();
    let rollout = stages.span("rollout");
    for _ in 0..2 {
        stages.record_overlapped("rewards", Instant::now(), 0.5);
    }
    drop(rollout);
    assert_eq!(paths(&stages.take_step().stages), [("rollout", 1)]);
    assert_eq!(paths(&stages.summary().stages), [("rollout", 1)]);
    let spans = spans.lock().unwrap();
    let rows: Vec<_> = spans.iter().map(|span| (span.0.as_str(), span.1)).collect();
    assert_eq!(rows, [("rewards", 1), ("rewards", 1), ("rollout", 0)]);
    assert_eq!(spans[0].3, 0.5e6);
}

fn total(path: &str, seconds: f64, flops: f64, bytes: f64) -> StageTotal {
    StageTotal { path: path.to_owned(), count: 1, seconds, flops, bytes, device: DeviceWork::default() }
}

#[test]
fn a_summary_is_formatted_as_a_table_and_names_the_bottleneck() {
    let summary = Summary {
        wall_s: 10.0,
        stages: vec![
            total("step", 9.0, 40e9, 60e9),
            total("step/rollout", 6.0, 12e9, 60e9),
            total("step/rollout/decode", 5.0, 0.0, 0.0),
            total("step/update", 2.0, 28e9, 0.0),
        ],
    };
    let text = summary.table().render(80);
    assert!(text.contains("  rollout          6.00   60.0 %      2.0  10.0\n"), "{text}");
    assert!(text.contains("(not measured)     1.00   10.0 %        -     -\n"), "{text}");
    assert!(text.trim_end().ends_with("run               10.00  100.0 %"), "{text}");

    let known = |flops, bytes| summary.bottleneck(&Ceilings { flops_per_s: flops, bytes_per_s: bytes });
    let say = |flops, bytes| known(flops, bytes).unwrap();
    let memory = say(Some(20e9), Some(12e9));
    assert!(
        memory.starts_with("the bottleneck is step/rollout: 6.00 s, 60 % of the run; limited by memory: 83 %"),
        "{memory}"
    );
    assert!(say(Some(2.1e9), Some(100e9)).contains("limited by arithmetic: 95 %"));
    assert!(say(Some(100e9), Some(100e9)).contains("waiting or overhead"));
    assert!(say(Some(20e9), None).contains("10 % of this machine's measured arithmetic peak"));
    assert_eq!(known(None, None), None, "without peaks the limit is unknown");
    assert_eq!(Summary::default().bottleneck(&Ceilings { flops_per_s: Some(1e9), bytes_per_s: None }), None);
}

#[test]
fn percentages_of_the_largest_stages_sum_to_a_hundred() {
    let summary = |wall_s: f64, all: &[(&str, f64)]| {
        let stages = all.iter().map(|&(path, seconds)| total(path, seconds, 0.0, 0.0)).collect();
        Summary { wall_s, stages }.largest()
    };
    let all = [("start", 0.1), ("rollout", 3.0), ("rollout/decode", 2.5), ("update", 6.24), ("log", 0.01)];
    assert_eq!(summary(10.0, &all), "update 62 %, rollout 30 %, other 8 %");
    // Each share is 33.3 %, so one of them is rounded up.
    assert_eq!(summary(3.0, &[("a", 1.0), ("b", 1.0), ("c", 1.0)]), "a 34 %, b 33 %, c 33 %");
    let six = [("a", 3.0), ("b", 2.0), ("c", 2.0), ("d", 1.0), ("e", 1.0), ("f", 1.0)];
    assert_eq!(summary(10.0, &six), "a 30 %, b 20 %, c 20 %, d 10 %, other 20 %");
    assert_eq!(
        summary(10.0, &[("a", 9.0), ("b", 7.0)]),
        "a 56 %, b 44 %",
        "shares of overlapping threads must sum to 100 %"
    );
    assert_eq!(summary(1.0, &[]), "other 100 %");
}

#[test]
fn a_span_emits_an_event_when_it_ends() {
    let (stages, spans) = kept();
    {
        let _outer = stages.span("outer");
        let inner = stages.span("inner");
        inner.work(2.0, 3.0);
    }
    let spans = spans.lock().unwrap();
    let [(inner, _, from, took, bytes), (outer, _, outer_from, outer_took, _)] = &spans[..] else {
        panic!("two spans: {spans:?}");
    };
    assert_eq!((inner.as_str(), outer.as_str(), *bytes), ("inner", "outer", 3.0));
    assert!(from >= outer_from && from + took <= outer_from + outer_took + 0.002, "{spans:?}");
}

/// A fake device. Each reading increases its count of launches by one, and each span takes one second.
#[derive(Debug, Default)]
struct Counting {
    asked: u64,
    open: std::collections::BTreeMap<u64, u64>,
    closed: Vec<u64>,
    names: Arc<Mutex<Vec<String>>>,
}

impl DeviceMeter for Counting {
    fn open(&mut self, span: u64, name: &str) {
        self.names.lock().unwrap().push(name.to_owned());
        self.open.insert(span, self.asked);
        self.asked += 1;
    }
    fn close(&mut self, span: u64) -> DeviceWork {
        self.asked += 1;
        self.closed.push(span);
        DeviceWork { launches: self.asked - self.open.remove(&span).unwrap(), waits: 1, ..DeviceWork::default() }
    }
    fn seconds(&mut self) -> Vec<(u64, f64)> {
        std::mem::take(&mut self.closed).into_iter().map(|span| (span, 1.0)).collect()
    }
}

#[test]
fn device_work_is_measured_when_spans_open_and_close() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let stages = Stages::default().with_device(Counting { names: names.clone(), ..Counting::default() });
    for _ in 0..2 {
        let step = stages.span("step");
        drop(stages.span("rollout"));
        drop(step);
        let totals = stages.take_step().stages;
        let device = |launches| DeviceWork { launches, waits: 1, seconds: 1.0, ..DeviceWork::default() };
        // The launches of the inner span count in the outer span too.
        assert_eq!((totals[0].device, totals[1].device), (device(4), device(2)));
    }
    assert_eq!(*names.lock().unwrap(), ["step", "rollout", "step", "rollout"]);
    let summary = stages.summary();
    assert_eq!((summary.stages[0].device.launches, summary.stages[0].device.seconds), (8, 2.0));
    let table = summary.table().render(120);
    assert!(table.contains("launches") && table.contains("waits"), "{table}");
    assert!(!Stages::default().summary().table().render(120).contains("launches"));
}

#[test]
fn ended_spans_ignore_further_work_and_totals_exclude_open_spans() {
    let stages = Stages::default();
    let open = stages.span("open");
    let inside = stages.span("inside");
    assert_eq!(stages.take_step(), StepTotals::default(), "no span has ended");
    assert!(stages.summary().stages.is_empty());
    inside.work(3.0, 1.0);
    stages.count("a", 1.0);
    drop(inside);
    let step = stages.take_step();
    assert_eq!((paths(&step.stages), step.counts), (vec![("open/inside", 1)], BTreeMap::from([("a".into(), 1.0)])));
    let gone = Span { inner: Arc::clone(&open.inner), id: 99 };
    gone.work(1.0, 1.0);
    gone.part("p", 1.0);
    assert_eq!((gone.seconds(), gone.end()), (0.0, 0.0));
    drop(open);
    let summary = stages.summary();
    assert_eq!(paths(&summary.stages), [("open", 1), ("open/inside", 1)]);
    assert_eq!((summary.stages[0].flops, summary.stages[0].bytes), (3.0, 1.0));
    assert!(lock(&stages.inner).stacks.is_empty() && lock(&stages.inner).open.is_empty());
}
