//! What the operating system says of this process.

/// The most memory that this process has had resident, in bytes; `None` where the system does not say.
pub fn peak_rss_bytes() -> Option<u64> {
    status_kib("VmHWM:").map(|kib| kib * 1024)
}

/// The memory that this process has resident now, in bytes; `None` where the system does not say.
pub fn rss_bytes() -> Option<u64> {
    status_kib("VmRSS:").map(|kib| kib * 1024)
}

/// A line of `/proc/self/status` that gives kB.
fn status_kib(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_peak_is_at_least_what_is_resident() {
        let (now, peak) = (super::rss_bytes(), super::peak_rss_bytes());
        assert_eq!((now.is_some(), peak.is_some()), (cfg!(target_os = "linux"), cfg!(target_os = "linux")));
        if let (Some(now), Some(peak)) = (now, peak) {
            assert!(now > 100_000 && peak >= now / 2, "{now} {peak}");
        }
    }
}
