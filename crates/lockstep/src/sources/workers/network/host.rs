//! The weights on a worker's host. One worker of the host fetches the weights from the learner, and all other workers
//! read them from shared memory.
//!
//! The directory is in the system's directory for temporary files, and named after the server and the run. The worker
//! with the lock of `fetch.lock` fetches; when its process ends, the kernel passes the lock to another worker.
//! `fleet/learner.json` repeats the learner's state, with the host's slots instead of the learner's.

use super::super::{Shared, SlotPlace, fleet_error};
use super::serve::{AboutSlot, BASE, CONFIG, model_file_name, slot_name};
use super::{NatsServer, NetworkPlace, Watch};
use crate::error::BadInput;
use anyhow::{Context as _, bail};
use fleet::blobs::Client;
use fleet::exchange::LearnerState;
use fleet::exchange::spool::Layout;
use kernels::memory::slot::{SlotFiller, SlotOptions};
use model::io::{ModelFiles, is_listed};
use std::collections::BTreeSet;
use std::fs::TryLockError;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the learner's state is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How often a worker checks whether it must fetch now.
const TURN: Duration = Duration::from_millis(100);

/// A worker's handle to the weights that its host shares. After it is dropped, another worker of the host fetches.
pub struct Host {
    dir: PathBuf,
    talk: Arc<Talk>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by a worker and its fetching thread.
#[derive(Default)]
struct Talk {
    stop: AtomicBool,
    failed: Mutex<Option<anyhow::Error>>,
    says: Mutex<Vec<String>>,
}

impl Host {
    /// Joins the workers of this host. `watch` returns the learner's last state.
    pub fn open(server: &NatsServer, watch: Watch) -> anyhow::Result<Host> {
        let user = std::fs::metadata("/proc/self").map_or(0, |data| data.uid());
        let name: String = telemetry::record::sha256(server.url.as_bytes()).chars().take(16).collect();
        let dir = std::env::temp_dir().join(format!("lockstep-{user}")).join(name);
        Host::open_in(dir, server, watch)
    }

    pub(super) fn open_in(dir: PathBuf, server: &NatsServer, watch: Watch) -> anyhow::Result<Host> {
        // The directory must belong to this user, since its files are used for computing.
        Layout::in_run(&dir).create().map_err(fleet_error)?;
        if let Some(above) = dir.parent()
            && std::fs::metadata(above)?.uid() != std::fs::metadata(&dir)?.uid()
        {
            return Err(BadInput::new(format!("{} belongs to another user: set TMPDIR", above.display())));
        }
        let talk = Arc::new(Talk::default());
        let (own, at, bearer) = (talk.clone(), dir.clone(), server.bearer());
        let fetch = move || {
            if let Err(error) = fetch(&at, &own, bearer, &watch) {
                *own.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        };
        let thread = std::thread::Builder::new().name("fetch".to_owned()).spawn(fetch)?;
        Ok(Host { dir, talk, thread: Some(thread) })
    }

    /// The host's directory, which workers read like a run's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of the model's files, without weights.
    pub fn model(&self) -> PathBuf {
        self.dir.join("model")
    }

    /// Whether the files of the learner with this identifier have been fetched.
    pub fn is_ready(&self, run: [u8; 16]) -> bool {
        told(&self.dir).is_some_and(|shared| shared.run == run)
    }

    /// The error of the fetching thread, if any.
    pub fn failure(&self) -> Option<anyhow::Error> {
        self.talk.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether fetching ended with an error.
    pub fn has_failed(&self) -> bool {
        self.talk.failed.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Messages for the user since the last call.
    pub fn take_news(&self) -> Vec<String> {
        std::mem::take(&mut self.talk.says.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.talk.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The content of the host's copy of `learner.json`.
fn told(dir: &Path) -> Option<Shared> {
    let bytes = disk::read(Layout::in_run(dir).learner(), disk::most::STATE).ok()?;
    let state: LearnerState = serde_json::from_slice(&bytes).ok()?;
    serde_json::from_value(state.shared).ok()
}

fn fetch(dir: &Path, talk: &Arc<Talk>, bearer: Option<String>, watch: &Watch) -> anyhow::Result<()> {
    let lock = disk::Options::new().write().create().mode(0o600).open(&dir.join("fetch.lock"))?;
    let stop = || talk.stop.load(Ordering::SeqCst);
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => std::thread::sleep(TURN),
            Err(TryLockError::Error(error)) => return Err(error).context("fetch.lock"),
        }
        if stop() {
            return Ok(());
        }
    }
    let mut copies = Copies { dir, talk, bearer, from: None, slots: Vec::new(), base: None, seen: None };
    let result = copies.follow(watch, &stop);
    // The host's slots end with this process. A worker that takes over fetches all weights again.
    let _ = disk::remove_file(Layout::in_run(dir).learner());
    // Closing is not enough: a child process that is being started has copies of open files until it executes its
    // program.
    let _ = lock.unlock();
    result
}

/// A slot of shared memory on the host, with a copy of weights.
struct Copy {
    filler: SlotFiller,
    layout: String,
    bytes: usize,
    /// The number of the weights in the slot; `None` while it is being filled.
    number: Option<u64>,
}

/// All copies on this host.
struct Copies<'a> {
    dir: &'a Path,
    talk: &'a Arc<Talk>,
    bearer: Option<String>,
    /// The learner of the files, and the client of its server.
    from: Option<([u8; 16], Client)>,
    slots: Vec<Copy>,
    base: Option<Copy>,
    /// The last state written to `learner.json`.
    seen: Option<LearnerState>,
}

impl Copies<'_> {
    fn follow(&mut self, watch: &Watch, stop: &dyn Fn() -> bool) -> anyhow::Result<()> {
        let mut before = None;
        while !stop() {
            let state = watch();
            if state == before {
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
            let Some(state) = state else { continue };
            if state.ended {
                return Ok(());
            }
            let shared: Shared = serde_json::from_value(state.shared.clone()).context("the state of the learner")?;
            // A killed learner never answers, and the next learner may have a different address.
            let is_other = |now: &LearnerState| ["run", "network"].iter().any(|k| now.shared[k] != state.shared[k]);
            let stop = || stop() || watch().is_none_or(|now| is_other(&now));
            if self.copy(&shared, &state, &stop)? {
                before = Some(state);
            }
        }
        Ok(())
    }

    /// Fetches the files and weights in the learner's state that the host lacks. Returns whether the host is then
    /// complete.
    fn copy(&mut self, shared: &Shared, state: &LearnerState, stop: &dyn Fn() -> bool) -> anyhow::Result<bool> {
        let Some(network) = &shared.network else {
            return Err(BadInput::new("the learner serves no weights: it was started without --listen".to_owned()));
        };
        if self.from.as_ref().is_none_or(|(run, _)| *run != shared.run) && !self.begin(shared, network, stop)? {
            return Ok(false);
        }
        if shared.base.is_some() && self.base.is_none() {
            self.base = self.fetch(BASE, None, stop)?;
            if self.base.is_none() {
                return Ok(false);
            }
        }
        let needed: BTreeSet<u64> = shared.slots.values().map(|place| place.stored_as).collect();
        self.write(shared, state)?;
        for number in &needed {
            if self.slots.iter().any(|slot| slot.number == Some(*number)) {
                continue;
            }
            let free = self.free(&needed)?;
            // The slot no longer exists: the learner's state has changed.
            let Some(copy) = self.fetch(&slot_name(*number), free, stop)? else { return Ok(false) };
            self.slots.push(copy);
            self.write(shared, state)?;
        }
        Ok(true)
    }

    /// Starts with a new learner: fetches its configuration and the model's files.
    fn begin(&mut self, shared: &Shared, network: &NetworkPlace, stop: &dyn Fn() -> bool) -> anyhow::Result<bool> {
        let talk = self.talk.clone();
        let say = move |text: &str| talk.says.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
        let client = Client::new(&network.address, self.bearer.as_deref(), say);
        let model = self.dir.join("model");
        disk::create_dir_all(&model)?;
        let files =
            network.files.iter().filter(|name| is_listed(name)).map(|name| (model_file_name(name), model.join(name)));
        for (blob, path) in [(CONFIG.to_owned(), self.dir.join(CONFIG))].into_iter().chain(files) {
            let Some(bytes) = client.bytes(&blob, stop).map_err(fleet_error)? else { return Ok(false) };
            disk::create_dir_all(path.parent().unwrap_or(&model))?;
            replace(&path, &bytes)?;
        }
        // A leftover file of an earlier learner's model would also be read.
        for (name, _) in ModelFiles::read(&model)?.used().filter(|(name, _)| !network.files.iter().any(|n| n == name)) {
            disk::remove_file(model.join(name))?;
        }
        (self.slots, self.base, self.seen) = Default::default();
        self.from = Some((shared.run, client));
        Ok(true)
    }

    /// A slot whose weights are neither needed nor being read, if there is one.
    fn free(&mut self, needed: &BTreeSet<u64>) -> anyhow::Result<Option<Copy>> {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.number.is_none_or(|number| !needed.contains(&number)) && slot.filler.try_lock()? {
                slot.number = None;
                return Ok(Some(self.slots.swap_remove(index)));
            }
        }
        Ok(None)
    }

    /// Fetches the weights in a slot of the learner, into `free` if they fit.
    fn fetch(&mut self, blob: &str, free: Option<Copy>, stop: &dyn Fn() -> bool) -> anyhow::Result<Option<Copy>> {
        let Some((run, client)) = &self.from else { bail!("no learner is known") };
        let Some(head) = client.head(blob, stop).map_err(fleet_error)? else {
            self.slots.extend(free);
            return Ok(None);
        };
        let about: AboutSlot = serde_json::from_value(head.about.clone()).with_context(|| blob.to_owned())?;
        if about.run != *run {
            bail!("{blob} and the learner's state belong to different runs");
        }
        let bytes = usize::try_from(head.bytes)?;
        let mut copy = match free.filter(|copy| copy.layout == about.layout && copy.bytes == bytes) {
            Some(copy) => copy,
            None => {
                let options = SlotOptions {
                    run: *run,
                    layout: &about.layout,
                    bytes,
                    dir: None,
                    sealed_later: false,
                    lent: false,
                };
                Copy { filler: SlotFiller::create(options)?, layout: about.layout.clone(), bytes, number: None }
            }
        };
        let filler = &mut copy.filler;
        let mut sink = |at: u64, block: &[u8]| {
            let written = filler.write_at(at as usize, block);
            written.map_err(|error| fleet::Error::Failed(error.to_string()))
        };
        if !client.fetch(blob, &head, &mut sink, stop).map_err(fleet_error)? {
            self.slots.push(copy);
            return Ok(None);
        }
        copy.filler.publish(about.contents())?;
        copy.number = Some(about.number);
        Ok(Some(copy))
    }

    /// Writes `learner.json` for the host's workers, with the existing slots.
    fn write(&mut self, shared: &Shared, state: &LearnerState) -> anyhow::Result<()> {
        let here = |place: &SlotPlace| {
            let copy = self.slots.iter().find(|slot| slot.number == Some(place.stored_as))?;
            Some(SlotPlace { path: copy.filler.path().to_owned(), ..place.clone() })
        };
        let slots = shared.slots.iter().filter_map(|(version, place)| Some((*version, here(place)?))).collect();
        let base = self.base.as_ref().map(|copy| copy.filler.path().to_owned());
        let own = Shared { slots, base, network: None, ..shared.clone() };
        let state = LearnerState { shared: serde_json::to_value(own)?, ..state.clone() };
        if self.seen.as_ref() != Some(&state) {
            replace(&Layout::in_run(self.dir).learner(), &serde_json::to_vec(&state)?)?;
            self.seen = Some(state);
        }
        Ok(())
    }
}

/// Replaces a file that other processes may be reading.
fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let temporary = path.with_file_name(format!(".{}", path.file_name().unwrap_or_default().to_string_lossy()));
    let written = (|| {
        let mut file = disk::Options::new().write().create().truncate().mode(0o600).open(&temporary)?;
        std::io::Write::write_all(&mut file, bytes)?;
        disk::rename(&temporary, path)
    })();
    written.with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_atomically() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("learner.json");
        replace(&path, b"old and longer").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let failed = replace(&dir.path().join("none/x"), b"").unwrap_err();
        assert!(failed.to_string().ends_with("none/x"), "{failed:#}");
    }
}
