//! Tests the real coordinator by visiting every state of small runs, and many states of larger runs by random walks.
//! Workers are killed, stopped and continued, a learner crashes, a machine loses power, and a batch file becomes
//! unreadable.
//!
//! Two properties are checked. *Safe*: each result that is trained on was sampled with the weights that its job name
//! determines, a version always has the same content, and no two results of a job differ. *Live*: from every state the
//! end of the run can be reached without another fault. If any single rule is switched off, the search must find a
//! violation, which shows that every rule is needed.

mod simulation;
mod world;

use super::coordinator::Rules;
use crate::ids::{BatchId, Version};
use crate::plan::{Continued, Plan};
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use world::{Budget, Environment, World};

/// The outcome of a search.
#[derive(Debug, PartialEq)]
enum Found {
    /// All states are safe and live. Contains the number of states.
    Fine(usize),
    /// A violation, with the moves that lead to it.
    Wrong(String),
}

fn key(world: &World) -> u64 {
    // With 64 bits, two of a million states collide with a probability of 3e-8, and then one state is not visited.
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Visits every reachable state, breadth first.
fn search(plan: &Plan, rules: Rules, environment: Environment, budget: Budget) -> Found {
    let first = World::new(plan.clone(), rules, environment, budget);
    let mut seen = HashMap::from([(key(&first), 0usize)]);
    let mut parents: Vec<(usize, String)> = vec![(0, String::new())];
    // The predecessors of each state by moves that are not faults.
    let mut before: Vec<Vec<u32>> = vec![Vec::new()];
    let mut goals = Vec::new();
    let mut queue = VecDeque::from([(first, 0usize)]);
    let trace = |parents: &[(usize, String)], mut at: usize| {
        let mut moves = Vec::new();
        while at != 0 {
            moves.push(parents[at].1.clone());
            at = parents[at].0;
        }
        moves.reverse();
        moves.join(" ")
    };
    while let Some((world, id)) = queue.pop_front() {
        assert!(seen.len() < 10_000_000, "more than ten million states");
        if world.has_ended() {
            goals.push(id);
            continue;
        }
        for (step, is_fault) in world.moves() {
            let mut next = world.clone();
            if let Err(why) = next.apply(&step) {
                return Found::Wrong(format!("{why}: {} {step:?}", trace(&parents, id)));
            }
            let count = seen.len();
            let to = *seen.entry(key(&next)).or_insert(count);
            if to == count {
                parents.push((id, format!("{step:?}")));
                before.push(Vec::new());
                queue.push_back((next, to));
            }
            if !is_fault && to != id {
                before[to].push(id as u32);
            }
        }
    }
    let mut reaches = vec![false; seen.len()];
    let mut queue: Vec<usize> = goals;
    for goal in &queue {
        reaches[*goal] = true;
    }
    while let Some(at) = queue.pop() {
        for from in std::mem::take(&mut before[at]) {
            if !std::mem::replace(&mut reaches[from as usize], true) {
                queue.push(from as usize);
            }
        }
    }
    match reaches.iter().position(|reaches| !reaches) {
        Some(stuck) => Found::Wrong(format!("stuck: {}", trace(&parents, stuck))),
        None => Found::Fine(seen.len()),
    }
}

fn plan(batches: u64, groups: u64, max_staleness: u64, chunks: bool) -> Plan {
    let plan = Plan::new(batches, groups, max_staleness);
    Plan { chunks, stale_after_ms: 2, straggler_after_ms: None, ..plan }
}

/// A search that must find no violation: its name, the plan of the run, and the maximum number of faults of each kind.
type Case = (&'static str, Plan, Budget);

fn small() -> Vec<Case> {
    let none = Budget::default();
    vec![
        ("k = 0, kill", plan(2, 1, 0, false), Budget { kills: 1, ..none }),
        ("k = 0, a crash", plan(2, 1, 0, false), Budget { crashes: 1, ..none }),
        ("k = 1, power", plan(3, 1, 1, false), Budget { power: 1, ..none }),
        ("k = 1, a crash", plan(3, 1, 1, false), Budget { crashes: 1, ..none }),
        ("k = 1, chunks", plan(2, 1, 1, true), Budget { kills: 1, ..none }),
        ("k = 1, stops", plan(3, 1, 1, false), Budget { stops: 1, ..none }),
        ("k = 0, a false result", plan(2, 1, 0, false), Budget { lies: 1, kills: 1, ..none }),
        ("k = 1, a false result and a crash", plan(3, 1, 1, false), Budget { lies: 1, crashes: 1, ..none }),
        ("k = 1, a false result, chunks", plan(2, 1, 1, true), Budget { lies: 1, ..none }),
        ("k = 2, a false result, chunks", plan(3, 1, 2, true), Budget { lies: 1, ..none }),
        ("k = 2, chunks, a crash", plan(2, 1, 2, true), Budget { crashes: 1, ..none }),
        ("k = 1, continued, a crash", continued(plan(5, 1, 1, false)), Budget { crashes: 1, ..none }),
        ("k = 2, continued, chunks, kill", continued(plan(4, 1, 2, true)), Budget { kills: 1, ..none }),
    ]
}

/// Runs with two optimizer steps per batch, so that a checkpoint can be taken in the middle of a batch.
fn halves() -> Vec<Case> {
    let none = Budget::default();
    vec![
        ("k = 0, halves, a crash", plan(2, 1, 0, false), Budget { crashes: 1, ..none }),
        ("k = 1, halves, a crash", plan(3, 1, 1, false), Budget { crashes: 1, ..none }),
        ("k = 1, halves, power", plan(3, 1, 1, false), Budget { power: 1, ..none }),
        ("k = 1, halves, chunks, power", plan(2, 1, 1, true), Budget { power: 1, ..none }),
        ("k = 2, halves, chunks, a crash", plan(2, 1, 2, true), Budget { crashes: 1, ..none }),
        ("k = 1, halves, a false result and a crash", plan(3, 1, 1, false), Budget { lies: 1, crashes: 1, ..none }),
        ("k = 1, halves, continued, power", continued(plan(5, 1, 1, false)), Budget { power: 1, ..none }),
    ]
}

fn larger_halves() -> Vec<Case> {
    let none = Budget::default();
    vec![
        ("k = 1, halves, kill and crash", plan(3, 1, 1, false), Budget { kills: 1, crashes: 1, ..none }),
        ("k = 1, halves, two groups, power", plan(2, 2, 1, false), Budget { power: 1, ..none }),
        ("k = 2, halves, crash", plan(4, 1, 2, false), Budget { crashes: 1, ..none }),
        ("k = 2, halves, chunks, power", plan(3, 1, 2, true), Budget { power: 1, ..none }),
        ("k = 2, halves, a false result and power", plan(3, 1, 2, false), Budget { lies: 1, power: 1, ..none }),
    ]
}

/// A run that was planned to end after two batches, and is continued.
fn continued(plan: Plan) -> Plan {
    Plan { continued: Continued { batch: BatchId(2), version: Version(2) }, ..plan }
}

fn whole() -> Vec<Case> {
    let none = Budget::default();
    let all = Budget { kills: 1, stops: 1, crashes: 1, ..none };
    vec![
        ("k = 1, power and kill", plan(3, 1, 1, false), Budget { kills: 1, power: 1, ..none }),
        ("k = 1, rot", plan(3, 1, 1, false), Budget { rots: 1, kills: 1, ..none }),
        ("k = 1, two groups, kill", plan(2, 2, 1, false), Budget { kills: 1, ..none }),
        ("k = 1, two groups", plan(2, 2, 1, false), Budget { kills: 1, crashes: 1, ..none }),
        ("k = 1, chunks", plan(3, 1, 1, true), Budget { kills: 1, crashes: 1, ..none }),
        ("k = 2, four batches, kill", plan(4, 1, 2, false), Budget { kills: 1, ..none }),
        ("k = 2, four batches, crash", plan(4, 1, 2, false), Budget { crashes: 1, ..none }),
        ("k = 2", plan(3, 1, 2, false), Budget { kills: 1, crashes: 1, ..none }),
        ("k = 2, stop", plan(3, 1, 2, false), Budget { stops: 1, ..none }),
        ("k = 2, a false result and a kill", plan(3, 1, 2, false), Budget { lies: 1, kills: 1, ..none }),
        ("k = 2, chunks", plan(3, 1, 2, true), Budget { power: 1, ..none }),
        ("k = 0", plan(2, 1, 0, false), all),
        ("k = 1, kill and stop", plan(3, 1, 1, false), Budget { kills: 1, stops: 1, ..none }),
        ("k = 1, kill and crash", plan(3, 1, 1, false), Budget { kills: 1, crashes: 1, ..none }),
        ("k = 1, stop and crash", plan(3, 1, 1, false), Budget { stops: 1, crashes: 1, ..none }),
        ("k = 2, continued", continued(plan(5, 1, 2, false)), Budget { kills: 1, power: 1, ..none }),
        ("k = 1, lie, kill and crash", plan(3, 1, 1, false), Budget { lies: 1, kills: 1, crashes: 1, ..none }),
    ]
}

fn run(cases: Vec<Case>, environment: Environment) {
    for (name, plan, budget) in cases {
        eprintln!("{name}");
        let start = std::time::Instant::now();
        match search(&plan, Rules::ALL, environment, budget) {
            Found::Fine(states) => {
                assert!(states > 100, "{name}: only {states} states were visited");
                eprintln!("{name}: {states} states, safe and live, {:.1} s", start.elapsed().as_secs_f64());
            }
            Found::Wrong(why) => panic!("{name}: {why}"),
        }
    }
}

#[test]
fn every_state_of_small_runs_is_safe_and_reaches_the_end() {
    run(small(), Environment::SOUND);
    run(halves(), Environment { halves: true, ..Environment::SOUND });
}

/// The first worker returns wrong first chunks. Other workers continue its answers, and the fault is detected when a
/// batch is complete.
fn with_a_liar(plan: &Plan, kills: u32) {
    let liar = Environment { liar: true, judge: false, ..Environment::SOUND };
    let found = search(plan, Rules::ALL, liar, Budget { kills, ..Budget::default() });
    assert!(matches!(found, Found::Fine(states) if states > 100), "{kills} kills: {found:?}");
}

/// Chunks that continue a wrong result are recomputed, too.
#[test]
fn chunks_that_continue_a_lie_are_recomputed() {
    with_a_liar(&plan(3, 1, 2, true), 0);
    with_a_liar(&plan(2, 1, 2, true), 1);
}

/// Run by `cargo xtask nightly fleet_search`.
#[test]
#[ignore = "minutes: every state of larger runs, which the nightly check visits"]
fn every_state_of_larger_runs_is_safe_and_reaches_the_end() {
    run(whole(), Environment::SOUND);
    run(larger_halves(), Environment { halves: true, ..Environment::SOUND });
    with_a_liar(&plan(3, 1, 2, true), 1);
}

/// Each case switches one rule off. It has a plan, a budget of faults with which the search must find a violation, and
/// a part of the violation's message.
#[test]
fn the_search_finds_a_violation_without_each_rule() {
    let all = Rules::ALL;
    let sound = Environment::SOUND;
    let none = Budget::default();
    let one = plan(3, 1, 1, false);
    let liar = Environment { liar: true, judge: false, ..sound };
    let halves = Environment { halves: true, ..sound };
    let cases = [
        ("frontier", Rules { frontier: false, ..all }, sound, one.clone(), Budget { power: 1, ..none }, "stuck"),
        ("frontier", Rules { frontier: false, ..all }, halves, one.clone(), Budget { power: 1, ..none }, "stuck"),
        ("needed", Rules { needed: false, ..all }, sound, plan(4, 1, 2, false), none, "stuck"),
        ("kill", Rules { kill: false, ..all }, sound, one.clone(), Budget { stops: 1, ..none }, "stuck"),
        ("lineage", Rules { lineage: false, ..all }, sound, one.clone(), Budget { rots: 1, ..none }, "differ"),
        ("continues", Rules { continues: false, ..all }, liar, plan(3, 1, 2, true), none, "other weights"),
        ("published", Rules { published: false, ..all }, sound, plan(2, 2, 0, false), none, "stuck"),
        ("reclaim", Rules { reclaim: false, ..all }, sound, one.clone(), Budget { kills: 1, ..none }, "stuck"),
        ("replay", Rules { replay: false, ..all }, sound, one.clone(), Budget { crashes: 1, ..none }, "two contents"),
        ("sync", all, Environment { sync: false, ..sound }, one.clone(), Budget { power: 1, ..none }, "two contents"),
        ("pins", all, Environment { pins: false, ..sound }, one, Budget { stops: 1, kills: 1, ..none }, "differ"),
    ];
    for (name, rules, environment, plan, budget, how) in cases {
        match search(&plan, rules, environment, budget) {
            Found::Wrong(why) => assert!(why.contains(how), "without {name}: {why}"),
            Found::Fine(states) => panic!("without {name} the search finds no violation in {states} states"),
        }
    }
}
