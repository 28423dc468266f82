use super::*;
use std::fs::{File, create_dir, write};

#[test]
fn files_of_ended_processes_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    // One of these processes has ended, the other still holds its lock.
    for process in ["gone", "here"] {
        write(at(&format!("lockstep-code-{process}.lock")), "").unwrap();
        write(at(&format!("lockstep-code-{process}-file")), "x").unwrap();
        create_dir(at(&format!("lockstep-code-{process}-directory"))).unwrap();
        write(at(&format!("lockstep-code-{process}-directory/file")), "x").unwrap();
    }
    for other in ["lockstep-code-gone", "lockstep-code-gone.lock2", "other.lock", "x-lockstep-code-gone-x"] {
        write(at(other), "x").unwrap();
    }
    create_dir(at("lockstep-code-directory.lock")).unwrap();
    std::os::unix::fs::symlink(at("other.lock"), at("lockstep-code-link.lock")).unwrap();
    let held = File::open(at("lockstep-code-here.lock")).unwrap();
    held.try_lock().unwrap();
    sweep(directory.path());
    let mut left: Vec<String> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let expected = [
        "lockstep-code-directory.lock",
        "lockstep-code-gone",
        "lockstep-code-gone.lock2",
        "lockstep-code-here-directory",
        "lockstep-code-here-file",
        "lockstep-code-here.lock",
        "lockstep-code-link.lock",
        "other.lock",
        "x-lockstep-code-gone-x",
    ];
    assert_eq!(left, expected);
    sweep(&at("no such directory"));
}

#[test]
fn files_of_a_process_have_the_name_of_its_lock() {
    assert_eq!(mark(Path::new("/tmp/lockstep-code-Ab1.lock")), "lockstep-code-Ab1-");
    let place = Place::current().unwrap();
    let lock = place.lock.path().file_name().unwrap().to_str().unwrap();
    assert!(lock.starts_with("lockstep-code-") && lock.ends_with(".lock"), "{lock}");
    assert!(File::open(place.lock.path()).unwrap().try_lock().is_err(), "it is locked");
    let named = |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with(&mark(place.lock.path()));
    assert!(named(place.filter()) && std::fs::metadata(place.filter()).unwrap().len() > 0);
    assert!(Arc::ptr_eq(&place, &Place::current().unwrap()));
    let directory = directory().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert!(named(directory.path()));
    assert_eq!((mode(directory.path()), mode(place.filter())), (0o755, 0o644));
}
