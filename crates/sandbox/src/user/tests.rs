use super::*;

#[test]
fn each_running_program_has_a_user_and_room_for_its_threads() {
    // No process belongs to this user.
    assert_eq!(User(FIRST - 1).limit(16), 16 + 64);
    let mut all: Vec<u32> = users().collect();
    all.sort_unstable();
    assert_eq!(all, (FIRST..=NOBODY).collect::<Vec<_>>(), "each id is tried once");
    let users = [User::new(), User::new(), User::new()];
    let mut ids = users.iter().map(|user| user.0).collect::<Vec<_>>();
    if rustix::process::geteuid().is_root() {
        assert!(ids.iter().all(|id| (FIRST..=NOBODY).contains(id)), "{ids:?}");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 3);
        assert!(ids.iter().all(|id| taken().contains(id)));
    } else {
        assert_eq!(ids, [rustix::process::geteuid().as_raw(); 3]);
    }
    // This process has several threads, one of which runs this test.
    let own = User(rustix::process::geteuid().as_raw());
    assert!(own.limit(16) >= 16 + 64 + 2);
}
