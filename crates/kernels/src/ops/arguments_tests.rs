//! Every operation rejects each argument with a wrong dtype, shape or number of dimensions, and the error names the
//! operation and the argument. A call with correct arguments counts its floating-point operations and bytes.
//! (`attention/tests/arguments.rs` contains the table for attention.)

use crate::DType::{Bf16, F32, U32};
use crate::context::counted;
use crate::{Context, DType, Isa, Result, Tensor};

mod matmuls;
mod steps;

/// A correct tensor argument.
struct Arg {
    name: &'static str,
    shape: &'static [usize],
    /// The expected dtype, and all accepted dtypes.
    dtype: DType,
    takes: &'static [DType],
    /// The elements of a u32 tensor; zeros if there are fewer.
    data: &'static [u32],
    /// For each axis, the argument that the error names if the axis has one more element: "" for this argument, "-" for
    /// no error, the name of another argument, or the whole message.
    blames: &'static [&'static str],
    /// Whether the expected shapes of other arguments follow from this argument.
    leads: bool,
    /// Whether the test tries a wrong number of dimensions.
    deepens: bool,
}

fn f32(name: &'static str, shape: &'static [usize]) -> Arg {
    Arg { name, shape, dtype: F32, takes: &[F32], data: &[], blames: &[], leads: false, deepens: true }
}

/// An argument that may be f32 or bf16.
fn floats(name: &'static str, shape: &'static [usize]) -> Arg {
    Arg { takes: &[F32, Bf16], ..f32(name, shape) }
}

fn ids(name: &'static str, shape: &'static [usize], data: &'static [u32]) -> Arg {
    Arg { dtype: U32, takes: &[U32], data, ..f32(name, shape) }
}

impl Arg {
    fn blames(self, blames: &'static [&'static str]) -> Arg {
        Arg { blames, ..self }
    }
    fn leads(self) -> Arg {
        Arg { leads: true, ..self }
    }
    fn of(&self, ctx: &Context, shape: &[usize], dtype: DType) -> Tensor {
        let mut tensor = Tensor::zeros(ctx.memory(), shape, dtype);
        if dtype == U32 {
            let mut data = self.data.to_vec();
            data.resize(shape.iter().product(), 0);
            tensor.view_mut().copy_from_u32(&data);
        }
        tensor
    }
}

/// Calls `run`, the operation `op`, with correct arguments, which must count `[FLOPs, bytes]`; then with one wrong
/// argument at a time.
#[track_caller]
fn check<const N: usize>(
    op: &str,
    counts: [usize; 2],
    args: [Arg; N],
    run: impl Fn(&Context, [&mut Tensor; N]) -> Result<()>,
) {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let with = |wrong: Option<(usize, Tensor)>| {
        let mut all = args.each_ref().map(|arg| arg.of(&ctx, arg.shape, arg.dtype));
        if let Some((i, wrong)) = wrong {
            all[i] = wrong;
        }
        run(&ctx, all.each_mut()).err().map(|error| error.to_string())
    };
    let before = counted();
    assert_eq!(with(None), None, "{op} with correct arguments");
    let after = counted();
    assert_eq!([after.0 - before.0, after.1 - before.1], counts.map(|n| n as u64), "FLOPs and bytes counted by {op}");

    for (i, arg) in args.iter().enumerate() {
        let Arg { name, shape, .. } = *arg;
        for dtype in [F32, Bf16, U32].into_iter().filter(|dtype| !arg.takes.contains(dtype)) {
            let expected = format!("{op}: {name} is {dtype:?}, expected {:?}", arg.dtype);
            assert_eq!(with(Some((i, arg.of(&ctx, shape, dtype)))), Some(expected));
        }
        for axis in 0..shape.len() {
            let mut longer = shape.to_vec();
            longer[axis] += 1;
            let what = format!("{op} with {name} {longer:?}");
            let error = with(Some((i, arg.of(&ctx, &longer, arg.dtype))));
            let blamed = arg.blames.get(axis).copied().unwrap_or("");
            match args.iter().find(|arg| arg.name == blamed) {
                _ if blamed == "-" => assert_eq!(error, None, "{what}"),
                _ if blamed.is_empty() => {
                    let expected = format!("{op}: {name} has shape {longer:?}, expected {shape:?}");
                    assert_eq!(error, Some(expected));
                }
                Some(other) => {
                    let start = format!("{op}: {blamed} has shape {:?}, expected [", other.shape);
                    assert!(error.as_ref().is_some_and(|error| error.starts_with(&start)), "{what}: {error:?}");
                }
                None => assert_eq!(error, Some(format!("{op}: {blamed}")), "{what}"),
            }
        }
        if !arg.deepens {
            continue;
        }
        let deeper = [&[1][..], shape].concat();
        let expected = if arg.leads { "two dimensions".to_owned() } else { format!("{shape:?}") };
        let error = with(Some((i, arg.of(&ctx, &deeper, arg.dtype))));
        assert_eq!(error, Some(format!("{op}: {name} has shape {deeper:?}, expected {expected}")));
    }
}

/// The error of a call, as text.
#[track_caller]
fn refused(result: Result<()>) -> String {
    result.expect_err("a call with wrong arguments must fail").to_string()
}

fn zeros(ctx: &Context, shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(ctx.memory(), shape, dtype)
}
