//! Tensors: a shape, a dtype, and memory on a device; views borrow rows of them.
//!
//! Owners hold [`Tensor`]s; operations take [`View`]s and [`ViewMut`]s. None of them is a slice: what computes on a
//! device shows itself to get at elements, and everybody else moves data by the explicit copies here. Of index tensors
//! (u32) checks read what the host last wrote (`View::indices`), so that they never wait for a device.

use crate::device::cuda::Arg;
use crate::device::{Cpu, Cuda};
#[cfg(target_os = "linux")]
use crate::memory::slot::{Contents, SlotWriter};
use crate::memory::{Buffer, Memory, Plain};
use crate::{DType, Device, Result};
use half::bf16;
use std::marker::PhantomData;
use std::ops::Range;

/// These numbers, each rounded to the nearest bf16.
pub fn rounded_to_bf16(data: &[f32]) -> Vec<f32> {
    data.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
}

/// Up to five dimensions, by value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    dims: [usize; 5],
    rank: usize,
}

impl Shape {
    /// The shape of these dimensions.
    pub fn new(dims: &[usize]) -> Shape {
        assert!(dims.len() <= 5, "at most five dimensions, not {dims:?}");
        let mut d = [1; 5];
        d[..dims.len()].copy_from_slice(dims);
        Shape { dims: d, rank: dims.len() }
    }
    /// Its dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }
    /// Elements.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }
    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Elements of one row: all dimensions but the first.
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
    /// Zeros.
    pub fn zeros(memory: &Memory, shape: &[usize], dtype: DType) -> Tensor {
        let shape = Shape::new(shape);
        Tensor { shape, dtype, buffer: memory.allocate(shape.len() * dtype.bytes(), dtype) }
    }

    /// An f32 tensor with these elements, row-major.
    pub fn from_f32(memory: &Memory, shape: &[usize], data: &[f32]) -> Tensor {
        let mut t = Tensor::zeros(memory, shape, DType::F32);
        t.view_mut().copy_from_f32(data);
        t
    }

    /// A u32 tensor with these elements, row-major.
    pub fn from_u32(memory: &Memory, shape: &[usize], data: &[u32]) -> Tensor {
        let mut t = Tensor::zeros(memory, shape, DType::U32);
        t.view_mut().copy_from_u32(data);
        t
    }

    /// Its dimensions.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }
    #[cfg(target_os = "linux")]
    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }
    /// What an element is.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Where it lies.
    pub fn device(&self) -> Device {
        self.buffer.device()
    }
    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        self.shape.len() * self.dtype.bytes()
    }
    /// All of it, to read.
    pub fn view(&self) -> View<'_> {
        View { shape: self.shape, dtype: self.dtype, buffer: &self.buffer, start: 0 }
    }
    /// All of it, to write.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { shape: self.shape, dtype: self.dtype, buffer: &self.buffer, start: 0, borrow: PhantomData }
    }
    /// Rows `range` (of the first dimension), to read.
    pub fn rows(&self, range: Range<usize>) -> View<'_> {
        self.view().rows(range)
    }
    /// Rows `range` (of the first dimension), to write.
    pub fn rows_mut(&mut self, range: Range<usize>) -> ViewMut<'_> {
        self.view_mut().rows(range)
    }
    /// A copy of its elements (f32, or bf16 widened).
    pub fn to_vec_f32(&self) -> Vec<f32> {
        self.view().to_vec_f32()
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?} {:?})", self.shape, self.dtype)
    }
}

/// Elements of the two kinds that computing reads.
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

/// A borrowed tensor, to read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    shape: Shape,
    dtype: DType,
    buffer: &'a Buffer,
    /// The index of the view's first element.
    start: usize,
}

/// A borrowed tensor, to write. Its elements are its own for as long as it lives: it is made of a tensor that is
/// borrowed exclusively, and parts only into disjoint ones.
pub struct ViewMut<'a> {
    shape: Shape,
    dtype: DType,
    buffer: &'a Buffer,
    start: usize,
    borrow: PhantomData<&'a mut Tensor>,
}

/// Where rows `range` of a tensor of this shape lie, as elements from its first.
fn elements_of_rows(shape: &Shape, range: &Range<usize>) -> usize {
    let rows = shape.dims()[0];
    assert!(range.start <= range.end && range.end <= rows, "rows {range:?} of {shape:?}");
    range.start * shape.row_len()
}

impl<'a> View<'a> {
    /// Its dimensions.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }
    /// What an element is.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Rows `range` of the first dimension.
    pub fn rows(self, range: Range<usize>) -> View<'a> {
        let start = self.start + elements_of_rows(&self.shape, &range);
        View { shape: self.shape.with_rows(range.len()), start, ..self }
    }
    /// The same elements in another shape.
    pub fn reshape(self, shape: &[usize]) -> View<'a> {
        let shape = Shape::new(shape);
        assert_eq!(shape.len(), self.shape.len(), "reshape {:?} to {:?}", self.shape, shape);
        View { shape, ..self }
    }
    /// A copy of its elements (f32, or bf16 widened).
    pub fn to_vec_f32(&self) -> Vec<f32> {
        match self.dtype {
            DType::F32 => self.download(<[f32]>::to_vec),
            DType::Bf16 => self.download(|d: &[bf16]| d.iter().map(|x| x.to_f32()).collect()),
            DType::U32 => panic!("to_vec_f32 of a u32 tensor"),
        }
    }
    /// A copy of its elements.
    pub fn to_vec_u32(&self) -> Vec<u32> {
        self.expect(DType::U32);
        self.download(<[u32]>::to_vec)
    }
    /// Copies its elements (f32, or bf16 widened) to `to`, which has as many.
    pub fn copy_to_f32(&self, to: &mut [f32]) {
        assert_eq!(to.len(), self.shape.len(), "copy {:?}", self.shape);
        match self.dtype {
            DType::F32 => self.download(|d| to.copy_from_slice(d)),
            DType::Bf16 => self.download(|d: &[bf16]| to.iter_mut().zip(d).for_each(|(to, x)| *to = x.to_f32())),
            DType::U32 => panic!("copy_to_f32 of a u32 tensor"),
        }
    }
    /// Copies its elements to `to`, which has as many.
    pub fn copy_to_u32(&self, to: &mut [u32]) {
        self.expect(DType::U32);
        self.download(|d| to.copy_from_slice(d));
    }
    /// Copies its elements to the host, where `read` sees them.
    pub(crate) fn download<T: Plain, R>(&self, read: impl FnOnce(&[T]) -> R) -> R {
        // SAFETY: the tensor is borrowed, so nobody writes it.
        unsafe { self.buffer.download(self.range(), read) }
    }
    /// What the host last wrote to an index tensor. Reads no device memory.
    pub(crate) fn indices(&self) -> &'a [u32] {
        self.expect(DType::U32);
        // SAFETY: the tensor is borrowed, so nobody writes it.
        unsafe { self.buffer.mirror(self.range()) }
    }
    /// The elements, for an operation on the CPU.
    pub(crate) fn elements(&self, cpu: &Cpu) -> Elements<'a> {
        match self.dtype {
            DType::F32 => Elements::F32(self.slice(cpu)),
            DType::Bf16 => Elements::Bf16(self.slice(cpu)),
            DType::U32 => panic!("expected f32 or bf16, got u32"),
        }
    }
    /// The elements, for an operation on the CPU.
    pub(crate) fn f32(&self, cpu: &Cpu) -> &'a [f32] {
        self.expect(DType::F32);
        self.slice(cpu)
    }
    /// The elements, for an operation on the CPU.
    pub(crate) fn bf16(&self, cpu: &Cpu) -> &'a [bf16] {
        self.expect(DType::Bf16);
        self.slice(cpu)
    }
    /// The elements, for an operation on the CPU.
    pub(crate) fn u32(&self, cpu: &Cpu) -> &'a [u32] {
        self.expect(DType::U32);
        self.slice(cpu)
    }

    /// Where the elements lie, f32, for a kernel on a CUDA device that reads them.
    pub(crate) fn f32_at(&self, cuda: &Cuda) -> Result<Arg> {
        at(self, cuda, false)
    }
    /// Where the elements lie, bf16, for a kernel on a CUDA device that reads them.
    pub(crate) fn bf16_at(&self, cuda: &Cuda) -> Arg {
        self.expect(DType::Bf16);
        Arg::Pointer(self.buffer.address::<bf16>(cuda, self.start, false).0)
    }
    /// Where the elements lie, u32, for a kernel on a CUDA device that reads them.
    pub(crate) fn u32_at(&self, cuda: &Cuda) -> Arg {
        self.expect(DType::U32);
        Arg::Pointer(self.buffer.address::<u32>(cuda, self.start, false).0)
    }

    fn slice<T: Plain>(&self, cpu: &Cpu) -> &'a [T] {
        // SAFETY: the tensor is borrowed, so nobody writes it.
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
    /// Its dimensions.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }
    /// What an element is.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The same elements, read-only, while this view is borrowed.
    pub fn view(&self) -> View<'_> {
        View { shape: self.shape, dtype: self.dtype, buffer: self.buffer, start: self.start }
    }
    /// The same elements, for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { shape: self.shape, dtype: self.dtype, buffer: self.buffer, start: self.start, borrow: PhantomData }
    }
    /// Rows `range` of the first dimension.
    pub fn rows(self, range: Range<usize>) -> ViewMut<'a> {
        let start = self.start + elements_of_rows(&self.shape, &range);
        ViewMut { shape: self.shape.with_rows(range.len()), start, ..self }
    }
    /// Rows before `row`, and those from it on.
    pub fn split_rows(self, row: usize) -> (ViewMut<'a>, ViewMut<'a>) {
        let (shape, rows) = (self.shape, self.shape.dims()[0]);
        let start = self.start + elements_of_rows(&shape, &(row..rows));
        let rest = ViewMut { shape: shape.with_rows(rows - row), start, ..self };
        (ViewMut { shape: shape.with_rows(row), start: self.start, ..rest }, rest)
    }
    /// The same elements in another shape.
    pub fn reshape(self, shape: &[usize]) -> ViewMut<'a> {
        let shape = Shape::new(shape);
        assert_eq!(shape.len(), self.shape.len(), "reshape {:?} to {:?}", self.shape, shape);
        ViewMut { shape, ..self }
    }
    /// The same bits as elements of another dtype, as wide: log-probabilities that leave a device beside ids, in one
    /// copy.
    pub fn reinterpret(self, dtype: DType) -> ViewMut<'a> {
        assert_eq!(self.dtype.bytes(), dtype.bytes(), "{:?} as {dtype:?}", self.dtype);
        ViewMut { dtype, ..self }
    }
    /// Overwrites it with these elements (rounded if it is bf16).
    pub fn copy_from_f32(&mut self, from: &[f32]) {
        match self.dtype {
            DType::F32 => self.upload(from.len(), |d: &mut [f32]| d.copy_from_slice(from)),
            DType::Bf16 => self.upload(from.len(), |d: &mut [bf16]| {
                d.iter_mut().zip(from).for_each(|(d, &x)| *d = bf16::from_f32(x));
            }),
            DType::U32 => panic!("copy_from_f32 into a u32 tensor"),
        }
    }
    /// Overwrites it with the elements of a tensor of this dtype and shape, bit for bit.
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
            // A stream shows its memory in pieces of its own, one at a time.
            _ => {
                let elements = from.download(<[T]>::to_vec);
                self.upload(len, |to: &mut [T]| to.copy_from_slice(&elements));
            }
        }
    }
    /// Overwrites it with these elements.
    pub fn copy_from_u32(&mut self, from: &[u32]) {
        self.view().expect(DType::U32);
        self.upload(from.len(), |d: &mut [u32]| d.copy_from_slice(from));
    }
    /// Sets every element to `x` (f32 and bf16).
    pub fn fill(&mut self, x: f32) {
        let range = self.view().range();
        // SAFETY: the elements are this view's own.
        unsafe {
            match self.dtype {
                DType::F32 => self.buffer.fill(range, x),
                DType::Bf16 => self.buffer.fill(range, bf16::from_f32(x)),
                DType::U32 => panic!("fill of a u32 tensor"),
            }
        }
    }
    /// Copies `len` elements from the host, all of them: they become what `write` makes of them.
    pub(crate) fn upload<T: Plain>(&mut self, len: usize, write: impl FnOnce(&mut [T])) {
        assert_eq!(len, self.shape.len(), "copy to {:?}", self.shape);
        // SAFETY: the elements are this view's own.
        unsafe { self.buffer.upload(self.view().range(), write) }
    }
    /// [`upload`](Self::upload) of elements that `write` changes some of.
    pub(crate) fn update<T: Plain>(&mut self, write: impl FnOnce(&mut [T])) {
        // SAFETY: the elements are this view's own.
        unsafe { self.buffer.update(self.view().range(), write) }
    }
    /// The elements, for an operation on the CPU.
    pub(crate) fn bf16(self, cpu: &Cpu) -> &'a mut [bf16] {
        self.view().expect(DType::Bf16);
        self.slice(cpu)
    }
    /// The elements, for an operation on the CPU.
    pub(crate) fn f32(self, cpu: &Cpu) -> &'a mut [f32] {
        self.view().expect(DType::F32);
        self.slice(cpu)
    }
    /// The elements, for an operation on the CPU.
    pub(crate) fn u32(self, cpu: &Cpu) -> &'a mut [u32] {
        self.view().expect(DType::U32);
        self.slice(cpu)
    }

    /// Where the elements lie, f32, for a kernel on a CUDA device that writes them.
    pub(crate) fn f32_at(&mut self, cuda: &Cuda) -> Result<Arg> {
        at(&self.view(), cuda, true)
    }
    /// Where the elements lie, bf16, for a kernel on a CUDA device that writes them.
    pub(crate) fn bf16_at(&mut self, cuda: &Cuda) -> Arg {
        self.view().expect(DType::Bf16);
        Arg::Pointer(self.buffer.address::<bf16>(cuda, self.start, true).0)
    }
    /// Where the elements lie, u32, for a kernel on a CUDA device that writes them.
    pub(crate) fn u32_at(&mut self, cuda: &Cuda) -> Arg {
        self.view().expect(DType::U32);
        Arg::Pointer(self.buffer.address::<u32>(cuda, self.start, true).0)
    }

    fn slice<T: Plain>(self, cpu: &Cpu) -> &'a mut [T] {
        // SAFETY: the elements are this view's own, which gives them away.
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
    /// Says what the slot holds and gives the lock away: readers can pin it, and it cannot be written until
    /// [`try_lock`](Self::try_lock). `tensors` are all that live in the slot. With `checksum`
    /// [`Pin::audit`](crate::memory::slot::Pin::audit) finds a flipped bit; it takes a pass over the slot.
    pub fn publish(&self, tensors: &mut [&mut Tensor], contents: Contents, checksum: bool) -> crate::Result<()> {
        let buffers: Vec<&Buffer> = tensors.iter().map(|tensor| tensor.buffer()).collect();
        self.publish_buffers(&buffers, contents, checksum)
    }
}
