//! Tests with closures as rewards: some score by group, some score the whole batch, and the scores of some come from
//! other processes.

use super::*;

type Score = Box<dyn FnMut(&RewardBatch<'_>) -> Scores + Send>;

struct Own {
    name: &'static str,
    by_group: bool,
    score: Score,
}

impl Reward for Own {
    fn name(&self) -> &str {
        self.name
    }
    fn scores_by_group(&self) -> bool {
        self.by_group
    }
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        (self.score)(batch)
    }
}

fn own(
    name: &'static str,
    by_group: bool,
    score: impl FnMut(&RewardBatch<'_>) -> Scores + Send + 'static,
) -> Box<dyn Reward> {
    Box::new(Own { name, by_group, score: Box::new(score) })
}

/// Inputs that identify their group. The text of a completion lists its token ids.
fn inputs(group: GroupId, ids: Vec<Vec<u32>>) -> model::Result<RewardInputs> {
    if group == GroupId(99) {
        return Err(model::Error::Value("no such group".to_owned()));
    }
    Ok(RewardInputs {
        prompts: vec![format!("p{group}").as_str().into(); ids.len()],
        completions: ids.iter().map(|ids| format!("{ids:?}").as_str().into()).collect(),
        columns: Columns::from([("g".to_owned(), vec![group.0.into(); ids.len()])]),
        rows: vec![group.0 as usize; ids.len()],
        ids,
    })
}

const GROUPS: [(GroupId, &[&[u32]]); 2] = [(GroupId(10), &[&[1], &[2, 3]]), (GroupId(20), &[&[4]])];

fn completions(group: GroupId) -> Vec<Vec<u32>> {
    GROUPS
        .iter()
        .find(|(own, _)| *own == group)
        .map_or_else(Vec::new, |(_, ids)| ids.iter().map(|ids| ids.to_vec()).collect())
}

/// Scores both groups. The second group ends first.
fn run(
    rewards: &mut [Box<dyn Reward>],
    elsewhere: &[usize],
    given: BTreeMap<GroupId, Vec<GivenScores>>,
) -> model::Result<RewardOutput> {
    let manager = RewardManager { rewards, make_inputs: Arc::new(inputs), step: model::Step(7) };
    std::thread::scope(|scope| {
        let mut job = manager.start(scope, elsewhere).unwrap();
        for group in [20, 10].map(GroupId) {
            job.group_ended(group, || completions(group));
        }
        job.finish(GROUPS.iter().map(|&(group, _)| (group, move || completions(group))), given)
    })
}

/// A reward that logs all its inputs in one line. The score of a completion is its first token id.
fn noting(log: &Arc<Mutex<Vec<String>>>) -> impl FnMut(&RewardBatch<'_>) -> Scores + Send + 'static {
    let log = log.clone();
    move |batch| {
        let texts = |texts: &[Content]| texts.iter().map(|text| text.text().into_owned()).collect::<Vec<_>>().join(" ");
        let RewardBatch { prompts, completions, completion_ids, columns, rows, step } = *batch;
        let [prompts, completions] = [prompts, completions].map(texts);
        let column = serde_json::to_string(&columns["g"]).unwrap();
        log.lock().unwrap().push(format!("{prompts}; {completions}; {completion_ids:?}; {column}; {rows:?}; {step}"));
        Scores::new(completion_ids.iter().map(|ids| Some(ids[0].into())).collect())
    }
}

#[test]
fn groups_are_scored_as_they_end_and_joined_in_requested_order() {
    let (early, late) = <(Arc<Mutex<Vec<String>>>, Arc<Mutex<Vec<String>>>)>::default();
    let mut rewards = [own("late", false, noting(&late)), own("early", true, noting(&early))];
    let output = run(&mut rewards, &[], BTreeMap::new()).unwrap();
    let groups = ["p20; [4]; [[4]]; [20]; [20]; 7", "p10 p10; [1] [2, 3]; [[1], [2, 3]]; [10,10]; [10, 10]; 7"];
    assert_eq!(*early.lock().unwrap(), groups);
    let all = "p10 p10 p20; [1] [2, 3] [4]; [[1], [2, 3], [4]]; [10,10,20]; [10, 10, 20]; 7";
    assert_eq!(*late.lock().unwrap(), [all]);
    let texts: Vec<_> = output.completions.iter().map(|(text, _)| text.text()).collect();
    assert_eq!(texts, ["[1]", "[2, 3]", "[4]"]);
    let scores: Vec<_> = output.completions.iter().map(|(_, scores)| scores.rewards.clone()).collect();
    assert_eq!(scores, [[Some(1.0); 2], [Some(2.0); 2], [Some(4.0); 2]]);
    assert!(output.completions.iter().all(|(_, scores)| scores.steps == [None, None] && scores.extra.is_empty()));
    assert!(output.seconds.len() == 2 && output.seconds.iter().all(|seconds| *seconds > 0.0), "{:?}", output.seconds);
    assert!(output.problems.is_empty() && output.metrics.is_empty() && output.timed_out == [0, 0]);
    assert!(output.overlapped.len() <= 2 && output.overlapped.iter().all(|(_, seconds)| *seconds > 0.0));
    // If no reward scores by group, all completions are scored at the end.
    let output = run(&mut rewards[..1], &[], BTreeMap::new()).unwrap();
    assert_eq!((late.lock().unwrap().pop().unwrap().as_str(), output.completions.len()), (all, 3));
    assert!(output.overlapped.is_empty());
}

#[test]
fn scores_of_other_processes_are_joined_with_local_scores() {
    let (asked, here) = <(Arc<Mutex<Vec<String>>>, Arc<Mutex<Vec<String>>>)>::default();
    let mut rewards = [own("there", true, noting(&asked)), own("here", true, noting(&here))];
    let given = |scores: Scores, seconds| vec![GivenScores { reward: 0, scores, seconds }];
    let given = BTreeMap::from([
        (GroupId(20), given(Scores { timed_out: 1, ..Scores::new(vec![Some(0.25)]) }, 2.0)),
        (GroupId(10), given(Scores::new(vec![None, Some(0.5)]), 1.5)),
    ]);
    for reward in [&[0][..], &[0, 1]] {
        let output = run(&mut rewards, reward, given.clone()).unwrap();
        let there: Vec<_> = output.completions.iter().map(|(_, scores)| scores.rewards[0]).collect();
        assert_eq!((there, output.seconds[0], output.timed_out[0]), (vec![None, Some(0.5), Some(0.25)], 3.5, 1));
        let counts = (asked.lock().unwrap().len(), here.lock().unwrap().len());
        assert_eq!(counts, (0, 2), "a reward of other processes must not be called here");
        if reward.len() == 1 {
            let own: Vec<_> = output.completions.iter().map(|(_, scores)| scores.rewards[1]).collect();
            assert_eq!(own, [Some(1.0), Some(2.0), Some(4.0)]);
        }
    }
    let group = inputs(GroupId(10), completions(GroupId(10))).unwrap();
    let given = score_group(&mut rewards, &[1], &group, model::Step(3));
    assert_eq!(given.len(), 1);
    assert_eq!((given[0].reward, &given[0].scores.values[..]), (1, &[Some(1.0), Some(2.0)][..]));
    assert!(given[0].seconds > 0.0 && here.lock().unwrap().pop().unwrap().ends_with("; 3"));
}

#[test]
fn columns_and_metrics_of_several_rewards_do_not_collide() {
    let column = |name: &str, value: &str| (name.to_owned(), vec![Value::from(value); 3]);
    let first = own("first", false, move |_| Scores {
        extra: vec![column("why", "a"), column("step", "b"), column("second", "c"), column("first_why", "d")],
        metrics: vec![("m".to_owned(), 1.5), ("mean".to_owned(), 2.5)],
        timed_out: 2,
        ..Scores::new(vec![Some(1.0), Some(f64::NAN), None])
    });
    let second = own("second", false, move |_| {
        let late = Problem::new("second", 3, "late").with_kind(ProblemKind::TimedOut);
        let bad = Problem::new("second", 5, "bad").with_kind(ProblemKind::Crashed).at(vec![0]);
        let step = |token| Some(vec![StepScore { end: crate::StepEnd::Token(token), score: 1.0 }]);
        Scores {
            extra: vec![column("why", "e"), column("first_why", "f")],
            metrics: vec![("m".to_owned(), 3.5)],
            problems: vec![late, bad],
            timed_out: 1,
            steps: vec![step(0), step(2)],
            ..Scores::new(vec![Some(1.0), Some(2.0), None])
        }
    });
    let output = run(&mut [first, second], &[], BTreeMap::new()).unwrap();
    let rows: Vec<&CompletionScores> = output.completions.iter().map(|(_, scores)| scores).collect();
    assert_eq!(rows[0].rewards, [Some(1.0), Some(1.0)]);
    assert_eq!((&rows[1].rewards, &rows[2].rewards), (&vec![None, None], &vec![None, None]));
    assert!(rows[0].steps[0].is_none() && rows[0].steps[1].is_some());
    assert!(rows[1].steps == [None, None] && rows[2].steps == [None, None]);
    let expected = serde_json::json!({
        "why": "a", "first_step": "b", "first_second": "c", "first_why": "d", "second_why": "e",
        "second_first_why": "f",
    });
    assert!(rows.iter().all(|row| Value::Object(row.extra.clone()) == expected), "{:?}", rows[0].extra);
    let metric = |name: &str, value: f64| (name.to_owned(), value);
    let metrics =
        [metric("rewards/first/m", 1.5), metric("rewards/first/metric_mean", 2.5), metric("rewards/second/m", 3.5)];
    assert_eq!(output.metrics, metrics);
    assert_eq!(output.timed_out, [2, 4]);
    let problems: Vec<_> = output.problems.iter().map(|p| (&*p.message, p.rows, &p.completions[..])).collect();
    let not_finite = ("it gave NaN, which is not a finite number", 1, &[1][..]);
    let step = ("a step ends at token 2, but the completion has 2 tokens (counted from 0)", 1, &[1][..]);
    assert_eq!(problems, [not_finite, ("late", 3, &[2]), ("bad", 5, &[0]), step]);
}

#[test]
fn an_error_in_the_inputs_of_a_group_fails_the_batch() {
    for by_group in [true, false] {
        let mut rewards = [own("r", by_group, |batch| Scores::new(vec![Some(1.0); batch.len()]))];
        let manager = RewardManager { rewards: &mut rewards, make_inputs: Arc::new(inputs), step: model::Step(0) };
        let output = std::thread::scope(|scope| {
            let mut job = manager.start(scope, &[]).unwrap();
            assert_eq!(job.names(), ["r"]);
            job.group_ended(GroupId(99), || vec![vec![1]]);
            job.finish([(GroupId(99), || vec![vec![1]])].into_iter(), BTreeMap::new())
        });
        assert_eq!(output.err().unwrap().to_string(), "no such group", "{by_group}");
    }
}

/// After a failed generation, only the group that is already being scored is finished.
#[test]
fn a_cancelled_batch_scores_no_further_groups() {
    let (begun, has_begun): (Sender<()>, Receiver<()>) = channel();
    let (go_on, gone_on): (Sender<()>, Receiver<()>) = channel();
    let count = Arc::new(Mutex::new(0));
    let own_count = count.clone();
    let mut rewards = [own("slow", true, move |batch| {
        *own_count.lock().unwrap() += 1;
        begun.send(()).unwrap();
        gone_on.recv().unwrap();
        Scores::new(vec![Some(1.0); batch.len()])
    })];
    let manager = RewardManager { rewards: &mut rewards, make_inputs: Arc::new(inputs), step: model::Step(0) };
    std::thread::scope(|scope| {
        let mut job = manager.start(scope, &[]).unwrap();
        for group in (1..4).map(GroupId) {
            job.group_ended(group, || vec![vec![1]]);
        }
        has_begun.recv().unwrap();
        assert_eq!(job.asked().longest().unwrap().0, "slow");
        drop(job);
        go_on.send(()).unwrap();
    });
    assert_eq!(*count.lock().unwrap(), 1);
}

/// Scoring time that overlapped with generation is reported.
#[test]
fn overlapped_scoring_time_is_reported() {
    let (begun, has_begun): (Sender<()>, Receiver<()>) = channel();
    let mut rewards = [own("r", true, move |batch| {
        begun.send(()).unwrap();
        Scores::new(vec![Some(1.0); batch.len()])
    })];
    let manager = RewardManager { rewards: &mut rewards, make_inputs: Arc::new(inputs), step: model::Step(0) };
    let start = Instant::now();
    let output = std::thread::scope(|scope| {
        let mut job = manager.start(scope, &[]).unwrap();
        for group in [10, 20].map(GroupId) {
            job.group_ended(group, || completions(group));
            has_begun.recv().unwrap();
        }
        // The second group has begun, so the first has been timed.
        job.finish(GROUPS.iter().map(|&(group, _)| (group, move || completions(group))), BTreeMap::new())
    });
    let overlapped = output.unwrap().overlapped;
    let taken = start.elapsed().as_secs_f64();
    let seconds: f64 = overlapped.iter().map(|(_, seconds)| seconds).sum();
    assert!(!overlapped.is_empty() && seconds > 0.0 && seconds <= taken, "{overlapped:?} of {taken}");
    assert!(overlapped.iter().all(|(from, _)| *from >= start));
}
