use super::*;
use std::io::Read;

fn limits() -> Limits {
    Limits {
        wall: Duration::from_millis(4500),
        memory_mb: 3,
        resident_mb: 2,
        processes: 7,
        output: 5,
        disk_mb: 6,
        compiles: false,
    }
}

/// A stream of these pieces. One read fails temporarily, the last one permanently.
struct Pieces(Vec<std::io::Result<&'static [u8]>>);

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.0.is_empty() {
            return Ok(0);
        }
        let piece = self.0.remove(0)?;
        buffer[..piece.len()].copy_from_slice(piece);
        Ok(piece.len())
    }
}

#[test]
fn a_stream_is_kept_up_to_its_limit_and_more_is_reported() {
    let ok = |bytes: &'static [u8]| Ok(bytes);
    let error = |kind: std::io::ErrorKind| Err(kind.into());
    for (pieces, kept, more) in [
        (vec![ok(b"1234")], "1234", false),
        (vec![ok(b"12"), ok(b"345")], "12345", false),
        (vec![ok(b"12"), ok(b"3456")], "12345", true),
        (vec![ok(b"12345"), ok(b"6"), ok(b"7")], "12345", true),
        (vec![ok(b"1"), error(std::io::ErrorKind::Interrupted), ok(b"2")], "12", false),
        (vec![ok(b"1"), error(std::io::ErrorKind::BrokenPipe), ok(b"2")], "1", false),
        (vec![], "", false),
    ] {
        let told = AtomicBool::new(false);
        assert_eq!(String::from_utf8(read(Pieces(pieces), 5, &told)).unwrap(), kept);
        assert_eq!(told.into_inner(), more, "{kept}");
    }
}

/// The arguments of a command, separated by spaces.
fn arguments(command: &Command) -> String {
    command.get_args().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
}

#[test]
fn limits_become_arguments_of_prlimit() {
    let kernel = "--core=1 --nofile=256 --fsize=6291456 --cpu=5 --as=3145728";
    assert_eq!(prlimits(limits()).join(" "), kernel);
    let user = User::new();
    let words = ["sh", "/job/main.sh", "/tmp/x:/job/y", "/jobs/z"].map(str::to_owned);
    let command = plain_command(Command::new("prlimit"), Path::new("/j/tmp"), Path::new("/t"), &words, limits(), &user);
    assert_eq!(command.get_program(), "prlimit");
    let (limit, rest) = arguments(&command).split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert_eq!(rest, format!("{kernel} -- sh /j/tmp/main.sh /t/x:/j/tmp/y /jobs/z"));
    // The limit leaves room for the user's other threads, which come and go.
    let processes: u64 = limit.strip_prefix("--nproc=").unwrap().parse().unwrap();
    assert!(processes >= 7 + 64, "{limit}");
    assert_eq!(command.get_current_dir(), Some(Path::new("/t")));
    let mut variables: Vec<String> = command
        .get_envs()
        .map(|(name, value)| format!("{}={}", name.to_str().unwrap(), value.unwrap().to_str().unwrap()))
        .collect();
    variables.sort();
    let path = "PATH=/usr/local/bin:/usr/bin:/bin";
    assert_eq!(variables, ["HOME=/t", "LANG=C.UTF-8", "OPENSSL_CONF=/dev/null", path, "TMPDIR=/t"]);
}

#[test]
fn bubblewrap_gets_the_arguments_for_isolation() {
    let directory = tempfile::tempdir().unwrap();
    let bwrap = directory.path().join("bwrap");
    let sandbox = Sandbox::with(bwrap.to_str().unwrap(), Isolation::Bubblewrap);
    let command = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        sandbox.isolated(Command::new("/bin/sh"), Path::new("/a/job"), &words, limits())
    };
    assert_eq!(command(&["x"]).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    std::fs::write(&bwrap, "").unwrap();
    let command = command(&["python3", "/job/main.py"]).unwrap();
    assert_eq!(command.get_program(), "/bin/sh");
    let message = arguments(&command);
    let filter = sandbox.place.as_ref().unwrap().filter();
    let begins = format!("bwrap {} {} --seccomp 9 ", filter.display(), bwrap.display());
    assert!(message.contains(&begins), "{message}");
    for words in [
        "--unshare-all --unshare-user --disable-userns --uid 65534 --gid 65534 --cap-drop ALL --die-with-parent \
         --new-session --clearenv",
        "--setenv PATH /usr/local/bin:/usr/bin:/bin --setenv HOME /tmp --setenv TMPDIR /tmp --setenv LANG C.UTF-8",
        "--ro-bind /usr /usr ",
        " /bin ",
        " /lib ",
        "--ro-bind-try /etc/alternatives /etc/alternatives --ro-bind-try /etc/ld.so.cache /etc/ld.so.cache",
        "--proc /proc --dev /dev --size 4096 --tmpfs /dev/shm --remount-ro /dev --perms 1777 \
         --size 6291456 --tmpfs /tmp",
        "--ro-bind /a/job /job --remount-ro / --chdir /tmp -- /usr/bin/prlimit --nproc=7 --core=1 --nofile=256",
        "--as=3145728 -- python3 /job/main.py",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
}

#[test]
fn a_program_is_found_by_its_bare_name() {
    let sh = found("sh");
    assert!(sh.ends_with("/sh") && Path::new(&sh).is_file(), "{sh}");
    for program in ["./sh", "/no/such/sh", "no-such-program-at-all"] {
        assert_eq!(found(program), program);
    }
}

#[test]
fn the_requested_isolation_is_used_or_nothing_runs() {
    let find = |isolation, unsafe_no_sandbox| {
        Sandbox::find("/no/such/bwrap", Some(isolation), unsafe_no_sandbox, &[]).map(|sandbox| sandbox.isolation)
    };
    let refusal = find(Isolation::Bubblewrap, false).unwrap_err();
    let begins = "bubblewrap is not installed, and nothing is run without it: install it (apt install bubblewrap). \
                  Only if all programs may do everything that you may do, set `unsafe_no_sandbox = true`";
    assert!(refusal.starts_with(begins), "{refusal}");
    if testing::program("prlimit").is_some() {
        assert_eq!(find(Isolation::Bubblewrap, true), Ok(Isolation::Nothing));
        let sandbox = Sandbox::with("/no/such/bwrap", Isolation::Nothing);
        let missing =
            "`no-such-program` is not installed under /usr, the only part of this machine that programs can see";
        assert_eq!(sandbox.check(&["sh", "no-such-program", "other"]), Err(missing.to_owned()));
        // A program without isolation still has its streams, its exit code and its limits.
        let job = tempfile::tempdir().unwrap();
        let run = |script: &str, stdin: &[u8]| {
            let words = ["/bin/sh", "-c", script].map(str::to_owned);
            let limits = Limits { memory_mb: 1024, resident_mb: 1024, output: 5, ..limits() };
            let Outcome { end, stdout, stderr } = sandbox.run(job.path(), &words, stdin, limits).unwrap();
            (end, String::from_utf8(stdout).unwrap(), stderr)
        };
        assert_eq!(run("cat; echo no >&2; exit 3", b"12345"), (End::Exit(3), "12345".into(), "no\n".into()));
        assert_eq!(run("kill -9 $$", b""), (End::Exit(137), String::new(), String::new()));
        assert_eq!(run("cat", b"123456"), (End::TooMuchOutput, "12345".into(), String::new()));
        let (_, _, stderr) = run("head -c 4001 /dev/zero | tr '\\0' x >&2", b"");
        assert_eq!(stderr, "x".repeat(4000));
        sandbox.stop.store(true, Ordering::Relaxed);
        assert_eq!(run("sleep 100", b"").0, End::Stopped);
    }
}

/// A trial on a busy machine needs only more time.
#[test]
fn a_trial_that_does_not_end_names_no_remedy_for_namespaces() {
    let directory = tempfile::tempdir().unwrap();
    let bwrap = directory.path().join("bwrap");
    testing::write_program(&bwrap, "#!/bin/sh\nexec sleep 1000\n");
    let sandbox = Sandbox::with(bwrap.to_str().unwrap(), Isolation::Bubblewrap);
    let message = sandbox.check_within(Duration::from_millis(1), &[]).unwrap_err();
    assert!(message.starts_with("a trial program did not end within 0.001 s (bubblewrap and seccomp"), "{message}");
    assert!(message.ends_with("the machine is too busy, or programs hang here") && !message.contains("namespaces"));
}
