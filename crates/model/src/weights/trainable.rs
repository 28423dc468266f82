//! Models that a trainer updates.

use super::{AdaptedWeights, ModelView, NextParams, WeightSlots, Weights};

/// A model that a trainer can read in its passes and update in its steps.
pub trait Trainable {
    /// A view for forward and backward passes.
    fn view(&self) -> ModelView<'_>;
    /// Creates the next version of the trained parameters, like [`WeightSlots::update`].
    fn update<R, E: From<kernels::Error>>(
        &mut self,
        write: impl FnOnce(&mut NextParams<'_>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E>;
}

impl Trainable for Weights {
    fn view(&self) -> ModelView<'_> {
        self.into()
    }
    fn update<R, E: From<kernels::Error>>(
        &mut self,
        write: impl FnOnce(&mut NextParams<'_>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        let result = write(&mut NextParams::in_place(&mut self.params))?;
        self.publish();
        Ok(result)
    }
}

impl Trainable for AdaptedWeights {
    fn view(&self) -> ModelView<'_> {
        ModelView::new(self.base.current(), self.adapter.as_ref().map(WeightSlots::current))
    }
    fn update<R, E: From<kernels::Error>>(
        &mut self,
        write: impl FnOnce(&mut NextParams<'_>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        match &mut self.adapter {
            Some(adapter) => adapter.update(write),
            None => self.base.update(write),
        }
    }
}
