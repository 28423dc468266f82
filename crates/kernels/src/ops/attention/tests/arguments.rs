//! For an argument with a wrong shape or type, or an index out of range, the error names the argument. Nothing panics
//! or reads past the end.

use super::*;
use crate::context::counted;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

const G: Geometry = Geometry { heads: 2, kv_heads: 1, head_dim: 8, scale: 0.35, window: None };

/// Correct arguments of all three functions, by name: three rows of a sequence whose keys are in page 1 of two pages.
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

/// The names of the three functions.
const NAMES: [&str; 3] = ["attention::write_kv", "attention::forward", "attention::backward"];

/// Calls the three functions, and returns the error of each.
fn run(ctx: &Context, arguments: &BTreeMap<&'static str, Tensor>) -> [Option<String>; 3] {
    run_of(ctx, G, arguments).0
}

/// Like [`run`], for any geometry. Also returns the floating-point operations and bytes that each function counted.
fn run_of(
    ctx: &Context,
    geometry: Geometry,
    arguments: &BTreeMap<&'static str, Tensor>,
) -> ([Option<String>; 3], [[u64; 2]; 3]) {
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
    let start = counted();
    let written = write_kv(ctx, WriteKv { qkv: view("qkv"), geometry, rows, slots, pages });
    let after_write = counted();
    let pages = Pages { keys: view("keys"), values: view("values") };
    let forward = forward(
        ctx,
        Forward { qkv: view("qkv"), geometry, rows: at, pages, out: out.view_mut(), lse: Some(lse.view_mut()) },
    );
    let after_forward = counted();
    let backward = backward(
        ctx,
        Backward {
            qkv: view("qkv"),
            geometry,
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
    let counts = [(start, after_write), (after_write, after_forward), (after_forward, counted())];
    (
        [written, forward, backward].map(|done| done.err().map(|error| error.to_string())),
        counts.map(|(from, to)| [to.0 - from.0, to.1 - from.1]),
    )
}

/// Whether each of the three functions takes this argument.
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
    for ((found, takes), op) in run(ctx, &arguments).into_iter().zip(takers(name)).zip(NAMES) {
        match (found, takes) {
            (Some(message), true) => {
                let rest = message.strip_prefix(op).and_then(|rest| rest.strip_prefix(": "));
                assert!(rest.is_some_and(|rest| rest.contains(word)), "{what}: {message}");
            }
            (None, true) => panic!("{what} must be refused"),
            (found, false) => assert_eq!(found, None, "{what}"),
        }
    }
}

#[test]
fn attention_refuses_wrong_shapes_and_types() {
    let ctx = Context::cpu(Isa::best(), 1);
    let all = right(&ctx);
    assert_eq!(run(&ctx, &all), [None, None, None]);
    for (name, of) in all {
        let word = name.strip_prefix("d_").filter(|word| ["keys", "values"].contains(word)).unwrap_or(name);
        let other = if of.dtype() == DType::F32 { DType::U32 } else { DType::F32 };
        // `qkv` is skipped: other arguments are compared with its dtype, so the error would name one of them.
        if name != "qkv" {
            refused(&ctx, name, Tensor::zeros(ctx.memory(), of.shape(), other), word);
        }
        if ["rows", "slots", "qkv", "tables", "groups"].contains(&name) {
            continue;
        }
        for axis in 0..of.shape().len() {
            // More pages than needed are allowed.
            if axis == 0 && word != name {
                continue;
            }
            let mut shape = of.shape().to_vec();
            shape[axis] += 1;
            // With more pages of keys, the tensor of values has too few.
            let word = if axis == 0 && name == "keys" { "values" } else { word };
            refused(&ctx, name, Tensor::zeros(ctx.memory(), &shape, of.dtype()), word);
        }
    }
}

#[test]
fn attention_rows_and_pages_must_have_the_same_dtype() {
    let ctx = Context::cpu(Isa::best(), 1);
    let of = |shape: &[usize], dtype: DType| Tensor::zeros(ctx.memory(), shape, dtype);
    refused(&ctx, "qkv", of(&[3, G.width()], DType::U32), "qkv is U32, expected F32");
    refused(&ctx, "qkv", of(&[3, G.width()], DType::Bf16), "keys is F32, expected Bf16");
    refused(&ctx, "qkv", of(&[3, G.width() + 1], DType::F32), "qkv has shape [3, 33], expected [3, 32]");
    refused(&ctx, "qkv", of(&[3 * G.width()], DType::F32), "qkv has shape [96], expected two dimensions");
    refused(&ctx, "tables", of(&[1], DType::U32), "tables has shape [1], expected two dimensions");
    refused(&ctx, "groups", of(&[1, 2], DType::U32), "groups has shape [1, 2], expected [2]");
    // There must be at least as many pages of gradients as of keys.
    let mut arguments = right(&ctx);
    for (name, shape) in [("d_keys", [1, 1, 8, BLOCK]), ("d_values", [1, 1, BLOCK, 8])] {
        arguments.insert(name, of(&shape, DType::F32));
    }
    let message = "attention::backward: d_pages must have at least 2 pages";
    assert_eq!(run(&ctx, &arguments), [None, None, Some(message.to_owned())]);
    for (name, shape) in [("d_keys", [3, 1, 8, BLOCK]), ("d_values", [3, 1, BLOCK, 8])] {
        arguments.insert(name, of(&shape, DType::F32));
    }
    assert_eq!(run(&ctx, &arguments), [None, None, None]);
}

#[test]
fn attention_refuses_indices_out_of_range() {
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
    refused(&ctx, "groups", ids(&[3], &[0, 2, 3]), "groups 0 and 1 must not share page 1");
}

/// The block table of each row is checked, even if the previous row had the same table and attended to fewer pages.
#[test]
fn the_pages_of_every_row_are_checked() {
    let ctx = Context::cpu(Isa::best(), 1);
    let ids = |shape: &[usize], ids: &[u32]| Tensor::from_u32(ctx.memory(), shape, ids);
    let mut arguments = right(&ctx);
    let slot = BLOCK as u32;
    let mut says = |positions: [u32; 3], row_tables: [u32; 3], tables: [u32; 4], word: Option<&str>| {
        arguments.insert("positions", ids(&[3], &positions));
        arguments.insert("tables_of_rows", ids(&[3], &row_tables));
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

/// Operations are counted for each attended pair of query and key, and bytes for each row.
#[test]
fn attention_counts_its_operations_and_bytes() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    // With this window position 2 attends to two keys, so there are five pairs in total.
    let narrow = Geometry { window: Some(2), ..G };
    let (errors, counts) = run_of(&ctx, narrow, &right(&ctx));
    assert_eq!(errors, [None, None, None]);
    let (pairs, rows, dims) = (5, 3, 2 * 8);
    // Each written row has one kv head of 8 dimensions, whose keys and values are read and written.
    assert_eq!(
        counts,
        [[0, 16 * rows * 8], [4 * pairs * dims, 8 * rows * dims], [10 * pairs * dims, 32 * rows * dims]]
    );
    let zeros = |shape: &[usize]| Tensor::zeros(ctx.memory(), shape, DType::F32);
    let (mut keys, mut values) = (zeros(&[3, 2, 8, BLOCK]), zeros(&[3, 2, BLOCK, 8]));
    let before = counted();
    copy_block(&ctx, 1, 0, PagesMut { keys: keys.view_mut(), values: values.view_mut() }).unwrap();
    let after = counted();
    // A page of keys and a page of values are copied.
    assert_eq!((after.0 - before.0, after.1 - before.1), (0, 8 * 2 * 8 * BLOCK as u64));
    let mut values = zeros(&[2, 2, BLOCK, 8]);
    for (from, to, at) in [(2, 0, 0), (0, 2, 1)] {
        let pages = PagesMut { keys: keys.view_mut(), values: values.view_mut() };
        let message = copy_block(&ctx, from, to, pages).unwrap_err().to_string();
        assert_eq!(message, format!("attention::copy_block: pages[{at}] is 2, expected below 2"));
    }
}

#[test]
fn an_invalid_attention_geometry_is_refused() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let all = right(&ctx);
    for (wrong, message) in [
        (Geometry { kv_heads: 0, ..G }, "invalid heads: 2 query heads, 0 kv heads, head_dim 8"),
        (Geometry { heads: 0, ..G }, "invalid heads: 0 query heads, 1 kv heads, head_dim 8"),
        (Geometry { head_dim: 0, ..G }, "invalid heads: 2 query heads, 1 kv heads, head_dim 0"),
        (Geometry { heads: 3, kv_heads: 2, ..G }, "invalid heads: 3 query heads, 2 kv heads, head_dim 8"),
        (Geometry { window: Some(0), ..G }, "the sliding window must be at least 1, got 0"),
        (Geometry { heads: 3, ..G }, "qkv has shape [3, 32], expected [3, 40]"),
    ] {
        // An op without its check may panic, which does not name the geometry.
        let ran = catch_unwind(AssertUnwindSafe(|| run_of(&ctx, wrong, &all).0));
        let refused = NAMES.map(|op| Some(format!("{op}: {message}")));
        assert_eq!(ran.ok(), Some(refused), "errors of {NAMES:?} for {wrong:?}; None: an op panicked");
    }
    assert_eq!(run_of(&ctx, Geometry { window: Some(1), ..G }, &all).0, [None, None, None]);
}

/// Positions, tables of the rows and two pages of each table, as tensors.
fn rows_of(ctx: &Context, rows: &[(u32, u32)], tables: &[[u32; 2]]) -> [Tensor; 3] {
    let of = |ids: Vec<u32>| Tensor::from_u32(ctx.memory(), &[ids.len()], &ids);
    let tables = Tensor::from_u32(ctx.memory(), &[tables.len(), 2], tables.as_flattened());
    [of(rows.iter().map(|row| row.1).collect()), of(rows.iter().map(|row| row.0).collect()), tables]
}

/// Every page that a row attends to must exist, regardless of the previous rows. The result is the number of attended
/// pairs of query and key.
#[test]
fn pages_that_rows_attend_to_must_exist() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let says = |window, rows: &[(u32, u32)], tables: &[[u32; 2]]| {
        let [positions, tables_of_rows, tables] = rows_of(&ctx, rows, tables);
        let at = Rows { positions: positions.view(), tables_of_rows: tables_of_rows.view(), tables: tables.view() };
        check_rows("op", &Geometry { window, ..G }, at, rows.len(), 3).map_err(|error| error.to_string())
    };
    // Rows as (table, position).
    assert_eq!(says(None, &[], &[[9, 9]]), Ok(0));
    assert_eq!(says(None, &[(0, 0), (0, 63), (0, 64), (0, 127)], &[[2, 1]]), Ok(1 + 64 + 65 + 128));
    assert_eq!(says(Some(3), &[(0, 0), (0, 1), (0, 2), (0, 3), (0, 64)], &[[2, 1]]), Ok(1 + 2 + 3 + 3 + 3));
    // With this window, both rows attend only to the second block, so the page of the first block need not exist.
    assert_eq!(says(Some(1), &[(0, 64), (0, 127)], &[[9, 1]]), Ok(2));
    for (window, rows, tables) in [
        (None, &[(0, 0), (0, 64)][..], &[[0, 9]][..]),
        (None, &[(0, 64)], &[[3, 0]]),
        (None, &[(0, 0), (1, 0)], &[[0, 9], [3, 9]]),
        (None, &[(0, 0), (1, 0), (0, 64)], &[[0, 5], [1, 9]]),
        (Some(1), &[(0, 64), (0, 63)], &[[9, 1]]),
        (Some(2), &[(0, 65), (0, 64)], &[[9, 1]]),
    ] {
        let message = says(window, rows, tables).unwrap_err();
        assert!(message.starts_with("op: tables[") && message.ends_with("expected below 3"), "{rows:?}: {message}");
    }
}

#[test]
fn groups_must_cover_all_rows_and_share_no_page() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let says = |window, rows: &[(u32, u32)], tables: &[[u32; 2]], groups: &[u32]| {
        let [positions, tables_of_rows, tables] = rows_of(&ctx, rows, tables);
        let at = Rows { positions: positions.view(), tables_of_rows: tables_of_rows.view(), tables: tables.view() };
        let groups = Tensor::from_u32(ctx.memory(), &[groups.len()], groups);
        let done = check_groups("op", &Geometry { window, ..G }, groups.view(), at, 5);
        done.err().map(|error| error.to_string())
    };
    let three = [(0, 0), (1, 0), (2, 0)];
    let apart = [[0, 9], [1, 9], [2, 9]];
    for right in [&[0, 3][..], &[0, 1, 3], &[0, 1, 2, 3], &[0, 0, 2, 2, 3, 3]] {
        assert_eq!(says(None, &three, &apart, right), None, "{right:?}");
    }
    for wrong in [&[][..], &[0], &[0, 2], &[0, 4], &[1, 3], &[0, 2, 1, 3], &[0, 4, 3]] {
        let message = format!("op: groups {wrong:?} must cover 3 rows");
        assert_eq!(says(None, &three, &apart, wrong), Some(message));
    }
    // A page may appear twice in one group.
    assert_eq!(says(None, &three, &[[0, 9], [0, 9], [2, 9]], &[0, 2, 3]), None);
    // The shared page is the second block of a sequence; the page of another sequence; or the first block of a
    // sequence, to which an earlier row does not attend.
    for (window, rows, tables, groups, page) in [
        (None, &[(0, 0), (0, 64), (1, 0)][..], &[[0, 1], [1, 9]][..], &[0, 2, 3][..], 1),
        (None, &[(0, 0), (1, 0), (2, 0)], &[[0, 9], [1, 9], [1, 9]], &[0, 2, 3], 1),
        (None, &[(0, 0), (1, 64)], &[[0, 9], [3, 0]], &[0, 1, 2], 0),
        (Some(1), &[(0, 64), (0, 63), (1, 0)], &[[4, 1], [4, 9]], &[0, 2, 3], 4),
        (Some(2), &[(0, 65), (0, 64), (1, 0)], &[[4, 1], [4, 9]], &[0, 2, 3], 4),
    ] {
        let message = format!("op: groups 0 and 1 must not share page {page}");
        assert_eq!(says(window, rows, tables, groups), Some(message), "{rows:?}");
    }
    // Outside the window the row does not attend to the page.
    assert_eq!(says(Some(1), &[(0, 64), (1, 0)], &[[4, 1], [4, 9]], &[0, 1, 2]), None);
}
