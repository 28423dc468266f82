//! `lockstep dashboard`, and the page that `--dashboard` shows beside a training run.

mod jobs;

use self::jobs::{LevelJobs, Runnable};
use crate::output;
use dashboard::{Runs, Server, serve_in_thread};
use lockstep::bad_input;
use lockstep_bench::Shape;
use lockstep_bench::levels::{Algorithm, PRESETS};
use std::path::{Path, PathBuf};
use telemetry::Console;

/// The default port of the page.
pub const PORT: u16 = 7860;

/// Shows runs on a page in the browser: whether they learn, their completions, and where the time goes. Reads the files
/// of current and finished runs, and writes nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directories, or directories of runs; ./runs if not given.
    #[arg(value_name = "RUN|DIR")]
    pub runs: Vec<PathBuf>,
    /// The port of the page; 0 selects any free port.
    #[arg(long, default_value_t = PORT)]
    pub port: u16,
    /// The address to listen on. If other machines can reach it (0.0.0.0), the page requires the token in the printed
    /// address.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub host: String,
    /// Another host and port under which browsers reach the page, such as localhost:8888 for a forwarded port; may be
    /// repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub allow_host: Vec<String>,
    /// Allows the page to run `lockstep bench levels` on this machine, one job at a time (view Levels).
    #[arg(long)]
    pub allow_run: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let runs = if args.runs.is_empty() { vec![PathBuf::from("runs")] } else { args.runs.clone() };
    // The view Levels works without a run.
    let needs_none = args.allow_run && args.runs.is_empty();
    for path in &runs {
        if !path.is_dir() && !needs_none {
            bad_input!("{}: no such directory; name a run or a directory of runs", path.display());
        }
    }
    let server = match Server::bind(&args.host, args.port, Runs::new(runs)) {
        Ok(server) => server,
        Err(error) => bad_input!(
            "cannot listen on {} port {}: {error}; try --port {}, or --port 0 for any free port",
            args.host,
            args.port,
            args.port.saturating_add(1)
        ),
    };
    let server = server.allow_hosts(&args.allow_host).with_jobs(LevelJobs::new(Runnable {
        program: std::env::current_exe()?,
        algorithms: Algorithm::ALL.map(Algorithm::json).to_vec(),
        presets: PRESETS.map(|preset| preset.json()).to_vec(),
        shapes: Shape::ALL.map(|shape| shape.name().to_owned()).to_vec(),
        allowed: args.allow_run,
    }));
    output::mention(&server.url);
    output::note("Ctrl-C stops the dashboard; runs continue.");
    Ok(server.run()?)
}

/// Serves the page of a run inside the calling program; returns its URL. Port 0 selects a free port.
pub fn page_of(run: &Path, port: u16) -> std::io::Result<String> {
    serve_in_thread("127.0.0.1", port, Runs::new(vec![run.to_owned()]))
}

/// Serves the page beside a training run. If that fails, for example because the port is in use, the run continues
/// without a page.
pub(crate) fn beside(run: &Path, port: u16, console: &Console) {
    match page_of(run, port) {
        Ok(url) => console.info(&format!("watch it at {url}")),
        Err(error) => console.warn(&format!(
            "no dashboard: cannot listen on port {port}: {error}; `lockstep dashboard {} --port {}` shows this run",
            run.display(),
            port.saturating_add(1)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_needs_a_run_or_allow_run_and_a_free_port() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let why = |runs: &[&str], allow_run: bool| {
            let runs = runs.iter().map(PathBuf::from).collect();
            run(Args { runs, port, host: "127.0.0.1".to_owned(), allow_host: Vec::new(), allow_run })
                .unwrap_err()
                .to_string()
        };
        let none = "/no/such: no such directory; name a run or a directory of runs";
        assert_eq!([why(&["/no/such"], false), why(&["/", "/no/such"], true)], [none, none]);
        let listen = format!("cannot listen on 127.0.0.1 port {port}: ");
        let other = format!("; try --port {}, or --port 0 for any free port", port + 1);
        for why in [why(&["/"], false), why(&[], true)] {
            assert!(why.starts_with(&listen) && why.ends_with(&other), "{why}");
        }
        let url = page_of(Path::new("/no/such"), 0).unwrap();
        assert!(url.starts_with("http://127.0.0.1:") && !url.contains("token"), "{url}");
        assert!(page_of(Path::new("/"), port).is_err());
    }
}
