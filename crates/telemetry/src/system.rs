//! Asks the operating system for the memory and CPU time of this process, the machine's memory, the host name and the
//! time.

pub use crate::memory_limit::{MemoryLimit, memory_limits};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The peak resident memory of this process in bytes, since it began or since [`reset_peak_rss`]; `None` if the system
/// does not report it.
pub fn peak_rss_bytes() -> Option<u64> {
    status_kib("VmHWM:").map(|kib| kib * 1024)
}

/// Resets [`peak_rss_bytes`] to the current resident memory, if the system supports that. The peak of a training run
/// then excludes the memory of an earlier run in the same process.
pub fn reset_peak_rss() {
    // Writing 5 to clear_refs resets the peak RSS on Linux; if that fails, the peak covers the whole process.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// CPU seconds of all threads of this process since it began.
pub fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// CPU seconds of all processes on all cores of this machine since it booted; `None` if the system does not report
/// them.
pub fn machine_cpu_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    busy_s(&ticks)
}

/// The busy seconds in a line of `/proc/stat`, whose columns are user, nice, system, idle, iowait, irq, softirq and
/// steal, in hundredths of a second.
pub(crate) fn busy_s(ticks: &[u64]) -> Option<f64> {
    (ticks.len() >= 8).then(|| (ticks[..8].iter().sum::<u64>() - ticks[3] - ticks[4]) as f64 * 0.01)
}

/// Seconds that the threads of this process were ready to run but waited for a core; `None` if the system does not
/// report them. Threads that have ended are not counted.
pub fn waited_for_cores_s() -> Option<f64> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let waited = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let all: Vec<u64> = tasks.flatten().filter_map(waited).collect();
    (!all.is_empty()).then(|| all.iter().sum::<u64>() as f64 * 1e-9)
}

/// The current resident memory of this process in bytes; `None` if the system does not report it.
pub fn rss_bytes() -> Option<u64> {
    status_kib("VmRSS:").map(|kib| kib * 1024)
}

/// The machine's total and available memory in bytes.
pub fn memory_bytes() -> (Option<u64>, Option<u64>) {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    (field("MemTotal:"), field("MemAvailable:"))
}

/// The number of bytes that this process can still allocate: the minimum of the machine's available memory and the
/// memory left under each limit on this process. If a limit determines the minimum, it is returned too. `None` if the
/// system reports none of these values.
pub fn available_memory() -> (Option<u64>, Option<MemoryLimit>) {
    let (_, available) = memory_bytes();
    let tightest = memory_limits().into_iter().min_by_key(MemoryLimit::left);
    match tightest.filter(|limit| available.is_none_or(|available| limit.left() < available)) {
        Some(limit) => (Some(limit.left()), Some(limit)),
        None => (available, None),
    }
}

/// The host name of this machine, reduced to letters, digits and `-`.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// The current time since 1970; zero if the clock is set to an earlier date.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The command line of this process as a list of words.
pub fn command_line() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The value, in kB, of the line of `/proc/self/status` that begins with `key`.
fn status_kib(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_peak_memory_is_at_least_the_resident_memory() {
        let (now, peak) = (super::rss_bytes(), super::peak_rss_bytes());
        assert_eq!((now.is_some(), peak.is_some()), (cfg!(target_os = "linux"), cfg!(target_os = "linux")));
        if let (Some(now), Some(peak)) = (now, peak) {
            assert!(now > 100_000 && peak >= now / 2, "{now} {peak}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn cpu_time_and_time_waiting_for_a_core_are_measured() {
        let before = (super::cpu_s(), super::waited_for_cores_s());
        let cores = std::thread::available_parallelism().unwrap().get();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // With more threads than cores, some threads wait.
            for _ in 0..4 * cores {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            testing::wait_until("CPU time and waiting time are counted", || {
                let waited = super::waited_for_cores_s().zip(before.1).is_none_or(|(now, before)| now - before > 0.2);
                waited && super::cpu_s() - before.0 > 0.005
            });
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn the_peak_memory_can_be_reset() {
        const BYTES: usize = 256 << 20;
        drop(std::hint::black_box(vec![1u8; BYTES]));
        let Some(before) = super::peak_rss_bytes() else { return };
        super::reset_peak_rss();
        let after = super::peak_rss_bytes().unwrap();
        // Other tests in this process allocate much less memory.
        assert!(before > after + BYTES as u64 / 2, "{before} {after}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn memory_and_cpu_figures_match_proc() {
        let read = |path: &str| std::fs::read_to_string(path).unwrap();
        // Busy time is the sum of all columns except idle and iowait, in hundredths of a second.
        let busy = || -> f64 {
            let text = read("/proc/stat");
            let ticks: Vec<f64> =
                text.lines().next().unwrap()[4..].split_whitespace().map(|n| n.parse().unwrap()).collect();
            [0, 1, 2, 5, 6, 7].map(|i| ticks[i]).iter().sum::<f64>() / 100.0
        };
        let (before, found, after) = (busy(), super::machine_cpu_s().unwrap(), busy());
        assert!((before - 0.001..=after + 0.001).contains(&found), "{before} {found} {after}");
        let kib = |key: &str| -> u64 {
            let text = read("/proc/meminfo");
            let line = text.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let (total, available) = super::memory_bytes();
        assert_eq!(total, Some(kib("MemTotal:") * 1024));
        let now = kib("MemAvailable:") * 1024;
        assert!(available.is_some_and(|available| (now / 2..now.saturating_mul(2)).contains(&available)));
        // Both values must be multiples of the page size.
        assert!([super::rss_bytes(), super::peak_rss_bytes()].iter().all(|bytes| bytes.is_some_and(|n| n % 4096 == 0)));
        assert!(super::status_kib("Threads:").unwrap() >= 1);
        assert_eq!((super::status_kib("NoSuchKey:"), super::status_kib("Name:")), (None, None));
        let limits = super::memory_limits();
        assert!(limits.iter().all(|limit| Some(limit.bytes) < total), "{limits:?} {total:?}");
        let (left, limit) = super::available_memory();
        assert!(left.is_some_and(|left| left <= total.unwrap()), "{left:?} {limit:?}");
    }

    #[test]
    fn host_time_and_command_line_are_reported() {
        let host = super::host();
        assert!(!host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{host}");
        if let Ok(name) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
            let known: String = name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            assert!(known == host || known.is_empty() && host == "localhost");
        }
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let (before, found, after) = (now(), super::since_1970(), now());
        assert!(before <= found && found <= after, "{before:?} {found:?} {after:?}");
        let words: Vec<String> = std::env::args().collect();
        assert_eq!(super::command_line(), words);
        let before = super::cpu_s();
        let mut sum = 0u64;
        while super::cpu_s() - before < 0.002 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(super::cpu_s() > 0.002 && super::cpu_s() < 1e6);
    }
}
