use super::*;
use crate::Isa;
use std::panic::{AssertUnwindSafe, catch_unwind};

const DEVICES: [Device; 2] = [Device::Cpu, Device::CpuChecked];

fn ramp(memory: &Memory, shape: &[usize], dtype: DType) -> Tensor {
    let len: usize = shape.iter().product();
    let mut tensor = Tensor::zeros(memory, shape, dtype);
    match dtype {
        DType::U32 => tensor.view_mut().copy_from_u32(&(0..len as u32).collect::<Vec<_>>()),
        _ => tensor.view_mut().copy_from_f32(&(0..len).map(|i| i as f32).collect::<Vec<_>>()),
    }
    tensor
}

/// The panic message of `f`.
fn refusal<T>(f: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| drop(f()))).expect_err("`f` must panic");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).expect("a text")
}

#[test]
fn a_shape_reports_its_elements_and_has_at_most_five_dimensions() {
    let shape = Shape::new(&[2, 3, 4, 5, 6]);
    assert_eq!((shape.dims(), shape.len(), shape.row_len()), (&[2, 3, 4, 5, 6][..], 720, 360));
    assert!(!shape.is_empty() && Shape::new(&[3, 0]).is_empty() && !Shape::new(&[]).is_empty());
    assert_eq!((Shape::new(&[7]).row_len(), Shape::new(&[7, 2]).row_len(), Shape::new(&[]).len()), (1, 2, 1));
    assert_eq!(format!("{shape:?}"), "[2, 3, 4, 5, 6]");
    assert_eq!(refusal(|| Shape::new(&[1; 6])), "a tensor has at most five dimensions, got [1, 1, 1, 1, 1, 1]");
}

#[test]
fn row_ranges_of_a_view_are_relative_to_the_view() {
    for device in DEVICES {
        let memory = Memory::new(device);
        let mut tensor = ramp(&memory, &[6, 2], DType::F32);
        assert_eq!(tensor.rows(1..4).to_vec_f32(), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(tensor.rows(1..5).rows(2..3).to_vec_f32(), [6.0, 7.0]);
        assert_eq!(tensor.rows(1..5).rows(2..3).shape(), [1, 2]);
        assert_eq!((tensor.rows(6..6).to_vec_f32().len(), tensor.rows(0..6).shape()), (0, &[6, 2][..]));
        assert_eq!(tensor.rows(2..4).reshape(&[4]).rows(1..3).to_vec_f32(), [5.0, 6.0]);
        tensor.rows_mut(2..5).rows(1..2).copy_from_f32(&[-1.0, -2.0]);
        let (mut before, mut after) = tensor.rows_mut(1..6).split_rows(2);
        assert_eq!((before.shape(), after.shape()), (&[2, 2][..], &[3, 2][..]));
        before.reborrow().rows(0..1).fill(7.0);
        after.reborrow().rows(2..3).fill(8.0);
        assert_eq!(before.view().to_vec_f32(), [7.0, 7.0, 4.0, 5.0]);
        assert_eq!(after.view().rows(0..1).to_vec_f32(), [-1.0, -2.0]);
        assert_eq!(tensor.to_vec_f32(), [0.0, 1.0, 7.0, 7.0, 4.0, 5.0, -1.0, -2.0, 8.0, 9.0, 8.0, 8.0][..].to_vec());
        #[allow(clippy::reversed_empty_ranges)]
        for range in [0..7, 7..7, 4..3] {
            assert_eq!(
                refusal(|| tensor.rows(range.clone()).shape().len()),
                format!("rows {range:?} of a tensor of shape [6, 2]")
            );
            let message = refusal(|| tensor.rows_mut(range.clone()).shape().len());
            assert_eq!(message, format!("rows {range:?} of a tensor of shape [6, 2]"));
        }
        assert!(refusal(|| tensor.view_mut().split_rows(7).0.shape().len()).starts_with("rows 7..6 of"));
        assert!(refusal(|| tensor.view().reshape(&[5, 2]).shape().len()).contains("reshape [6, 2] to [5, 2]"));
        assert!(refusal(|| tensor.view_mut().reshape(&[13]).shape().len()).contains("reshape [6, 2] to [13]"));
        assert_eq!(tensor.view_mut().reshape(&[3, 4]).shape(), [3, 4]);
    }
}

#[test]
fn copies_convert_only_between_f32_and_bf16() {
    for device in DEVICES {
        let memory = Memory::new(device);
        let (f32s, bf16s, u32s) = (
            ramp(&memory, &[2, 2], DType::F32),
            ramp(&memory, &[2, 2], DType::Bf16),
            ramp(&memory, &[2, 2], DType::U32),
        );
        for tensor in [&f32s, &bf16s] {
            assert_eq!(tensor.rows(1..2).to_vec_f32(), [2.0, 3.0]);
            assert_eq!(tensor.to_vec_f32(), [0.0, 1.0, 2.0, 3.0]);
            assert_eq!(refusal(|| tensor.view().to_vec_u32()), format!("expected U32, got {:?}", tensor.dtype()));
            assert_eq!(
                refusal(|| tensor.view().copy_to_u32(&mut [0; 4])),
                format!("expected U32, got {:?}", tensor.dtype())
            );
        }
        let mut to = [9; 2];
        u32s.rows(1..2).copy_to_u32(&mut to);
        assert_eq!((to, u32s.view().to_vec_u32()), ([2, 3], vec![0, 1, 2, 3]));
        assert_eq!(refusal(|| u32s.to_vec_f32()), "to_vec_f32 of a u32 tensor");

        let mut target = ramp(&memory, &[2, 2], DType::U32);
        assert_eq!(refusal(|| target.view_mut().copy_from_f32(&[0.0; 4])), "copy_from_f32 into a u32 tensor");
        assert_eq!(refusal(|| target.view_mut().fill(0.0)), "fill of a u32 tensor");
        let message = refusal(|| target.view_mut().copy_from_u32(&[0; 3]));
        assert!(message.contains("copy to [2, 2]"), "{message}");
        let mut target = ramp(&memory, &[2, 2], DType::F32);
        assert_eq!(refusal(|| target.view_mut().copy_from_u32(&[0; 4])), "expected U32, got F32");
        assert!(refusal(|| target.view_mut().copy_from_f32(&[0.0; 5])).contains("copy to [2, 2]"));
        for (tensor, rounded) in [(DType::F32, 1.001), (DType::Bf16, 1.0)] {
            let mut tensor = ramp(&memory, &[2, 2], tensor);
            tensor.rows_mut(1..2).fill(1.001);
            assert_eq!(tensor.to_vec_f32(), [0.0, 1.0, rounded, rounded]);
            tensor.rows_mut(0..1).copy_from_f32(&[1.001, -1.001]);
            assert_eq!(tensor.to_vec_f32(), [rounded, -rounded, rounded, rounded]);
        }
    }
}

#[test]
fn tensors_are_copied_bit_for_bit_on_and_between_devices() {
    for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let memories = DEVICES.map(Memory::new);
        for dtype in [DType::F32, DType::Bf16, DType::U32] {
            let source = ramp(&memories[from], &[3, 2], dtype);
            let mut target = Tensor::zeros(&memories[to], &[4, 2], dtype);
            target.rows_mut(1..3).copy_from(source.rows(1..3));
            let read = match dtype {
                DType::U32 => target.view().to_vec_u32().into_iter().map(|x| x as f32).collect(),
                _ => target.to_vec_f32(),
            };
            assert_eq!(read, [0.0, 0.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0]);
        }
    }
    let memory = Memory::new(Device::Cpu);
    let source = ramp(&memory, &[3, 2], DType::F32);
    for (shape, dtype) in [(vec![2, 3], DType::F32), (vec![3, 2], DType::U32)] {
        let mut target = Tensor::zeros(&memory, &shape, dtype);
        let message = refusal(|| target.view_mut().copy_from(source.view()));
        assert_eq!(message, format!("copy [3, 2] to {shape:?}"));
    }
    // A tensor on `Device::Meta` has no elements to copy.
    let meta = Tensor::zeros(&Memory::new(Device::Meta), &[3, 2], DType::F32);
    let mut target = ramp(&memory, &[3, 2], DType::F32);
    target.view_mut().copy_from(meta.view());
    assert_eq!(target.to_vec_f32(), source.to_vec_f32());
}

#[test]
fn reinterpret_keeps_the_bits() {
    let memory = Memory::new(Device::Cpu);
    let mut tensor = Tensor::from_u32(&memory, &[2], &[1.5f32.to_bits(), 7]);
    let view = tensor.view_mut().reinterpret(DType::F32);
    assert_eq!((view.dtype(), view.view().to_vec_f32()[0]), (DType::F32, 1.5));
    assert!(refusal(|| tensor.view_mut().reinterpret(DType::Bf16).shape().len()).contains("U32 as Bf16"));
}

#[test]
fn elements_are_returned_in_their_dtype() {
    for device in DEVICES {
        let memory = Memory::new(device);
        let cpu = Cpu::new(Isa::PORTABLE, 1, device).unwrap();
        let [mut f32s, mut bf16s, mut u32s] =
            [DType::F32, DType::Bf16, DType::U32].map(|dtype| ramp(&memory, &[3], dtype));
        assert_eq!((f32s.rows(1..3).f32(&cpu), u32s.rows(1..3).u32(&cpu)), (&[1.0, 2.0][..], &[1, 2][..]));
        assert_eq!(bf16s.rows(1..3).bf16(&cpu), [1.0, 2.0].map(bf16::from_f32));
        assert!(matches!(f32s.rows(1..3).elements(&cpu), Elements::F32(&[1.0, 2.0])));
        assert!(matches!(bf16s.rows(2..3).elements(&cpu), Elements::Bf16(one) if one[0].to_f32() == 2.0));
        assert_eq!(u32s.rows(1..3).indices(), [1, 2]);
        let says = |expected: DType, got: DType| format!("expected {expected:?}, got {got:?}");
        assert_eq!(refusal(|| bf16s.view().f32(&cpu).len()), says(DType::F32, DType::Bf16));
        assert_eq!(refusal(|| f32s.view().bf16(&cpu).len()), says(DType::Bf16, DType::F32));
        assert_eq!(refusal(|| f32s.view().u32(&cpu).len()), says(DType::U32, DType::F32));
        assert_eq!(refusal(|| f32s.view().indices().len()), says(DType::U32, DType::F32));
        assert_eq!(refusal(|| u32s.view().elements(&cpu).len()), "expected f32 or bf16, got u32");
        assert_eq!(refusal(|| u32s.view_mut().f32(&cpu).len()), says(DType::F32, DType::U32));
        assert_eq!(refusal(|| u32s.view_mut().bf16(&cpu).len()), says(DType::Bf16, DType::U32));
        assert_eq!(refusal(|| f32s.view_mut().u32(&cpu).len()), says(DType::U32, DType::F32));
        f32s.rows_mut(2..3).f32(&cpu)[0] = -1.0;
        bf16s.rows_mut(1..2).bf16(&cpu)[0] = bf16::from_f32(-2.0);
        u32s.rows_mut(0..1).u32(&cpu)[0] = 9;
        assert_eq!((f32s.to_vec_f32(), bf16s.to_vec_f32()), (vec![0.0, 1.0, -1.0], vec![0.0, -2.0, 2.0]));
        assert_eq!(u32s.view().to_vec_u32(), [9, 1, 2]);
        let all = Elements::from(&[1.0, 2.0, 3.0][..]);
        assert!(all.len() == 3 && matches!(all.range(1..2), Elements::F32(&[2.0])));
    }
}
