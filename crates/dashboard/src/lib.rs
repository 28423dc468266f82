//! The dashboard, `lockstep dashboard RUN…`: a web page that shows training runs and the completions of their models.
//!
//! The dashboard only reads the files of training runs, current or finished, and never communicates with a running one.
//! So watching cannot slow, stop or change a run, and old runs and runs from other machines look the same. The
//! dashboard writes no files and starts no programs.
//!
//! | module | purpose |
//! |---|---|
//! | `runs` | finds runs in directories |
//! | `run` | one run's files, read on as they grow |
//! | `lines` | a log of JSON lines, read on as it grows |
//! | `series` | metrics by step, and the buckets that a chart of some pixels shows |
//! | `verdict` | one sentence that says how a run is |
//! | `table` | all runs: what each came to, and the keys that differ |
//! | `groups` | recorded rollouts: summaries, a group, its tokens |
//! | `range` | rewards by which groups are filtered |
//! | `prompts` | the same by prompt: how its reward changed |
//! | `report` | a run, or two, on one page: `lockstep report` |
//! | `workers` | which worker made which batch |
//! | `guard` | who may ask |
//! | `trace` | the spans of a step, and the work beside the learner |
//! | `server` | addresses and answers |

mod assets;
mod groups;
mod guard;
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
