use super::*;

/// A sink that collects the events that it receives, and fails at a checkpoint of step 13.
struct Keep(Arc<Mutex<Vec<String>>>);

impl Sink for Keep {
    fn receive(&mut self, event: &Event) -> Result<()> {
        let printed = match &event.kind {
            EventKind::Checkpoint { step: Step(13), .. } => {
                return Err(Error::format(std::path::Path::new("thirteen"), "unlucky"));
            }
            EventKind::Checkpoint { step, .. } => format!("checkpoint {step}"),
            EventKind::Message { text, .. } => text.clone(),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(printed);
        Ok(())
    }

    fn checkpoint(&mut self, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        lengths.insert("kept".to_owned(), self.0.lock().unwrap().len() as u64);
        Ok(())
    }

    fn resume(&mut self, step: Step, lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        self.0.lock().unwrap().truncate(lengths.get("kept").copied().unwrap_or(0) as usize);
        self.0.lock().unwrap().push(format!("after {step}"));
        Ok((step == Step::START).then(|| "from the beginning".to_owned()))
    }

    fn finish(&mut self) -> Result<()> {
        Err(Error::format(std::path::Path::new("end"), "not closed"))
    }
}

fn checkpoint(step: u64) -> EventKind {
    EventKind::Checkpoint { step: Step(step), path: String::new() }
}

#[test]
fn every_sink_receives_every_event_and_errors_are_returned_once() {
    let (sinks, heard) = (Sinks::new(), [(); 2].map(|()| Arc::new(Mutex::new(Vec::new()))));
    for list in &heard {
        sinks.add(Keep(Arc::clone(list)));
    }
    sinks.emit(checkpoint(1)).unwrap();
    sinks.clone().info("from another handle");
    // An error that `emit_unchecked` ignores is returned by the next call of `emit`.
    sinks.emit_unchecked(checkpoint(13));
    assert!(sinks.emit(checkpoint(2)).unwrap_err().to_string().contains("unlucky"));
    sinks.emit(checkpoint(3)).unwrap();
    assert!(sinks.emit(checkpoint(13)).is_err());
    for list in &heard {
        let expected = ["checkpoint 1", "from another handle", "checkpoint 2", "checkpoint 3"];
        assert_eq!(list.lock().unwrap()[..], expected);
    }
    assert!(sinks.finish().unwrap_err().to_string().contains("not closed"));
    sinks.emit(checkpoint(4)).unwrap();
}

#[test]
fn a_resume_resets_sinks_to_the_checkpoint() {
    let (sinks, heard) = (Sinks::new(), Arc::new(Mutex::new(Vec::new())));
    sinks.add(Keep(Arc::clone(&heard)));
    sinks.emit(checkpoint(1)).unwrap();
    let lengths = sinks.checkpoint().unwrap();
    assert_eq!(lengths, BTreeMap::from([("kept".to_owned(), 1)]));
    sinks.emit(checkpoint(2)).unwrap();
    assert!(sinks.resume(Step(1), &lengths).unwrap().is_empty());
    assert_eq!(heard.lock().unwrap()[..], ["checkpoint 1", "after 1"]);
    assert_eq!(sinks.resume(Step(0), &BTreeMap::new()).unwrap(), ["from the beginning"]);
    assert_eq!(heard.lock().unwrap()[..], ["after 0"]);
}

/// A sink whose messages begin with its number. Every method fails if the number ends in 13.
struct Says(u64, Arc<Mutex<Vec<String>>>);

impl Says {
    fn fails(&self, at: &str) -> Result<()> {
        let unlucky = self.0 % 100 == 13;
        if unlucky { Err(Error::format(std::path::Path::new(at), self.0.to_string())) } else { Ok(()) }
    }
}

impl Sink for Says {
    fn receive(&mut self, event: &Event) -> Result<()> {
        if let EventKind::Message { level, text, fields } = &event.kind {
            self.1.lock().unwrap().push(format!("{} {level:?} {text} {}", self.0, fields.0.len()));
        }
        self.fails("receive")
    }
    fn checkpoint(&mut self, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        lengths.insert(format!("file {}", self.0), self.0);
        self.fails("checkpoint")
    }
    fn resume(&mut self, step: Step, lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        self.fails("resume")?;
        Ok((self.0 > 5).then(|| format!("{} after {step} of {}", self.0, lengths.len())))
    }
    fn check(&mut self) -> Result<Option<String>> {
        self.fails("check")?;
        Ok((self.0 > 5).then(|| format!("{} is gone", self.0)))
    }
    fn finish(&mut self) -> Result<()> {
        self.fails("finish")
    }
}

/// A sink that implements only `receive`.
struct Deaf;

impl Sink for Deaf {
    fn receive(&mut self, _event: &Event) -> Result<()> {
        Ok(())
    }
}

fn saying(numbers: &[u64]) -> (Sinks, Arc<Mutex<Vec<String>>>) {
    let (sinks, heard) = (Sinks::new(), Arc::default());
    for &number in numbers {
        sinks.add_boxed(Box::new(Says(number, Arc::clone(&heard))));
    }
    sinks.add(Deaf);
    (sinks, heard)
}

#[test]
fn messages_of_sinks_are_collected_in_the_order_of_the_sinks() {
    let (sinks, heard) = saying(&[7, 3, 9]);
    assert_eq!(format!("{sinks:?}"), "4 sinks");
    assert_eq!(sinks.check().unwrap(), ["7 is gone", "9 is gone"]);
    let lengths = sinks.checkpoint().unwrap();
    assert_eq!(lengths, BTreeMap::from([7, 3, 9].map(|n| (format!("file {n}"), n))));
    assert_eq!(sinks.resume(Step(4), &lengths).unwrap(), ["7 after 4 of 3", "9 after 4 of 3"]);
    sinks.info("i");
    sinks.warn("w");
    sinks.message(Level::Debug, "d");
    sinks.finish().unwrap();
    let all = ["Info i", "Warn w", "Debug d"].map(|printed| [7, 3, 9].map(|n| format!("{n} {printed} 0")));
    assert_eq!(heard.lock().unwrap()[..], all.concat());
}

#[test]
fn the_first_of_several_errors_is_returned_once() {
    let (sinks, heard) = saying(&[1, 113, 213, 2]);
    let says = |error: Error| error.to_string();
    assert_eq!(sinks.checkpoint().map_err(says), Err("checkpoint: 113".to_owned()));
    assert_eq!(sinks.resume(Step(1), &BTreeMap::new()).map_err(says), Err("resume: 113".to_owned()));
    assert_eq!(sinks.check().map_err(says), Err("check: 113".to_owned()));
    assert_eq!(sinks.emit(checkpoint(1)).map_err(says), Err("receive: 113".to_owned()));
    sinks.info("received by all sinks");
    assert_eq!(heard.lock().unwrap().len(), 4);
    // The message failed before `finish` did, so its error is returned.
    assert_eq!(sinks.finish().map_err(says), Err("receive: 113".to_owned()));
    assert_eq!(sinks.finish().map_err(says), Err("finish: 113".to_owned()));
}
