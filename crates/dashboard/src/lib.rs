//! A page on which people watch runs and read what a model writes: `lockstep dashboard RUN…`.
//!
//! It reads the files of runs, those in progress and those that have ended, and never talks to a run: so a run is
//! not slowed, stopped or changed by who watches it, and a run of another machine or of last year is shown like any
//! other. Nothing is written.
//!
//! | module | what |
//! |---|---|
//! | `runs` | finds runs in directories |
//! | `run` | one run's files, read on as they grow |
//! | `series` | metrics by step, and the buckets that a chart of some pixels shows |
//! | `verdict` | one sentence that says how a run is |
//! | `groups` | recorded rollouts: summaries, a group, its tokens |
//! | `report` | a run, or two, on one page: `lockstep report` |
//! | `jobs` | levels of optimization, measured from the page |
//! | `guard` | who may ask |
//! | `server` | addresses and answers |

mod assets;
mod groups;
mod guard;
mod jobs;
pub mod report;
mod run;
mod runs;
mod series;
mod server;
mod verdict;

pub use guard::Guard;
pub use jobs::{Jobs, Runnable};
pub use runs::Runs;
pub use server::{Server, serve_in_thread};
pub use verdict::{Verdict, verdict};

/// How the run in this directory is, as the page and reports say it.
pub fn verdict_of(run: &std::path::Path) -> Verdict {
    let mut files = run::RunFiles::new(run.to_owned());
    files.refresh();
    files.verdict()
}
