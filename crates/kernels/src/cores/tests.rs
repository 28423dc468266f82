use super::*;

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("lockstep-cores-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot lock files")]
fn a_core_is_reserved_by_one_process_at_a_time() {
    let dir = scratch("held");
    assert!(CoreTokens::open(&dir).is_err_and(|e| e.to_string().contains("found no lock files of cores")));
    let tokens = CoreTokens::create(&dir, 3).unwrap();
    assert_eq!(CoreTokens::open(&dir).unwrap().cores(), 3);
    let one = tokens.acquire(1).unwrap();
    let rest = CoreTokens::open(&dir).unwrap().acquire(8).unwrap();
    assert_eq!((one.count(), rest.count()), (1, 2));
    drop(one);
    assert_eq!(tokens.acquire(8).unwrap().count(), 1);
    drop(rest);
    assert_eq!(tokens.acquire(8).unwrap().count(), 3);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot lock files")]
fn no_process_starves_and_no_core_is_reserved_twice() {
    let dir = scratch("line");
    let tokens = CoreTokens::create(&dir, 2).unwrap();
    let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                for _ in 0..40 {
                    let cores = tokens.acquire(2).unwrap();
                    let now = held.fetch_add(cores.count(), Ordering::SeqCst) + cores.count();
                    most.fetch_max(now, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_micros(100));
                    held.fetch_sub(cores.count(), Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(most.into_inner(), 2);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot lock files")]
fn a_lease_yields_at_the_end_of_its_turn_or_when_released() {
    let dir = scratch("lease");
    let tokens = CoreTokens::create(&dir, 2).unwrap();
    let lease = Lease::new(tokens.clone()).unwrap();
    let threads = || lease.begin(2).0;
    assert_eq!(threads(), Some(2));
    // Another process waits for a core and gets it at the end of this turn.
    let other = std::thread::scope(|scope| {
        let other = scope.spawn(|| tokens.acquire(1).unwrap());
        testing::wait_until("the other process gets a core", || threads() == Some(1));
        other.join().unwrap()
    });
    lease.release();
    assert_eq!(tokens.acquire(2).unwrap().count(), 1);
    drop(other);
    testing::wait_until("the next turn", || threads() == Some(2));
    std::fs::remove_dir_all(&dir).unwrap();
    lease.release();
    assert_eq!(threads(), Some(2), "cores are no longer shared");
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot lock files")]
fn a_running_region_keeps_its_cores_past_the_end_of_the_turn() {
    let dir = scratch("region");
    let tokens = CoreTokens::create(&dir, 3).unwrap();
    let free = || tokens.free(9).unwrap().len();
    let lease = Lease::new(tokens.clone()).unwrap();
    let (threads, running) = lease.begin(2);
    let (_, second) = lease.begin(2);
    for running in [second, running] {
        assert_eq!((threads, free()), (Some(2), 1), "two threads hold two cores");
        std::thread::sleep(4 * TURN);
        assert_eq!(free(), 1, "the region is still running");
        drop(running);
    }
    testing::wait_until("the cores are released", || free() == 3);
    drop(lease);
    assert_eq!(free(), 3);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot lock files")]
fn lock_files_are_private_to_the_user_and_kept_by_the_next_run() {
    use std::os::unix::fs::PermissionsExt;
    let dir = scratch("files").join("below");
    let tokens = CoreTokens::create(&dir, 0).unwrap();
    assert_eq!(tokens.cores(), 1, "at least one");
    let tokens = CoreTokens::create(&dir, 2).unwrap();
    std::fs::write(dir.join("core-1"), "kept").unwrap();
    assert_eq!(CoreTokens::create(&dir, 2).unwrap().cores(), 2);
    let mut names: Vec<String> =
        std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["core-0", "core-1", "gate"]);
    assert_eq!(std::fs::read_to_string(dir.join("core-1")).unwrap(), "kept");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(&dir.join("core-0")), mode(&dir.join("gate"))), (0o700, 0o600, 0o600));
    // A request gets at least one core, and at most as many as requested.
    for (wish, count) in [(0, 1), (1, 1), (2, 2), (9, 2)] {
        assert_eq!(tokens.acquire(wish).unwrap().count(), count);
    }
    // A process that waits at the gate gets a core before another process gets a second one.
    let gate = File::open(dir.join("gate")).unwrap();
    let held = std::thread::scope(|scope| {
        gate.lock().unwrap();
        let asks = scope.spawn(|| tokens.acquire(1).unwrap().count());
        std::thread::yield_now();
        gate.unlock().unwrap();
        asks.join().unwrap()
    });
    assert_eq!(held, 1);
    std::fs::remove_file(dir.join("core-1")).unwrap();
    let message = tokens.acquire(2).unwrap_err().to_string();
    let expected =
        format!("cores in {}: failed to open: No such file or directory (os error 2)", dir.join("core-1").display());
    assert_eq!(message, expected);
    std::fs::remove_file(dir.join("gate")).unwrap();
    assert!(tokens.acquire(1).unwrap_err().to_string().contains("gate: failed to open"));
    std::fs::remove_dir_all(dir.parent().unwrap()).unwrap();
    let message = CoreTokens::open(&dir).unwrap_err().to_string();
    assert_eq!(
        message,
        format!("cores in {}: found no lock files of cores; the learner creates them when it starts", dir.display())
    );
    let file = scratch("file");
    std::fs::write(&file, "").unwrap();
    assert!(CoreTokens::create(&file.join("x"), 1).unwrap_err().to_string().contains("/x: failed to create: "));
    std::fs::remove_file(file).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot lock files")]
fn cores_are_reserved_again_after_each_turn() {
    let dir = scratch("turn");
    let lease = Lease::new(CoreTokens::create(&dir, 2).unwrap()).unwrap();
    let (threads, running) = lease.begin(1);
    assert_eq!(threads, Some(1));
    let begun = |since: Instant| lease.shared.lock().held.as_mut().unwrap().1 = since;
    // The turn starts in the future, so it does not end during this test.
    begun(Instant::now() + Duration::from_secs(6000));
    assert_eq!(lease.begin(2).0, None);
    begun(Instant::now().checked_sub(TURN).expect("the system can represent this time"));
    assert_eq!(lease.begin(2).0, Some(2));
    drop(running);
    lease.release();
    assert!(lease.shared.lock().held.is_none());
    std::fs::remove_dir_all(&dir).unwrap();
}
