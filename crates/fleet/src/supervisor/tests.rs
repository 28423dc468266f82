//! Tests of the supervisor with shell scripts as children: restarts, ends of the run, and exit codes.

use super::*;
use std::cell::RefCell;

/// A script that waits for a signal and then exits with code 7. All scripts of a test share the file `$MARK`.
/// A shell cannot trap a SIGINT that was ignored when it started, as in the children of `nohup … &`.
const WAITS: &str = "trap 'exit 7' TERM USR1; touch $MARK; while :; do sleep 0.01; done";
/// A script that waits until the supervisor has reported something.
const UNTIL_REPORTED: &str = "while [ ! -e $MARK.reports ]; do sleep 0.01; done";
/// A script that waits until another script has created the file.
const UNTIL: &str = "while [ ! -e $MARK ]; do sleep 0.01; done";

fn limits() -> Limits {
    // The grace period begins when the exit code is known, so it only affects when the last children are killed.
    Limits { restarts: 2, kills: 3, window: Duration::from_secs(6000), grace: Duration::from_millis(400) }
}

/// Runs a learner and workers. Start n of a child runs its script n; later starts run the last script. The signals are
/// delivered one by one once the file exists: the first is a stop request, later ones are requests to end at once.
/// Returns the exit code and the reports.
fn run_with(learner: &[&str], workers: &[&[&str]], signals: &[i32], limits: Limits) -> (Result<i32>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let role = |name: &str, scripts: &[&str]| {
        let scripts: Vec<String> = scripts.iter().map(|script| (*script).to_owned()).collect();
        let mark = mark.clone();
        let command = move |starts: u32| {
            let mut command = Command::new("sh");
            command.args(["-c", &scripts[(starts as usize).min(scripts.len() - 1)]]).env("MARK", &mark);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        Role { name: name.to_owned(), command: Box::new(command) }
    };
    let all = workers.iter().zip(["dev1", "dev2"]).map(|(scripts, name)| role(name, scripts)).collect();
    let reports = RefCell::new(Vec::new());
    let mut left =
        (0..).zip(signals).map(|(i, &number)| if i == 0 { Asked::Stop(number) } else { Asked::AtOnce(number) });
    let mut asked = || if mark.exists() { left.next() } else { None };
    let mut report = |text: &str| {
        reports.borrow_mut().push(text.to_owned());
        std::fs::write(mark.with_extension("reports"), "").unwrap();
    };
    let code = run(role("the learner", learner), all, limits, &mut asked, &mut report);
    (code, reports.into_inner())
}

fn run_of(learner: &[&str], workers: &[&[&str]]) -> (i32, Vec<String>) {
    let (code, reports) = run_with(learner, workers, &[], limits());
    (code.unwrap(), reports)
}

#[test]
fn a_learner_that_ends_by_itself_ends_the_run_with_its_exit_code() {
    assert_eq!(run_of(&["exit 0"], &[&["exit 0"], &["exit 0"]]), (0, vec![]));
    // The workers learn of the end by their pipes.
    assert_eq!(run_of(&["exit 3"], &[&["cat"]]), (3, vec![]));
    assert_eq!(run_of(&["[ \"$LOCKSTEP_SUPERVISED\" = 1 ] || exit 9; exit 5"], &[]), (5, vec![]));
}

#[test]
fn a_killed_process_and_a_failed_worker_are_restarted() {
    let killed = "kill -9 $$";
    let again = "ended (signal: 9 (SIGKILL)): started again";
    assert_eq!(run_of(&[killed, killed, "exit 6"], &[]), (6, vec![format!("the learner {again}"); 2]));
    let (code, reports) = run_of(&[UNTIL], &[&["exit 1", killed, "touch $MARK; cat"]]);
    assert_eq!(
        (code, reports),
        (0, vec!["dev1 ended (exit status: 1): started again".to_owned(), format!("dev1 {again}")])
    );
    // A worker that exits with code 0 is not restarted.
    assert_eq!(run_of(&["sleep 0.2"], &[&["exit 0", "exit 1"]]), (0, vec![]));
}

#[test]
fn repeated_failures_end_the_run() {
    let failed = |scripts: &[&str]| {
        let (result, reports) = run_with(&[WAITS], &[scripts], &[], limits());
        (result.unwrap_err().to_string(), reports.len())
    };
    let why = |often: usize, how: &str| {
        format!("dev1 was restarted {often} times in 6000 s and exited again ({how}): see its log")
    };
    assert_eq!(failed(&["exit 1"]), (why(2, "exit status: 1"), 2));
    assert_eq!(failed(&["kill -9 $$"]), (why(3, "signal: 9 (SIGKILL)"), 3));
    // Failures outside `window` are ignored.
    let short = Limits { restarts: 1, window: Duration::ZERO, ..limits() };
    let (code, reports) = run_with(&[UNTIL], &[&["exit 1", "exit 1", "exit 1", "touch $MARK"]], &[], short);
    assert_eq!((code.unwrap(), reports.len()), (0, 3));
    let learner = Role { name: "the learner".to_owned(), command: Box::new(|_| Command::new("/no/such")) };
    let error = run(learner, Vec::new(), limits(), &mut || None, &mut |_| ()).unwrap_err().to_string();
    assert!(error.starts_with("cannot start the learner: "), "{error}");
}

#[test]
fn the_run_ends_if_a_worker_is_refused_or_all_are_expelled() {
    let (code, reports) = run_of(&[WAITS], &[&["exit 2"], &["cat"]]);
    assert_eq!((code, reports), (2, vec!["dev1 was refused: the run stops".to_owned()]));
    // The exit code is the same if the stop signal kills the learner.
    assert_eq!(run_of(&["exec sleep 60"], &[&["exit 2"]]).0, 2);
    let expelled = |name: &str| format!("{name} was expelled and is not restarted");
    let (code, mut reports) = run_of(&[WAITS], &[&["exit 4"], &["exit 4"]]);
    assert_eq!((code, reports.pop().as_deref()), (1, Some("all workers were expelled, so the run stops")));
    reports.sort();
    assert_eq!(reports, [expelled("dev1"), expelled("dev2")]);
    // While a worker remains, the run continues.
    assert_eq!(run_of(&[UNTIL_REPORTED], &[&["exit 4"], &["cat"]]), (0, vec![expelled("dev1")]));
}

/// A signal ends a child, and the supervisor restarts the child or ends the run.
#[test]
fn a_crashed_child_does_not_count_as_killed() {
    // The shell sends the signal to itself.
    let crashes =
        [("ABRT", 6), ("SEGV", 11), ("BUS", 7), ("ILL", 4), ("FPE", 8), ("SYS", 31), ("TRAP", 5), ("XCPU", 24)];
    let crashes = [&crashes[..], &[("XFSZ", 25)]].concat();
    let kills =
        [("KILL", 9), ("TERM", 15), ("INT", 2), ("HUP", 1), ("USR1", 10), ("USR2", 12), ("ALRM", 14), ("PIPE", 13)];
    let by = |name: &str| format!("ulimit -c 0; kill -{name} $$");
    let mut rows = 0;
    for (name, number) in &crashes {
        let (code, reports) = run_of(&[&by(name), "exit 0"], &[]);
        assert_eq!(code, 128 + number, "the learner ends by SIG{name}: {reports:?}");
        let why = format!("signal: {number} (SIG{name})");
        assert!(reports.len() == 1 && reports[0].contains(&why) && reports[0].contains("the run stops"), "{reports:?}");
        // A crashed worker is restarted as often as a failed one.
        let (error, reports) = run_with(&[WAITS], &[&[&by(name)]], &[], limits());
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with("dev1 was restarted 2 times") && reports.len() == 2,
            "SIG{name}: {error} {reports:?}"
        );
        rows += 2;
    }
    for (name, number) in kills {
        // A learner that ignores the signal, as under nohup, ends by itself.
        let (code, reports) = run_of(&[&format!("{}; exit 5", by(name)), "exit 6"], &[]);
        let expected = if reports.is_empty() { 5 } else { 6 };
        assert_eq!(code, expected, "the learner is killed by SIG{name} ({number}): {reports:?}");
        rows += 1;
    }
    assert!(rows >= 20);
}

#[test]
fn a_stop_request_is_passed_on_and_a_second_one_kills_all_children() {
    // The grace period is as long as the timeout for hangs, so a supervisor that waited for it would fail the test.
    let limits = Limits { grace: testing::HANG, ..limits() };
    let run =
        |learner: &str, worker: &str, signals: &[i32]| run_with(&[learner], &[&[worker]], signals, limits).0.unwrap();
    let deaf = "trap '' INT TERM HUP USR1; touch $MARK; while :; do sleep 0.01; done";
    let stopped = "touch $MARK; kill -STOP $$; exit 9";
    let slow = "trap 'sleep 600' TERM USR1; touch $MARK; while :; do sleep 0.01; done";
    let killed = "touch $MARK; exec sleep 600";
    let ends = |code: i32| format!("echo $$ > $MARK.pid; exit {code}");
    // A process keeps its PID until the supervisor has seen its end.
    let outlives = "trap '' INT TERM; while [ ! -s $MARK.pid ]; do sleep 0.01; done
        while kill -0 $(cat $MARK.pid) 2> /dev/null; do sleep 0.01; done; touch $MARK; while :; do sleep 0.01; done";
    let rows: [(&str, &str, &str, &[i32], i32); 20] = [
        ("the learner saves and ends", WAITS, "cat", &[10], 7),
        ("the learner saves and ends", WAITS, "cat", &[15], 7),
        ("the workers end by their pipes", WAITS, "cat; exit 3", &[15], 7),
        ("the signal ends the learner, which is not restarted", killed, "cat", &[15], 143),
        ("the signal ends the learner, which is not restarted", killed, "cat", &[10], 138),
        ("a stopped learner gets the signal", stopped, "cat", &[15], 143),
        ("a stopped learner gets the signal", stopped, "cat", &[10], 138),
        ("all ignore the signal, Ctrl-C twice", deaf, deaf, &[2, 2], 130),
        ("all ignore the signal", deaf, deaf, &[2, 15], 143),
        ("all ignore the signal", deaf, deaf, &[15, 15], 143),
        ("all ignore the signal", deaf, deaf, &[15, 2], 130),
        ("all ignore the signal", deaf, deaf, &[10, 15], 143),
        ("all ignore the signal", deaf, deaf, &[1, 2], 130),
        ("the learner ends slowly", slow, "cat", &[15, 15], 143),
        ("the learner ends slowly", slow, "cat", &[10, 2], 130),
        ("a worker does not end", deaf, "sleep 600", &[15, 2], 130),
        ("all are stopped", stopped, "kill -STOP $$", &[1, 2], 130),
        ("a worker is stopped", deaf, "kill -STOP $$", &[15, 15], 143),
        ("a worker outlives a learner that has ended", &ends(0), outlives, &[15, 15], 0),
        ("a worker outlives a learner that has failed", &ends(5), outlives, &[2, 2], 5),
    ];
    for (what, learner, worker, signals, code) in rows {
        assert_eq!(run(learner, worker, signals), code, "{what}: {signals:?}");
    }
    assert!(!leave_terminal() && !watch_parent(Duration::ZERO, || ()), "this process has no supervisor");
}
