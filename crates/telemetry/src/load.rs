//! Measures how busy other processes keep this machine's cores.

use crate::system;

/// The counters of busy CPU time at one moment. The difference between two readings gives the load between them. Unlike
/// load averages, the counters do not lag by a minute.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuTimes {
    /// The time of the measurement, in seconds of a monotonic clock.
    pub at_s: f64,
    /// CPU seconds of this process.
    pub own_s: f64,
    /// The busy seconds of each core of the machine, and whether this process may run on that core; empty if the system
    /// does not report them.
    pub cores: Vec<(f64, bool)>,
}

impl CpuTimes {
    /// The load from other processes, per core, below which a measurement is accepted.
    pub const QUIET: f64 = 0.2;

    /// Reads the counters now.
    pub fn now() -> CpuTimes {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        CpuTimes { at_s: CpuTimes::clock_s(), own_s: system::cpu_s(), cores: cores(&stat, allowed) }
    }

    /// The current time, in seconds of the same clock as `at_s`.
    pub fn clock_s() -> f64 {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        clock.tv_sec as f64 + clock.tv_nsec as f64 * 1e-9
    }

    /// The load from other processes between this reading and `later`, per core: 0 if they were idle, 1 if they kept
    /// every core busy. The result is the higher of the load on the whole machine and the load on the cores that this
    /// process may use. `None` if the system does not report the counters.
    pub fn load_until(&self, later: &CpuTimes) -> Option<f64> {
        let (seconds, own) = (later.at_s - self.at_s, later.own_s - self.own_s);
        if seconds <= 0.0 || self.cores.is_empty() || self.cores.len() != later.cores.len() {
            return None;
        }
        let of = |is_counted: fn(bool) -> bool| {
            let pairs = self.cores.iter().zip(&later.cores).filter(|(_, (_, allowed))| is_counted(*allowed));
            let busy: Vec<f64> = pairs.map(|((before, _), (after, _))| after - before).collect();
            let others = busy.iter().sum::<f64>() - own;
            others.max(0.0) / seconds / busy.len().max(1) as f64
        };
        Some(of(|_| true).max(of(|allowed| allowed)))
    }
}

/// The busy seconds of each core in `/proc/stat`, and whether the core is in the list (`0-3,8`) of allowed cores.
/// Without a list all cores are allowed.
fn cores(stat: &str, allowed: &str) -> Vec<(f64, bool)> {
    let ranges: Vec<(usize, usize)> = allowed
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        })
        .collect();
    let core = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_whitespace();
        // The first line has no core number: it is the sum over all cores.
        let number: usize = line.as_bytes().get(3).filter(|c| c.is_ascii_digit()).and(words.next())?.parse().ok()?;
        let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        let is_allowed = ranges.is_empty() || ranges.iter().any(|&(first, last)| (first..=last).contains(&number));
        // `system::machine_cpu_s` explains the columns and their unit.
        Some((system::busy_s(&ticks)?, is_allowed))
    };
    stat.lines().filter_map(core).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  40 2 8 900 50 1 2 3 0 0\ncpu0 30 1 4 400 20 1 1 2 0 0\ncpu1 10 1 4 500 30 0 1 1 0 0\n\
                        cpu12 0 0 0 7 0 0 0 0 0 0\nintr 5\ncpufreq 1\n";

    #[test]
    fn busy_time_of_cores_excludes_idle_time() {
        let all = [(0.39, true), (0.17, true), (0.0, true)];
        assert_eq!(cores(STAT, ""), all);
        assert_eq!(cores(STAT, "\t0-0,12"), [(0.39, true), (0.17, false), (0.0, true)]);
        assert_eq!(cores(STAT, "1"), [(0.39, false), (0.17, true), (0.0, false)]);
        assert_eq!((cores("", "0-3"), cores("cpu0 1 2\n", "")), (Vec::new(), Vec::new()));
    }

    #[test]
    fn load_excludes_the_work_of_this_process() {
        let times = |at_s: f64, own_s: f64, cores: &[(f64, bool)]| CpuTimes { at_s, own_s, cores: cores.to_vec() };
        let both = |a: f64, b: f64| [(a, true), (b, true)];
        let before = times(10.0, 5.0, &both(1.0, 2.0));
        let load = |later: &CpuTimes| before.load_until(later);
        // This process used 3 of 4 seconds.
        assert_eq!(load(&times(12.0, 8.0, &both(3.0, 4.0))), Some(0.25));
        // The process's own counter has the higher resolution.
        assert_eq!(load(&times(12.0, 8.0, &both(2.0, 3.9))), Some(0.0));
        assert_eq!(load(&times(10.0, 5.0, &both(1.0, 2.0))), None, "the load needs an interval of time");
        assert_eq!(load(&times(12.0, 5.0, &[(1.0, true)])), None, "the number of cores must not change");
        assert_eq!(times(1.0, 0.0, &[]).load_until(&times(2.0, 0.0, &[])), None);
        // Other processes occupy either the only core that this process may use, or all the other cores.
        let one = |a: f64, b: f64, c: f64| [(a, true), (b, false), (c, false)];
        let before = times(0.0, 0.0, &one(0.0, 0.0, 0.0));
        assert_eq!(before.load_until(&times(1.0, 0.5, &one(1.0, 0.0, 0.0))), Some(0.5));
        assert_eq!(before.load_until(&times(1.0, 1.0, &one(1.0, 1.0, 1.0))), Some(2.0 / 3.0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn cpu_times_match_proc_stat() {
        let before = CpuTimes::now();
        let machine = system::machine_cpu_s().unwrap();
        let all: f64 = before.cores.iter().map(|(busy, _)| busy).sum();
        assert!((all - machine).abs() < 1.0 + 0.02 * before.cores.len() as f64, "{all} {machine}");
        assert!(before.cores.iter().any(|(_, allowed)| *allowed));
        testing::wait_until("the clock advances", || before.load_until(&CpuTimes::now()).is_some());
        let later = CpuTimes::now();
        assert!(later.at_s > before.at_s && later.own_s >= before.own_s);
    }
}
