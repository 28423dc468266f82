//! The next version of parameters, while an optimizer writes it.

use super::{ParamSpec, Params};
use kernels::{Tensor, View, ViewMut};

/// The next version of parameters, made in place of the current one, or in another slot while the current one stays as
/// it is.
///
/// An optimizer reads [`current`](Self::current) and writes what it changes: whole [tensors](Self::tensors_mut), or
/// [parts](Self::write) by their names. What it did not write is copied when the version is published
/// ([`copy_rest`](Self::copy_rest)), so that a parameter that an optimizer leaves alone is never left out of a slot.
pub struct NextParams<'a> {
    from: Option<&'a Params>,
    to: &'a mut Params,
    /// Which parts of each tensor were written.
    written: Vec<Vec<bool>>,
    /// Bytes.
    copied: u64,
}

/// A tensor of [`NextParams`].
pub struct NextTensor<'a> {
    from: Option<&'a Tensor>,
    to: &'a mut Tensor,
    written: &'a mut [bool],
}

impl<'a> NextParams<'a> {
    /// In the place of the current version.
    pub fn in_place(params: &'a mut Params) -> NextParams<'a> {
        NextParams { written: unwritten(params), from: None, to: params, copied: 0 }
    }

    /// In `to`, a tree of the same shape whose numbers do not matter.
    pub fn apart(from: &'a Params, to: &'a mut Params) -> NextParams<'a> {
        assert!(from.specs() == to.specs(), "slots of one shape");
        NextParams { written: unwritten(from), from: Some(from), to, copied: 0 }
    }

    /// What the tensors are, in their order.
    pub fn specs(&self) -> &[ParamSpec] {
        self.to.specs()
    }

    /// The current version. In place, what was written already is the next one's.
    pub fn current(&self) -> &Params {
        self.from.unwrap_or(self.to)
    }

    /// Overwrites a tensor of files, as [`Params::write`].
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

    /// All of it as the current version is, to be changed: where that is elsewhere, a copy, which is counted.
    pub fn copied(&mut self) -> &mut Params {
        self.copy_unwritten();
        self.to
    }

    /// Copies what was not written, which is nothing in place. Gives the bytes that were copied in all.
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
    /// The current version's elements, where they lie elsewhere; and where the next version's go, all of which are to
    /// be written. In place they are the current ones.
    pub fn overwrite(self) -> (Option<View<'a>>, ViewMut<'a>) {
        self.written.fill(true);
        (self.from.map(Tensor::view), self.to.view_mut())
    }
}

fn unwritten(params: &Params) -> Vec<Vec<bool>> {
    params.specs().iter().map(|spec| vec![false; spec.parts.len()]).collect()
}
