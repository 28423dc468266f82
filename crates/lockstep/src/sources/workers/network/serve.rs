//! A learner's HTTP server, from which workers on other machines fetch the run's configuration, the model's files
//! (without weights) and the published versions of the weights. Weights are read directly from their slots of shared
//! memory.

use super::super::{SlotPlace, fleet_error};
use super::{Network, NetworkPlace, built};
use fleet::Version;
use fleet::blobs::{Server, Source};
use kernels::memory::slot::{Contents, Pin, SlotReader};
use model::io::ModelFiles;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io::{Error, Result};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The URL name of the configuration.
pub(super) const CONFIG: &str = "config.toml";
/// The URL name of the base weights of an adapter.
pub(super) const BASE: &str = "base";

/// The URL name of a model's file, which is one segment of a URL.
pub(super) fn model_file_name(name: &str) -> String {
    let escaped = |byte: u8| match byte {
        b if b.is_ascii_alphanumeric() || b"._-".contains(&b) => char::from(b).to_string(),
        b => format!("~{b:02x}"),
    };
    format!("model-{}", name.bytes().map(escaped).collect::<String>())
}

/// The URL name of the weights with the version `number`.
pub(super) fn slot_name(number: u64) -> String {
    format!("slot-{number}")
}

/// The properties of a slot that a host needs to create an identical copy.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AboutSlot {
    pub run: [u8; 16],
    pub layout: String,
    pub number: u64,
    pub version: u64,
    pub lineage: [u8; 16],
}

impl AboutSlot {
    fn of(slot: &SlotReader, Contents { number, version, lineage, .. }: Contents) -> AboutSlot {
        AboutSlot { run: slot.run(), layout: slot.layout().to_owned(), number, version, lineage }
    }

    pub fn contents(&self) -> Contents {
        Contents { number: self.number, version: self.version, lineage: self.lineage, checksum: None }
    }
}

#[derive(Clone)]
enum Place {
    File(PathBuf),
    /// The model file of this name, if the learner has read it.
    OfModel(Arc<ModelFiles>, String),
    /// A slot's path, and the version number that it must have, if any.
    Slot(PathBuf, Option<u64>),
}

#[derive(Default)]
struct Served {
    places: Mutex<BTreeMap<String, Place>>,
    /// Open slots by URL name. The same path may later belong to another slot.
    slots: Mutex<HashMap<String, SlotReader>>,
}

/// A learner's HTTP server, which ends on drop.
pub struct Serving {
    server: Server,
    served: Arc<Served>,
    place: NetworkPlace,
}

impl Serving {
    /// Starts to serve a run's configuration and its model's files, as the learner has read them.
    pub fn start(network: &Network, config: &Path, model: Arc<ModelFiles>) -> anyhow::Result<Serving> {
        let server = built::place(&network.server)?;
        Serving::open(network, config, model, &server)
    }

    /// Starts to serve; `server` is `HOST:PORT` of the NATS server.
    pub(super) fn open(
        network: &Network,
        config: &Path,
        model: Arc<ModelFiles>,
        server: &str,
    ) -> anyhow::Result<Serving> {
        let files: Vec<String> = model.used().map(|(name, _)| name.to_owned()).collect();
        let served = Arc::new(Served::default());
        {
            let mut places = served.places();
            places.insert(CONFIG.to_owned(), Place::File(config.to_owned()));
            places
                .extend(files.iter().map(|name| (model_file_name(name), Place::OfModel(model.clone(), name.clone()))));
        }
        let bearer = network.server.bearer();
        let server_of_nats = server;
        let server = Server::start(network.listen, bearer, served.clone()).map_err(fleet_error)?;
        let address = network.advertised(server.address(), server_of_nats)?;
        Ok(Serving { server, served, place: NetworkPlace { address, files } })
    }

    /// Bytes fetched by other machines.
    pub fn bytes_sent(&self) -> u64 {
        self.server.bytes_sent()
    }

    /// The address and the files for workers.
    pub fn place(&self) -> NetworkPlace {
        self.place.clone()
    }

    /// Replaces the served versions of the weights with these.
    pub fn publish(&self, slots: &BTreeMap<Version, SlotPlace>, base: Option<&Path>) {
        let mut places = self.served.places();
        places.retain(|_, place| !matches!(place, Place::Slot(..)));
        let slot =
            |place: &SlotPlace| (slot_name(place.stored_as), Place::Slot(place.path.clone(), Some(place.stored_as)));
        places.extend(slots.values().map(slot));
        places.extend(base.map(|base| (BASE.to_owned(), Place::Slot(base.to_owned(), None))));
        self.served.slots.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| places.contains_key(name));
    }
}

impl Served {
    fn places(&self) -> MutexGuard<'_, BTreeMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins the weights in a slot. `None` if the slot now has different weights.
    fn pin(&self, name: &str, path: &Path, number: Option<u64>) -> Result<Option<(SlotReader, Pin)>> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            match slots.get(name) {
                Some(slot) => slot.clone(),
                None => {
                    let slot = SlotReader::open(path).map_err(Error::other)?;
                    slots.entry(name.to_owned()).or_insert(slot).clone()
                }
            }
        };
        let pin = slot.pin().map_err(Error::other)?;
        let pin = pin.filter(|pin| number.is_none_or(|number| pin.contents().number == number));
        Ok(pin.map(|pin| (slot, pin)))
    }
}

fn bytes_of<'a>(files: &'a ModelFiles, name: &str) -> Option<&'a [u8]> {
    files.used().find(|(own, _)| *own == name).map(|(_, bytes)| bytes)
}

impl Source for Served {
    fn about(&self, name: &str) -> Result<Option<(u64, serde_json::Value)>> {
        let Some(place) = self.places().get(name).cloned() else { return Ok(None) };
        match place {
            Place::File(path) => Ok(Some((std::fs::metadata(path)?.len(), serde_json::Value::Null))),
            Place::OfModel(files, name) => Ok(bytes_of(&files, &name).map(|b| (b.len() as u64, Default::default()))),
            Place::Slot(path, number) => match self.pin(name, &path, number)? {
                None => Ok(None),
                Some((slot, pin)) => {
                    let about = serde_json::to_value(AboutSlot::of(&slot, pin.contents())).map_err(Error::other)?;
                    Ok(Some((slot.bytes() as u64, about)))
                }
            },
        }
    }

    fn read(&self, name: &str, at: u64, out: &mut [u8]) -> Result<bool> {
        let Some(place) = self.places().get(name).cloned() else { return Ok(false) };
        match place {
            Place::File(path) => disk::open(path)?.read_exact_at(out, at).map(|()| true),
            Place::OfModel(files, name) => {
                let bytes = bytes_of(&files, &name).and_then(|bytes| bytes.get(at as usize..at as usize + out.len()));
                bytes.inspect(|bytes| out.copy_from_slice(bytes));
                Ok(bytes.is_some())
            }
            // The slot is pinned only while a block is read, so the optimizer never waits for a network.
            Place::Slot(path, number) => match self.pin(name, &path, number)? {
                None => Ok(false),
                Some((_, pin)) => pin.read_at(at as usize, out).map(|()| true).map_err(Error::other),
            },
        }
    }
}
