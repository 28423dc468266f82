//! Puts the rows of all topics together: the typed [`Config`], its defaults, and [`KEYS`], which everything else reads.
//!
//! A row is
//! ```text
//! /// What the key means.
//! name: Type = default, METHOD = its own default => row;
//! ```
//! where `row` is a [`Row`](super::key::Row), begun with `TRL` or `OURS`.

use super::Purpose;
use super::key::OnResume::{Fixed, Free, Warn};
use super::key::{Key, LONG, MANY, OURS, TRL, Trl, above, at_least};
use super::keys::{adapter::*, algorithms::*, batches::*, checkpoints::*, data::*, evaluation::*, logging::*, loss::*};
use super::keys::{machine::*, model::*, optimizer::*, ppo::*, preferences::*, rewards::*, sampling::*};
use super::methods::{ALL, DPO, Methods, PAIRS, REWARD, SFT};
use super::values::{
    ComputeDType, EvalSampling, KeyValue, OptimizerName, RewardErrors, SftLoss, Strategy, Task, Trust,
};
use kernels::Device;
use rewards::RewardSpec;
use rollout::Speculative;
use serde_json::{Map, Value as Json};
use std::path::PathBuf;
use train::advantages::process::ProcessRewards;
use train::loss::dpo::DpoLoss;
use train::loss::sampling::CorrectionMode;
use train::{
    ImportanceSamplingLevel, KlEstimator, LossType, MomentsDType, MultiObjectiveAggregation, ScaleRewards, ScheduleKind,
};

/// Asks one topic after the other for its rows; they go to `table!`, in this order.
macro_rules! collect {
    ([$topic:ident $($topics:ident)*] $($rows:tt)*) => { $topic! { collect [$($topics)*] $($rows)* } };
    ([] $($rows:tt)*) => { table! { $($rows)* } };
}

macro_rules! table {
    ($($section:literal { $(
        $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr $(, $method:ident = $other:expr)* => $row:expr;
    )* })*) => {
        /// A whole configuration. Names and meanings are TRL's where TRL has the key.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($($(#[doc = $doc])+ pub $name: $type,)*)*
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($($name: $default,)*)* }
            }
        }

        /// Every key, in the order in which it is shown.
        pub(super) static KEYS: &[Key] = &[$($(Key {
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

/// Every key, in the order in which it is shown.
pub fn keys() -> &'static [Key] {
    KEYS
}

impl Config {
    /// The defaults of a command, of `train` those of an algorithm.
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

    /// The key that has another name in TRL.
    pub fn key_of_trl(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| matches!(key.row.trl, Trl::Field { name: Some(theirs), .. } if theirs == name))
    }
}
