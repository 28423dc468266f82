use super::host::MAP_FROM;
use super::*;
use crate::device::Cpu;

#[test]
#[cfg_attr(miri, ignore = "Miri cannot map files")]
fn released_bytes_of_a_mapped_file_stay_readable() {
    let path = std::env::temp_dir().join(format!("lockstep-file-map-{}", std::process::id()));
    let data: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
    std::fs::write(&path, &data).unwrap();
    let map = FileMap::open(&path).unwrap();
    for range in [0..20_000, 5..9000, 4096..8192, 19_999..20_000, 7..7, 0..1 << 40] {
        map.release(range);
        assert!(map.bytes() == data);
    }
    std::fs::remove_file(&path).unwrap();
    assert!(FileMap::open(&path).is_err());
}

fn cpu(device: Device) -> Cpu {
    Cpu::new(crate::Isa::PORTABLE, 1, device).unwrap()
}

#[test]
fn allocations_are_zeroed_aligned_and_counted_by_part() {
    for device in [Device::Cpu, Device::CpuChecked, Device::Meta] {
        let memory = Memory::new(device);
        let weights = memory.part("weights");
        let small = weights.allocate(100, DType::U32);
        let large = weights.allocate(MAP_FROM + 4, DType::F32);
        let other = memory.part("kv").allocate(8, DType::U32);
        let total = 100 + MAP_FROM + 4;
        assert_eq!(memory.usage()["weights"], Usage { bytes: total, peak_bytes: total });
        assert_eq!(memory.usage()["kv"].bytes, 8);
        for buffer in [&small, &large, &other] {
            assert_eq!(buffer.device(), device);
            if device == Device::Meta {
                continue;
            }
            // SAFETY: no other code writes to the buffer.
            let data = unsafe { buffer.slice::<u32>(&cpu(device), 0..buffer.bytes / 4) };
            assert!(data.iter().all(|&x| x == 0));
            assert!(data.as_ptr().align_offset(64) == 0);
        }
        drop(large);
        assert_eq!(memory.usage()["weights"], Usage { bytes: 100, peak_bytes: total });
        drop((small, other));
        assert_eq!(weights.usage()["weights"], Usage { bytes: 0, peak_bytes: total });
        assert!(lock(&memory.ledger.checked.buffers).is_empty());
        memory.check().unwrap();
    }
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "Miri has no memory pages")]
fn untouched_pages_are_not_resident() {
    const BYTES: usize = 32 << 20;
    let memory = Memory::new(Device::Cpu);
    let (kv, weights) = (memory.part("kv cache"), memory.part("weights"));
    let (large, small) = (kv.allocate(BYTES, DType::F32), weights.allocate(100, DType::F32));
    assert_eq!(memory.resident().unwrap(), [("kv cache", 0), ("weights", 100)].into());
    // SAFETY: no other code accesses the buffer.
    unsafe { large.fill(0..BYTES / 16, 1.0f32) };
    // Touching the last byte may make a whole huge page of 2 MiB resident.
    let touched = memory.resident().unwrap()["kv cache"];
    assert!((BYTES / 4..=BYTES / 4 + (2 << 20)).contains(&touched), "{touched}");
    // SAFETY: no other code accesses the buffer.
    unsafe { large.fill(0..BYTES / 4, 1.0f32) };
    assert_eq!(memory.resident().unwrap()["kv cache"], BYTES);
    drop((large, small));
    assert_eq!(memory.resident().unwrap(), [("kv cache", 0), ("weights", 0)].into());
    assert_eq!(Memory::new(Device::CpuChecked).resident(), None);
}

#[test]
fn a_buffer_keeps_written_values() {
    for device in [Device::Cpu, Device::CpuChecked] {
        let buffer = Memory::new(device).allocate(MAP_FROM, DType::F32);
        let last = MAP_FROM / 4 - 1;
        // SAFETY: no other code accesses the buffer, and no two borrows overlap in time.
        unsafe {
            buffer.slice_mut::<f32>(&cpu(device), last..last + 1)[0] = 2.5;
            assert_eq!(buffer.slice::<f32>(&cpu(device), last..last + 1), [2.5]);
            buffer.upload(0..1, |to: &mut [f32]| to[0] = 1.5);
            buffer.fill(1..2, 3.5f32);
            assert_eq!(buffer.download(0..3, <[f32]>::to_vec), [1.5, 3.5, 0.0]);
        }
    }
}

#[test]
fn freed_memory_is_reused_and_zeroed() {
    let memory = Memory::new(Device::Cpu);
    let cpu = cpu(Device::Cpu);
    let start = |buffer: &Buffer| buffer.start(&cpu);
    for bytes in [100, 100_000] {
        let first = memory.allocate(bytes, DType::F32);
        let at = start(&first);
        // SAFETY: no other code accesses the buffer.
        unsafe { first.fill(0..bytes / 4, 7.0f32) };
        let other = memory.allocate(bytes, DType::F32);
        assert_ne!(start(&other), at);
        drop(first);
        let again = memory.allocate(bytes - 8, DType::F32);
        assert_eq!(start(&again), at);
        // SAFETY: no other code writes to the buffer.
        assert!(unsafe { again.slice::<f32>(&cpu, 0..bytes / 4 - 2) }.iter().all(|&x| x == 0.0));
    }
    assert_eq!(memory.usage()["other"].bytes, 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri aborts instead")]
fn a_failed_allocation_is_an_error_that_names_the_part() {
    let memory = Memory::new(Device::Cpu);
    let buffer = memory.part("kv cache").allocate(1 << 60, DType::F32);
    let small = memory.part("weights").allocate(1 << 10, DType::F32);
    let message = memory.check().unwrap_err().to_string();
    assert_eq!(message, format!("out of memory: kv cache: cannot allocate {} bytes", 1u64 << 60));
    drop((buffer, small));
    memory.check().unwrap();
    assert_eq!(memory.usage()["kv cache"].bytes, 0);
}

#[test]
fn copies_are_counted_and_indices_have_a_host_copy() {
    let memory = Memory::new(Device::CpuChecked);
    let cpu = cpu(Device::CpuChecked);
    let buffer = memory.allocate(16, DType::U32);
    // SAFETY: no other code accesses the buffer, and no two borrows overlap in time.
    unsafe {
        buffer.upload(0..4, |to: &mut [u32]| to.copy_from_slice(&[1, 2, 3, 4]));
        assert_eq!(buffer.mirror::<u32>(1..3), [2, 3]);
        assert_eq!(buffer.download(0..2, <[u32]>::to_vec), [1, 2]);
        let expected = Copies { to_device: 1, to_device_bytes: 16, to_host: 1, to_host_bytes: 8, ..Copies::default() };
        assert_eq!(memory.copies(), expected);
        buffer.slice_mut::<u32>(&cpu, 0..1)[0] = 9;
        let stale = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buffer.mirror::<u32>(0..1).to_vec()));
        assert!(stale.is_err(), "reading indices that an operation wrote must panic");
        assert_eq!(buffer.download(0..1, <[u32]>::to_vec), [9]);
        buffer.upload(0..4, |to: &mut [u32]| to.fill(5));
        assert_eq!(buffer.mirror::<u32>(0..4), [5; 4]);
    }
}

#[test]
fn a_device_refuses_the_memory_of_another_device() {
    let buffer = Memory::new(Device::CpuChecked).allocate(16, DType::F32);
    // SAFETY: no other code accesses the buffer.
    let read = || unsafe { buffer.slice::<f32>(&cpu(Device::Cpu), 0..1).len() };
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_err();
    assert!(refused.downcast_ref::<String>().is_some_and(|m| m.contains("memory of CpuChecked")));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot map files")]
fn mapping_a_missing_file_names_it() {
    let path = std::env::temp_dir().join(format!("lockstep-map-{}", std::process::id()));
    for content in [&b""[..], b"some bytes"] {
        std::fs::write(&path, content).unwrap();
        assert_eq!(FileMap::open(&path).unwrap().bytes(), content);
    }
    std::fs::remove_file(&path).unwrap();
    let message = FileMap::open(&path).err().expect("no such file").to_string();
    assert!(message.contains("lockstep-map-"), "{message}");
}

#[test]
fn pooled_memory_is_zeroed_for_the_requested_bytes() {
    let ledger = Ledger::default();
    let host = HostBytes::zeroed(128).unwrap();
    // SAFETY: no other code holds these 128 bytes.
    unsafe { host.start.write_bytes(7, 128) };
    let start = host.start;
    ledger.give_back(host);
    let again = ledger.host_bytes(100).unwrap();
    assert_eq!(again.start, start);
    // SAFETY: no other code holds these 128 bytes.
    let bytes = unsafe { std::slice::from_raw_parts(again.start.as_ptr(), 128) };
    assert!(bytes[..100].iter().all(|&byte| byte == 0));
}

#[test]
fn cuda_memory_must_come_from_a_context() {
    for device in [Device::Cuda(3), Device::CudaEmulated] {
        let memory = Memory::new(device).part("weights");
        let refused = memory.allocate(64, DType::F32);
        assert_eq!((refused.device(), memory.usage()["weights"].bytes), (device, 64));
        let message = memory.check().unwrap_err().to_string();
        assert_eq!(message, format!("memory of {} must be allocated through its context", device.name()));
        memory.check().unwrap();
        // An empty range changes nothing.
        // SAFETY: no other code accesses the buffer.
        unsafe {
            refused.upload(0..4, |_: &mut [f32]| panic!("memory without values cannot be written"));
            refused.fill(0..4, 1.0f32);
        }
    }
}

#[test]
fn check_reports_the_first_failed_allocation() {
    let memory = Memory::new(Device::CudaEmulated);
    let _first = memory.part("a").allocate(8, DType::U32);
    let _second = Memory { device: Device::Cuda(2), ..memory.clone() }.allocate(8, DType::U32);
    assert!(memory.check().unwrap_err().to_string().contains("cuda-emulated"));
    memory.check().unwrap();
}

#[test]
fn elements_outside_a_buffer_are_refused() {
    let buffer = Memory::new(Device::Cpu).allocate(16, DType::F32);
    #[allow(clippy::reversed_empty_ranges)]
    for (range, inside) in [(0..4, true), (4..4, true), (0..5, false), (5..5, false), (3..2, false)] {
        // SAFETY: no other code accesses the buffer.
        let read = std::panic::AssertUnwindSafe(|| unsafe { buffer.download(range.clone(), <[f32]>::to_vec) }.len());
        assert_eq!(std::panic::catch_unwind(read).ok(), inside.then_some(range.len()), "{range:?}");
    }
    // Elements of two bytes are accepted, too.
    // SAFETY: no other code accesses the buffer.
    assert_eq!(unsafe { buffer.download(1..8, <[half::bf16]>::to_vec) }.len(), 7);
}
