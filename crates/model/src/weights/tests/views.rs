//! Which adapter each row of a pass has, and which linear layers it changes.

use super::*;
use std::ops::Range;

fn base() -> Weights {
    let json = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 5}"#;
    Weights::zeros(&Memory::new(Device::Cpu), &Arc::new(ModelConfig::parse(json).unwrap()))
}

/// An adapter of these modules.
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
        RowAdapters::Ranges(ranges, of_sequences) => {
            ranges.iter().map(|(range, sequence)| (range.clone(), of(of_sequences[*sequence].unwrap()))).collect()
        }
    }
}

#[test]
fn adapters_of_sequences_are_one_where_they_are_the_same() {
    let base = base();
    let (a, b) = (adapter(&base, &["q_proj"]), adapter(&base, &["q_proj"]));
    let kind = |list: &[Option<&Adapter>]| match Adapters::of_sequences(list) {
        Adapters::Off => "off".to_owned(),
        Adapters::One(one) => format!("one {}", std::ptr::eq(one, &raw const a)),
        Adapters::PerSequence(list) => format!("{} sequences", list.len()),
    };
    assert_eq!(kind(&[]), "off");
    assert_eq!(kind(&[None, None]), "off");
    assert_eq!(kind(&[Some(&a), Some(&a)]), "one true");
    assert_eq!(kind(&[Some(&b)]), "one false");
    assert_eq!(kind(&[Some(&a), Some(&b), Some(&a)]), "3 sequences", "equal numbers are not the same object");
    assert_eq!(kind(&[Some(&a), None]), "2 sequences");
    assert_eq!(kind(&[None, Some(&a)]), "2 sequences");
}

#[test]
fn a_view_has_the_versions_of_what_it_holds() {
    let mut base = base();
    base.version = 3;
    let mut a = adapter(&base, &["q_proj"]);
    a.version = 7;
    let plain = ModelView::from(&base);
    assert_eq!((plain.version(), plain.version().trained()), (Version { base: 3, adapter: None }, 3));
    assert!(plain.adapter().is_none() && plain.lora().is_none());
    assert!(matches!(ModelView::new(&base, None).adapters, Adapters::Off));
    let adapted = ModelView::new(&base, Some(&a));
    assert_eq!((adapted.version(), adapted.version().trained()), (Version { base: 3, adapter: Some(7) }, 7));
    assert_eq!(adapted.lora(), Some(&a.lora));
    let list = [Some(&a), None];
    let mixed = ModelView { weights: &base, adapters: Adapters::PerSequence(&list) };
    assert_eq!(mixed.version(), Version { base: 3, adapter: None });
    assert!(std::ptr::eq(mixed.head().unwrap(), base.head()));
}

#[test]
fn scores_need_the_head_of_one_adapter() {
    let scorer = Weights::scorer(&Memory::new(Device::Cpu), &base());
    let (a, b) = (adapter(&scorer, &["q_proj"]), adapter(&scorer, &["q_proj"]));
    assert!(std::ptr::eq(ModelView::from(&scorer).head().unwrap(), scorer.head()));
    let adapted = ModelView::new(&scorer, Some(&a));
    assert!(std::ptr::eq(adapted.head().unwrap(), a.params.head.as_ref().unwrap()));
    let list = [Some(&a), Some(&b)];
    let error = ModelView { weights: &scorer, adapters: Adapters::PerSequence(&list) }.head().unwrap_err();
    assert!(error.to_string().contains("scores need one adapter for all sequences, since each has its own head"));
}

#[test]
fn rows_have_the_adapter_of_their_sequence() {
    let base = base();
    let (a, b) = (adapter(&base, &["q_proj"]), adapter(&base, &["q_proj"]));
    let all = [&a, &b];
    // Rows of sequences in order, each group with some of them.
    let groups = || [(0..3, 0..1), (3..4, 1..3), (4..9, 3..3), (9..12, 3..4)].into_iter();
    let of = |list: &[Option<&Adapter>]| {
        let mut room = AdapterRanges::default();
        let rows = RowAdapters::new(Adapters::PerSequence(list), groups(), &mut room)?;
        let trained = rows.trained().map(|one| one.map(|one| std::ptr::eq(one, &raw const a)));
        Ok::<_, kernels::Error>((ranges(&rows, &all), trained.map_err(|e| e.to_string())))
    };
    let several = "backward: gradients are those of one adapter, and the batch has several";
    let (some_a, some_b) = (Some(&a), Some(&b));
    assert_eq!(of(&[some_a; 4]).unwrap(), (vec![(0..4, 0), (9..12, 0)], Ok(Some(true))), "none between 4 and 9");
    assert_eq!(of(&[None; 4]).unwrap(), (vec![], Ok(None)));
    assert_eq!(of(&[some_a, None, None, some_a]).unwrap(), (vec![(0..3, 0), (9..12, 0)], Ok(Some(true))));
    assert_eq!(of(&[None, some_b, some_b, None]).unwrap(), (vec![(3..4, 1)], Ok(Some(false))));
    let (found, trained) = of(&[some_a, some_b, some_b, some_b]).unwrap();
    assert_eq!(found, [(0..3, 0), (3..4, 1), (9..12, 1)]);
    assert!(trained.unwrap_err().contains(several));
    let error = of(&[some_a, some_a, some_b, some_b]).unwrap_err().to_string();
    assert!(error.contains("adapters: sequences that share their prefix must name the same adapter"), "{error}");
    let error = of(&[some_a; 3]).unwrap_err().to_string();
    assert!(error.contains("adapters: 3 adapters are named, and there is a sequence 4"), "{error}");
    assert_eq!(of(&[some_a; 5]).unwrap().0, [(0..4, 0), (9..12, 0)], "more than there are sequences");

    // Ranges of an earlier step are gone.
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

#[test]
fn a_linear_layer_gets_the_rows_of_adapters_that_change_it() {
    let base = base();
    let (qkv, down) = (adapter(&base, &["k_proj"]), adapter(&base, &["down_proj", "v_proj"]));
    let list = [Some(&qkv), None, Some(&down), Some(&qkv)];
    let mut room = AdapterRanges::default();
    let sequences = [(0..3, 0..1), (3..4, 1..2), (4..9, 2..3), (9..12, 3..4)];
    let rows = RowAdapters::new(Adapters::PerSequence(&list), sequences.into_iter(), &mut room).unwrap();
    let all = [RowAdapters::All(None), RowAdapters::All(Some(&qkv)), RowAdapters::All(Some(&down)), rows];
    let given = |adapters, linear, rows: Option<Range<usize>>, len| {
        let mut of = LowRankRows { adapters, layer: 1, linear, dropout: None, first: 0 };
        if let Some(rows) = rows {
            of = of.rows(rows);
        }
        let mut given = Vec::new();
        of.each(len, |rows, low_rank, _| {
            given.push((rows, low_rank.b.len()));
            Ok(())
        })
        .unwrap();
        assert_eq!(of.is_empty(), linear_is_empty(adapters, linear), "linear {linear}");
        given
    };
    fn linear_is_empty(adapters: &RowAdapters<'_>, linear: usize) -> bool {
        let changes = |adapter: &Adapter| adapter.params.layers[1].linears()[linear].low_rank.is_some();
        match adapters {
            RowAdapters::All(adapter) => !adapter.is_some_and(changes),
            RowAdapters::Ranges(ranges, of) => !ranges.iter().any(|&(_, at)| of[at].is_some_and(changes)),
        }
    }
    for linear in 0..4 {
        assert_eq!(given(&all[0], linear, None, 12), []);
        let (of_qkv, of_down) = (linear == 0, linear == 0 || linear == 3);
        assert_eq!(given(&all[1], linear, None, 12), vec![(0..12, 1); usize::from(of_qkv)]);
        assert_eq!(given(&all[2], linear, None, 7), vec![(0..7, 1); usize::from(of_down)]);
    }
    assert_eq!(given(&all[3], 0, None, 12), [(0..3, 1), (4..9, 1), (9..12, 1)]);
    assert_eq!(given(&all[3], 3, None, 12), [(4..9, 1)]);
    assert_eq!(given(&all[3], 1, None, 12), []);
    // A part of the rows: ranges are counted from its first row.
    assert_eq!(given(&all[3], 0, Some(2..6), 4), [(0..1, 1), (2..4, 1)]);
    assert_eq!(given(&all[3], 0, Some(3..4), 1), []);
    assert_eq!(given(&all[3], 0, Some(10..12), 2), [(0..2, 1)]);
    assert_eq!(given(&all[1], 0, Some(2..6), 4), [(0..4, 1)]);
    let part = LowRankRows { adapters: &all[3], layer: 0, linear: 0, dropout: None, first: 0 }.rows(2..9).rows(3..7);
    assert_eq!(part.first, 5, "a part of a part");
    let error = kernels::Error::Device("full".into());
    let mut left = Some(error);
    let of = LowRankRows { adapters: &all[3], layer: 0, linear: 0, dropout: None, first: 0 };
    assert!(of.each(12, |_, _, _| left.take().map_or(Ok(()), Err)).is_err(), "an error ends it");
}
