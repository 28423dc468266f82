//! Reuses the allocation of a list of borrowed values from step to step.

/// Returns an empty list in the allocation of `list`. The elements must have the same size, but may have a different
/// lifetime. (Collecting a list's own iterator keeps its allocation; `tests/allocation.rs` fails if it does not.)
pub(crate) fn reused<T, U>(mut list: Vec<T>) -> Vec<U> {
    const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
