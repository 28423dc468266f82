//! The machine's peak speeds, measured once per run, and only while the machine is otherwise idle.
//!
//! A measurement is accepted if the load by other processes was below [`CpuTimes::QUIET`] per core for [`AROUND_S`]
//! seconds before it, during it, and for [`AROUND_S`] seconds after it. The run continues before and after; its own CPU
//! time is not load. (Processes that the run has started are load.)

use std::collections::VecDeque;
use std::time::Duration;
use telemetry::CpuTimes;
use telemetry::record::MeasuredCeilings;

/// The number of seconds before and after a measurement during which the load is checked.
const AROUND_S: f64 = 2.0;
/// If the load has been known for this many seconds, it can rule out a measurement at the end of a run.
const KNOWN_S: f64 = 0.2;
/// During training, the times of the cores are read at most this often.
const EVERY_S: f64 = 0.5;
/// The maximum number of measurements in a run.
const MOST_TRIES: u32 = 3;

/// The sentences that are reported in place of ceilings.
pub(super) const BUSY: &str = "The machine was too busy to measure its ceilings, so stages are not compared with them.";
pub(super) const UNKNOWN: &str =
    "This system does not report the machine's load, so stages are not compared with measured ceilings.";

/// The cores of a machine, and its clock.
pub(super) trait Cores: Send {
    /// The current time in seconds, on the same clock as [`times`](Self::times).
    fn clock_s(&mut self) -> f64;
    /// The current CPU times of the cores.
    fn times(&mut self) -> CpuTimes;
    /// Waits.
    fn wait(&mut self, time: Duration);
}

/// The machine that this process runs on.
pub(super) struct ThisMachine;

impl Cores for ThisMachine {
    fn clock_s(&mut self) -> f64 {
        CpuTimes::clock_s()
    }

    fn times(&mut self) -> CpuTimes {
        CpuTimes::now()
    }

    fn wait(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A measurement that is accepted if the load stays low.
struct Pending {
    measured: MeasuredCeilings,
    /// The highest load so far.
    load: f64,
    /// The times of the cores at the end of the measurement.
    ended: CpuTimes,
}

/// Measures the peaks while the machine is quiet.
pub(super) struct Quiet {
    cores: Box<dyn Cores>,
    /// Earlier times of the cores. The oldest are at least [`AROUND_S`] seconds old, once the run is.
    before: VecDeque<CpuTimes>,
    pending: Option<Pending>,
    tries: u32,
    /// The reason why ceilings are missing, once they should have been measured.
    pub why_not: Option<&'static str>,
}

impl Quiet {
    pub fn new(mut cores: Box<dyn Cores>) -> Quiet {
        let before = VecDeque::from([cores.times()]);
        Quiet { cores, before, pending: None, tries: 0, why_not: None }
    }

    /// Reads the times of the cores if this is due. Returns the measurement if the time after it has passed and was
    /// quiet.
    pub fn step(&mut self) -> Option<MeasuredCeilings> {
        let now_s = self.cores.clock_s();
        let is_due = self.before.back().is_none_or(|last| now_s - last.at_s >= EVERY_S);
        let is_over = self.pending.as_ref().is_some_and(|pending| now_s - pending.ended.at_s >= AROUND_S);
        if is_due {
            let now = self.cores.times();
            self.before.push_back(now);
            while self.before.get(1).is_some_and(|next| now_s - next.at_s >= AROUND_S) {
                self.before.pop_front();
            }
        }
        if !is_over {
            return None;
        }
        let now = self.cores.times();
        self.judge(&now)
    }

    /// Measures if the time before was quiet. Whether the measurement is accepted is decided [later](Self::step).
    pub fn begin(&mut self, measure: impl FnOnce() -> Option<MeasuredCeilings>) {
        if self.pending.is_some() || self.tries >= MOST_TRIES {
            return;
        }
        let begin = self.cores.times();
        let oldest = self.before.front().filter(|oldest| begin.at_s - oldest.at_s >= AROUND_S).cloned();
        let Some(before) = oldest.and_then(|oldest| self.quiet(&oldest, &begin)) else { return };
        self.tries += 1;
        let Some(measured) = measure() else { return };
        let ended = self.cores.times();
        if let Some(during) = self.quiet(&begin, &ended) {
            self.pending = Some(Pending { measured, load: before.max(during), ended });
        }
    }

    /// Measures at the end of a run, and waits as long as needed, unless the machine is already known to be busy.
    pub fn finish(&mut self, measure: impl FnOnce() -> Option<MeasuredCeilings>) -> Option<MeasuredCeilings> {
        if self.pending.is_none() {
            let (first, now) = (self.before.front()?.clone(), self.cores.times());
            let seen_s = now.at_s - first.at_s;
            if seen_s >= KNOWN_S {
                self.quiet(&first, &now)?;
            }
            self.wait_after(seen_s);
            self.begin(measure);
        }
        let ended_s = self.pending.as_ref()?.ended.at_s;
        let passed_s = self.cores.clock_s() - ended_s;
        self.wait_after(passed_s);
        let now = self.cores.times();
        self.judge(&now)
    }

    /// Waits for the rest of [`AROUND_S`], after some seconds have passed.
    fn wait_after(&mut self, passed_s: f64) {
        if passed_s < AROUND_S {
            self.cores.wait(Duration::from_secs_f64(AROUND_S - passed_s) + Duration::from_millis(1));
        }
    }

    /// The measurement, if the time after it was quiet.
    fn judge(&mut self, now: &CpuTimes) -> Option<MeasuredCeilings> {
        let Pending { measured, load, ended } = self.pending.take()?;
        let after = self.quiet(&ended, now)?;
        self.why_not = None;
        Some(MeasuredCeilings { load: Some(load.max(after)), ..measured })
    }

    /// The load between two times, if it was low; otherwise records that it was not.
    fn quiet(&mut self, from: &CpuTimes, to: &CpuTimes) -> Option<f64> {
        let load = from.load_until(to);
        let low = load.filter(|load| *load < CpuTimes::QUIET);
        if low.is_none() {
            self.why_not = Some(if load.is_none() { UNKNOWN } else { BUSY });
        }
        low
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Two cores of a simulated machine.
    #[derive(Clone)]
    pub struct Invented(pub Arc<Mutex<State>>);

    pub struct State {
        pub times: CpuTimes,
        /// The load by other processes from now on.
        pub load: f64,
        pub waited_s: f64,
    }

    impl Invented {
        pub fn with_load(load: f64) -> Invented {
            let times = CpuTimes { at_s: 7.0, own_s: 3.0, cores: vec![(100.0, true), (50.0, true)] };
            Invented(Arc::new(Mutex::new(State { times, load, waited_s: 0.0 })))
        }

        /// Lets time pass, in which this process keeps one core busy.
        pub fn pass(&self, seconds: f64) {
            let mut state = self.0.lock().unwrap();
            let load = state.load;
            state.times.at_s += seconds;
            state.times.own_s += seconds;
            if let [own, others] = &mut state.times.cores[..] {
                own.0 += seconds;
                others.0 += 2.0 * load * seconds;
            }
        }

        fn set(&self, load: f64) {
            self.0.lock().unwrap().load = load;
        }

        fn waited_s(&self) -> f64 {
            self.0.lock().unwrap().waited_s
        }
    }

    impl Cores for Invented {
        fn clock_s(&mut self) -> f64 {
            self.0.lock().unwrap().times.at_s
        }

        fn times(&mut self) -> CpuTimes {
            let mut state = self.0.lock().unwrap();
            // No two times are equal.
            state.times.at_s += 1e-9;
            state.times.clone()
        }

        fn wait(&mut self, time: Duration) {
            self.pass(time.as_secs_f64());
            self.0.lock().unwrap().waited_s += time.as_secs_f64();
        }
    }

    fn quiet(load: f64) -> (Quiet, Invented) {
        let machine = Invented::with_load(load);
        (Quiet::new(Box::new(machine.clone())), machine)
    }

    /// A measurement of 0.4 s.
    fn measure(machine: &Invented) -> impl FnOnce() -> Option<MeasuredCeilings> {
        let machine = machine.clone();
        move || {
            machine.pass(0.4);
            Some(MeasuredCeilings { flops_per_s: 5.0, ..MeasuredCeilings::default() })
        }
    }

    /// Takes this many steps of 0.3 s, and returns the accepted measurement.
    fn steps(quiet: &mut Quiet, machine: &Invented, count: usize) -> Option<MeasuredCeilings> {
        (0..count).find_map(|_| {
            machine.pass(0.3);
            quiet.step()
        })
    }

    #[test]
    fn a_measurement_counts_after_two_quiet_seconds() {
        let (mut quiet, machine) = quiet(0.1);
        quiet.begin(|| panic!("nothing is known of the two seconds before"));
        assert_eq!(steps(&mut quiet, &machine, 7), None);
        quiet.begin(measure(&machine));
        quiet.begin(|| panic!("a measurement is already running"));
        assert_eq!(steps(&mut quiet, &machine, 6), None);
        let counted = steps(&mut quiet, &machine, 1).unwrap();
        assert_eq!((counted.flops_per_s, (counted.load.unwrap() * 1e6).round()), (5.0, 1e5));
        assert_eq!((quiet.why_not, machine.waited_s()), (None, 0.0), "a running run does not wait");
    }

    #[test]
    fn load_before_during_or_after_a_measurement_discards_it() {
        let (mut before, machine) = quiet(0.21);
        steps(&mut before, &machine, 10);
        before.begin(|| panic!("it is busy"));
        assert_eq!(before.why_not, Some(BUSY));
        // The machine is quiet later, and only the load in the last two seconds matters.
        machine.set(0.0);
        steps(&mut before, &machine, 10);
        before.begin(measure(&machine));
        assert!(steps(&mut before, &machine, 10).is_some() && before.why_not.is_none());

        let (mut during, machine) = quiet(0.0);
        steps(&mut during, &machine, 10);
        during.begin(|| {
            machine.set(0.9);
            let measured = measure(&machine)();
            machine.set(0.0);
            measured
        });
        assert_eq!((steps(&mut during, &machine, 17), during.why_not), (None, Some(BUSY)));

        let (mut after, machine) = quiet(0.0);
        for tries in 1..=MOST_TRIES {
            machine.set(0.0);
            steps(&mut after, &machine, 10);
            after.begin(measure(&machine));
            machine.set(0.3);
            assert_eq!((steps(&mut after, &machine, 10), after.why_not), (None, Some(BUSY)), "{tries}");
        }
        machine.set(0.0);
        steps(&mut after, &machine, 10);
        after.begin(|| panic!("there were enough attempts"));
        assert_eq!(after.finish(|| panic!("no attempt at the end")), None);
    }

    #[test]
    fn the_end_of_a_run_waits_only_on_a_quiet_machine() {
        // A run of 0.1 s waits before and after the measurement.
        let (mut short, machine) = quiet(0.0);
        machine.pass(0.1);
        assert!(short.finish(measure(&machine)).is_some());
        assert!((machine.waited_s() - 3.902).abs() < 1e-6, "{}", machine.waited_s());
        // A longer run waits only after it; a run that has already measured waits for the rest.
        let (mut long, machine) = quiet(0.0);
        steps(&mut long, &machine, 30);
        assert!(long.finish(measure(&machine)).is_some());
        assert!((machine.waited_s() - 2.001).abs() < 1e-6, "{}", machine.waited_s());
        let (mut begun, machine) = quiet(0.0);
        steps(&mut begun, &machine, 30);
        begun.begin(measure(&machine));
        assert_eq!(steps(&mut begun, &machine, 5), None);
        assert!(begun.finish(|| panic!("it was already measured")).is_some());
        assert!((machine.waited_s() - 0.501).abs() < 1e-6, "{}", machine.waited_s());
        for passed in [0.3, 9.0] {
            let (mut busy, machine) = quiet(0.5);
            machine.pass(passed);
            assert_eq!(busy.finish(|| panic!("it is busy")), None);
            assert_eq!((busy.why_not, machine.waited_s()), (Some(BUSY), 0.0));
        }
    }

    #[test]
    fn ceilings_are_not_measured_under_an_unknown_load() {
        let (mut unknown, machine) = quiet(0.0);
        machine.0.lock().unwrap().times.cores.clear();
        unknown.before.clear();
        steps(&mut unknown, &machine, 10);
        unknown.begin(|| panic!("who knows"));
        assert_eq!((unknown.why_not, unknown.finish(|| panic!("who knows"))), (Some(UNKNOWN), None));
    }
}
