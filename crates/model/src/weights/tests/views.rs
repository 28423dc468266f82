//! The adapter of each row of a pass.

use super::*;
use std::ops::Range;

fn base() -> Weights {
    let json = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 5}"#;
    Weights::zeros(&Memory::new(Device::Cpu), &Arc::new(ModelConfig::parse(json).unwrap()))
}

/// An adapter with these target modules.
fn adapter(base: &Weights, modules: &[&str]) -> Adapter {
    let names = modules.iter().map(|&name| name.to_owned()).collect();
    let lora = LoraConfig { r: 2, target_modules: TargetModules::Names(names), ..LoraConfig::default() };
    Adapter::zeros(&Memory::new(Device::Cpu), base, &lora).unwrap()
}

/// The ranges of rows that have an adapter, each with the index of that adapter in `all`.
fn ranges(rows: &RowAdapters<'_>, all: &[&Adapter]) -> Vec<(Range<usize>, usize)> {
    let of = |adapter: &Adapter| all.iter().position(|other| std::ptr::eq(*other, adapter)).unwrap();
    match rows {
        RowAdapters::All(adapter) => adapter.iter().map(|adapter| (0..usize::MAX, of(adapter))).collect(),
        RowAdapters::Ranges(ranges, by_sequence) => {
            ranges.iter().map(|(range, sequence)| (range.clone(), of(by_sequence[*sequence].unwrap()))).collect()
        }
    }
}

#[test]
fn scores_require_one_adapter_for_all_sequences() {
    let scorer = Weights::scorer(&Memory::new(Device::Cpu), &base());
    let (a, b) = (adapter(&scorer, &["q_proj"]), adapter(&scorer, &["q_proj"]));
    assert!(std::ptr::eq(ModelView::from(&scorer).head().unwrap(), scorer.head()));
    let adapted = ModelView::new(&scorer, Some(&a));
    assert!(std::ptr::eq(adapted.head().unwrap(), a.params.head.as_ref().unwrap()));
    let list = [Some(&a), Some(&b)];
    let error = ModelView { weights: &scorer, adapters: Adapters::PerSequence(&list) }.head().unwrap_err();
    assert!(
        error.to_string().contains("scores need one adapter for all sequences, since each adapter has its own head")
    );
}

#[test]
fn each_row_gets_the_adapter_of_its_sequence() {
    let base = base();
    let (a, b) = (adapter(&base, &["q_proj"]), adapter(&base, &["q_proj"]));
    let all = [&a, &b];
    // Row ranges of four groups, each with the range of its sequences.
    let groups = || [(0..3, 0..1), (3..4, 1..3), (4..9, 3..3), (9..12, 3..4)].into_iter();
    let of = |list: &[Option<&Adapter>]| {
        let mut room = AdapterRanges::default();
        let rows = RowAdapters::new(Adapters::PerSequence(list), groups(), &mut room)?;
        let trained = rows.trained().map(|one| one.map(|one| std::ptr::eq(one, &raw const a)));
        Ok::<_, kernels::Error>((ranges(&rows, &all), trained.map_err(|e| e.to_string())))
    };
    let several = "backward: a backward pass trains one adapter, but the batch has several";
    let (some_a, some_b) = (Some(&a), Some(&b));
    assert_eq!(
        of(&[some_a; 4]).unwrap(),
        (vec![(0..4, 0), (9..12, 0)], Ok(Some(true))),
        "rows 4 to 8 belong to no sequence"
    );
    assert_eq!(of(&[None; 4]).unwrap(), (vec![], Ok(None)));
    assert_eq!(of(&[some_a, None, None, some_a]).unwrap(), (vec![(0..3, 0), (9..12, 0)], Ok(Some(true))));
    assert_eq!(of(&[None, some_b, some_b, None]).unwrap(), (vec![(3..4, 1)], Ok(Some(false))));
    let (found, trained) = of(&[some_a, some_b, some_b, some_b]).unwrap();
    assert_eq!(found, [(0..3, 0), (3..4, 1), (9..12, 1)]);
    assert!(trained.unwrap_err().contains(several));
    let error = of(&[some_a, some_a, some_b, some_b]).unwrap_err().to_string();
    assert!(error.contains("adapters: sequences that share a prefix must have the same adapter"), "{error}");
    let error = of(&[some_a; 3]).unwrap_err().to_string();
    assert!(error.contains("adapters: got 3 adapters, but the batch has 4 sequences"), "{error}");
    assert_eq!(of(&[some_a; 5]).unwrap().0, [(0..4, 0), (9..12, 0)], "more adapters than sequences are allowed");

    // Ranges of an earlier step are cleared.
    let mut room = AdapterRanges::default();
    let list = [some_a; 4];
    RowAdapters::new(Adapters::PerSequence(&list), groups(), &mut room).unwrap();
    let again = RowAdapters::new(Adapters::PerSequence(&list), [(0..2, 0..1)].into_iter(), &mut room).unwrap();
    assert_eq!(ranges(&again, &all), [(0..2, 0)]);
    let mut room = AdapterRanges::default();
    let one = RowAdapters::new(Adapters::One(&b), groups(), &mut room).unwrap();
    assert_eq!((ranges(&one, &all), one.trained().unwrap().is_some()), (vec![(0..usize::MAX, 1)], true));
    let mut room = AdapterRanges::default();
    let off = RowAdapters::new(Adapters::Off, groups(), &mut room).unwrap();
    assert!(ranges(&off, &all).is_empty() && off.trained().unwrap().is_none());
}
