//! The place of a process that a launcher has started, from the variables of its environment.

use crate::{Error, Result};
use std::env;
use std::fmt;
use std::os::unix::process::parent_id;

/// Step numbers of Slurm from here on are those of shells (batch scripts, interactive shells), which are not tasks.
const SLURM_SHELLS: usize = 0xffff_ff00;

/// The place of this process among the processes that a launcher has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The rank of this process.
    pub rank: usize,
    /// The number of processes, at least 2.
    pub world_size: usize,
    /// The variable with the number of processes.
    pub size: &'static str,
    /// Distinguishes this launch from others on the machine.
    pub(crate) id: String,
    /// The variable with the number of this machine's processes or nodes, and its value, if other machines have ranks.
    pub(crate) nodes: Option<(&'static str, usize)>,
}

/// The variables of a launcher.
struct Variables {
    rank: &'static str,
    size: &'static str,
    /// The number of processes of this machine.
    local_size: &'static str,
}

const TORCHRUN: Variables = Variables { rank: "RANK", size: "WORLD_SIZE", local_size: "LOCAL_WORLD_SIZE" };
const OPEN_MPI: Variables =
    Variables { rank: "OMPI_COMM_WORLD_RANK", size: "OMPI_COMM_WORLD_SIZE", local_size: "OMPI_COMM_WORLD_LOCAL_SIZE" };
const PMI: Variables = Variables { rank: "PMI_RANK", size: "PMI_SIZE", local_size: "MPI_LOCALNRANKS" };

impl Launch {
    /// Reads the environment of this process. `None` in a process that no launcher has started, or that is alone.
    ///
    /// If one launcher was started by another, as torchrun in a job of Slurm, the inner one decides.
    pub fn from_env() -> Result<Option<Launch>> {
        Launch::of(&|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Like [`from_env`](Self::from_env), with these variables.
    pub fn of(variables: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        let get = Environment { get: variables };
        if get.text(TORCHRUN.rank).is_some() {
            let Some(launch) = get.place(&TORCHRUN)? else { return Ok(None) };
            let port = get.required(TORCHRUN.rank, "MASTER_PORT")?;
            let address = get.text("MASTER_ADDR").ok_or_else(|| missing(TORCHRUN.rank, "MASTER_ADDR"))?;
            // A restarted launch must not meet the processes of the one before.
            let more = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"].map(|name| get.text(name));
            return Ok(Some(Launch { id: format!("torchrun {address} {port} {more:?}"), ..launch }));
        }
        for of in [&OPEN_MPI, &PMI] {
            if get.text(of.rank).is_none() {
                continue;
            }
            let Some(launch) = get.place(of)? else { return Ok(None) };
            let names = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];
            let job = names.iter().find_map(|name| get.text(name)).unwrap_or_else(|| format!("of {}", parent_id()));
            return Ok(Some(Launch { id: format!("{} {job}", of.rank), ..launch }));
        }
        if let Some(launch) = get.slurm()? {
            return Ok(Some(launch));
        }
        for of in [&TORCHRUN, &OPEN_MPI, &PMI] {
            if get.number(of.size)?.is_some_and(|size| size > 1) {
                return Err(missing(of.size, of.rank));
            }
        }
        Ok(None)
    }

    /// The sentence for a launch on several machines.
    pub fn check_nodes(&self) -> Result<()> {
        match self.nodes {
            None => Ok(()),
            Some((name, value)) => Err(Error::Refused(format!(
                "ranks of one run must be on one machine, but {name} is {value} and {} is {}: start all of them on one \
                 node",
                self.size, self.world_size
            ))),
        }
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.world_size)
    }
}

struct Environment<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
}

impl Environment<'_> {
    /// The value of a variable. An empty one counts as unset.
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let invalid = |_| Error::Refused(format!("{name}, which a launcher sets, must be a number, got `{text}`"));
        text.parse().map(Some).map_err(invalid)
    }

    /// The number in the variable `name`, which must be set since `because` is.
    fn required(&self, because: &str, name: &str) -> Result<usize> {
        self.number(name)?.ok_or_else(|| missing(because, name))
    }

    /// Rank, number of ranks, and whether other machines have ranks; without an id. `None` if the process is alone.
    fn place(&self, of: &Variables) -> Result<Option<Launch>> {
        let world_size = self.required(of.rank, of.size)?;
        let Some(launch) = self.checked(of.rank, of.size, world_size)? else { return Ok(None) };
        let local = self.number(of.local_size)?.filter(|local| *local != world_size);
        Ok(Some(Launch { nodes: local.map(|local| (of.local_size, local)), ..launch }))
    }

    fn checked(&self, rank_name: &str, size: &'static str, world_size: usize) -> Result<Option<Launch>> {
        let rank = self.required(size, rank_name)?;
        if world_size == 0 {
            return Err(Error::Refused(format!("{size} must be at least 1, got 0")));
        }
        if rank >= world_size {
            return Err(Error::Refused(format!("{rank_name} = {rank} must be less than {size} = {world_size}")));
        }
        Ok((world_size > 1).then(|| Launch { rank, world_size, size, id: String::new(), nodes: None }))
    }

    /// The place of a task of `srun`. Other processes of a job, such as its batch script, also have variables with the
    /// number of tasks.
    fn slurm(&self) -> Result<Option<Launch>> {
        let (rank, step) = ("SLURM_PROCID", "SLURM_STEP_ID");
        let is_task = self.number(step)?.is_some_and(|step| step < SLURM_SHELLS);
        if self.text(rank).is_none() || !is_task {
            return Ok(None);
        }
        // SLURM_NTASKS may be that of the job.
        let sizes = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"];
        let size = sizes.into_iter().find(|name| self.text(name).is_some()).unwrap_or(sizes[1]);
        let Some(launch) = self.checked(rank, size, self.required(rank, size)?)? else { return Ok(None) };
        let nodes = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"].into_iter().find(|name| self.text(name).is_some());
        let nodes = nodes.map(|name| Ok((name, self.required(rank, name)?))).transpose()?.filter(|(_, n)| *n > 1);
        let (job, step) = (self.required(rank, "SLURM_JOB_ID")?, self.required(rank, step)?);
        Ok(Some(Launch { id: format!("srun {job} {step}"), nodes, ..launch }))
    }
}

fn missing(because: &str, name: &str) -> Error {
    Error::Refused(format!(
        "{because} is set, as by a launcher, but {name} is not: start the processes with torchrun, accelerate, mpirun \
         or srun, or unset {because}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &str) -> Result<Option<Launch>> {
        let get = |name: &str| {
            let mut pairs = variables.split_whitespace().map(|pair| pair.split_once('=').unwrap());
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        Launch::of(&get)
    }

    #[test]
    fn each_launcher_gives_rank_size_and_id() {
        let torchrun = "LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500 OMP_NUM_THREADS=1";
        let torchrun = format!("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none {torchrun}");
        let slurm = "SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_NNODES=1 SLURM_JOB_ID=7 SLURM_STEP_ID=0";
        let mpi = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_SIZE=8";
        let pmi = "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALNRANKS=4";
        let steps = "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_NTASKS=8 SLURM_NNODES=2 SLURM_STEP_NUM_NODES=1";
        let parent = parent_id();
        for (variables, rank, world_size, size, id) in [
            (&*torchrun, 1, 2, "WORLD_SIZE", r#"torchrun localhost 29500 [Some("none"), None]"#.to_owned()),
            ("RANK=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1", 0, 4, "WORLD_SIZE", "torchrun a 1 [None, None]".into()),
            (mpi, 0, 8, "OMPI_COMM_WORLD_SIZE", format!("OMPI_COMM_WORLD_RANK of {parent}")),
            (&*format!("{mpi} PMIX_NAMESPACE=9.1"), 0, 8, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK 9.1".into()),
            (pmi, 1, 4, "PMI_SIZE", format!("PMI_RANK of {parent}")),
            (slurm, 3, 4, "SLURM_NTASKS", "srun 7 0".into()),
            (&*format!("{steps} SLURM_JOB_ID=7 SLURM_STEP_ID=2"), 1, 2, "SLURM_STEP_NUM_TASKS", "srun 7 2".into()),
            // The inner launcher decides. A script for torch may set WORLD_SIZE for srun.
            (&*format!("{torchrun} {slurm} {mpi}"), 1, 2, "WORLD_SIZE", of(&torchrun).unwrap().unwrap().id),
            (&*format!("{mpi} {slurm}"), 0, 8, "OMPI_COMM_WORLD_SIZE", format!("OMPI_COMM_WORLD_RANK of {parent}")),
            (&*format!("WORLD_SIZE=4 MASTER_PORT=1 {slurm}"), 3, 4, "SLURM_NTASKS", "srun 7 0".into()),
        ] {
            let launch = of(variables).unwrap().unwrap();
            assert_eq!((launch.rank, launch.world_size, launch.size, launch.id.clone()), (rank, world_size, size, id));
            launch.check_nodes().unwrap();
        }
        let restarted = format!("{torchrun} TORCHELASTIC_RESTART_COUNT=1");
        assert!(of(&restarted).unwrap() != of(&torchrun).unwrap());
    }

    #[test]
    fn a_process_that_no_launcher_has_started_or_that_is_alone_has_no_place() {
        for variables in [
            "",
            "OMP_NUM_THREADS=1 MASTER_PORT=29500 LOCAL_RANK=0",
            "RANK=0 WORLD_SIZE=1",
            "WORLD_SIZE=1",
            "RANK= WORLD_SIZE=",
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
            "PMI_RANK=0 PMI_SIZE=1",
            // An allocation, the shell of a batch script, and an interactive shell.
            "SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_NNODES=2",
            "SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_NNODES=1 SLURM_PROCID=0 SLURM_LOCALID=0",
            "SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_STEP_ID=4294967291",
            "SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_STEP_ID=4294967290",
            "SLURM_NTASKS=1 SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_STEP_ID=0",
            "SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1 SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_STEP_ID=0",
            // torchrun with one process in a task of srun.
            "RANK=0 WORLD_SIZE=1 SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_PROCID=1 SLURM_STEP_ID=0",
        ] {
            assert_eq!(of(variables).unwrap(), None, "{variables}");
        }
    }

    #[test]
    fn wrong_and_missing_variables_are_named() {
        let by_hand = "start the processes with torchrun, accelerate, mpirun or srun, or unset";
        let missing = |a: &str, b: &str| format!("{a} is set, as by a launcher, but {b} is not: {by_hand} {a}");
        let number = |name: &str, got: &str| format!("{name}, which a launcher sets, must be a number, got `{got}`");
        for (variables, why) in [
            ("RANK=0", missing("RANK", "WORLD_SIZE")),
            ("WORLD_SIZE=2", missing("WORLD_SIZE", "RANK")),
            ("PMI_SIZE=2", missing("PMI_SIZE", "PMI_RANK")),
            ("RANK=0 WORLD_SIZE=2", missing("RANK", "MASTER_PORT")),
            ("RANK=0 WORLD_SIZE=2 MASTER_PORT=1", missing("RANK", "MASTER_ADDR")),
            ("RANK=2 WORLD_SIZE=2", "RANK = 2 must be less than WORLD_SIZE = 2".to_owned()),
            ("RANK=1 WORLD_SIZE=1", "RANK = 1 must be less than WORLD_SIZE = 1".to_owned()),
            ("RANK=0 WORLD_SIZE=0", "WORLD_SIZE must be at least 1, got 0".to_owned()),
            ("RANK=first WORLD_SIZE=2", number("RANK", "first")),
            ("RANK=-1 WORLD_SIZE=2", number("RANK", "-1")),
            ("RANK=0 WORLD_SIZE=2.0", number("WORLD_SIZE", "2.0")),
            ("OMPI_COMM_WORLD_RANK=0", missing("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")),
            ("PMI_RANK=4 PMI_SIZE=4", "PMI_RANK = 4 must be less than PMI_SIZE = 4".to_owned()),
            ("SLURM_PROCID=0 SLURM_STEP_ID=0", missing("SLURM_PROCID", "SLURM_NTASKS")),
            ("SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2", missing("SLURM_PROCID", "SLURM_JOB_ID")),
            (
                "SLURM_PROCID=2 SLURM_STEP_ID=0 SLURM_NTASKS=2",
                "SLURM_PROCID = 2 must be less than SLURM_NTASKS = 2".to_owned(),
            ),
        ] {
            assert_eq!(of(variables).unwrap_err().to_string(), why, "{variables}");
        }
    }

    #[test]
    fn several_machines_are_refused_with_the_variable() {
        let torchrun = "RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1";
        let mpi = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2";
        let slurm = "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0";
        for (variables, named) in [
            (torchrun, "LOCAL_WORLD_SIZE is 2 and WORLD_SIZE is 4"),
            (mpi, "OMPI_COMM_WORLD_LOCAL_SIZE is 2 and OMPI_COMM_WORLD_SIZE is 4"),
            ("PMI_RANK=0 PMI_SIZE=4 MPI_LOCALNRANKS=2", "MPI_LOCALNRANKS is 2 and PMI_SIZE is 4"),
            (slurm, "SLURM_NNODES is 2 and SLURM_NTASKS is 4"),
            (&*format!("{slurm} SLURM_STEP_NUM_NODES=3"), "SLURM_STEP_NUM_NODES is 3 and SLURM_NTASKS is 4"),
        ] {
            let why = of(variables).unwrap().unwrap().check_nodes().unwrap_err().to_string();
            let expected =
                format!("ranks of one run must be on one machine, but {named}: start all of them on one node");
            assert_eq!(why, expected);
        }
    }
}
