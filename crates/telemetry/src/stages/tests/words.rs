//! The table and the bottleneck in words, exactly, and what each event of a span has.

use super::*;

fn bottleneck(stages: Vec<StageTotal>, flops: Option<f64>, bytes: Option<f64>) -> String {
    let summary = Summary { wall_s: 10.0, stages };
    let text = summary.bottleneck(&Ceilings { flops_per_s: flops, bytes_per_s: bytes });
    text.strip_prefix("the bottleneck is ").unwrap_or(&text).to_owned()
}

#[test]
fn what_limits_a_stage_depends_on_its_shares() {
    let of = |flops: f64, bytes: f64, of_flops, of_bytes| {
        bottleneck(vec![total("a", 5.0, flops, bytes)], of_flops, of_bytes)
    };
    let neither = |compute: u32, memory: u32| {
        format!(
            "a: 5.00 s, 50 % of the run; neither arithmetic ({compute} % of the measured ceiling) nor memory ({memory} \
             %) limits it: the time goes to waiting or overhead"
        )
    };
    let one = Some(1.0);
    assert_eq!(of(1.0, 1.2, one, one), neither(20, 24));
    assert_eq!(of(1.2, 0.5, one, one), neither(24, 10));
    let arithmetic = |compute: u32, memory: u32| {
        format!(
            "a: 5.00 s, 50 % of the run; limited by arithmetic: {compute} % of the measured ceiling, {memory} % of the \
             bandwidth"
        )
    };
    assert_eq!(of(1.25, 0.5, one, one), arithmetic(25, 10));
    assert_eq!(of(2.0, 2.0, one, one), arithmetic(40, 40));
    assert_eq!(of(4.0, 2.0, Some(2.0), one), arithmetic(40, 40));
    assert_eq!(
        of(2.0, 3.0, one, one),
        "a: 5.00 s, 50 % of the run; limited by memory: 60 % of the measured bandwidth, 40 % of the arithmetic"
    );
    let compute = "a: 5.00 s, 50 % of the run; it reaches 40 % of this machine's measured arithmetic";
    let memory = "a: 5.00 s, 50 % of the run; it reaches 60 % of this machine's measured bandwidth";
    let unknown = "a: 5.00 s, 50 % of the run; its FLOPs and bytes, or this machine's ceilings, were not measured";
    for (flops, bytes, of_flops, of_bytes, says) in [
        (2.0, 3.0, one, None, compute),
        (2.0, 3.0, one, Some(0.0), compute),
        (2.0, 0.0, one, one, compute),
        (2.0, 3.0, None, one, memory),
        (2.0, 3.0, Some(0.0), one, memory),
        (0.0, 3.0, one, one, memory),
        (2.0, 3.0, None, None, unknown),
        (0.0, 0.0, one, one, unknown),
    ] {
        assert_eq!(of(flops, bytes, of_flops, of_bytes), says, "{flops} {bytes} {of_flops:?} {of_bytes:?}");
    }
}

/// The stage with the most time of its own is named, without what is nested in it.
#[test]
fn a_stage_is_judged_by_what_is_its_own() {
    let one = Some(1.0);
    let stages = vec![
        total("step", 9.0, 6.0, 3.0),
        total("step/a", 5.0, 1.0, 2.5),
        total("step/a/part", 4.0, 0.0, 0.0),
        total("step/b", 1.0, 4.5, 0.0),
    ];
    // Of a part whose work is not known, the stage around it is judged.
    let text = bottleneck(stages.clone(), one, one);
    assert!(text.starts_with("step/a: 5.00 s, 50 % of the run; limited by memory: 50 % of"), "{text}");
    // The outer stage's own: 9 − 5 − 1 seconds, and its work without theirs.
    let mut outer = stages.clone();
    (outer[0].seconds, outer[0].flops, outer[0].bytes) = (9.9, 6.5 + 1.0, 2.5);
    (outer[1].seconds, outer[3].seconds) = (2.0, 1.0);
    let text = bottleneck(outer, one, one);
    assert_eq!(text, "step: 6.90 s, 69 % of the run; it reaches 29 % of this machine's measured arithmetic");
    // Parts of a stage without counts are stages like others.
    let plain = vec![total("x", 6.0, 0.0, 0.0), total("x/y", 5.0, 0.0, 0.0), total("x/z", 0.5, 0.0, 0.0)];
    assert!(bottleneck(plain, one, one).starts_with("x/y: 5.00 s, 50 %"));
    let nothing = vec![total("x", 0.0, 1.0, 1.0)];
    assert_eq!(bottleneck(nothing, one, one), "nothing was measured");
    let alike = Summary { wall_s: 2.0, stages: vec![total("x", 2.5, 0.0, 0.0), total("y", 1.0, 0.0, 0.0)] };
    assert_eq!(alike.unmeasured_s(), 0.0, "stages of several threads overlap");
    let some = Summary { wall_s: 9.5, ..alike };
    assert_eq!(some.unmeasured_s(), 6.0);
}

#[test]
fn the_table_line_by_line() {
    let device = DeviceWork { launches: 5, copies_in: 4, copies_out: 3, waits: 2, seconds: 1.25 };
    let summary = Summary {
        wall_s: 8.0,
        stages: vec![
            total("step", 6.0, 12e9, 0.0),
            total("load", 1.0, 0.0, 0.5e9),
            StageTotal { device, ..total("step/rollout", 4.0, 12e9, 1e9) },
            total("step/rollout/decode", 0.0, 1.0, 1.0),
        ],
    };
    let expected = "\
stage           seconds    share  GFLOP/s  GB/s  device s  launches  copies in  out  waits
──────────────  ───────  ───────  ───────  ────  ────────  ────────  ─────────  ───  ─────
step               6.00   75.0 %      2.0     -      0.00         0          0    0      0
  rollout          4.00   50.0 %      3.0   0.2      1.25         5          4    3      2
    decode         0.00    0.0 %        -     -      0.00         0          0    0      0
load               1.00   12.5 %        -   0.5      0.00         0          0    0      0
(not measured)     1.00   12.5 %        -     -
run                8.00  100.0 %
";
    assert_eq!(summary.table().render(120), expected);
    for (work, any) in [
        (DeviceWork::default(), false),
        (DeviceWork { seconds: 1.0, ..DeviceWork::default() }, false),
        (DeviceWork { launches: 1, ..DeviceWork::default() }, true),
        (DeviceWork { copies_in: 1, ..DeviceWork::default() }, true),
        (DeviceWork { copies_out: 1, ..DeviceWork::default() }, true),
        (DeviceWork { waits: 1, ..DeviceWork::default() }, true),
    ] {
        assert_eq!(work.is_any(), any, "{work:?}");
    }
    let mut sum = device;
    sum.add(DeviceWork { launches: 10, copies_in: 20, copies_out: 30, waits: 40, seconds: 0.5 });
    assert_eq!(sum, DeviceWork { launches: 15, copies_in: 24, copies_out: 33, waits: 42, seconds: 1.75 });
}

/// Keeps whole events.
struct All(Arc<Mutex<Vec<EventKind>>>);

impl crate::Sink for All {
    fn receive(&mut self, event: &crate::Event) -> crate::Result<()> {
        self.0.lock().unwrap().push(event.kind.clone());
        Ok(())
    }
}

#[test]
fn a_spans_event_has_its_step_row_work_and_time() {
    let (sinks, events) = (Sinks::new(), Arc::new(Mutex::new(Vec::new())));
    sinks.add(All(Arc::clone(&events)));
    let stages = Stages::new(sinks);
    let origin = lock(&stages.inner).start;
    stages.record_around("before any span", origin + Duration::from_millis(2), 0.25);
    stages.begin_step(7);
    let outer = stages.span("outer");
    outer.work(1.0, 2.0);
    outer.work(4.0, 8.0);
    // One more thread has the next row, and keeps it.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(stages.span("there"));
            drop(stages.span("again"));
        });
    });
    stages.record_overlapped("rewards", origin + Duration::from_millis(3), 0.5);
    stages.record_overlapped("other", origin, 0.5);
    stages.record_around("step", origin + Duration::from_millis(5), 1.5);
    let seconds = outer.end();
    stages.begin_step(8);
    drop(stages.span("next"));
    let rows: Vec<(String, u64, u64, f64, f64)> = events
        .lock()
        .unwrap()
        .iter()
        .map(|kind| match kind {
            EventKind::Span { name, step, track, flops, bytes, .. } => (name.clone(), *step, *track, *flops, *bytes),
            other => panic!("only spans: {other:?}"),
        })
        .collect();
    let row = |name: &str, step, track, flops, bytes| (name.to_owned(), step, track, flops, bytes);
    let expected = [
        row("before any span", 0, 0, 0.0, 0.0),
        row("there", 7, 1, 0.0, 0.0),
        row("again", 7, 1, 0.0, 0.0),
        row("rewards", 7, 2, 0.0, 0.0),
        row("other", 7, 3, 0.0, 0.0),
        row("step", 7, 0, 0.0, 0.0),
        row("outer", 7, 0, 5.0, 10.0),
        row("next", 8, 0, 0.0, 0.0),
    ];
    assert_eq!(rows, expected);
    let times: Vec<(f64, f64)> = events
        .lock()
        .unwrap()
        .iter()
        .map(|kind| match kind {
            EventKind::Span { start_us, duration_us, .. } => (*start_us, *duration_us),
            other => panic!("only spans: {other:?}"),
        })
        .collect();
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    let known = [(0, 2000.0, 0.25e6), (3, 3000.0, 0.5e6), (4, 0.0, 0.5e6), (5, 5000.0, 1.5e6)];
    assert!(known.iter().all(|&(i, from, took)| near(times[i].0, from) && near(times[i].1, took)), "{times:?}");
    assert!(near(times[6].1, seconds * 1e6) && times[6].0 >= 0.0 && times[6].0 <= times[7].0, "{times:?}");
    assert_eq!(stages.summary().stages.iter().find(|stage| stage.path == "outer").unwrap().seconds, seconds);
}

#[test]
fn a_span_that_has_ended_takes_no_more_and_totals_are_those_of_what_ended() {
    let stages = Stages::default();
    let open = stages.span("open");
    let inside = stages.span("inside");
    assert_eq!(stages.take_step(), StepTotals::default(), "nothing has ended");
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
