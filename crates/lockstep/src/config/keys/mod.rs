//! The table of configuration keys. The other files of this folder contain the table's rows by topic, with the checks
//! of each topic and the settings built from the topic's keys. This file turns the rows into the type [`Config`], its
//! defaults, and the list [`KEYS`], which all other code reads.
//!
//! A row is
//! ```text
//! /// What the key means.
//! name: Type = default, METHOD = its own default => row;
//! ```
//!
//! where `row` is a [`Row`] that starts from `TRL` or `OURS`.

pub(super) mod adapter;
mod algorithms;
pub(super) mod batches;
mod checkpoints;
pub(super) mod data;
pub(super) mod evaluation;
mod logging;
pub(crate) mod loss;
mod machine;
mod model;
pub(super) mod optimizer;
mod ppo;
pub(super) mod preferences;
pub(crate) mod rewards;
pub(crate) mod sampling;
mod schedule;

use self::{adapter::*, algorithms::*, batches::*, checkpoints::*, data::*, evaluation::*, logging::*, loss::*};
use self::{machine::*, model::*, optimizer::*, ppo::*, preferences::*, rewards::*, sampling::*};
use super::methods::*;
use super::rollout_activations::RolloutActivations;
use super::row::OnResume::{Fixed, Free, Warn};
use super::row::{LONG, MAX_COUNT, OURS, Row, TRL, Trl, above, at_least};
use super::save_dtype::SaveDType;
use super::values::{
    ComputeDType, EvalSampling, KeyValue, OptimizerName, RefAdapter, RewardErrors, SftLoss, Strategy, Task, Trust,
};
use ::rewards::RewardSpec;
use kernels::Device;
use rollout::Speculative;
use serde_json::{Map, Value as Json};
use std::path::PathBuf;
use train::advantages::process::ProcessRewards;
use train::loss::dpo::DpoLoss;
use train::loss::sampling::CorrectionMode;
use train::{
    ImportanceSamplingLevel, KlEstimator, LossType, MomentsDType, MultiObjectiveAggregation, ScaleRewards, ScheduleKind,
};

/// A function that sets one key of a configuration to a default.
pub(in crate::config) type SetDefault = fn(&mut Config);

/// A key of the table.
pub struct Key {
    /// The name of the key in configurations.
    pub name: &'static str,
    /// The heading under which the documentation lists the key.
    pub section: &'static str,
    pub(in crate::config) doc: &'static str,
    pub(in crate::config) row: Row,
    pub(in crate::config) type_name: fn() -> String,
    pub(in crate::config) type_schema: fn() -> Json,
    pub(in crate::config) read: fn(&mut Config, &toml::Value) -> Result<(), String>,
    pub(in crate::config) read_text: fn(&mut Config, &str) -> Result<(), String>,
    pub(in crate::config) write: fn(&Config) -> Option<toml::Value>,
    /// The methods that have other defaults than [`Config::default`], each with a function that sets its default.
    pub(in crate::config) defaults: &'static [(Methods, SetDefault)],
}

/// Collects the rows of all topics, in this order, and passes them to `table!`.
macro_rules! collect {
    ([$topic:ident $($topics:ident)*] $($rows:tt)*) => { $topic! { collect [$($topics)*] $($rows)* } };
    ([] $($rows:tt)*) => { table! { $($rows)* } };
}

macro_rules! table {
    ($($section:literal { $(
        $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr $(, $method:ident = $other:expr)* => $row:expr;
    )* })*) => {
        /// A configuration: a value for every key. Names and meanings are TRL's for the keys that TRL has.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($($(#[doc = $doc])+ pub $name: $type,)*)*
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($($name: $default,)*)* }
            }
        }

        /// Every key, in the order of the documentation.
        pub(in crate::config) static KEYS: &[Key] = &[$($(Key {
            name: stringify!($name),
            section: $section,
            doc: concat!($($doc, "\n"),+),
            row: $row,
            type_name: <$type as KeyValue>::type_name,
            type_schema: <$type as KeyValue>::schema,
            read: |config, value| { config.$name = KeyValue::read(value)?; Ok(()) },
            read_text: |config, text| { config.$name = KeyValue::read_text(text)?; Ok(()) },
            write: |config| KeyValue::write(&config.$name),
            defaults: &[$(($method, |config| config.$name = $other)),*],
        },)*)*];
    };
}

collect! { [
    model_keys data_keys rewards_keys batches_keys sampling_keys algorithms_keys loss_keys ppo_keys preferences_keys
    optimizer_keys adapter_keys evaluation_keys checkpoints_keys logging_keys machine_keys
] }

/// Every key, in the order of the documentation.
pub fn keys() -> &'static [Key] {
    KEYS
}

impl Config {
    /// The default configuration of a command; for `train`, of an algorithm.
    pub fn defaults(purpose: Purpose, algorithm: Algorithm) -> Config {
        let mut config = Config { algorithm, ..Config::default() };
        for key in KEYS {
            key.set_default(&mut config, Methods::of(purpose, algorithm));
        }
        config
    }

    /// The key of this name.
    pub fn key(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The key whose TRL name is `name`, if that differs from its name here.
    pub fn key_of_trl(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| matches!(key.row.trl, Trl::Field { name: Some(theirs), .. } if theirs == name))
    }
}
