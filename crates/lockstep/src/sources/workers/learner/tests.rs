use super::*;

#[test]
fn results_of_other_settings_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let layout = fleet::exchange::spool::Layout::in_run(dir.path());
    layout.create().unwrap();
    std::fs::create_dir_all(layout.batches()).unwrap();
    let result = layout.batches().join("000001");
    let write = || std::fs::write(&result, "").unwrap();
    write();
    forget_other_settings(dir.path(), Lineage([1; 16])).unwrap();
    assert!(!result.exists(), "a result without known settings must be deleted");
    write();
    forget_other_settings(dir.path(), Lineage([1; 16])).unwrap();
    assert!(result.exists());
    forget_other_settings(dir.path(), Lineage([2; 16])).unwrap();
    assert!(!result.exists());
    write();
    forget_other_settings(dir.path(), Lineage([2; 16])).unwrap();
    assert!(result.exists());
}
