//! Tests of slots of shared memory between real processes: pinned contents do not change, no matter which process dies
//! or is stopped.
#![cfg(target_os = "linux")]

use kernels::memory::FileMap;
use kernels::memory::slot::{Contents, Pin, SlotFiller, SlotOptions, SlotReader, SlotWriter};
use kernels::{DType, Device, Memory, Tensor};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const LAYOUT: &str = "all f32 [262144]";
const ELEMENTS: usize = 1 << 18;

fn options(dir: Option<&Path>) -> SlotOptions<'_> {
    SlotOptions { run: [7; 16], layout: LAYOUT, bytes: 4 * ELEMENTS, dir, sealed_later: false, lent: false }
}

fn writer(dir: Option<&Path>) -> (SlotWriter, Tensor, Memory) {
    let (slot, memory) = (SlotWriter::create(options(dir)).unwrap(), Memory::new(Device::Cpu));
    let tensor = Tensor::zeros(&slot.memory(&memory.part("weights")).unwrap(), &[ELEMENTS], DType::F32);
    (slot, tensor, memory)
}

fn publish(slot: &SlotWriter, tensor: &mut Tensor, number: u64) {
    tensor.view_mut().fill(number as f32);
    let contents = Contents { number, version: number + 100, lineage: [number as u8; 16], checksum: None };
    slot.publish(&mut [tensor], contents, true).unwrap();
}

/// A reader's tensor.
fn mapped(pin: &Pin) -> Tensor {
    Tensor::zeros(&pin.memory(&Memory::new(Device::Cpu)).unwrap(), &[ELEMENTS], DType::F32)
}

fn pin(path: &Path) -> Option<Pin> {
    SlotReader::open(path).unwrap().pin().unwrap()
}

/// A child process of this program, which runs `child` below.
struct Other {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Other {
    fn start(what: &str, path: &Path) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "child", "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.env("SLOT_TEST", what).env("SLOT_PATH", path).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Other { process, lines }
    }
    /// The child's next line of output.
    fn says(&mut self) -> String {
        let mut line = String::new();
        while !line.contains("> ") {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the child must be running");
        }
        line.split("> ").nth(1).unwrap().trim().to_owned()
    }
    fn ask(&mut self, what: &str) -> String {
        writeln!(self.process.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.says()
    }
    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn say(text: &str) {
    writeln!(std::io::stdout().lock(), "> {text}").unwrap();
}

#[test]
#[ignore = "a child process of the other tests"]
fn child() {
    let path = PathBuf::from(std::env::var_os("SLOT_PATH").expect("run by the other tests"));
    let asked = || std::io::stdin().lock().lines().map_while(Result::ok);
    match std::env::var("SLOT_TEST").unwrap().as_str() {
        "pin" => {
            let tensor = mapped(&pin(&path).expect("published")); // the tensor keeps the pin
            say("pinned");
            for _ in asked() {
                let data = tensor.to_vec_f32();
                say(&format!("{} {}", data[0], data.iter().all(|&x| x == data[0])));
            }
        }
        "attack" => {
            let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(&path) else {
                return say("cannot open it");
            };
            let refused = [
                memmap2::MmapOptions::new().map_raw(&file).is_err(),
                (&file).write(b"x").is_err(),
                file.set_len(0).is_err(),
                file.set_len(1 << 30).is_err(),
            ];
            say(&format!("{refused:?}"));
        }
        "write" => {
            let (slot, mut tensor, _) = writer(path.is_dir().then_some(path.as_path()));
            publish(&slot, &mut tensor, 3);
            say(slot.path().to_str().unwrap());
            asked().for_each(drop);
        }
        reads => {
            let (reader, map) = (SlotReader::open(&path).unwrap(), FileMap::open(&path).unwrap());
            let (until, pinned) = (Instant::now() + testing::HANG, reads == "with pins");
            let (mut torn, mut whole) = (0, 0);
            // Reads until one is torn; with pins, until enough reads were consistent.
            while Instant::now() < until && torn == 0 && !(pinned && whole >= 100) {
                let same = if pinned {
                    let Some(pin) = reader.pin().unwrap() else { continue };
                    mapped(&pin).to_vec_f32().iter().all(|&x| x == pin.contents().number as f32)
                } else {
                    let data = &map.bytes()[map.bytes().len() - 4 * ELEMENTS..];
                    data.chunks_exact(4).all(|x| x == &data[..4])
                };
                *(if same { &mut whole } else { &mut torn }) += 1;
            }
            say(&format!("{torn} {whole}"));
        }
    }
}

#[test]
fn a_stopped_readers_pin_protects_the_slot_until_the_reader_dies() {
    for dir in [None, Some(Path::new("/dev/shm"))] {
        let (slot, mut tensor, memory) = writer(dir);
        assert_eq!(memory.usage()["weights"].bytes, 4 * ELEMENTS, "booked");
        publish(&slot, &mut tensor, 1);
        let mut reader = Other::start("pin", slot.path());
        assert_eq!(reader.says(), "pinned");
        assert!(!slot.try_lock().unwrap());
        reader.signal("-STOP");
        std::thread::sleep(Duration::from_millis(30));
        assert!(!slot.try_lock().unwrap(), "a stopped reader keeps its pin");
        reader.signal("-CONT");
        assert_eq!(reader.ask("read"), "1 true");
        reader.process.kill().unwrap();
        testing::wait_until("a killed reader's pin is released", || slot.try_lock().unwrap());
        publish(&slot, &mut tensor, 2);
        for mut reader in [0; 2].map(|_| Other::start("pin", slot.path())) {
            assert_eq!((reader.says(), reader.ask("read")), ("pinned".into(), "2 true".into()));
        }
    }
}

#[test]
fn a_writer_must_hold_the_lock_to_write_its_slot() {
    let (slot, mut tensor, _) = writer(None);
    publish(&slot, &mut tensor, 1);
    let refused = |tensor: &mut Tensor| {
        let write = || tensor.view_mut().fill(9.0);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_err()
    };
    assert!(refused(&mut tensor), "published");
    assert!(slot.publish(&mut [&mut tensor], Contents::default(), false).is_err(), "twice");
    assert!(slot.try_lock().unwrap() && !refused(&mut tensor));
    assert!(pin(slot.path()).is_none(), "it is being written");
    // The call omits a live tensor, which other code may still be writing.
    let message = slot.publish(&mut [], Contents::default(), false).unwrap_err().to_string();
    assert!(message.contains("published with 0 tensors, but the slot has 1 live tensors"), "{message}");
    publish(&slot, &mut tensor, 2);
    let pin = pin(slot.path()).expect("published");
    let expected = Contents { number: 2, version: 102, lineage: [2; 16], checksum: pin.contents().checksum };
    assert_eq!(pin.contents(), expected);
    pin.audit().unwrap();
    assert!(refused(&mut mapped(&pin)), "a reader's memory");
    assert!(slot.memory(&Memory::new(Device::Cpu)).is_err(), "the memory of a slot is handed out only once");
    assert!(
        pin.memory(&Memory::new(Device::CpuChecked)).is_err_and(|e| e.to_string().contains("require the device cpu"))
    );
}

#[test]
fn other_processes_cannot_write_or_truncate_a_memfd() {
    let (slot, mut tensor, _) = writer(None);
    publish(&slot, &mut tensor, 1);
    assert_eq!(Other::start("attack", slot.path()).says(), "[true, true, true, true]");
    // After sealing, even this process can only read it, like any other process.
    let slot = SlotWriter::create(SlotOptions { sealed_later: true, ..options(None) }).unwrap();
    let mut tensor = Tensor::zeros(&slot.memory(&Memory::new(Device::Cpu)).unwrap(), &[ELEMENTS], DType::F32);
    tensor.view_mut().fill(5.0);
    drop(tensor);
    let sealed = slot.seal(Contents { number: 4, ..Contents::default() }, true).unwrap();
    assert_eq!(Other::start("attack", sealed.path()).says(), "[true, true, true, true]");
    let pin = sealed.pin().unwrap().expect("sealed");
    pin.audit().unwrap();
    assert_eq!((pin.contents().number, mapped(&pin).to_vec_f32()), (4, vec![5.0; ELEMENTS]));
}

#[test]
fn pinned_reads_are_never_torn_but_unpinned_reads_can_be() {
    for (reads, torn) in [("with pins", false), ("without pins", true)] {
        let (slot, mut tensor, _) = writer(None);
        publish(&slot, &mut tensor, 1);
        let mut reader = Other::start(reads, slot.path());
        let (done, answer) = std::sync::mpsc::channel();
        let result = std::thread::scope(|scope| {
            scope.spawn(move || done.send(reader.says()));
            for number in 2.. {
                if slot.try_lock().unwrap() {
                    publish(&slot, &mut tensor, number);
                }
                if let Ok(result) = answer.recv_timeout(Duration::from_micros(500)) {
                    return result;
                }
            }
            unreachable!()
        });
        let counts: Vec<u64> = result.split(' ').map(|count| count.parse().unwrap()).collect();
        assert_eq!(counts[0] > 0, torn, "{reads}: {} torn, {} whole", counts[0], counts[1]);
        assert!(torn || counts[1] >= 100, "{reads}: {} reads", counts[1]);
    }
}

#[test]
fn a_killed_writers_weights_stay_readable_and_the_next_writer_removes_its_files() {
    let mut other = Other::start("write", Path::new("none"));
    let path = PathBuf::from(other.says());
    let pinned = pin(&path).expect("published");
    other.kill();
    assert_eq!(mapped(&pinned).to_vec_f32(), vec![3.0; ELEMENTS]);
    pinned.audit().unwrap();
    assert!(SlotReader::open(&path).is_err(), "a memfd must end with its writer");

    let dir = std::env::temp_dir().join(format!("lockstep-slots-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    // Each slot has a lock file next to it.
    let is_slot = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "slot");
    let names = || {
        let all = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        all.filter(is_slot).collect::<Vec<_>>()
    };
    let mut other = Other::start("write", &dir);
    let path = PathBuf::from(other.says());
    assert_eq!(names(), std::slice::from_ref(&path));
    let first = writer(Some(&dir));
    assert_eq!(names().len(), 2, "files of a running writer must be kept");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    other.kill();
    drop(first);
    assert_eq!(names(), [path]);
    let second = writer(Some(&dir));
    assert_eq!(names(), [second.0.path()]);
    drop(second);
    assert!(names().is_empty());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_flipped_bit_is_detected_and_another_layout_is_refused() {
    let (slot, mut tensor, _) = writer(Some(&std::env::temp_dir()));
    publish(&slot, &mut tensor, 1);
    let reader = SlotReader::open(slot.path()).unwrap();
    let audit = || reader.pin().unwrap().expect("published").audit();
    audit().unwrap();
    let bytes = std::fs::read(slot.path()).unwrap();
    let at = bytes.len() - 4001;
    let file = std::fs::OpenOptions::new().write(true).open(slot.path()).unwrap();
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
    let message = audit().unwrap_err().to_string();
    assert!(message.contains("were published with"), "{message}");
    reader.expect_layout(LAYOUT).unwrap();
    let message = reader.expect_layout("all bf16 [3]").unwrap_err().to_string();
    assert!(message.contains("`all f32 [262144]`, expected `all bf16 [3]`"), "{message}");
    file.write_all_at(&[9], 40).unwrap(); // overwrites the run id in the header
    assert!(SlotReader::open(slot.path()).is_err_and(|e| e.to_string().contains("the header does not match its")));
}

#[test]
fn the_error_for_a_full_device_names_the_sizes() {
    let message = |options| SlotWriter::create(options).err().expect("no room").to_string();
    let large = message(SlotOptions { bytes: 1 << 46, ..options(None) });
    assert!(large.contains("takes 70368746.3 MB") && large.contains("max_staleness"), "{large}");
    let missing = message(options(Some(Path::new("/nowhere"))));
    assert!(missing.contains("/nowhere"), "{missing}");
}

#[test]
fn a_slot_filled_with_copied_bytes_equals_its_source() {
    let (from, mut tensor, _memory) = writer(None);
    publish(&from, &mut tensor, 7);
    let reader = SlotReader::open(from.path()).unwrap();
    let read = reader.pin().unwrap().unwrap();
    let layout = reader.layout().to_owned();
    let options = SlotOptions {
        run: reader.run(),
        layout: &layout,
        bytes: reader.bytes(),
        dir: None,
        sealed_later: false,
        lent: false,
    };
    let mut copy = SlotFiller::create(options).unwrap();
    // Pieces of any length are allowed.
    let mut at = 0;
    while at < reader.bytes() {
        let mut piece = vec![0; 37.min(reader.bytes() - at)];
        read.read_at(at, &mut piece).unwrap();
        copy.write_at(at, &piece).unwrap();
        at += piece.len();
    }
    assert!(read.read_at(at, &mut [0]).unwrap_err().to_string().contains("are out of range"));
    assert!(copy.write_at(at, &[0]).unwrap_err().to_string().contains("do not fit"));
    assert!(pin(copy.path()).is_none(), "a partly filled slot must not be readable");
    copy.publish(read.contents()).unwrap();
    assert!(copy.write_at(0, &[0]).unwrap_err().to_string().contains("must be locked"));
    let there = pin(copy.path()).unwrap();
    assert_eq!(there.contents(), read.contents());
    assert_eq!(mapped(&there).to_vec_f32(), mapped(&read).to_vec_f32());
    assert!(!copy.try_lock().unwrap(), "it is pinned");
    drop(there);
    assert!(copy.try_lock().unwrap());
    assert!(pin(copy.path()).is_none());
}
