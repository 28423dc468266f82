//! Chooses the rows whose activations the engine keeps for the first update on their tokens.
//!
//! A group is kept if its largest possible size fits when it begins. The rows of a step are contiguous in the store, so
//! rows of groups that are not kept also take up room if they precede rows of kept groups. A group whose rows no longer
//! fit is dropped: the trainer then computes it, with the same bits.

use crate::scheduler::{Chunk, Scheduler};
use crate::sequence::Role;
use model::kept::{KeptGroup, KeptRollout, NO_ROW, RolloutActivations};
use model::weights::Version;
use std::collections::HashMap;

/// The groups whose rows are kept in `activations`.
pub(crate) struct Keeper {
    activations: RolloutActivations,
    /// The groups that have begun, by serial number; `None` for those that are not kept.
    groups: HashMap<u64, Option<Growing>>,
    /// The rows that the kept groups may still need.
    promised: usize,
}

/// A group that is being generated.
struct Growing {
    kept: KeptGroup,
    /// The rows that the group may still need.
    promised: usize,
}

impl Keeper {
    pub(crate) fn new(activations: RolloutActivations) -> Keeper {
        Keeper { activations, groups: HashMap::new(), promised: 0 }
    }

    /// The store of the kept rows.
    pub(crate) fn activations(&self) -> RolloutActivations {
        self.activations.clone()
    }

    /// Chooses the groups of the step's `chunks` that are kept. If this returns true, the rows of the step must be
    /// computed from row [`KeptRollout::used`] of the store on.
    pub(crate) fn begin_step(
        &mut self,
        store: &mut KeptRollout,
        scheduler: &Scheduler,
        chunks: &[Chunk],
        version: Version,
    ) -> bool {
        let (capacity, rows) = (store.store.capacity(), chunks.iter().map(Chunk::rows).sum::<usize>());
        let accepts = store.accepts(version);
        let mut any = false;
        for chunk in chunks {
            let group = &scheduler.groups[scheduler.sequences[chunk.sequence].group];
            let known = self.groups.entry(group.serial).or_insert_with(|| {
                let needs = group.rows_needed(scheduler.max_model_len());
                let is_plain = group.request.model.is_none() && group.request.so_far.is_empty();
                let fits = store.used + self.promised + needs + store.reserved <= capacity;
                let growing = || {
                    let (request, temperature) = (&group.request, group.request.sampling.temperature);
                    let kept = KeptGroup::begun(&request.prompt, temperature, group.members.len());
                    Growing { kept, promised: needs }
                };
                (accepts && is_plain && fits).then(growing).inspect(|_| self.promised += needs)
            });
            any |= known.is_some();
        }
        let fits = accepts && store.used + rows <= capacity;
        if any && !fits {
            // The groups of this step lose rows, so their other rows are useless.
            for chunk in chunks {
                let serial = scheduler.groups[scheduler.sequences[chunk.sequence].group].serial;
                self.promised -= self.groups.insert(serial, None).flatten().map_or(0, |growing| growing.promised);
            }
        }
        any && fits
    }

    /// Records the rows of `chunks`, which were computed from row [`KeptRollout::used`] on.
    pub(crate) fn computed(&mut self, store: &mut KeptRollout, scheduler: &Scheduler, chunks: &[Chunk]) {
        let (mut row, mut used) = (store.used, store.used);
        for chunk in chunks {
            let sequence = &scheduler.sequences[chunk.sequence];
            let serial = scheduler.groups[sequence.group].serial;
            let first = row;
            row += chunk.rows();
            let Some(Some(Growing { kept, promised })) = self.groups.get_mut(&serial) else { continue };
            used = row;
            let fulfilled = chunk.rows().min(*promised);
            *promised -= fulfilled;
            self.promised -= fulfilled;
            for (position, row) in (chunk.from..chunk.to).zip(first as u32..) {
                match (position.checked_sub(kept.prompt_rows.len()), sequence.role) {
                    // A completion computes the prompt a second time if it has lost its pages.
                    (None, _) => kept.prompt_rows[position] = row,
                    (Some(_), Role::Prompt) => {}
                    (Some(at), Role::Completion(generation)) => {
                        let rows = &mut kept.completions[generation as usize].rows;
                        rows.resize(rows.len().max(at + 1), NO_ROW);
                        rows[at] = row;
                    }
                }
            }
        }
        store.used = used;
    }

    /// Forgets a cancelled group, which needs no more rows.
    pub(crate) fn cancelled(&mut self, serial: u64) {
        self.promised -= self.groups.remove(&serial).flatten().map_or(0, |growing| growing.promised);
    }

    /// Hands the rows of the groups that have ended to the trainer.
    pub(crate) fn ended(&mut self, scheduler: &Scheduler) {
        for &group in scheduler.finished() {
            let group = &scheduler.groups[group];
            let Some(Growing { mut kept, promised }) = self.groups.remove(&group.serial).flatten() else { continue };
            self.promised -= promised;
            for (completion, &member) in kept.completions.iter_mut().zip(&group.members) {
                let sequence = &scheduler.sequences[member];
                completion.ids.extend_from_slice(sequence.completion());
                completion.head = sequence.head.clone();
            }
            self.activations.lock().insert(group.request.group, kept);
        }
    }
}
