//! Memory for a task in a parallel region: its thread's scratch, and its own range of a shared output.

use std::marker::PhantomData;
use std::ops::Range;

/// Scratch memory of a thread, reused from task to task.
#[derive(Default)]
pub struct Scratch {
    buffer: Vec<f32>,
    ids: Vec<u32>,
    inner: Option<Box<Scratch>>,
}

impl Scratch {
    /// `len` f32 elements with unspecified contents.
    pub fn f32(&mut self, len: usize) -> &mut [f32] {
        if self.buffer.len() < len {
            self.buffer.resize(len, 0.0);
        }
        &mut self.buffer[..len]
    }
    /// `len` f32 elements and a list of ids, both with unspecified contents.
    pub fn with_ids(&mut self, len: usize) -> (&mut [f32], &mut Vec<u32>) {
        if self.buffer.len() < len {
            self.buffer.resize(len, 0.0);
        }
        (&mut self.buffer[..len], &mut self.ids)
    }
    /// `len` f32 elements with unspecified contents, and scratch for functions that are called while the elements are
    /// in use.
    pub fn split(&mut self, len: usize) -> (&mut [f32], &mut Scratch) {
        if self.buffer.len() < len {
            self.buffer.resize(len, 0.0);
        }
        (&mut self.buffer[..len], self.inner.get_or_insert_default())
    }
}

/// A mutable slice shared by tasks that write disjoint ranges of it.
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    _borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: ranges are only handed out by `slice`, whose callers guarantee that the ranges are disjoint.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: ranges are only handed out by `slice`, whose callers guarantee that the ranges are disjoint.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Wraps `slice`, so that tasks can share it.
    pub fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), _borrow: PhantomData }
    }
    /// Elements `range` of the slice, writable.
    ///
    /// # Safety
    /// No other task holds an overlapping range while the returned slice is alive.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range lies inside the borrowed slice, and the caller guarantees that ranges are disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
