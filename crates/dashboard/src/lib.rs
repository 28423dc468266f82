//! The dashboard, `lockstep dashboard RUN…`: a web page that shows training runs and the completions of their models.
//!
//! The dashboard only reads the files of training runs, current or finished, and never communicates with a running one.
//! So the dashboard cannot slow, stop or change a run, and shows old runs and runs from other machines in the same way.
//! The dashboard writes no files and starts no programs.
//!
//! | module | purpose |
//! |---|---|
//! | `runs` | finds runs in directories |
//! | `run` | the files of one run, read incrementally |
//! | `kept` | a file that rarely changes, read again after a change |
//! | `lines` | a JSON Lines file, read incrementally |
//! | `series` | metrics by step, aggregated into buckets for charts |
//! | `verdict` | the verdict on a run, in one sentence |
//! | `table` | all runs: their results, and the keys that differ |
//! | `groups` | recorded rollouts: summaries, single groups, tokens |
//! | `range` | the range of rewards by which groups are filtered |
//! | `prompts` | recorded groups by prompt: how its reward changed |
//! | `report` | a report on one run, or on two side by side: `lockstep report` |
//! | `workers` | the number of groups that each worker made |
//! | `guard` | access control |
//! | `trace` | the spans of a step, and background work |
//! | `server` | routes and responses |

mod assets;
mod groups;
mod guard;
mod kept;
mod lines;
mod meaning;
mod prompts;
mod range;
pub mod report;
mod run;
mod runs;
mod series;
mod server;
mod table;
mod trace;
mod verdict;
mod workers;

pub use guard::Guard;
pub use runs::Runs;
pub use server::jobs::{Jobs, Refusal};
pub use server::{Server, serve_in_thread};
pub use verdict::{Judged, Verdict, verdict};

/// The verdict on the training run in this directory, which is about to end, as the page and reports will show it.
pub fn verdict_of(run: &std::path::Path) -> Verdict {
    let mut files = run::RunFiles::new(run.to_owned());
    files.refresh();
    files.verdict_as(true)
}
