use super::*;

/// A sink that collects the events that it receives, and fails at step 13.
struct Keep(Arc<Mutex<Vec<String>>>);

impl Sink for Keep {
    fn receive(&mut self, event: &Event) -> Result<()> {
        let said = match &event.kind {
            EventKind::Checkpoint { step: 13, .. } => {
                return Err(Error::format(std::path::Path::new("thirteen"), "unlucky"));
            }
            EventKind::Checkpoint { step, .. } => format!("checkpoint {step}"),
            EventKind::Message { text, .. } => text.clone(),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(said);
        Ok(())
    }

    fn checkpoint(&mut self, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        lengths.insert("kept".to_owned(), self.0.lock().unwrap().len() as u64);
        Ok(())
    }

    fn resume(&mut self, step: u64, lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        self.0.lock().unwrap().truncate(lengths.get("kept").copied().unwrap_or(0) as usize);
        self.0.lock().unwrap().push(format!("after {step}"));
        Ok((step == 0).then(|| "from the beginning".to_owned()))
    }

    fn finish(&mut self) -> Result<()> {
        Err(Error::format(std::path::Path::new("end"), "not closed"))
    }
}

fn checkpoint(step: u64) -> EventKind {
    EventKind::Checkpoint { step, path: String::new() }
}

#[test]
fn every_sink_hears_everything_and_failures_are_reported_once() {
    let (sinks, heard) = (Sinks::new(), [(); 2].map(|()| Arc::new(Mutex::new(Vec::new()))));
    heard.iter().for_each(|list| sinks.add(Keep(Arc::clone(list))));
    sinks.emit(checkpoint(1)).unwrap();
    sinks.clone().info("from another handle");
    // Where nobody listens to an error, whoever emits next does.
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
fn sinks_go_back_to_a_checkpoint() {
    let (sinks, heard) = (Sinks::new(), Arc::new(Mutex::new(Vec::new())));
    sinks.add(Keep(Arc::clone(&heard)));
    sinks.emit(checkpoint(1)).unwrap();
    let lengths = sinks.checkpoint().unwrap();
    assert_eq!(lengths, BTreeMap::from([("kept".to_owned(), 1)]));
    sinks.emit(checkpoint(2)).unwrap();
    assert!(sinks.resume(1, &lengths).unwrap().is_empty());
    assert_eq!(heard.lock().unwrap()[..], ["checkpoint 1", "after 1"]);
    assert_eq!(sinks.resume(0, &BTreeMap::new()).unwrap(), ["from the beginning"]);
    assert_eq!(heard.lock().unwrap()[..], ["after 0"]);
}
