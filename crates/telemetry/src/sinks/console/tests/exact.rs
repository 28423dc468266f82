//! Tests of the exact text on a console.

use super::*;
use crate::{Alarm, Finding};

/// The printed lines without their times.
fn printed(memory: &Mutex<Vec<u8>>) -> Vec<String> {
    let text = text(memory);
    text.lines().map(|line| line.split_once("s] ").map_or(line, |(_, text)| text).to_owned()).collect()
}

fn fields() -> Record {
    let mut fields = Record::new();
    fields.set("level", 5).set("x", 1.5).set("name", "a b");
    fields
}

#[test]
fn every_level_has_its_mark_and_colour() {
    for (level, mark, ansi) in
        [(Level::Error, "error: ", "31"), (Level::Warn, "warning: ", "33"), (Level::Debug, "debug: ", "2")]
    {
        let plain = plain_line(12.34, level, &"text".into(), &fields(), false);
        assert_eq!(plain, format!("[    12.3s] {mark}text level=5 x=1.5 name=a b"));
        let coloured = plain_line(12.34, level, &"text".into(), &fields(), true);
        let expected =
            format!("\u{1b}[2m[    12.3s]\u{1b}[0m \u{1b}[{ansi}m{mark}text\u{1b}[0m level=5 x=1.5 name=a b");
        assert_eq!(coloured, expected);
    }
    assert_eq!(plain_line(0.0, Level::Info, &"text".into(), &Record::new(), false), "[     0.0s] text");
    assert_eq!(
        plain_line(123.0, Level::Info, &"text".into(), &fields(), true),
        "\u{1b}[2m[   123.0s]\u{1b}[0m text level=5 x=1.5 name=a b"
    );
    assert_eq!(
        json_line(1.234_56, Level::Warn, "text", &fields()),
        r#"{"time_s":1.235,"level":"warn","message":"text","field_level":5,"x":1.5,"name":"a b"}"#
    );
}

#[test]
fn floats_are_shown_with_four_digits() {
    let table: [(Value, &str); 20] = [
        (0.001.into(), "0.001"),
        (0.001_234_56.into(), "0.001235"),
        (0.000_9.into(), "9.000e-4"),
        (0.1.into(), "0.1"),
        (0.012_345.into(), "0.01235"),
        (9.876_5.into(), "9.877"),
        (12.345_6.into(), "12.35"),
        ((-12.5).into(), "-12.5"),
        (999.96.into(), "1000"),
        (1000.0.into(), "1000"),
        (5000.0.into(), "5000"),
        (9999.4.into(), "9999"),
        (1e4.into(), "1.000e4"),
        ((-1e4).into(), "-1.000e4"),
        ((-0.0).into(), "0"),
        (12_345_678.into(), "12345678"),
        ((-3).into(), "-3"),
        (true.into(), "true"),
        (f64::NAN.into(), "null"),
        ("as it is".into(), "as it is"),
    ];
    for (value, expected) in table {
        assert_eq!(short(&value), expected, "{value}");
    }
}

#[test]
fn the_level_hides_less_important_lines() {
    for (level, shown) in [(Level::Error, 1), (Level::Warn, 2), (Level::Info, 3), (Level::Debug, 4)] {
        let (console, memory) = captured(LogFormat::Plain, level, false);
        console.log(Level::Error, "e", &Record::new());
        console.warn("w");
        console.info("i");
        console.log(Level::Debug, "d", &Record::new());
        assert_eq!(printed(&memory), ["error: e", "warning: w", "i", "debug: d"][..shown], "{level:?}");
    }
}

#[test]
fn a_fatal_error_is_shown_without_time_on_the_console() {
    let dir = tempfile::tempdir().unwrap();
    for format in [LogFormat::Plain, LogFormat::Json] {
        let (console, memory) = captured(format, Level::Error, true);
        assert_eq!(console.format(), format);
        let path = dir.path().join(format!("{format:?}"));
        console.set_log_file(path.clone()).unwrap();
        console.fatal("boom");
        let (shown, file) = (text(&memory), std::fs::read_to_string(&path).unwrap());
        match format {
            LogFormat::Plain => {
                assert_eq!(shown, "error: boom\n");
                assert!(file.starts_with("[ ") && file.ends_with("s] error: boom\n"), "{file}");
            }
            LogFormat::Json => {
                assert_eq!(shown, file);
                assert!(file.ends_with("\"level\":\"error\",\"message\":\"boom\"}\n"), "{file}");
            }
        }
        assert_eq!(
            format!("{console:?}"),
            format!("Console {{ inner: Console {{ format: {format:?}, level: Error, .. }} }}")
        );
    }
}

#[test]
fn a_silent_console_writes_only_its_log_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("main.log");
    let memory = Arc::new(Mutex::new(Vec::new()));
    let warned = Arc::new(Mutex::new(Vec::new()));
    let listener = Listener::new({
        let warned = Arc::clone(&warned);
        move |text| warned.lock().unwrap().push(text.to_owned())
    });
    let options = ConsoleOptions {
        silent: true,
        log_file: Some(path.clone()),
        warnings: Some(listener),
        ..ConsoleOptions::default()
    };
    let console = Console::with(options, false, false, Some(Arc::clone(&memory))).unwrap();
    console.info("one");
    console.print("two\n");
    console.warn("four");
    console.fatal("three");
    assert_eq!(text(&memory), "");
    let file = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = file.lines().map(|line| line.rsplit("s] ").next().unwrap()).collect();
    assert_eq!(lines, ["one", "two", "warning: four", "error: three"]);
    assert_eq!(*warned.lock().unwrap(), ["four"], "the listener must receive the warning");
}

#[cfg(target_os = "linux")]
#[test]
fn an_unopenable_log_file_is_an_error_and_keeps_early_lines() {
    let dir = tempfile::tempdir().unwrap();
    let (console, memory) = captured(LogFormat::Plain, Level::Info, false);
    console.info("early");
    let error = console.set_log_file("/dev/full".into()).unwrap_err().to_string();
    assert_eq!(error, "cannot open /dev/full: /dev/full is a device, not a regular file");
    let missing = dir.path().join("none/x.log");
    let error = console.set_log_file(missing.clone()).unwrap_err().to_string();
    assert_eq!(error, format!("cannot open {}: No such file or directory (os error 2)", missing.display()));
    let path = dir.path().join("main.log");
    std::fs::write(&path, "of the last start\n").unwrap();
    console.set_log_file(path.clone()).unwrap();
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(file.starts_with("of the last start\n[") && file.ends_with("s] early\n"), "{file}");
    assert_eq!(printed(&memory), ["early"]);
}

#[test]
fn the_console_width_is_bounded_and_100_without_a_terminal() {
    let (console, _) = captured(LogFormat::Plain, Level::Info, false);
    let expected = if std::io::stderr().is_terminal() { 40..=200 } else { 100..=100 };
    assert!(expected.contains(&console.width()));
}

#[test]
fn log_formats_are_parsed_from_their_names() {
    assert_eq!("plain".parse(), Ok(LogFormat::Plain));
    assert_eq!("xml".parse::<LogFormat>(), Err("unknown log format `xml`, expected plain or json".to_owned()));
}

fn metrics(step: u64, values: &[(&str, f64)]) -> Event {
    let values = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    EventKind::Metrics { step: Step(step), values }.into()
}

fn progress(label: &str, done: u64, total: u64) -> Event {
    EventKind::Progress { label: label.into(), done, total, note: "a note".into() }.into()
}

#[test]
fn json_lines_of_metrics_have_step_and_names() {
    let (console, memory) = captured(LogFormat::Json, Level::Info, false);
    let mut sink = ConsoleSink::new(console);
    sink.receive(&metrics(3, &[("loss", 0.5), ("kl", f64::NAN)])).unwrap();
    sink.receive(&metrics(4, &[("eval_reward", 0.25), ("epoch", 1.5)])).unwrap();
    let lines: Vec<String> = text(&memory).lines().map(|line| line.split_once(',').unwrap().1.to_owned()).collect();
    let expected = [
        r#""level":"info","message":"step 3","step":3,"loss":0.5,"kl":null}"#,
        r#""level":"info","message":"evaluation after step 4","step":4,"eval_reward":0.25,"epoch":1.5}"#,
    ];
    assert_eq!(lines, expected);
}

#[test]
fn progress_does_not_repeat_a_step_of_the_table() {
    let (console, memory) = captured(LogFormat::Plain, Level::Info, false);
    let mut sink = ConsoleSink::new(console);
    sink.receive(&metrics(3, &[("loss", 0.5)])).unwrap();
    assert_eq!(printed(&memory), ["step   loss  left", "   3  0.500     –"]);
    sink.receive(&progress("sft", 3, 9)).unwrap();
    sink.receive(&metrics(6, &[("loss", 0.25)])).unwrap();
    let line = printed(&memory).pop().unwrap();
    assert!(line.starts_with("   6  0.250  ") && line.ends_with(" s"), "the time left: {line}");
    sink.receive(&metrics(9, &[("loss", 0.25), ("odd", 1.0)])).unwrap();
    sink.receive(&progress("sft", 9, 9)).unwrap();
    assert_eq!(printed(&memory).len(), 4, "{:?}", printed(&memory));
    // One metric of an evaluation is enough to make the line an evaluation.
    sink.receive(&metrics(9, &[("epoch", 1.0), ("eval_loss", 0.75)])).unwrap();
    assert_eq!(printed(&memory)[4], "step 9: held-out loss 0.750");
}

/// Rows of steps are dim. The first line of an alarm has the colour of the alarm's weight, and its other lines have no
/// colour. Colour changes no character of the text.
#[test]
fn alarms_have_a_colour_and_step_rows_are_dim() {
    let alarm = |id: &str, quiet, until| {
        let (evidence, remedy) = ("it is 3".to_owned(), "a higher beta".to_owned());
        let alarm = Alarm { id: id.into(), since: Step(2), until, quiet, evidence, remedy, ..Alarm::default() };
        Event::from(EventKind::Alarm { step: Step(4), alarm })
    };
    let mut events = vec![metrics(1, &[("loss", 0.5)])];
    events.extend([alarm("repetition_wins", false, None), alarm("kl_blow_up", false, None)]);
    events.extend([alarm("truncated", true, None), alarm("kl_blow_up", false, Some(Step(9)))]);
    let shown = |colour| {
        let (console, memory) = captured(LogFormat::Plain, Level::Info, colour);
        let mut sink = ConsoleSink::new(console.clone());
        for event in &events {
            sink.receive(event).unwrap();
        }
        console.report(Level::Info, Painted::new(Tone::BoldGreen, "Learned."), "", &Record::new());
        text(&memory)
    };
    let (plain, coloured) = (shown(false), shown(true));
    let lines: Vec<&str> = coloured.lines().map(|line| line.split_once("s]\u{1b}[0m ").map_or(line, |l| l.1)).collect();
    let expected = [
        "step   loss  left",
        "\u{1b}[2m   1  0.500     –\u{1b}[0m",
        "\u{1b}[31mwarning: alarm repetition_wins since step 2: it is 3\u{1b}[0m",
        "  what helps: a higher beta",
        "\u{1b}[33mwarning: alarm kl_blow_up since step 2: it is 3\u{1b}[0m",
        "  what helps: a higher beta",
        "\u{1b}[2mnote: truncated since step 2: it is 3\u{1b}[0m",
        "alarm kl_blow_up is over: it held from step 2 to step 9",
        "\u{1b}[1;32mLearned.\u{1b}[0m",
    ];
    assert_eq!(lines, expected);
    let without = ["\u{1b}[0m", "\u{1b}[1;32m", "\u{1b}[2m", "\u{1b}[31m", "\u{1b}[33m"];
    let without = without.iter().fold(coloured.clone(), |text, code| text.replace(code, ""));
    let words =
        |text: &str| text.lines().map(|l| l.split_once("s] ").map_or(l, |l| l.1).to_owned()).collect::<Vec<_>>();
    assert_eq!(words(&without), words(&plain));
}

#[test]
fn rows_of_the_step_table_fit_into_the_terminal() {
    let memory = Arc::new(Mutex::new(Vec::new()));
    let console = Console::with(ConsoleOptions::default(), true, false, Some(Arc::clone(&memory))).unwrap();
    let room = console.width() - 12;
    let names: Vec<String> = (0..20).map(|i| format!("rewards/r{i}/mean")).collect();
    let values: Vec<(&str, f64)> =
        std::iter::once(("reward", 1.0)).chain(names.iter().map(|name| (name.as_str(), 0.5))).collect();
    ConsoleSink::new(console).receive(&metrics(1, &values)).unwrap();
    let lengths: Vec<usize> = printed(&memory).iter().map(|line| line.chars().count()).collect();
    assert_eq!(lengths, [room, room]);
}

#[test]
fn alarms_findings_and_ends_of_phases_are_printed() {
    let (console, memory) = captured(LogFormat::Plain, Level::Debug, false);
    let mut sink = ConsoleSink::new(console);
    let alarm = |until, quiet| {
        let alarm = Alarm {
            id: "kl".into(),
            since: Step(2),
            until,
            quiet,
            evidence: "it is 3".into(),
            remedy: "a higher beta".into(),
            ..Alarm::default()
        };
        Event::from(EventKind::Alarm { step: Step(4), alarm })
    };
    for event in [alarm(None, false), alarm(None, true), alarm(Some(Step(4)), false), alarm(Some(Step(4)), true)] {
        sink.receive(&event).unwrap();
    }
    let finding = Finding {
        id: "long_tail".into(),
        says: "Few are long.".into(),
        evidence: "3 of 9.".into(),
        remedy: "a limit".into(),
        steps: (Step(2), Step(5)),
    };
    sink.receive(&EventKind::Finding { step: Step(5), finding }.into()).unwrap();
    let expected = [
        "warning: alarm kl since step 2: it is 3",
        "  what helps: a higher beta",
        "note: kl since step 2: it is 3",
        "alarm kl is over: it held from step 2 to step 4",
        "alarm kl is over: it held from step 2 to step 4",
        "finding long_tail, steps 2 to 5: Few are long. 3 of 9.",
        "  what helps: a limit",
    ];
    assert_eq!(printed(&memory), expected);
    // A phase ends when a phase with a different name or length begins.
    memory.lock().unwrap().clear();
    for (label, done, total) in [("a", 1, 5), ("a", 2, 5), ("b", 0, 5), ("b", 1, 6)] {
        sink.receive(&progress(label, done, total)).unwrap();
    }
    sink.finish().unwrap();
    let ends: Vec<String> = printed(&memory).iter().map(|line| line.split(" in ").next().unwrap().to_owned()).collect();
    assert_eq!(ends, ["debug: a 2/5", "debug: b 0/5", "debug: b 1/6"]);
}
