//! Samplers: weights that do not change, and the requests for their sequences.

use super::failure::Failure;
use super::path::StatePath;
use super::seen::{Seen, Submitted};
use super::store::Saved;
use super::{Inner, Training, no_model};
use crate::rollouts::lineage::Lineage;
use model::{Adapter, Updates};
use rollout::{AdapterVersion, ModelVersion};
use std::sync::Arc;

/// The latest requests of each sampler are remembered, to recognise those that arrive again.
const MOST_SEEN: usize = 1 << 16;
/// The newest samplers of each model without files keep their weights.
const MOST_SAMPLERS: usize = 8;
/// The samplers of saved adapters that were used last keep their weights. Others read them again.
const MOST_LOADED: usize = 8;

/// A sampler: weights that do not change.
#[derive(Clone)]
pub struct Sampler {
    /// The model and the lineage of its weights; `None`: the base model.
    pub(super) model: Option<(String, Lineage)>,
    /// The path of its weights, if they were saved.
    pub path: Option<StatePath>,
    pub(in crate::service) id: String,
    /// The seed of requests without one.
    pub(in crate::service) seed: u64,
    version: ModelVersion,
    /// The adapter; `None` for the base model, and if the weights were released.
    adapter: Option<Arc<Adapter>>,
    pub(super) session: Arc<str>,
    created: u64,
}

/// A sampler and its requests.
pub(super) struct Sampled {
    pub(super) sampler: Sampler,
    seen: Seen,
    /// The number of clients that use it.
    clients: u64,
    /// The number of uses of all samplers until its last use.
    used: u64,
}

/// The version of a sampler's weights, and its adapter.
pub(in crate::service) type Weights = (ModelVersion, Option<Snapshot>);

/// An adapter of one version, with its id in the engine.
#[derive(Clone)]
pub(in crate::service) struct Snapshot {
    pub(in crate::service) id: u64,
    pub(in crate::service) adapter: Arc<Adapter>,
}

impl Snapshot {
    fn version(&self) -> AdapterVersion {
        AdapterVersion { id: self.id, version: self.adapter.version }
    }
}

impl Training {
    /// Makes a sampler of the base model, unless the session already has the sampler `number`.
    pub fn sampler_of_base(&self, session: &str, number: u64, base: ModelVersion) -> Result<String, Failure> {
        let mut inner = self.lock();
        let seed = noise(self.seed, b"base", number);
        inner.add_sampler((session, number), None, None, seed, (base, None))
    }

    /// Makes a sampler of a saved adapter, unless the session already has the sampler `number`.
    pub(super) fn sampler_of_saved(
        &self,
        (session, number): (&str, u64),
        path: &StatePath,
        base: ModelVersion,
        load: impl FnOnce(&Saved) -> Result<Adapter, Failure>,
    ) -> Result<String, Failure> {
        if let Some(id) = self.lock().sampler_in(session, number, None, Some(path))? {
            return Ok(id);
        }
        let saved = self.store.saved(path)?;
        let adapter = Arc::new(load(&saved)?);
        let mut inner = self.lock();
        let snapshot = inner.snapshot(adapter);
        let weights = (ModelVersion { adapter: Some(snapshot.version()), ..base }, Some(snapshot));
        let model = Some((path.model.clone(), saved.weights));
        let seed = noise(self.seed, &saved.lineage.0, 0);
        let id = inner.add_sampler((session, number), model, Some(path), seed, weights)?;
        inner.release_unused();
        Ok(id)
    }

    /// The weights of a sampler, which are read again if they were released.
    pub(super) fn reload(
        &self,
        id: &str,
        load: impl FnOnce(&StatePath, &Saved) -> Result<Adapter, Failure>,
    ) -> Result<Weights, Failure> {
        let sampler = self.sampler(id)?;
        let (None, Some(path)) = (sampler.weights()?, &sampler.path) else { return Ok(sampler.held()) };
        let saved = self.store.saved(path)?;
        if sampler.model != Some((path.model.clone(), saved.weights)) {
            return Err(Failure::request(format!(
                "{path} was replaced after this sampler was made, whose own weights were released, since {MOST_LOADED} \
                 others were used after it: make a new sampler"
            )));
        }
        let adapter = Some(Arc::new(load(path, &saved)?));
        let mut inner = self.lock();
        inner.uses += 1;
        let uses = inner.uses;
        if let Some(found) = inner.samplers.get_mut(id) {
            found.sampler.adapter.clone_from(&adapter);
            found.used = uses;
        }
        inner.release_unused();
        Ok(Sampler { adapter, ..sampler }.held())
    }

    /// A sampler.
    pub fn sampler(&self, id: &str) -> Result<Sampler, Failure> {
        self.lock().samplers.get(id).map(|found| found.sampler.clone()).ok_or_else(|| no_sampler(id))
    }

    /// Adds a client to a sampler. Returns its number.
    pub fn join(&self, sampler: &str) -> Result<u64, Failure> {
        let mut inner = self.lock();
        let found = inner.samplers.get_mut(sampler).ok_or_else(|| no_sampler(sampler))?;
        found.clients += 1;
        Ok(found.clients)
    }

    /// Notes the request `number` of a sampler. A request that arrives again is [`Submitted::Repeated`].
    pub fn sample(&self, sampler: &str, number: u64, (id, fingerprint): (u64, u128)) -> Result<Submitted, Failure> {
        let mut inner = self.lock();
        inner.uses += 1;
        let uses = inner.uses;
        let found = inner.samplers.get_mut(sampler).ok_or_else(|| no_sampler(sampler))?;
        found.used = uses;
        let session = found.sampler.session.clone();
        let submitted = found.seen.submit(number, id, fingerprint);
        inner.touch(&session);
        Ok(submitted)
    }

    /// Forgets the request `number` of a sampler, which was refused and may be sent again.
    pub fn forget_sample(&self, sampler: &str, number: u64) {
        if let Some(found) = self.lock().samplers.get_mut(sampler) {
            found.seen.forget(number);
        }
    }

    /// Makes a sampler of a model's current weights, whose lineage is `weights`.
    pub(super) fn add_snapshot(
        &self,
        (model, weights): (&str, Lineage),
        number: u64,
        base: Updates,
        adapter: Arc<Adapter>,
        seed: u64,
    ) -> Result<String, Failure> {
        let mut inner = self.lock();
        let session = inner.models.get(model).map(|entry| entry.session.clone()).ok_or_else(|| no_model(model))?;
        let of = Some((model.to_owned(), weights));
        let snapshot = inner.snapshot(adapter);
        let weights = (ModelVersion { base, adapter: Some(snapshot.version()) }, Some(snapshot));
        let id = inner.add_sampler((&session, number), of, None, seed, weights)?;
        inner.drop_old_snapshots(model);
        Ok(id)
    }
}

impl Inner {
    fn snapshot(&mut self, adapter: Arc<Adapter>) -> Snapshot {
        self.snapshots += 1;
        Snapshot { id: self.snapshots, adapter }
    }

    /// The id of the sampler `number` of a session, if it exists. A sampler of other weights is a failure.
    fn sampler_in(
        &mut self,
        session: &str,
        number: u64,
        model: Option<&(String, Lineage)>,
        path: Option<&StatePath>,
    ) -> Result<Option<String>, Failure> {
        let Some(id) = self.open(session)?.samplers.get(&number).cloned() else { return Ok(None) };
        let of = self.samplers.get(&id).map(|found| &found.sampler);
        let is_same = |sampler: &Sampler| match (path, &sampler.path) {
            (Some(path), Some(other)) => path == other,
            (None, None) => sampler.model.as_ref() == model,
            _ => false,
        };
        if of.is_some_and(is_same) {
            return Ok(Some(id));
        }
        Err(Failure::request(format!("the session has another sampler with the number {number}")))
    }

    fn add_sampler(
        &mut self,
        (session, number): (&str, u64),
        model: Option<(String, Lineage)>,
        path: Option<&StatePath>,
        seed: u64,
        (version, snapshot): Weights,
    ) -> Result<String, Failure> {
        if let Some(id) = self.sampler_in(session, number, model.as_ref(), path)? {
            return Ok(id);
        }
        let id = format!("{session}:sample:{number}");
        let (session, created) = (Arc::<str>::from(session), self.snapshots);
        self.open(&session)?.samplers.insert(number, id.clone());
        self.uses += 1;
        let (path, adapter) = (path.cloned(), snapshot.map(|snapshot| snapshot.adapter));
        let sampler = Sampler { model, path, id: id.clone(), seed, version, adapter, session, created };
        let sampled = Sampled { sampler, seen: Seen::new(MOST_SEEN), clients: 0, used: self.uses };
        self.samplers.insert(id.clone(), sampled);
        Ok(id)
    }

    /// Frees the weights of a model's samplers without files, except the newest ones.
    fn drop_old_snapshots(&mut self, model: &str) {
        let is_own = |sampler: &Sampler| {
            sampler.path.is_none() && sampler.adapter.is_some() && sampler.model.as_ref().is_some_and(|m| m.0 == model)
        };
        let mut own: Vec<(u64, String)> = self
            .samplers
            .iter()
            .filter(|(_, s)| is_own(&s.sampler))
            .map(|(id, s)| (s.sampler.created, id.clone()))
            .collect();
        own.sort();
        let old = own.len().saturating_sub(MOST_SAMPLERS);
        for (_, id) in own.drain(..old) {
            if let Some(found) = self.samplers.get_mut(&id) {
                found.sampler.adapter = None;
            }
        }
    }

    /// Releases the weights of saved adapters, except those that were used last. Requests that are computed keep them.
    fn release_unused(&mut self) {
        let loaded = |found: &&mut Sampled| found.sampler.path.is_some() && found.sampler.adapter.is_some();
        let mut loaded: Vec<&mut Sampled> = self.samplers.values_mut().filter(loaded).collect();
        loaded.sort_by_key(|found| std::cmp::Reverse(found.used));
        for found in loaded.into_iter().skip(MOST_LOADED) {
            found.sampler.adapter = None;
        }
    }

    /// Releases the weights of a session's saved adapters.
    pub(super) fn release_saved(&mut self, session: &str) {
        for Sampled { sampler, .. } in self.samplers.values_mut() {
            if *sampler.session == *session && sampler.path.is_some() {
                sampler.adapter = None;
            }
        }
    }
}

impl Sampler {
    /// Its session.
    pub fn session(&self) -> Arc<str> {
        self.session.clone()
    }

    /// The weights; `None` if they can be read again. It is a failure if newer samplers took their place.
    pub(in crate::service) fn weights(&self) -> Result<Option<Weights>, Failure> {
        if self.adapter.is_some() || self.version.adapter.is_none() {
            return Ok(Some(self.held()));
        }
        if self.path.is_some() {
            return Ok(None);
        }
        Err(Failure::request(format!(
            "the weights of this sampler are gone: of each model, the {MOST_SAMPLERS} newest samplers are kept. Make a \
             new one, or save the weights under a name"
        )))
    }

    pub(super) fn has_adapter(&self) -> bool {
        self.adapter.is_some()
    }

    fn held(&self) -> Weights {
        let adapter = self.version.adapter.zip(self.adapter.clone());
        (self.version, adapter.map(|(version, adapter)| Snapshot { id: version.id, adapter }))
    }
}

/// The seed of a sampler's requests without one: the same for the same server seed, lineage of the weights and number
/// of the sampler among those of these weights, in any session.
pub(super) fn noise(seed: u64, lineage: &[u8], number: u64) -> u64 {
    let hash = Lineage::of(&[&seed.to_le_bytes(), lineage, &number.to_le_bytes()]);
    u64::from_le_bytes(hash.0[..8].try_into().expect("8 of 16 bytes"))
}

fn no_sampler(id: &str) -> Failure {
    Failure::request(format!("no sampler {id}: its session has ended, or belongs to an earlier run of the server"))
}
