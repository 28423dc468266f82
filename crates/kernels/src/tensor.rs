//! Tensors: a shape, a dtype, and memory on a device; views borrow rows of them.
//!
//! Owners hold [`Tensor`]s; operations take [`View`]s and [`ViewMut`]s. Element access is private to this crate: above
//! it, data moves only by the explicit copies here.

use crate::memory::{Buffer, Device, Memory};
use half::bf16;
use std::ops::Range;

/// These numbers, each rounded to the nearest bf16.
pub fn rounded_to_bf16(data: &[f32]) -> Vec<f32> {
    data.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
}

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single.
    F32,
    /// bfloat16.
    Bf16,
    /// 32-bit unsigned: token ids, positions, block tables.
    U32,
}

impl DType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
        }
    }
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
        Tensor { shape, dtype, buffer: memory.allocate(shape.len() * dtype.bytes()) }
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
        let data = match self.dtype {
            DType::F32 => Data::F32(self.buffer.as_slice()),
            DType::Bf16 => Data::Bf16(self.buffer.as_slice()),
            DType::U32 => Data::U32(self.buffer.as_slice()),
        };
        View { shape: self.shape, data }
    }
    /// All of it, to write.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let data = match self.dtype {
            DType::F32 => DataMut::F32(self.buffer.as_mut_slice()),
            DType::Bf16 => DataMut::Bf16(self.buffer.as_mut_slice()),
            DType::U32 => DataMut::U32(self.buffer.as_mut_slice()),
        };
        ViewMut { shape: self.shape, data }
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
    /// Those of a range.
    #[inline(always)]
    pub(crate) fn range(self, range: Range<usize>) -> Elements<'a> {
        match self {
            Elements::F32(d) => Elements::F32(&d[range]),
            Elements::Bf16(d) => Elements::Bf16(&d[range]),
        }
    }
    /// Bytes of them.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Elements::F32(d) => size_of_val(d),
            Elements::Bf16(d) => size_of_val(d),
        }
    }
}

impl<'a> From<&'a [f32]> for Elements<'a> {
    fn from(data: &'a [f32]) -> Elements<'a> {
        Elements::F32(data)
    }
}

#[derive(Clone, Copy)]
enum Data<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    U32(&'a [u32]),
}

enum DataMut<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
    U32(&'a mut [u32]),
}

/// A borrowed tensor, to read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    shape: Shape,
    data: Data<'a>,
}

/// A borrowed tensor, to write.
pub struct ViewMut<'a> {
    shape: Shape,
    data: DataMut<'a>,
}

impl<'a> View<'a> {
    /// Its dimensions.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }
    /// What an element is.
    pub fn dtype(&self) -> DType {
        match self.data {
            Data::F32(_) => DType::F32,
            Data::Bf16(_) => DType::Bf16,
            Data::U32(_) => DType::U32,
        }
    }
    /// Rows `range` of the first dimension.
    pub fn rows(self, range: Range<usize>) -> View<'a> {
        let row = self.shape.row_len();
        let elements = range.start * row..range.end * row;
        let data = match self.data {
            Data::F32(d) => Data::F32(&d[elements]),
            Data::Bf16(d) => Data::Bf16(&d[elements]),
            Data::U32(d) => Data::U32(&d[elements]),
        };
        View { shape: self.shape.with_rows(range.len()), data }
    }
    /// The same elements in another shape.
    pub fn reshape(self, shape: &[usize]) -> View<'a> {
        let shape = Shape::new(shape);
        assert_eq!(shape.len(), self.shape.len(), "reshape {:?} to {:?}", self.shape, shape);
        View { shape, data: self.data }
    }
    /// A copy of its elements (f32, or bf16 widened).
    pub fn to_vec_f32(&self) -> Vec<f32> {
        match self.data {
            Data::F32(d) => d.to_vec(),
            Data::Bf16(d) => d.iter().map(|x| x.to_f32()).collect(),
            Data::U32(_) => panic!("to_vec_f32 of a u32 tensor"),
        }
    }
    /// A copy of its elements.
    pub fn to_vec_u32(&self) -> Vec<u32> {
        self.u32().to_vec()
    }
    /// Copies its elements (f32, or bf16 widened) to `to`, which has as many.
    pub fn copy_to_f32(&self, to: &mut [f32]) {
        match self.data {
            Data::F32(d) => to.copy_from_slice(d),
            Data::Bf16(d) => {
                assert_eq!(to.len(), d.len(), "copy {:?}", self.shape);
                to.iter_mut().zip(d).for_each(|(to, x)| *to = x.to_f32());
            }
            Data::U32(_) => panic!("copy_to_f32 of a u32 tensor"),
        }
    }
    /// Copies its elements to `to`, which has as many.
    pub fn copy_to_u32(&self, to: &mut [u32]) {
        to.copy_from_slice(self.u32());
    }
    /// The elements, inside this crate only.
    pub(crate) fn elements(&self) -> Elements<'a> {
        match self.data {
            Data::F32(d) => Elements::F32(d),
            Data::Bf16(d) => Elements::Bf16(d),
            Data::U32(_) => panic!("expected f32 or bf16, got u32"),
        }
    }
    /// The elements, inside this crate only.
    pub(crate) fn f32(&self) -> &'a [f32] {
        match self.data {
            Data::F32(d) => d,
            _ => panic!("expected f32, got {:?}", self.dtype()),
        }
    }
    /// The elements, inside this crate only.
    pub(crate) fn bf16(&self) -> &'a [bf16] {
        match self.data {
            Data::Bf16(d) => d,
            _ => panic!("expected bf16, got {:?}", self.dtype()),
        }
    }
    /// The elements, inside this crate only.
    pub(crate) fn u32(&self) -> &'a [u32] {
        match self.data {
            Data::U32(d) => d,
            _ => panic!("expected u32, got {:?}", self.dtype()),
        }
    }
}

impl<'a> ViewMut<'a> {
    /// Its dimensions.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }
    /// What an element is.
    pub fn dtype(&self) -> DType {
        self.view().dtype()
    }
    /// The same, to read, for as long as this borrow.
    pub fn view(&self) -> View<'_> {
        let data = match &self.data {
            DataMut::F32(d) => Data::F32(d),
            DataMut::Bf16(d) => Data::Bf16(d),
            DataMut::U32(d) => Data::U32(d),
        };
        View { shape: self.shape, data }
    }
    /// The same, for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        let data = match &mut self.data {
            DataMut::F32(d) => DataMut::F32(d),
            DataMut::Bf16(d) => DataMut::Bf16(d),
            DataMut::U32(d) => DataMut::U32(d),
        };
        ViewMut { shape: self.shape, data }
    }
    /// Rows `range` of the first dimension.
    pub fn rows(self, range: Range<usize>) -> ViewMut<'a> {
        let row = self.shape.row_len();
        let elements = range.start * row..range.end * row;
        let shape = self.shape.with_rows(range.len());
        let data = match self.data {
            DataMut::F32(d) => DataMut::F32(&mut d[elements]),
            DataMut::Bf16(d) => DataMut::Bf16(&mut d[elements]),
            DataMut::U32(d) => DataMut::U32(&mut d[elements]),
        };
        ViewMut { shape, data }
    }
    /// The same elements in another shape.
    pub fn reshape(self, shape: &[usize]) -> ViewMut<'a> {
        let shape = Shape::new(shape);
        assert_eq!(shape.len(), self.shape.len(), "reshape {:?} to {:?}", self.shape, shape);
        ViewMut { shape, data: self.data }
    }
    /// Overwrites it with these elements (rounded if it is bf16).
    pub fn copy_from_f32(&mut self, from: &[f32]) {
        match &mut self.data {
            DataMut::F32(d) => d.copy_from_slice(from),
            DataMut::Bf16(d) => {
                assert_eq!(d.len(), from.len());
                d.iter_mut().zip(from).for_each(|(d, &x)| *d = bf16::from_f32(x));
            }
            DataMut::U32(_) => panic!("copy_from_f32 into a u32 tensor"),
        }
    }
    /// Overwrites it with these elements.
    pub fn copy_from_u32(&mut self, from: &[u32]) {
        match &mut self.data {
            DataMut::U32(d) => d.copy_from_slice(from),
            _ => panic!("copy_from_u32 into a {:?} tensor", self.dtype()),
        }
    }
    /// Sets every element to `x` (f32 and bf16).
    pub fn fill(&mut self, x: f32) {
        match &mut self.data {
            DataMut::F32(d) => d.fill(x),
            DataMut::Bf16(d) => d.fill(bf16::from_f32(x)),
            DataMut::U32(_) => panic!("fill of a u32 tensor"),
        }
    }
    /// The elements, inside this crate only.
    pub(crate) fn bf16(self) -> &'a mut [bf16] {
        match self.data {
            DataMut::Bf16(d) => d,
            _ => panic!("expected bf16"),
        }
    }
    /// The elements, inside this crate only.
    pub(crate) fn f32(self) -> &'a mut [f32] {
        match self.data {
            DataMut::F32(d) => d,
            _ => panic!("expected f32"),
        }
    }
    /// The elements, inside this crate only.
    pub(crate) fn u32(self) -> &'a mut [u32] {
        match self.data {
            DataMut::U32(d) => d,
            _ => panic!("expected u32"),
        }
    }
}
