use super::*;

mod exact;
mod fields;

/// A console that writes to memory, and that memory.
fn captured(format: LogFormat, level: Level, colour: bool) -> (Console, Arc<Mutex<Vec<u8>>>) {
    captured_with(ConsoleOptions { format, level, ..ConsoleOptions::default() }, colour)
}

fn captured_with(options: ConsoleOptions, colour: bool) -> (Console, Arc<Mutex<Vec<u8>>>) {
    let memory = Arc::new(Mutex::new(Vec::new()));
    (Console::with(options, false, colour, Some(Arc::clone(&memory))).unwrap(), memory)
}

fn text(memory: &Mutex<Vec<u8>>) -> String {
    String::from_utf8(memory.lock().unwrap().clone()).unwrap()
}

#[test]
fn colour_requires_a_terminal_and_no_color_unset() {
    let of = |terminal, value: Option<&str>| uses_colour(terminal, value.map(OsStr::new), Some(OsStr::new("xterm")));
    assert_eq!((of(true, None), of(true, Some("")), of(true, Some("1"))), (true, true, false));
    assert_eq!((of(false, None), of(false, Some("")), of(false, Some("1"))), (false, false, false));
    let named = |name: Option<&str>| uses_colour(true, None, name.map(OsStr::new));
    assert_eq!((named(None), named(Some("dumb"))), (true, false));
}

#[test]
fn each_line_of_the_json_format_is_an_object() {
    let (console, memory) = captured(LogFormat::Json, Level::Info, false);
    let mut fields = Record::new();
    fields.set("loss", 0.1 + 0.2).set("message", "mine");
    console.log(Level::Warn, "two\nlines", &fields);
    console.print("table\nof two lines\n");
    let text = text(&memory);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["level"], &lines[0]["message"]), (&"warn".into(), &"two\nlines".into()));
    assert_eq!((&lines[0]["loss"], &lines[0]["field_message"]), (&Value::from(0.1 + 0.2), &"mine".into()));
    assert!(lines[0]["time_s"].as_f64().unwrap() > 1.6e9);
    assert_eq!(lines[1]["message"], "table\nof two lines");
}

#[test]
fn the_log_file_has_lines_of_every_level_without_colour() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("main.log");
    let (console, memory) = captured(LogFormat::Plain, Level::Error, true);
    console.log(Level::Debug, "early", &Record::new());
    console.set_log_file(path.clone()).unwrap();
    console.clone().log(Level::Debug, "details", &Record::new());
    console.log(Level::Error, "bad", &Record::new());
    console.print("table");
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(file.contains("debug: early\n") && file.find("early") < file.find("details"), "{file}");
    assert!(file.contains("debug: details\n") && file.contains("error: bad\ntable\n"), "{file}");
    assert!(!file.contains('\u{1b}') && !text(&memory).contains("details"));
    assert!(console.set_log_file(dir.path().join("no/such/dir.log")).is_err());
}

#[test]
fn progress_without_a_terminal_is_printed_as_lines() {
    let (console, memory) = captured(LogFormat::Plain, Level::Debug, false);
    let mut progress = console.progress("grpo", 300, 100);
    assert_eq!(progress.remaining_s(), None);
    progress.set(150, "reward 0.50");
    assert!(text(&memory).is_empty(), "progress lines must be rare");
    assert!(progress.remaining_s().is_some());
    progress.set(300, "reward 0.75");
    assert!(text(&memory).contains("grpo 300/300, reward 0.75"), "the last progress must be printed");
    assert_eq!(progress.remaining_s(), None);
    drop(progress);
    assert!(text(&memory).contains("debug: grpo 300/300 in 0.0"), "{}", text(&memory));
}

#[test]
fn durations_are_formatted_in_words() {
    let words = [0.424, 9.96, 38.2, 245.0, 7380.0, -1.0].map(duration);
    assert_eq!(words, ["0.42 s", "10 s", "38 s", "4 min 05 s", "2 h 03 min", "0.00 s"]);
}

#[test]
fn messages_completions_and_progress_are_shown() {
    let (console, memory) = captured(LogFormat::Plain, Level::Debug, false);
    let mut sink = ConsoleSink::new(console);
    let mut show = |kind: EventKind| sink.receive(&kind.into()).unwrap();
    let progress = |done, note: &str| EventKind::Progress { label: "grpo".into(), done, total: 9, note: note.into() };
    show(progress(3, "not shown: where it begins"));
    show(EventKind::Message { level: Level::Warn, text: "careful".into(), fields: Record::new() });
    show(EventKind::Metrics { step: Step(1), values: vec![("not shown".into(), 1.0)] });
    let rows = crate::CompletionRows {
        step: Step(4),
        prompts: vec!["p".into(), "q".into()],
        completions: vec!["c".into(), "d".into()],
        advantages: vec![Some(0.5), Some(-0.5)],
        ..Default::default()
    };
    show(EventKind::Completions { rows: crate::CompletionRows { step: Step(3), ..rows.clone() }, shown: 0 });
    show(EventKind::Completions { rows, shown: 1 });
    show(progress(9, "reward 0.5"));
    assert!(!text(&memory).contains("grpo 9/9 in"));
    sink.finish().unwrap();
    let text = text(&memory);
    let shown: Vec<_> = ["warning: careful\n", "Step 4\nPrompt", "grpo 9/9, reward 0.5\n", "debug: grpo 9/9 in 0.0"]
        .iter()
        .map(|part| text.find(part).unwrap_or_else(|| panic!("no {part:?} in {text}")))
        .collect();
    assert!(
        shown.is_sorted() && !text.contains("not shown") && !text.contains("Step 3") && !text.contains('q'),
        "{text}"
    );
}

/// An evaluation is one line in both formats. A verbose console also prints its table, and the log file always has the
/// table.
#[test]
fn an_evaluation_is_a_line_and_if_verbose_also_a_table() {
    let dir = tempfile::tempdir().unwrap();
    for (format, verbose) in [(LogFormat::Plain, false), (LogFormat::Plain, true), (LogFormat::Json, true)] {
        let log = dir.path().join(format!("{format:?}-{verbose}.log"));
        let options = ConsoleOptions { format, verbose, log_file: Some(log.clone()), ..ConsoleOptions::default() };
        let (console, memory) = captured_with(options, false);
        let values = vec![("eval_reward".to_owned(), 0.25), ("eval_runtime".to_owned(), 2.0)];
        ConsoleSink::new(console).receive(&EventKind::Metrics { step: Step(4), values }.into()).unwrap();
        let (shown, file) = (text(&memory), std::fs::read_to_string(&log).unwrap());
        if format == LogFormat::Json {
            assert!(
                shown.lines().count() == 1 && shown == file && shown.contains("evaluation after step 4"),
                "{shown}"
            );
            continue;
        }
        assert!(shown.contains("] step 4: held-out reward 0.250; 2.00 s\n"), "{shown}");
        assert_eq!((shown.lines().count() == 1, shown.contains("evaluation after step 4")), (!verbose, verbose));
        assert!(file.contains("evaluation after step 4 (2.00 s)\nmetric  value"), "{file}");
    }
}

/// A table of details is always written to the log file. The plain console prints it only if verbose; the JSON console
/// always does.
#[test]
fn details_are_printed_if_verbose_or_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let mut fields = Record::new();
    fields.set("wall_s", 1.5);
    let shown = |format, verbose, level| {
        let log = dir.path().join("a.log");
        let _ = std::fs::remove_file(&log);
        let options = ConsoleOptions { format, verbose, level, log_file: Some(log.clone()), ..Default::default() };
        let (console, memory) = captured_with(options, false);
        console.details("stage  s\nrun  1.5\n", "where", &fields);
        assert!(std::fs::read_to_string(log).unwrap().contains(if format == LogFormat::Json { "1.5" } else { "run" }));
        text(&memory)
    };
    assert_eq!(shown(LogFormat::Plain, false, Level::Info), "");
    assert_eq!(shown(LogFormat::Plain, true, Level::Info), "stage  s\nrun  1.5\n");
    assert!(shown(LogFormat::Plain, false, Level::Debug).ends_with("] debug: stage  s\nrun  1.5\n"));
    assert!(shown(LogFormat::Json, false, Level::Info).ends_with("\"message\":\"where\",\"wall_s\":1.5}\n"));
}

/// The exception of a reward may contain a completion with escape sequences, which a terminal would execute.
#[test]
fn escape_sequences_in_messages_are_escaped_on_terminal_and_log() {
    let dir = tempfile::tempdir().unwrap();
    let evil = "ValueError: cannot parse \u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\r\u{202e}x";
    for format in [LogFormat::Plain, LogFormat::Json] {
        let (console, memory) = captured(format, Level::Debug, false);
        let log = dir.path().join(format!("{format:?}.log"));
        console.set_log_file(log.clone()).unwrap();
        let fields = Record(serde_json::Map::from_iter([(evil.to_owned(), evil.into())]));
        console.log(Level::Warn, evil, &fields);
        console.print(evil);
        console.fatal(evil);
        console.progress(evil, 1, 0).set(1, evil);
        let shown = String::from_utf8(memory.lock().unwrap().clone()).unwrap();
        for text in [shown, std::fs::read_to_string(log).unwrap()] {
            let acts = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!text.chars().any(acts) && text.matches("cannot parse").count() >= 4, "{text:?}");
        }
    }
}
