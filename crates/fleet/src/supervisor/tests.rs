//! Children that are shell scripts: who is started again, what ends the run, and with which code.

use super::*;
use std::cell::RefCell;

/// Waits for a signal and ends with this code. `$MARK` is a file that all scripts of a test know.
/// A shell cannot trap a SIGINT that it inherits as ignored, as the children of `nohup … &` do.
const WAITS: &str = "trap 'exit 7' TERM USR1; touch $MARK; while :; do sleep 0.01; done";
/// Waits until the supervisor has reported something.
const UNTIL_SAID: &str = "while [ ! -e $MARK.said ]; do sleep 0.01; done";
/// Waits until another script has made that file.
const UNTIL: &str = "while [ ! -e $MARK ]; do sleep 0.01; done";

fn limits() -> Limits {
    // The grace begins when the code is known: it decides only when the last children are killed.
    Limits { restarts: 2, kills: 3, window: Duration::from_secs(6000), grace: Duration::from_millis(400) }
}

/// Runs a learner and workers whose nth start runs the nth script, and from the last on that one. The signals come one
/// by one when the file is there. Returns the code and what was reported.
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
    let said = RefCell::new(Vec::new());
    let mut left = signals.iter().copied();
    let mut signal = || if mark.exists() { left.next() } else { None };
    let mut report = |text: &str| {
        said.borrow_mut().push(text.to_owned());
        std::fs::write(mark.with_extension("said"), "").unwrap();
    };
    let code = run(role("the learner", learner), all, limits, &mut signal, &mut report);
    (code, said.into_inner())
}

fn run_of(learner: &[&str], workers: &[&[&str]]) -> (i32, Vec<String>) {
    let (code, said) = run_with(learner, workers, &[], limits());
    (code.unwrap(), said)
}

#[test]
fn a_learner_that_ends_by_itself_ends_the_run_with_its_code() {
    assert_eq!(run_of(&["exit 0"], &[&["exit 0"], &["exit 0"]]), (0, vec![]));
    // Its workers learn of it by their pipes.
    assert_eq!(run_of(&["exit 3"], &[&["cat"]]), (3, vec![]));
    assert_eq!(run_of(&["[ \"$LOCKSTEP_SUPERVISED\" = 1 ] || exit 9; exit 5"], &[]), (5, vec![]));
}

#[test]
fn who_was_killed_is_started_again_and_so_is_a_worker_that_failed() {
    let killed = "kill -9 $$";
    let again = "ended (signal: 9 (SIGKILL)): started again";
    assert_eq!(run_of(&[killed, killed, "exit 6"], &[]), (6, vec![format!("the learner {again}"); 2]));
    let (code, said) = run_of(&[UNTIL], &[&["exit 1", killed, "touch $MARK; cat"]]);
    assert_eq!(
        (code, said),
        (0, vec!["dev1 ended (exit status: 1): started again".to_owned(), format!("dev1 {again}")])
    );
    // One that ends by itself is done.
    assert_eq!(run_of(&["sleep 0.2"], &[&["exit 0", "exit 1"]]), (0, vec![]));
}

#[test]
fn what_fails_again_and_again_ends_the_run() {
    let failed = |scripts: &[&str]| {
        let (result, said) = run_with(&[WAITS], &[scripts], &[], limits());
        (result.unwrap_err().to_string(), said.len())
    };
    let why = |often: usize, how: &str| {
        format!("dev1 was restarted {often} times in 6000 s and ended again ({how}): its log says why")
    };
    assert_eq!(failed(&["exit 1"]), (why(2, "exit status: 1"), 2));
    assert_eq!(failed(&["kill -9 $$"]), (why(3, "signal: 9 (SIGKILL)"), 3));
    // What is longer ago does not count.
    let short = Limits { restarts: 1, window: Duration::ZERO, ..limits() };
    let (code, said) = run_with(&[UNTIL], &[&["exit 1", "exit 1", "exit 1", "touch $MARK"]], &[], short);
    assert_eq!((code.unwrap(), said.len()), (0, 3));
    let learner = Role { name: "the learner".to_owned(), command: Box::new(|_| Command::new("/no/such")) };
    let error = run(learner, Vec::new(), limits(), &mut || None, &mut |_| ()).unwrap_err().to_string();
    assert!(error.starts_with("cannot start the learner: "), "{error}");
}

#[test]
fn a_refused_worker_and_expelled_ones_end_the_run() {
    let (code, said) = run_of(&[WAITS], &[&["exit 2"], &["cat"]]);
    assert_eq!((code, said), (2, vec!["dev1 was refused: the run ends".to_owned()]));
    // Also where the signal that asks the learner to end kills it.
    assert_eq!(run_of(&["exec sleep 60"], &[&["exit 2"]]).0, 2);
    let expelled = |name: &str| format!("{name} was expelled, and is not started again");
    let (code, mut said) = run_of(&[WAITS], &[&["exit 4"], &["exit 4"]]);
    assert_eq!((code, said.pop().as_deref()), (1, Some("all workers were expelled: the run ends")));
    said.sort();
    assert_eq!(said, [expelled("dev1"), expelled("dev2")]);
    // Where one is left, it continues.
    assert_eq!(run_of(&[UNTIL_SAID], &[&["exit 4"], &["cat"]]), (0, vec![expelled("dev1")]));
}

#[test]
fn a_signal_is_passed_on_and_a_second_one_ends_everything() {
    let code = |learner: &str, signals: &[i32]| run_with(&[learner], &[&["cat"]], signals, limits()).0.unwrap();
    assert_eq!(code(WAITS, &[10]), 7);
    assert_eq!(code("touch $MARK; exec sleep 60", &[15]), 128 + 15, "it ended of the signal, and is not started again");
    let deaf = "trap '' INT TERM; touch $MARK; while :; do sleep 0.01; done";
    let short = Limits { grace: Duration::from_millis(100), ..limits() };
    let (ended, _) = run_with(&[deaf], &[&[deaf]], &[2, 15], short);
    assert_eq!(ended.unwrap(), 128 + 15, "whoever does not end is killed");
    assert!(!watch_parent(Duration::ZERO, || ()), "this process has no supervisor");
}
