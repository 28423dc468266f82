//! Every argument of a wrong shape or type, and every index out of range, is an error that names it, and not a panic or
//! a read beyond the end.

use super::*;
use std::collections::BTreeMap;

const G: Geometry = Geometry { heads: 2, kv_heads: 1, head_dim: 8, scale: 0.35, window: None };

/// The arguments of all three functions by name: three rows of a sequence, of which page 1 of two has the keys.
fn right(ctx: &Context) -> BTreeMap<&'static str, Tensor> {
    let (keys, values) = ([2, G.kv_heads, G.head_dim, BLOCK], [2, G.kv_heads, BLOCK, G.head_dim]);
    let zeros = |shape: &[usize]| Tensor::zeros(ctx.memory(), shape, DType::F32);
    let ids = |shape: &[usize], ids: &[u32]| Tensor::from_u32(ctx.memory(), shape, ids);
    let slot = BLOCK as u32;
    BTreeMap::from([
        ("qkv", zeros(&[3, G.width()])),
        ("positions", ids(&[3], &[0, 1, 2])),
        ("tables_of_rows", ids(&[3], &[0, 0, 0])),
        ("tables", ids(&[1, 1], &[1])),
        ("keys", zeros(&keys)),
        ("values", zeros(&values)),
        ("rows", ids(&[3], &[0, 1, 2])),
        ("slots", ids(&[3], &[slot, slot + 1, slot + 2])),
        ("out", zeros(&[3, G.heads * G.head_dim])),
        ("lse", zeros(&[3, G.heads])),
        ("d_out", zeros(&[3, G.heads * G.head_dim])),
        ("d_qkv", zeros(&[3, G.width()])),
        ("d_keys", zeros(&keys)),
        ("d_values", zeros(&values)),
        ("groups", ids(&[2], &[0, 3])),
    ])
}

/// Calls the three functions, and returns the error of each.
fn run(ctx: &Context, arguments: &BTreeMap<&'static str, Tensor>) -> [Option<String>; 3] {
    let copy = |name: &str| {
        let of = &arguments[name];
        let mut copy = Tensor::zeros(ctx.memory(), of.shape(), of.dtype());
        if of.dtype() == DType::F32 {
            copy.view_mut().copy_from_f32(&of.to_vec_f32());
        }
        copy
    };
    let view = |name: &str| arguments[name].view();
    let at = Rows { positions: view("positions"), tables_of_rows: view("tables_of_rows"), tables: view("tables") };
    let (mut keys, mut values, mut out, mut lse) = (copy("keys"), copy("values"), copy("out"), copy("lse"));
    let (mut d_qkv, mut d_keys, mut d_values) = (copy("d_qkv"), copy("d_keys"), copy("d_values"));
    let pages = PagesMut { keys: keys.view_mut(), values: values.view_mut() };
    let (rows, slots) = (view("rows"), view("slots"));
    let written = write_kv(ctx, WriteKv { qkv: view("qkv"), geometry: G, rows, slots, pages });
    let pages = Pages { keys: view("keys"), values: view("values") };
    let forward = forward(
        ctx,
        Forward { qkv: view("qkv"), geometry: G, rows: at, pages, out: out.view_mut(), lse: Some(lse.view_mut()) },
    );
    let backward = backward(
        ctx,
        Backward {
            qkv: view("qkv"),
            geometry: G,
            rows: at,
            pages,
            write_rows: rows,
            write_slots: slots,
            out: view("out"),
            lse: view("lse"),
            d_out: view("d_out"),
            d_qkv: d_qkv.view_mut(),
            d_pages: PagesMut { keys: d_keys.view_mut(), values: d_values.view_mut() },
            groups: view("groups"),
        },
    );
    [written, forward, backward].map(|done| done.err().map(|error| error.to_string()))
}

/// Which of the three functions take the argument.
fn takers(name: &str) -> [bool; 3] {
    match name {
        "qkv" | "keys" | "values" => [true, true, true],
        "rows" | "slots" => [true, false, true],
        "positions" | "tables_of_rows" | "tables" | "out" | "lse" => [false, true, true],
        _ => [false, false, true],
    }
}

#[track_caller]
fn refused(ctx: &Context, name: &'static str, wrong: Tensor, word: &str) {
    let mut arguments = right(ctx);
    let what = format!("{name} {:?} {:?}", wrong.dtype(), wrong.shape());
    arguments.insert(name, wrong);
    for (found, takes) in run(ctx, &arguments).into_iter().zip(takers(name)) {
        match (found, takes) {
            (Some(message), true) => assert!(message.contains(word), "{what}: {message}"),
            (None, true) => panic!("{what} is accepted"),
            (found, false) => assert_eq!(found, None, "{what}"),
        }
    }
}

#[test]
fn shapes_and_types_are_checked() {
    let ctx = Context::cpu(Isa::best(), 1);
    let all = right(&ctx);
    assert_eq!(run(&ctx, &all), [None, None, None]);
    for (name, of) in all {
        let word = name.strip_prefix("d_").filter(|word| ["keys", "values"].contains(word)).unwrap_or(name);
        let other = if of.dtype() == DType::F32 { DType::U32 } else { DType::F32 };
        // A wrong type of rows makes that of what they are compared with wrong.
        if name != "qkv" && name != "groups" {
            refused(&ctx, name, Tensor::zeros(ctx.memory(), of.shape(), other), word);
        }
        if ["rows", "slots", "qkv", "tables", "groups"].contains(&name) {
            continue;
        }
        for axis in 0..of.shape().len() {
            // More pages than there are is allowed.
            if axis == 0 && word != name {
                continue;
            }
            let mut shape = of.shape().to_vec();
            shape[axis] += 1;
            // The other one of the pair has fewer pages then.
            let word = if axis == 0 && name == "keys" { "values" } else { word };
            refused(&ctx, name, Tensor::zeros(ctx.memory(), &shape, of.dtype()), word);
        }
    }
}

#[test]
fn indices_are_checked() {
    let ctx = Context::cpu(Isa::best(), 1);
    let ids = |shape: &[usize], ids: &[u32]| Tensor::from_u32(ctx.memory(), shape, ids);
    let slot = BLOCK as u32;
    refused(&ctx, "positions", ids(&[3], &[0, 1, slot]), "positions");
    refused(&ctx, "tables_of_rows", ids(&[3], &[0, 0, 1]), "tables_of_rows");
    refused(&ctx, "tables", ids(&[1, 1], &[2]), "tables");
    refused(&ctx, "rows", ids(&[3], &[0, 1, 3]), "rows");
    refused(&ctx, "rows", ids(&[2], &[0, 1]), "slots");
    refused(&ctx, "slots", ids(&[3], &[slot, slot + 1, 2 * slot]), "slots");
    refused(&ctx, "groups", ids(&[2], &[0, 2]), "groups");
    refused(&ctx, "groups", ids(&[2], &[1, 3]), "groups");
    refused(&ctx, "groups", ids(&[3], &[0, 4, 3]), "groups");
    // Both groups read page 1.
    refused(&ctx, "groups", ids(&[3], &[0, 2, 3]), "page 1 is in groups 0 and 1");
}

/// The table of a row is checked also where the row before had the same table and saw less, or another table.
#[test]
fn each_rows_pages_are_checked() {
    let ctx = Context::cpu(Isa::best(), 1);
    let ids = |shape: &[usize], ids: &[u32]| Tensor::from_u32(ctx.memory(), shape, ids);
    let mut arguments = right(&ctx);
    let slot = BLOCK as u32;
    let mut says = |positions: [u32; 3], of_rows: [u32; 3], tables: [u32; 4], word: Option<&str>| {
        arguments.insert("positions", ids(&[3], &positions));
        arguments.insert("tables_of_rows", ids(&[3], &of_rows));
        arguments.insert("tables", ids(&[2, 2], &tables));
        let forward = run(&ctx, &arguments)[1].clone();
        assert_eq!(forward.as_deref().map(|message| message.contains("tables")), word.map(|_| true), "{forward:?}");
    };
    says([0, 1, slot], [0, 0, 0], [1, 0, 9, 9], None);
    says([0, 1, slot], [0, 0, 0], [1, 2, 9, 9], Some("tables"));
    says([slot, 1, 2], [0, 1, 1], [1, 0, 2, 0], Some("tables"));
    says([slot, 1, 2], [0, 1, 0], [1, 0, 0, 9], None);
    says([0, 1, 2], [0, 0, 1], [1, 9, 9, 9], Some("tables"));
}
