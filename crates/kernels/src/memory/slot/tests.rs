//! The header, the capacity and the seals of a slot; `tests/slots.rs` tests slots between processes.

use super::*;
use crate::{DType, Device, Tensor};
use std::os::unix::fs::FileExt;

fn options(layout: &str, bytes: usize) -> SlotOptions<'_> {
    SlotOptions { run: [7; 16], layout, bytes, dir: None, sealed_later: false, lent: false }
}

fn contents(checksum: Option<u64>) -> Contents {
    Contents { number: 0x0102_0304, version: 5, lineage: [9; 16], checksum }
}

#[test]
fn slot_data_starts_on_the_page_after_header_and_layout() {
    for (layout, bytes, data) in [
        (0, 64, 4096),
        (4096 - 128, 64, 4096),
        (4096 - 127, 64, 8192),
        (0, (2 << 20) - 64, 4096),
        (0, 2 << 20, 2 << 20),
        ((2 << 20) - 127, 2 << 20, 4 << 20),
    ] {
        let text = "x".repeat(layout);
        let head = Head::new(&options(&text, bytes));
        assert_eq!((head.data, head.bytes, head.run, head.layout == text), (data, bytes, [7; 16], true), "{layout}");
    }
}

#[test]
fn the_slot_header_has_the_documented_offsets() {
    let head = Head::new(&options("one f32 [3]\n", 192));
    let bytes = head.encode(&contents(Some(0x11)));
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(&bytes[..8], b"LSSLOT\0\x01");
    assert_eq!([8, 16, 24, 32].map(word), [4096, 192, 12, twox_hash::XxHash3_64::oneshot(b"one f32 [3]\n")]);
    assert_eq!((&bytes[40..56], &bytes[56..72]), (&[7; 16][..], &[9; 16][..]));
    assert_eq!(([72, 80, 88].map(word), bytes[96]), ([0x0102_0304, 5, 0x11], 1));
    assert_eq!((&bytes[97..120], word(120)), (&[0; 23][..], twox_hash::XxHash3_64::oneshot(&bytes[..120])));
    let without = head.encode(&contents(None));
    assert_eq!((&without[88..96], without[96]), (&[0; 8][..], 0));
}

/// A file with a header, `layout` and `length` bytes in total.
fn file(name: &str, header: &[u8], layout: &str, length: u64) -> std::fs::File {
    let path = std::env::temp_dir().join(format!("lockstep-header-{}-{name}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.write_all_at(header, 0).unwrap();
    file.write_all_at(layout.as_bytes(), 128).unwrap();
    file.set_len(length).unwrap();
    file
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot write files")]
fn a_damaged_slot_header_is_refused_with_a_reason() {
    let head = Head::new(&options("one\n", 192));
    for contents in [contents(Some(3)), contents(None), Contents { number: WRITING, ..Contents::default() }] {
        let (read, found) = Head::read(&file("good", &head.encode(&contents), "one\n", 4096 + 192)).unwrap();
        assert_eq!((read.data, read.bytes, read.run, read.layout.as_str()), (4096, 192, [7; 16], "one\n"));
        assert_eq!(found, contents);
        assert_eq!(read.layout_hash(), head.layout_hash());
    }
    let good = head.encode(&contents(None));
    // Changes words of the header and updates its checksum.
    let changed = |words: &[(usize, u64)]| {
        let mut header = good;
        for (at, word) in words {
            header[*at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let sum = twox_hash::XxHash3_64::oneshot(&header[..120]);
        header[120..].copy_from_slice(&sum.to_le_bytes());
        header
    };
    let mut flipped = good;
    flipped[72] ^= 1;
    let (short, sizes) = ("the file is shorter than its header says", "the sizes in the header are too large");
    let other = "the layout does not match the hash in the header";
    for (name, header, layout, length, message) in [
        ("magic", changed(&[(0, 1)]), "one\n", 4288, "not a weight slot of this version of Lockstep"),
        ("flipped", flipped, "one\n", 4288, "the header does not match its checksum"),
        ("short", good, "one\n", 4287, short),
        ("offset", changed(&[(8, 4097)]), "one\n", 9000, short),
        ("inside", changed(&[(8, 0)]), "one\n", 4288, short),
        ("length", changed(&[(24, 4096 - 127)]), "one\n", 4288, short),
        ("sizes", changed(&[(16, u64::MAX)]), "one\n", 4288, sizes),
        ("layout", good, "two\n", 4288, other),
        ("shorter layout", changed(&[(24, 3)]), "one\n", 4288, other),
    ] {
        let error = Head::read(&file(name, &header, layout, length)).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.kind()), (message, std::io::ErrorKind::InvalidData), "{name}");
    }
    let empty = Head::read(&file("empty", &[], "", 100)).unwrap_err();
    assert_eq!(empty.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot map files")]
fn slot_allocations_are_contiguous_until_the_slot_is_full() {
    let slot = SlotWriter::create(options("l\n", 256)).unwrap();
    let ledger = Memory::new(Device::Cpu);
    let memory = slot.memory(&ledger).unwrap();
    let live = || slot.0.live.load(Ordering::SeqCst);
    let tensors: Vec<Tensor> = [1, 16, 17].map(|len| Tensor::zeros(&memory, &[len], DType::F32)).into();
    memory.check().unwrap();
    assert_eq!((live(), ledger.usage()["other"].bytes), (3, 4 * 34));
    let start = slot.0.map.as_mut_ptr().addr() + slot.0.head.data;
    let cpu = crate::device::Cpu::new(crate::Isa::PORTABLE, 1, Device::Cpu).unwrap();
    let at: Vec<usize> = tensors.iter().map(|t| t.view().f32(&cpu).as_ptr().addr() - start).collect();
    assert_eq!(at, [0, 64, 128], "aligned to 64");
    let _none = Tensor::zeros(&memory, &[1], DType::F32);
    assert_eq!(memory.check().unwrap_err().to_string(), "out of memory: other: cannot allocate 4 bytes");
    drop(tensors);
    assert_eq!(live(), 0);
    let message = slot.memory(&ledger).err().unwrap().to_string();
    assert!(message.ends_with(": the slot's memory was already handed out"), "{message}");
    let other = slot.clone().memory(&Memory::new(Device::CpuChecked)).err().unwrap().to_string();
    assert!(other.contains("already handed out"), "the memory is handed out only once: {other}");
    let fresh = SlotWriter::create(options("l\n", 64)).unwrap();
    let message = fresh.memory(&Memory::new(Device::CpuChecked)).err().unwrap().to_string();
    assert_eq!(message, "weights in shared memory require the device cpu, got cpu-checked");
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot map files")]
fn a_memfd_gets_the_seals_that_its_use_allows() {
    use rustix::fs::{SealFlags, fcntl_get_seals};
    let seals = |slot: &SlotWriter| fcntl_get_seals(&slot.0.place.file).unwrap();
    let length = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    let slot = SlotWriter::create(options("l\n", 64)).unwrap();
    assert_eq!(seals(&slot), length | SealFlags::SEAL);
    let lent = SlotWriter::create(SlotOptions { lent: true, ..options("l\n", 64) }).unwrap();
    assert_eq!(seals(&lent), SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    let later = SlotWriter::create(SlotOptions { sealed_later: true, ..options("l\n", 64) }).unwrap();
    assert_eq!(seals(&later), length);
    let path = later.path().to_owned();
    let second = later.clone();
    let message = later.seal(Contents::default(), false).err().unwrap().to_string();
    assert_eq!(message, format!("weights in {}: cannot seal a slot that is in use", path.display()));
    let reader = second.seal(Contents { number: 3, ..Contents::default() }, true).unwrap();
    let sealed = fcntl_get_seals(std::fs::File::open(reader.path()).unwrap()).unwrap();
    assert_eq!(sealed, length | SealFlags::WRITE | SealFlags::SEAL);
    let pin = reader.pin().unwrap().unwrap();
    assert_eq!((pin.contents().number, pin.contents().checksum), (3, Some(twox_hash::XxHash3_64::oneshot(&[0; 64]))));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot map files")]
fn a_reader_names_the_first_difference_from_its_own_layout() {
    let mut slot = SlotFiller::create(options("a f32 [1]\nb f32 [2]\n", 128)).unwrap();
    assert!(slot.try_lock().unwrap(), "the slot is already locked");
    slot.write_at(0, &[1; 64]).unwrap();
    slot.write_at(64, &[2; 64]).unwrap();
    let says = |result: Result<()>| result.unwrap_err().to_string().split_once(": ").unwrap().1.to_owned();
    assert_eq!(says(slot.write_at(65, &[0; 64])), "the slot has 128 bytes, so 64 bytes from offset 65 do not fit");
    assert_eq!(
        says(slot.write_at(usize::MAX, &[0; 2])),
        format!("the slot has 128 bytes, so 2 bytes from offset {} do not fit", usize::MAX)
    );
    slot.publish(contents(None)).unwrap();
    let reader = SlotReader::open(slot.path()).unwrap();
    assert_eq!((reader.run(), reader.layout(), reader.bytes()), ([7; 16], "a f32 [1]\nb f32 [2]\n", 128));
    assert_eq!(reader.path(), slot.path());
    reader.expect_layout("a f32 [1]\nb f32 [2]\n").unwrap();
    let hash = |layout: &str| twox_hash::XxHash3_64::oneshot(layout.as_bytes());
    for (layout, theirs, own) in [
        ("a f32 [1]\nb f32 [3]\n", "b f32 [2]", "b f32 [3]"),
        ("a f32 [1]\n", "b f32 [2]", "nothing"),
        ("a f32 [1]\nb f32 [2]\nc f32 [1]\n", "nothing", "c f32 [1]"),
        ("a f32 [1]\nb f32 [2]", "", ""),
    ] {
        let expected = format!(
            "the weights have layout {:016x}, expected {:016x}; the first difference: `{theirs}`, \
             expected `{own}`. Reader and writer need the same model, dtype and program",
            hash("a f32 [1]\nb f32 [2]\n"),
            hash(layout)
        );
        assert_eq!(says(reader.expect_layout(layout)), expected);
    }
    let pin = reader.pin().unwrap().unwrap();
    assert_eq!(says(pin.audit()), "the weights were published without a checksum");
    let mut two = [0; 2];
    pin.read_at(63, &mut two).unwrap();
    assert_eq!(two, [1, 2]);
    assert_eq!(says(pin.read_at(127, &mut two)), "the slot has 128 bytes, so 2 bytes from offset 127 are out of range");
    assert!(!slot.try_lock().unwrap(), "pinned");
    drop(pin);
    assert!(slot.try_lock().unwrap());
    assert!(reader.pin().unwrap().is_none(), "the slot is being written");
    slot.publish(contents(Some(0))).unwrap();
    let pin = reader.pin().unwrap().unwrap();
    pin.audit().unwrap();
    // The memory of a pin is charged to a separate part and is read-only.
    let ledger = Memory::new(Device::Cpu);
    let tensor = Tensor::zeros(&pin.memory(&ledger.part("weights")).unwrap(), &[16], DType::F32);
    assert_eq!(
        ledger.usage().into_iter().map(|(part, usage)| (part, usage.bytes)).collect::<Vec<_>>(),
        [("mapped weights", 64)]
    );
    assert_eq!(tensor.to_vec_f32(), [f32::from_le_bytes([1; 4]); 16]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot write files")]
fn a_slot_file_is_deleted_with_its_slot_and_read_only_once_sealed() {
    let dir = std::env::temp_dir().join(format!("lockstep-sealed-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let slot = SlotWriter::create(SlotOptions { dir: Some(&dir), ..options("l\n", 64) }).unwrap();
    let reader = slot.seal(Contents::default(), false).unwrap();
    assert!(std::fs::metadata(reader.path()).unwrap().permissions().readonly());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2, "the slot and its lock file");
    drop(reader);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn available_memory_is_converted_to_bytes() {
    use super::place::available;
    assert_eq!(available("MemTotal:  9 kB\nMemAvailable:   12345 kB\nBuffers: 1 kB\n"), Some(12_641_280));
    assert_eq!((available("MemTotal: 9 kB\n"), available("MemAvailable: some kB\n")), (None, None));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot map files")]
fn a_full_disk_error_names_the_slot_size_and_the_fix() {
    let full = std::io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
    let message = |slot: &SlotWriter| slot.0.place.no_room(2_510_000, &full).to_string();
    let words = message(&SlotWriter::create(options("l\n", 64)).unwrap());
    assert!(words.contains("not enough space for a weight slot of 2.5 MB (No space left"), "{words}");
    assert!(words.ends_with("use a smaller max_staleness, or a container with more memory"), "{words}");
    let dir = std::env::temp_dir();
    let words = message(&SlotWriter::create(SlotOptions { dir: Some(&dir), ..options("l\n", 64) }).unwrap());
    assert!(words.ends_with("set weights_dir to a directory with more free space"), "{words}");
}

/// A slot's file may be in a shared directory (`weights_dir`), and its path comes from a file of the run, so a reader
/// must validate the file that it opens.
#[test]
#[cfg_attr(miri, ignore = "Miri cannot write files")]
fn a_corrupted_slot_is_refused_or_read_unchanged() {
    let dir = std::env::temp_dir().join(format!("lockstep-changed-slots-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let layout = "a f32 [100]\n";
    let mut slot = SlotFiller::create(SlotOptions { dir: Some(&dir), ..options(layout, 448) }).unwrap();
    slot.write_at(0, &[3; 448]).unwrap();
    slot.publish(contents(None)).unwrap();
    let whole = std::fs::read(slot.path()).unwrap();
    let path = dir.join("slot");
    let (mut refused, mut read) = (0, 0);
    for i in 0..200usize {
        let _ = std::fs::remove_dir_all(&path);
        let _ = std::fs::remove_file(&path);
        let at = i.wrapping_mul(0x9e37_79b9) % whole.len();
        let mut bytes = whole.clone();
        // Half of the flipped bits are in the header and the layout, the others in the data.
        let flipped = if i % 16 < 8 { at % (128 + layout.len()) } else { at };
        match i % 8 {
            0 => bytes.truncate(at),
            1 => bytes[flipped] ^= 1 << (i / 8 % 8),
            2 => bytes.extend(vec![i as u8; 1 + at]),
            3 => bytes.clear(),
            _ => {}
        }
        match i % 8 {
            4 => std::os::unix::fs::symlink(["/dev/zero", "nothing", ".", "slot"][i / 8 % 4], &path).unwrap(),
            5 => std::fs::create_dir(&path).unwrap(),
            6 => {
                use rustix::fs::{CWD, FileType, Mode, mknodat};
                mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            }
            7 => {
                let file = std::fs::File::create(&path).unwrap();
                file.write_all_at(&whole[..at * (i / 8 % 2)], 0).unwrap();
                file.set_len(3 << 30).unwrap();
            }
            _ => std::fs::write(&path, bytes).unwrap(),
        }
        let expected = |reader: &SlotReader| (reader.run(), reader.bytes(), reader.layout().to_owned());
        match SlotReader::open(&path) {
            Ok(reader) => {
                assert_eq!(expected(&reader), ([7; 16], 448, layout.to_owned()), "{i}");
                if let Ok(pin) = reader.pin() {
                    pin.unwrap().read_at(0, &mut [0; 448]).unwrap();
                }
                read += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains(&*path.to_string_lossy()), "{i}: {error}");
                refused += 1;
            }
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(refused > 100 && read > 25, "{refused} refused, {read} read");
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot map files")]
fn a_lent_slot_is_written_by_others_while_its_writer_has_locked_it() {
    let memory = Memory::new(Device::Cpu);
    let slot = SlotWriter::create(SlotOptions { lent: true, ..options("l\n", 64) }).unwrap();
    let mut own = Tensor::zeros(&slot.memory(&memory).unwrap(), &[16], DType::F32);
    let lent = LentSlot::open(slot.path(), "l\n").unwrap();
    let mut theirs = Tensor::zeros(&lent.memory(&memory).unwrap(), &[16], DType::F32);
    let why = lent.memory(&memory).err().unwrap().to_string();
    assert!(why.ends_with(": the slot's memory was already handed out"), "{why}");
    let refused = |work: &mut dyn FnMut()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_err().downcast::<&str>().unwrap()
    };
    assert!(refused(&mut || drop(theirs.to_vec_f32())).contains("must be borrowed before it is read"));
    lent.borrow().unwrap();
    own.elements_mut(0..8).fill(1.0);
    theirs.elements_mut(8..16).fill(2.0);
    lent.give_back();
    assert!(refused(&mut || theirs.view_mut().fill(3.0)).contains("must be locked before"));
    assert_eq!(own.to_vec_f32(), [[1.0; 8], [2.0; 8]].concat());
    // No reader sees the slot before its writer publishes it, and no one writes it afterwards.
    let reader = SlotReader::open(slot.path()).unwrap();
    assert!(reader.pin().unwrap().is_none());
    slot.publish(&mut [&mut own], contents(None), false).unwrap();
    assert!(reader.pin().unwrap().is_some());
    let why = lent.borrow().unwrap_err().to_string();
    assert!(why.ends_with(": the slot is lent, but its writer has not locked it"), "{why}");
    let why = LentSlot::open(slot.path(), "m\n").err().unwrap().to_string();
    assert!(why.contains("the first difference: `l`, expected `m`"), "{why}");
    // Other slots cannot be written by anyone else.
    let sealed = SlotWriter::create(options("l\n", 64)).unwrap();
    let why = LentSlot::open(sealed.path(), "l\n").err().unwrap().to_string();
    assert!(why.contains("failed to map for writing"), "{why}");
}
