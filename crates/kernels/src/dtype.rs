//! The element types of tensors.

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit IEEE floating point.
    F32,
    /// bfloat16: the upper 16 bits of an f32.
    Bf16,
    /// 32-bit unsigned integers: token ids, positions, block tables.
    U32,
}

impl DType {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
        }
    }
}
