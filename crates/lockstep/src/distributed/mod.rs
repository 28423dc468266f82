//! A run whose completions are made by other processes: what the learner tells its workers, and the two sides.
//!
//! The protocol is the crate `fleet`; weights are slots of shared memory (`model::SharedSlot`). Here a job gets its
//! meaning: the completions of one prompt ([`GroupJob`](crate::rollouts::jobs::GroupJob)) by the weights that a batch
//! begins with. It knows neither steps nor the run's files.

mod chunks;
mod expelled;
mod learner;
mod made_by;
mod network;
mod scorers;
mod worker;

pub use chunks::{Chunks, Link, by_group};
pub use learner::{Distributed, Frontier, FrontierGroup, Pending, Start};
pub use made_by::made_by;
pub use network::{Host, NatsServer, Network, NetworkPlace, is_server, join};
pub use scorers::{MakeRewards, Scorers};
pub use worker::{Parts, WorkerWork};

use crate::config::{Config, settings_of_weights};
use crate::models::hashes;
use crate::stop::StopSignal;
use fleet::Lineage;
use fleet::exchange::spool::Layout;
use kernels::Context;
use kernels::cores::CoreTokens;
use model::Published;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use telemetry::record::FileHash;

/// What decides the bits of a worker's answers, beside the weights: it must be equal on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The version of the program.
    pub program: String,
    /// The formula of its matmuls.
    pub arithmetic: String,
    /// SHA-256 of each file of the model but for the weights, by name: shape and tokenizer.
    pub files: BTreeMap<String, String>,
    /// SHA-256 of the keys of the configuration that bits depend on.
    pub settings: String,
}

impl Identity {
    /// Of this process.
    pub fn of(ctx: &Context, config: &Config, model: &Path, stop: &StopSignal) -> anyhow::Result<Identity> {
        let files = hashes(model, stop, |name| !name.ends_with(".safetensors"))?;
        Ok(Identity {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            arithmetic: ctx.arithmetic(config.dtype.dtype()).to_owned(),
            files: files.into_iter().map(|FileHash { name, sha256, .. }| (name, sha256)).collect(),
            settings: telemetry::record::sha256(settings_of_weights(config).as_bytes()),
        })
    }

    /// What differs, with both values; none if nothing does.
    pub fn difference(&self, learner: &Identity) -> Option<String> {
        let differs = |what: &str, own: &str, other: &str| {
            (own != other).then(|| format!("{what} is {own} here, and {other} at the learner"))
        };
        let none = String::from("missing");
        let names = self.files.keys().chain(learner.files.keys());
        let file = |name: &String| {
            let of = |files: &BTreeMap<String, String>| files.get(name).unwrap_or(&none).clone();
            differs(&format!("the SHA-256 of the model's {name}"), &of(&self.files), &of(&learner.files))
        };
        differs("the program's version", &self.program, &learner.program)
            .or_else(|| differs("the arithmetic", &self.arithmetic, &learner.arithmetic))
            .or_else(|| names.filter_map(file).next())
            .or_else(|| differs("the SHA-256 of the configuration's keys", &self.settings, &learner.settings))
    }
}

/// What the learner tells its workers, in `learner.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shared {
    /// What must be equal.
    pub identity: Identity,
    /// Of the slots.
    pub run: [u8; 16],
    /// The base below an adapter.
    pub base: Option<PathBuf>,
    /// Where each version is that a job may need.
    pub slots: BTreeMap<u64, SlotPlace>,
    /// The names of the rewards that workers ask.
    pub rewards: Vec<String>,
    /// How it is reached from other machines, if it is.
    #[serde(default)]
    pub network: Option<NetworkPlace>,
    /// Tokens of the longest prompt.
    pub longest_prompt: usize,
    /// Bytes of weights that were copied for a new version; 0 unless an optimizer leaves parameters alone.
    pub weight_sync_bytes_copied: u64,
    /// Bytes that other machines have fetched: each version once for each of them.
    #[serde(default)]
    pub bytes_fetched: u64,
}

/// Where a version lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotPlace {
    /// What is opened.
    pub path: PathBuf,
    /// The number that the slot says: an earlier one, if the weights have not changed since.
    pub stored_as: u64,
    /// Where the weights come from.
    pub lineage: Lineage,
}

impl SlotPlace {
    fn of(published: Published, lineage: Lineage) -> SlotPlace {
        SlotPlace { path: published.path, stored_as: published.stored_as, lineage }
    }
}

/// Learner and workers of one machine compute with its cores in turn: a process with as many threads as it holds cores.
pub fn share_cores(ctx: &Context, out: &Path) -> anyhow::Result<()> {
    // A directory may be shared with other machines, which have cores of their own.
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let dir = Layout::of_run(out).root().join("cores").join(machine.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    ctx.share_cores(CoreTokens::create(&dir, cores)?);
    Ok(())
}

/// The error of a refusal is the user's to fix: exit code 2.
pub fn of_fleet(error: fleet::Error) -> anyhow::Error {
    match error {
        fleet::Error::Refused(why) => crate::BadInput::new(why),
        error => error.into(),
    }
}
