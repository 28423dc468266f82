use super::*;

const LONGEST: Longest = Longest { prompt: 5, completion: 7 };

fn part(name: &str, bytes: u64) -> Part {
    Part::on_host(name, bytes)
}

/// A plan of these parts, each with its bytes and whether it is in device memory.
fn planned_of(parts: &[(u64, Option<&'static str>)], resident: u64) -> MemoryPlan {
    let part = |&(bytes, on)| Part { on, ..part("p", bytes) };
    let parts: Vec<Part> = parts.iter().map(part).collect();
    let sum = |on: bool| parts.iter().filter(|part| part.on.is_some() == on).map(|part| part.bytes).sum::<u64>();
    let (total, there) = (sum(false), sum(true));
    let device_total = (there > 0).then_some(there);
    MemoryPlan { parts, total, device_total, resident, longest: LONGEST, tensors: 0, read: 0, scratch: 0 }
}

#[test]
fn a_shortage_names_host_or_device_and_the_limit() {
    const MIB: u64 = 1 << 20;
    let shortage = |plan: &MemoryPlan, host: Option<u64>, device: Option<u64>, limit: Option<MemoryLimit>| {
        plan.shortage(&Available { host, device, limit }).map(|shortage| shortage.to_string())
    };
    let plan = planned_of(&[(10 * MIB, None), (5 * MIB, None)], 4 * MIB);
    assert_eq!((plan.needed(), plan.needed_on(None)), (11 * MIB, 11 * MIB));
    let few = "the run needs 11.0 MiB of memory, but only 10.5 MiB are available".to_owned();
    assert_eq!(shortage(&plan, None, None, None), None);
    assert_eq!(shortage(&plan, Some(11 * MIB), None, None), None);
    assert_eq!(shortage(&plan, Some(21 * MIB / 2), None, None), Some(few.clone()));
    let limit = MemoryLimit { bytes: 60 * MIB, used: 3, source: "/g/memory.max".to_owned() };
    let limited = format!("{few} (this process is limited to 60.0 MiB by /g/memory.max)");
    assert_eq!(shortage(&plan, Some(21 * MIB / 2), None, Some(limit)), Some(limited));
    let cuda = Some("cuda");
    let plan = planned_of(&[(10 * MIB, cuda), (4 * MIB, cuda), (MIB, None)], 0);
    assert_eq!((plan.needed_on(cuda), plan.needed_on(None), plan.device_total), (14 * MIB, MIB, Some(14 * MIB)));
    assert_eq!(shortage(&plan, Some(MIB), Some(14 * MIB), None), None);
    assert_eq!(shortage(&plan, Some(MIB), None, None), None);
    let few = "the run needs 14.0 MiB of cuda's memory, but only 9.0 MiB are available".to_owned();
    assert_eq!(shortage(&plan, Some(MIB), Some(9 * MIB), None), Some(few));
    // The host's memory is checked first.
    let few = "the run needs 1.0 MiB of memory, but only 0.5 MiB are available".to_owned();
    assert_eq!(shortage(&plan, Some(MIB / 2), Some(1), None), Some(few));
    let excess =
        |host: u64, device: u64| plan.excess(&Available { host: Some(host), device: Some(device), limit: None });
    assert_eq!([excess(MIB, 14 * MIB), excess(MIB - 3, 14 * MIB - 4), excess(0, u64::MAX)], [0, 7, MIB]);
}
