//! The weights of each sequence. The engine does not own weights: each step gets the weights that its sequences name.

use crate::{Error, Result};
use model::Updates;
use model::weights::{Adapter, Adapters, ModelView, Weights};

/// One version of one low-rank adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterVersion {
    /// The id of the adapter, chosen by the caller. [`AdapterVersion::OF_VIEW`] means the adapter of a [`ModelView`].
    pub id: u64,
    /// Version of the adapter, [`Adapter::version`].
    pub version: Updates,
}

impl AdapterVersion {
    /// The id of an adapter in a [`ModelView`], which has no ids.
    pub const OF_VIEW: u64 = u64::MAX;
}

/// The version of the weights with which a sequence's keys and values are computed. The version is part of the prefix
/// cache's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelVersion {
    /// Version of the base weights, [`Weights::version`].
    pub base: Updates,
    /// The version of the adapter, if any.
    pub adapter: Option<AdapterVersion>,
}

impl ModelVersion {
    /// The version of the trained weights: of the adapter, or of the base without an adapter.
    pub fn trained(self) -> Updates {
        self.adapter.map_or(self.base, |adapter| adapter.version)
    }

    fn of(view: &ModelView<'_>) -> ModelVersion {
        let adapter = view.adapter().map(|a| AdapterVersion { id: AdapterVersion::OF_VIEW, version: a.version });
        ModelVersion { base: view.weights.version, adapter }
    }
}

/// The weights that a step of the engine may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Models<'a> {
    /// The weights for requests that name no version.
    pub current: Option<ModelView<'a>>,
    /// Base weights of other versions, for requests that name them.
    pub bases: &'a [&'a Weights],
    /// The adapters that requests name, each with its [`AdapterVersion::id`].
    pub adapters: &'a [(u64, &'a Adapter)],
}

impl<'a, V: Into<ModelView<'a>>> From<V> for Models<'a> {
    fn from(view: V) -> Models<'a> {
        Models { current: Some(view.into()), bases: &[], adapters: &[] }
    }
}

impl<'a> Models<'a> {
    /// The version of the [`current`](Self::current) weights.
    pub(crate) fn current_version(&self) -> Option<ModelVersion> {
        self.current.as_ref().map(ModelVersion::of)
    }

    /// The base weights with this version.
    pub(crate) fn base(&self, version: Updates) -> Result<&'a Weights> {
        let current = self.current.map(|view| view.weights);
        let mut all = current.into_iter().chain(self.bases.iter().copied());
        all.find(|weights| weights.version == version).ok_or(Error::NoSuchBase { version })
    }

    /// The adapter with this id and version.
    pub(crate) fn adapter(&self, wanted: AdapterVersion) -> Result<&'a Adapter> {
        let current = self.current.and_then(|view| view.adapter()).map(|adapter| (AdapterVersion::OF_VIEW, adapter));
        let mut all = current.into_iter().chain(self.adapters.iter().copied());
        all.find(|(id, adapter)| *id == wanted.id && adapter.version == wanted.version)
            .map(|(_, adapter)| adapter)
            .ok_or(Error::NoSuchAdapter { id: wanted.id, version: wanted.version })
    }

    /// A view of `weights` with these adapters, one or none for each sequence.
    pub(crate) fn view(weights: &'a Weights, adapters: &'a [Option<&'a Adapter>]) -> ModelView<'a> {
        ModelView { weights, adapters: Adapters::from_sequences(adapters) }
    }
}

#[cfg(test)]
mod tests;
