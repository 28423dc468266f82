//! Tensors (a shape, a dtype, and memory on a device), and views, which borrow rows of tensors.
//!
//! [`Tensor`] owns its memory; operations take [`View`]s and [`ViewMut`]s. None of these types is a slice: only a
//! device's own code, which has a backend to pass, accesses elements in place, and all other code copies explicitly.
//! Validation of index tensors (u32) reads the values that the host last wrote (`View::indices`), so it never waits for
//! a device.

use crate::device::cuda::Arg;
use crate::device::{Cpu, Cuda};
#[cfg(target_os = "linux")]
use crate::memory::slot::{Contents, SlotWriter};
use crate::memory::{Buffer, Memory, Plain};
use crate::{DType, Device, Result};
use half::bf16;
use std::marker::PhantomData;
use std::ops::Range;

/// The numbers of `data`, each rounded to the nearest bf16.
pub fn rounded_to_bf16(data: &[f32]) -> Vec<f32> {
    data.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
}

/// A tensor's dimensions, at most five, stored by value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    dims: [usize; 5],
    rank: usize,
}

impl Shape {
    /// The shape with dimensions `dims`.
    pub fn new(dims: &[usize]) -> Shape {
        assert!(dims.len() <= 5, "a tensor has at most five dimensions, got {dims:?}");
        let mut d = [1; 5];
        d[..dims.len()].copy_from_slice(dims);
        Shape { dims: d, rank: dims.len() }
    }
    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }
    /// Whether a tensor of this shape has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Elements of one row: the sizes of all dimensions but the first, multiplied.
    pub fn row_len(&self) -> usize {
        self.dims()[1..].iter().product()
    }
    fn with_rows(mut self, rows: usize) -> Shape {
        self.dims[0] = rows;
        self
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.dims().fmt(f)
    }
}

/// Owned memory with a shape and a dtype.
pub struct Tensor {
    shape: Shape,
    dtype: DType,
    buffer: Buffer,
}

impl Tensor {
    /// A tensor of zeros.
    pub fn zeros(memory: &Memory, shape: &[usize], dtype: DType) -> Tensor {
        let shape = Shape::new(shape);
        Tensor { shape, dtype, buffer: memory.allocate(shape.len() * dtype.bytes(), dtype) }
    }

    /// An f32 tensor with the elements of `data`, row-major.
    pub fn from_f32(memory: &Memory, shape: &[usize], data: &[f32]) -> Tensor {
        let mut t = Tensor::zeros(memory, shape, DType::F32);
        t.view_mut().copy_from_f32(data);
        t
    }

    /// A u32 tensor with the elements of `data`, row-major.
    pub fn from_u32(memory: &Memory, shape: &[usize], data: &[u32]) -> Tensor {
        let mut t = Tensor::zeros(memory, shape, DType::U32);
        t.view_mut().copy_from_u32(data);
        t
    }

    /// The tensor's dimensions.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }
    #[cfg(target_os = "linux")]
    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The device whose memory contains the tensor.
    pub fn device(&self) -> Device {
        self.buffer.device()
    }
    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.shape.len() * self.dtype.bytes()
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.len()
    }
    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.is_empty()
    }
    /// A read-only view of the elements `range`, in the order of memory, without their shape.
    pub fn elements(&self, range: Range<usize>) -> View<'_> {
        self.view().reshape(&[self.len()]).rows(range)
    }
    /// A writable view of the elements `range`, in the order of memory, without their shape.
    pub fn elements_mut(&mut self, range: Range<usize>) -> ViewMut<'_> {
        let len = self.len();
        self.view_mut().reshape(&[len]).rows(range)
    }
    /// A read-only view of the whole tensor.
    pub fn view(&self) -> View<'_> {
        View { shape: self.shape, dtype: self.dtype, buffer: &self.buffer, start: 0 }
    }
    /// A writable view of the whole tensor.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { shape: self.shape, dtype: self.dtype, buffer: &self.buffer, start: 0, borrow: PhantomData }
    }
    /// A read-only view of rows `range` of the first dimension.
    pub fn rows(&self, range: Range<usize>) -> View<'_> {
        self.view().rows(range)
    }
    /// A writable view of rows `range` of the first dimension.
    pub fn rows_mut(&mut self, range: Range<usize>) -> ViewMut<'_> {
        self.view_mut().rows(range)
    }
    /// A copy of the tensor's elements as f32. The tensor is f32 or bf16.
    pub fn to_vec_f32(&self) -> Vec<f32> {
        self.view().to_vec_f32()
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?} {:?})", self.shape, self.dtype)
    }
}

/// A slice of floating-point elements, f32 or bf16.
#[derive(Clone, Copy)]
pub(crate) enum Elements<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> Elements<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Elements::F32(d) => d.len(),
            Elements::Bf16(d) => d.len(),
        }
    }
    #[inline(always)]
    pub(crate) fn range(self, range: Range<usize>) -> Elements<'a> {
        match self {
            Elements::F32(d) => Elements::F32(&d[range]),
            Elements::Bf16(d) => Elements::Bf16(&d[range]),
        }
    }
}

impl<'a> From<&'a [f32]> for Elements<'a> {
    fn from(data: &'a [f32]) -> Elements<'a> {
        Elements::F32(data)
    }
}

/// A read-only view of a tensor, or of rows of one.
#[derive(Clone, Copy)]
pub struct View<'a> {
    shape: Shape,
    dtype: DType,
    buffer: &'a Buffer,
    /// Index of the view's first element in the buffer.
    start: usize,
}

/// A writable view of a tensor, or of rows of one. No other view of these elements exists while this view is alive: it
/// is created from an exclusively borrowed tensor, and can only be split into disjoint parts.
pub struct ViewMut<'a> {
    shape: Shape,
    dtype: DType,
    buffer: &'a Buffer,
    start: usize,
    borrow: PhantomData<&'a mut Tensor>,
}

/// Index of the first element of rows `range` in a tensor of this shape.
fn elements_of_rows(shape: &Shape, range: &Range<usize>) -> usize {
    let rows = shape.dims()[0];
    assert!(range.start <= range.end && range.end <= rows, "rows {range:?} of a tensor of shape {shape:?}");
    range.start * shape.row_len()
}

impl<'a> View<'a> {
    /// The view's dimensions.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The part of this view with rows `range` of the first dimension.
    pub fn rows(self, range: Range<usize>) -> View<'a> {
        let start = self.start + elements_of_rows(&self.shape, &range);
        View { shape: self.shape.with_rows(range.len()), start, ..self }
    }
    /// A view of the same elements in another shape.
    pub fn reshape(self, shape: &[usize]) -> View<'a> {
        let shape = Shape::new(shape);
        assert_eq!(shape.len(), self.shape.len(), "reshape {:?} to {:?}", self.shape, shape);
        View { shape, ..self }
    }
    /// A copy of the view's elements as f32. The tensor is f32 or bf16.
    pub fn to_vec_f32(&self) -> Vec<f32> {
        match self.dtype {
            DType::F32 => self.download(<[f32]>::to_vec),
            DType::Bf16 => self.download(|d: &[bf16]| d.iter().map(|x| x.to_f32()).collect()),
            DType::U32 => panic!("to_vec_f32 of a u32 tensor"),
        }
    }
    /// A copy of the view's elements, which are u32.
    pub fn to_vec_u32(&self) -> Vec<u32> {
        self.expect(DType::U32);
        self.download(<[u32]>::to_vec)
    }
    /// Copies the view's elements (u32) to `to`, which must have the same length.
    pub fn copy_to_u32(&self, to: &mut [u32]) {
        self.expect(DType::U32);
        self.download(|d| to.copy_from_slice(d));
    }
    /// Copies the view's elements to the host and passes them to `read`.
    pub(crate) fn download<T: Plain, R>(&self, read: impl FnOnce(&[T]) -> R) -> R {
        // SAFETY: the tensor is borrowed, so no other code writes to it.
        unsafe { self.buffer.download(self.range(), read) }
    }
    /// The elements that the host last wrote to this index tensor (u32). Does not read device memory.
    pub(crate) fn indices(&self) -> &'a [u32] {
        self.expect(DType::U32);
        // SAFETY: the tensor is borrowed, so no other code writes to it.
        unsafe { self.buffer.mirror(self.range()) }
    }
    /// The elements, f32 or bf16, for an operation on the CPU.
    pub(crate) fn elements(&self, cpu: &Cpu) -> Elements<'a> {
        match self.dtype {
            DType::F32 => Elements::F32(self.slice(cpu)),
            DType::Bf16 => Elements::Bf16(self.slice(cpu)),
            DType::U32 => panic!("expected f32 or bf16, got u32"),
        }
    }
    /// The f32 elements, for an operation on the CPU.
    pub(crate) fn f32(&self, cpu: &Cpu) -> &'a [f32] {
        self.expect(DType::F32);
        self.slice(cpu)
    }
    /// The bf16 elements, for an operation on the CPU.
    pub(crate) fn bf16(&self, cpu: &Cpu) -> &'a [bf16] {
        self.expect(DType::Bf16);
        self.slice(cpu)
    }
    /// The u32 elements, for an operation on the CPU.
    pub(crate) fn u32(&self, cpu: &Cpu) -> &'a [u32] {
        self.expect(DType::U32);
        self.slice(cpu)
    }

    /// Device address of the f32 elements, for a CUDA kernel that reads them.
    pub(crate) fn f32_at(&self, cuda: &Cuda) -> Result<Arg> {
        at(self, cuda, false)
    }
    /// Device address of the bf16 elements, for a CUDA kernel that reads them.
    pub(crate) fn bf16_at(&self, cuda: &Cuda) -> Arg {
        self.expect(DType::Bf16);
        Arg::Pointer(self.buffer.address::<bf16>(cuda, self.start, false).0)
    }
    /// Device address of the u32 elements, for a CUDA kernel that reads them.
    pub(crate) fn u32_at(&self, cuda: &Cuda) -> Arg {
        self.expect(DType::U32);
        Arg::Pointer(self.buffer.address::<u32>(cuda, self.start, false).0)
    }

    fn slice<T: Plain>(&self, cpu: &Cpu) -> &'a [T] {
        // SAFETY: the tensor is borrowed, so no other code writes to it.
        unsafe { self.buffer.slice(cpu, self.range()) }
    }
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.shape.len()
    }
    fn expect(&self, dtype: DType) {
        assert!(self.dtype == dtype, "expected {dtype:?}, got {:?}", self.dtype);
    }
}

impl<'a> ViewMut<'a> {
    /// The view's dimensions.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// A read-only view of the same elements, while this one is borrowed.
    pub fn view(&self) -> View<'_> {
        View { shape: self.shape, dtype: self.dtype, buffer: self.buffer, start: self.start }
    }
    /// A writable view of the same elements, for a shorter lifetime.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { shape: self.shape, dtype: self.dtype, buffer: self.buffer, start: self.start, borrow: PhantomData }
    }
    /// The part of this view with rows `range` of the first dimension.
    pub fn rows(self, range: Range<usize>) -> ViewMut<'a> {
        let start = self.start + elements_of_rows(&self.shape, &range);
        ViewMut { shape: self.shape.with_rows(range.len()), start, ..self }
    }
    /// Two views: the rows before `row`, and the rows from `row` on.
    pub fn split_rows(self, row: usize) -> (ViewMut<'a>, ViewMut<'a>) {
        let (shape, rows) = (self.shape, self.shape.dims()[0]);
        let start = self.start + elements_of_rows(&shape, &(row..rows));
        let rest = ViewMut { shape: shape.with_rows(rows - row), start, ..self };
        (ViewMut { shape: shape.with_rows(row), start: self.start, ..rest }, rest)
    }
    /// A view of the same elements in another shape.
    pub fn reshape(self, shape: &[usize]) -> ViewMut<'a> {
        let shape = Shape::new(shape);
        assert_eq!(shape.len(), self.shape.len(), "reshape {:?} to {:?}", self.shape, shape);
        ViewMut { shape, ..self }
    }
    /// Reinterprets the bits as elements of another dtype of the same size, so that log-probabilities and token ids can
    /// leave a device in one copy.
    pub fn reinterpret(self, dtype: DType) -> ViewMut<'a> {
        assert_eq!(self.dtype.bytes(), dtype.bytes(), "{:?} as {dtype:?}", self.dtype);
        ViewMut { dtype, ..self }
    }
    /// Overwrites the elements with `from`, rounded if the tensor is bf16.
    pub fn copy_from_f32(&mut self, from: &[f32]) {
        match self.dtype {
            DType::F32 => self.upload(from.len(), |d: &mut [f32]| d.copy_from_slice(from)),
            DType::Bf16 => self.upload(from.len(), |d: &mut [bf16]| {
                d.iter_mut().zip(from).for_each(|(d, &x)| *d = bf16::from_f32(x));
            }),
            DType::U32 => panic!("copy_from_f32 into a u32 tensor"),
        }
    }
    /// Overwrites the elements with those of `from`, bit for bit. `from` must have the same dtype and shape.
    pub fn copy_from(&mut self, from: View<'_>) {
        assert!(self.dtype == from.dtype && self.shape == from.shape, "copy {:?} to {:?}", from.shape, self.shape);
        match self.dtype {
            DType::F32 => self.copy_elements::<f32>(from),
            DType::Bf16 => self.copy_elements::<bf16>(from),
            DType::U32 => self.copy_elements::<u32>(from),
        }
    }
    fn copy_elements<T: Plain>(&mut self, from: View<'_>) {
        let len = self.shape.len();
        match from.buffer.device() {
            Device::Meta => {}
            Device::Cpu => from.download(|from: &[T]| self.upload(len, |to: &mut [T]| to.copy_from_slice(from))),
            // A stream downloads and uploads in separate steps.
            _ => {
                let elements = from.download(<[T]>::to_vec);
                self.upload(len, |to: &mut [T]| to.copy_from_slice(&elements));
            }
        }
    }
    /// Overwrites the elements, which are u32, with `from`.
    pub fn copy_from_u32(&mut self, from: &[u32]) {
        self.view().expect(DType::U32);
        self.upload(from.len(), |d: &mut [u32]| d.copy_from_slice(from));
    }
    /// Sets every element to `x` (f32 and bf16).
    pub fn fill(&mut self, x: f32) {
        let range = self.view().range();
        // SAFETY: no other view has these elements.
        unsafe {
            match self.dtype {
                DType::F32 => self.buffer.fill(range, x),
                DType::Bf16 => self.buffer.fill(range, bf16::from_f32(x)),
                DType::U32 => panic!("fill of a u32 tensor"),
            }
        }
    }
    /// Overwrites all `len` elements of the view with the contents that `write` puts into a host slice. The slice
    /// initially has unspecified contents.
    pub(crate) fn upload<T: Plain>(&mut self, len: usize, write: impl FnOnce(&mut [T])) {
        assert_eq!(len, self.shape.len(), "copy to {:?}", self.shape);
        // SAFETY: no other view has these elements.
        unsafe { self.buffer.upload(self.view().range(), write) }
    }
    /// Lets `write` change some of the view's elements in a host slice, which initially contains their current values.
    pub(crate) fn update<T: Plain>(&mut self, write: impl FnOnce(&mut [T])) {
        // SAFETY: no other view has these elements.
        unsafe { self.buffer.update(self.view().range(), write) }
    }
    /// The bf16 elements, writable, for an operation on the CPU.
    pub(crate) fn bf16(self, cpu: &Cpu) -> &'a mut [bf16] {
        self.view().expect(DType::Bf16);
        self.slice(cpu)
    }
    /// The f32 elements, writable, for an operation on the CPU.
    pub(crate) fn f32(self, cpu: &Cpu) -> &'a mut [f32] {
        self.view().expect(DType::F32);
        self.slice(cpu)
    }
    /// The u32 elements, writable, for an operation on the CPU.
    pub(crate) fn u32(self, cpu: &Cpu) -> &'a mut [u32] {
        self.view().expect(DType::U32);
        self.slice(cpu)
    }

    /// Device address of the f32 elements, for a CUDA kernel that writes them.
    pub(crate) fn f32_at(&mut self, cuda: &Cuda) -> Result<Arg> {
        at(&self.view(), cuda, true)
    }
    /// Device address of the bf16 elements, for a CUDA kernel that writes them.
    pub(crate) fn bf16_at(&mut self, cuda: &Cuda) -> Arg {
        self.view().expect(DType::Bf16);
        Arg::Pointer(self.buffer.address::<bf16>(cuda, self.start, true).0)
    }
    /// Device address of the u32 elements, for a CUDA kernel that writes them.
    pub(crate) fn u32_at(&mut self, cuda: &Cuda) -> Arg {
        self.view().expect(DType::U32);
        Arg::Pointer(self.buffer.address::<u32>(cuda, self.start, true).0)
    }

    fn slice<T: Plain>(self, cpu: &Cpu) -> &'a mut [T] {
        // SAFETY: no other view has these elements, and this view is consumed.
        unsafe { self.buffer.slice_mut(cpu, self.view().range()) }
    }
}

fn at(view: &View<'_>, cuda: &Cuda, writes: bool) -> Result<Arg> {
    match view.dtype {
        DType::F32 => Ok(Arg::Pointer(view.buffer.address::<f32>(cuda, view.start, writes).0)),
        dtype => Err(cuda.lacks(&format!("{dtype:?}"))),
    }
}

#[cfg(target_os = "linux")]
impl SlotWriter {
    /// Ends writing to the slot: records `contents` in its header and releases the exclusive lock. From then on readers
    /// can pin the slot, and it cannot be written until [`try_lock`](Self::try_lock). `tensors` must contain all
    /// tensors that live in the slot. With `checksum`, which costs a pass over the slot,
    /// [`Pin::audit`](crate::memory::slot::Pin::audit) can detect a flipped bit.
    pub fn publish(&self, tensors: &mut [&mut Tensor], contents: Contents, checksum: bool) -> crate::Result<()> {
        let buffers: Vec<&Buffer> = tensors.iter().map(|tensor| tensor.buffer()).collect();
        self.publish_buffers(&buffers, contents, checksum)
    }
}

#[cfg(test)]
mod tests;
