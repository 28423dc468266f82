//! The next version of a model's parameters, while an optimizer writes it.

use super::{ParamSpec, Params};
use kernels::{Tensor, View, ViewMut};
use std::path::PathBuf;

/// The next version of a model's parameters, while an optimizer writes it. The new version overwrites the current one,
/// or goes to another slot while the current version stays unchanged.
///
/// An optimizer reads [`current`](Self::current) and writes the parameters that it changes: whole
/// [tensors](Self::tensors_mut), or [parts](Self::write) by name. When the version is published,
/// [`copy_rest`](Self::copy_rest) copies everything that the optimizer did not write, so that the new slot is complete.
pub struct NextParams<'a> {
    from: Option<&'a Params>,
    to: &'a mut Params,
    /// For each tensor, whether each of its parts was written.
    written: Vec<Vec<bool>>,
    /// Number of bytes that were copied.
    copied: u64,
    /// The slots of shared memory with both versions, if other processes can access them.
    slots: Option<(PathBuf, PathBuf)>,
}

/// One tensor of [`NextParams`].
pub struct NextTensor<'a> {
    from: Option<&'a Tensor>,
    to: &'a mut Tensor,
    written: &'a mut [bool],
}

impl<'a> NextParams<'a> {
    /// Writes the next version over the current one.
    pub fn in_place(params: &'a mut Params) -> NextParams<'a> {
        NextParams { written: unwritten(params), from: None, to: params, copied: 0, slots: None }
    }

    /// Writes the next version to `to`, a tree of the same shape as `from`; the values in `to` do not matter.
    pub fn apart(from: &'a Params, to: &'a mut Params) -> NextParams<'a> {
        assert!(from.specs() == to.specs(), "both slots must have the same shape");
        NextParams { written: unwritten(from), from: Some(from), to, copied: 0, slots: None }
    }

    /// The same versions, which are in these slots of shared memory.
    pub(super) fn in_slots(mut self, slots: Option<(PathBuf, PathBuf)>) -> NextParams<'a> {
        self.slots = slots;
        self
    }

    /// The paths of the slots of shared memory with the current and the next version, which are the same if the new
    /// version overwrites the current one. `None` if no other process can access them.
    pub fn slots(&self) -> Option<&(PathBuf, PathBuf)> {
        self.slots.as_ref()
    }

    /// Specification of each tensor, in order.
    pub fn specs(&self) -> &[ParamSpec] {
        self.to.specs()
    }

    /// The current version. When the optimizer writes in place, it already contains the parts of the next version that
    /// have been written.
    pub fn current(&self) -> &Params {
        self.from.unwrap_or(self.to)
    }

    /// Overwrites one tensor, given its name in files, like [`Params::write`].
    pub fn write(&mut self, name: &str, data: &[f32]) -> bool {
        let done = self.to.write(name, data);
        for (spec, written) in self.to.specs().iter().zip(&mut self.written) {
            spec.parts.iter().zip(written).filter(|(part, _)| part.name == name).for_each(|(_, w)| *w |= done);
        }
        done
    }

    /// Every tensor, in the order of [`Params::tensors`].
    pub fn tensors_mut(&mut self) -> Vec<NextTensor<'_>> {
        let from = self.from.map(|from| from.tensors().into_iter().map(Some).collect());
        let from = from.unwrap_or_else(|| vec![None; self.written.len()]);
        let tensors = self.to.tensors_mut().into_iter().zip(&mut self.written);
        from.into_iter().zip(tensors).map(|(from, (to, written))| NextTensor { from, to, written }).collect()
    }

    /// All parameters of the current version, to change in place. If the current version is in another slot, it is
    /// copied first, and the bytes are counted.
    pub fn copied(&mut self) -> &mut Params {
        self.copy_unwritten();
        self.to
    }

    /// Copies everything that was not written (nothing when writing in place). Returns the total number of bytes
    /// copied.
    pub fn copy_rest(mut self) -> u64 {
        self.copy_unwritten();
        self.copied
    }

    fn copy_unwritten(&mut self) {
        let Some(from) = self.from else { return };
        let (specs, mut parts) = (from.specs(), Vec::new());
        for (((spec, from), to), written) in
            specs.iter().zip(from.tensors()).zip(self.to.tensors_mut()).zip(&mut self.written)
        {
            if !written.contains(&true) {
                to.view_mut().copy_from(from.view());
                self.copied += from.bytes() as u64;
            } else {
                let left = spec.parts.iter().zip(&*written).filter(|(_, written)| !**written);
                parts.extend(left.map(|(part, _)| (&part.name, from.dtype().bytes())));
            }
            written.fill(true);
        }
        for (name, element) in parts {
            if let Some(data) = from.read(name) {
                self.to.write(name, &data);
                self.copied += (data.len() * element) as u64;
            }
        }
    }
}

impl<'a> NextTensor<'a> {
    /// Returns the current version's elements if they are in another slot, and the next version's elements, all of
    /// which must be written. When writing in place, the second view also contains the current elements.
    pub fn overwrite(self) -> (Option<View<'a>>, ViewMut<'a>) {
        self.written.fill(true);
        (self.from.map(Tensor::view), self.to.view_mut())
    }
}

fn unwritten(params: &Params) -> Vec<Vec<bool>> {
    params.specs().iter().map(|spec| vec![false; spec.parts.len()]).collect()
}
