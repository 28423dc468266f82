//! Records without groups: numbers, the column table, and the errors of damaged records.

use super::*;

/// A record of columns, each as its name, kind, width and bytes. All numbers are below 128.
fn raw(columns: &[(&str, u8, u8, &[u8])]) -> Vec<u8> {
    let mut body = vec![columns.len() as u8];
    for (name, kind, width, bytes) in columns {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&[*kind, *width, bytes.len() as u8]);
    }
    for (_, _, _, bytes) in columns {
        body.extend_from_slice(bytes);
    }
    sealed(&body)
}

/// The result of `read` for a record with one column `c`.
fn of<T>(
    kind: u8,
    bytes: &[u8],
    read: impl Fn(&RecordReader<'_>) -> Result<Option<T>, WireError>,
) -> Result<T, String> {
    let record = raw(&[("c", kind, 1, bytes)]);
    let (record, rest) = RecordReader::take(&record).unwrap();
    assert!(rest.is_empty());
    read(&record).map(|values| values.expect("the column is there")).map_err(|error| error.to_string())
}

fn refused(bytes: &[u8]) -> String {
    RecordReader::take(bytes).unwrap_err().to_string()
}

#[test]
fn each_number_has_exactly_one_encoding() {
    let nine_ones = |last: &[u8]| [&[0xff; 9][..], last].concat();
    let numbers: [(u64, Vec<u8>); 9] = [
        (0, vec![0]),
        (1, vec![1]),
        (127, vec![0x7f]),
        (128, vec![0x80, 1]),
        (300, vec![0xac, 2]),
        (16_383, vec![0xff, 0x7f]),
        (16_384, vec![0x80, 0x80, 1]),
        (u64::MAX >> 1, [[0xff; 8].to_vec(), vec![0x7f]].concat()),
        (u64::MAX, nine_ones(&[1])),
    ];
    for (number, bytes) in &numbers {
        assert_eq!(of(1, bytes, |r| r.uints("c")), Ok(vec![*number]));
        let mut record = RecordWriter::new();
        record.uints("c", 1, [*number]);
        let mut written = Vec::new();
        record.finish(&mut written);
        assert_eq!(written, raw(&[("c", 1, 1, bytes)]), "{number}");
    }
    let all: Vec<u8> = numbers.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(of(1, &all, |r| r.uints("c")), Ok(numbers.iter().map(|(number, _)| *number).collect()));
    assert_eq!(of(1, &[], |r| r.uints("c")), Ok(vec![]));
    // Truncated numbers, a trailing zero byte, bits beyond 64, and numbers that are too long.
    for broken in [vec![0x80], vec![0x80, 0], nine_ones(&[2]), nine_ones(&[0x81, 1]), vec![5, 0xff, 0x80, 0]] {
        assert_eq!(of(1, &broken, |r| r.uints("c")), Err("column `c`: invalid varint".into()), "{broken:?}");
        assert_eq!(of(4, &broken, |r| r.runs("c", 1)), Err("column `c`: invalid varint".into()), "{broken:?}");
    }
}

#[test]
fn values_of_each_kind_are_checked() {
    let float = |bytes: &[u8]| of(2, bytes, |r| r.f32s("c"));
    assert_eq!((float(&[0, 0, 0x80, 0x3f]), float(&[])), (Ok(vec![1.0]), Ok(vec![])));
    assert_eq!(float(&[0; 5]), Err("column `c` ends within a number".into()));
    let double = |bytes: &[u8]| of(3, bytes, |r| r.f64s("c"));
    assert_eq!(double(&[0, 0, 0, 0, 0, 0, 0xf0, 0x3f]), Ok(vec![1.0]));
    assert_eq!(double(&[0; 7]), Err("column `c` ends within a number".into()));

    let runs = |bytes: &[u8], expected| of(4, bytes, |r| r.runs("c", expected));
    assert_eq!((runs(&[7, 2, 9, 1], 3), runs(&[], 0)), (Ok(vec![7, 7, 9]), Ok(vec![])));
    // Too few or too many values, a value without a count, a value repeated 0 times, and more values than fit in
    // memory.
    let half = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1];
    let twice = [&[1][..], &half, &[2], &half].concat();
    for (bytes, expected) in
        [(&[7, 2][..], 3), (&[7, 2], 1), (&[7, 2, 9], 2), (&[7, 0], 0), (&[7, 0, 9, 1], 1), (&twice, 0)]
    {
        let words = format!("column `c` must have {expected} values");
        assert_eq!(runs(bytes, expected), Err(words), "{bytes:?}");
    }

    let texts = |bytes: &[u8]| of(5, bytes, |r| Ok(r.texts("c")?.map(|texts| texts.join("|"))));
    assert_eq!((texts(b"\x02ab\x00\x01c"), texts(b"")), (Ok("ab||c".into()), Ok(String::new())));
    for broken in [&b"\x02a"[..], b"\x01\xff", b"\x80", b"\x01a\x05b", &[&half[..], b"a"].concat()] {
        assert_eq!(texts(broken), Err("column `c` has an invalid string".into()), "{broken:?}");
    }
    assert_eq!(of(6, &[3, 0], |r| Ok(r.bytes("c")?.map(<[u8]>::to_vec))), Ok(vec![3, 0]));
}

#[test]
fn a_column_of_another_kind_is_refused() {
    let wrong = |found: u8, expected: u8| format!("column `c` has values of kind {found}, not {expected}");
    // The bit for a column that must be known is not part of the kind.
    assert_eq!(of(0x82, &[0; 4], |r| r.uints("c")), Err(wrong(2, 1)));
    assert_eq!(of(0x81, &[0], |r| r.f32s("c")), Err(wrong(1, 2)));
    assert_eq!(of(6, &[0], |r| r.f64s("c")), Err(wrong(6, 3)));
    assert_eq!(of(1, &[0], |r| r.runs("c", 1)), Err(wrong(1, 4)));
    assert_eq!(of(4, &[], |r| Ok(r.texts("c")?.map(|texts| texts.len()))), Err(wrong(4, 5)));
    assert_eq!(of(9, &[0], |r| Ok(r.bytes("c")?.map(<[u8]>::len))), Err(wrong(9, 6)));

    let record = raw(&[("a", 0x81, 3, &[0]), ("b", 9, 1, &[]), ("c", 6, 2, &[1])]);
    let (record, _) = RecordReader::take(&record).unwrap();
    assert_eq!(["a", "b", "c", "d"].map(|name| record.kind(name)), [Some(Kind::Uint), None, Some(Kind::Bytes), None]);
    assert_eq!(["a", "b", "c", "d"].map(|name| record.width(name)), [3, 1, 2, 1]);
    assert_eq!(record.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(record.uints("d").unwrap(), None);
    assert_eq!(record.runs("d", 7).unwrap(), None);
    assert_eq!(record.texts("d").unwrap(), None);
    assert_eq!(record.refuse_unknown(|name| name == "a"), Ok(()));
    let unknown = "column `a` is required, but unknown to this program: use a newer one";
    assert_eq!(record.refuse_unknown(|name| name != "a").unwrap_err().to_string(), unknown);
}

#[test]
fn a_damaged_column_table_is_refused() {
    let broken = "its column table is damaged";
    for body in [
        &b""[..],
        b"\x80",
        // A column is counted but missing; its name is truncated or not UTF-8; kind, width or length is missing.
        b"\x01",
        b"\x01\x02n",
        b"\x01\x01\xff\x01\x01\x00",
        b"\x01\x01n",
        b"\x01\x01n\x01",
        b"\x01\x01n\x01\x01",
        b"\x01\x01n\x01\x01\x80",
        // The body has more bytes than its columns.
        b"\x00\x09",
        b"\x01\x01n\x01\x01\x01\x07\x07",
        b"\x02\x01n\x01\x01\x00",
    ] {
        assert_eq!(refused(&sealed(body)), broken, "{body:?}");
    }
    assert_eq!(refused(&sealed(b"\x02\x01n\x01\x01\x01\x01m\x01\x01\x02\x07\x07")), "column `m` is truncated");
    assert_eq!(refused(&sealed(b"\x01\x01n\x01\x01\xff\xff\x03")), "column `n` is truncated");
    for (names, twice) in [(["b", "a", "b"], "b"), (["a", "b", "a"], "a"), (["a", "b", "b"], "b")] {
        let columns = names.map(|name| (name, 1, 1, &[0][..]));
        assert_eq!(refused(&raw(&columns)), format!("duplicate column `{twice}`"));
    }
}
