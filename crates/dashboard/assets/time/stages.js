// The stages of a step: their colours, their names in bars, and their shares of the learner's time.

// A stage has the same colour everywhere; other stages are grey. The colours are also distinguishable for people with
// any type of colour blindness.
const COLOR = {
  rollout: 0,
  rewards: 1,
  reference: 2,
  values: 2,
  forward: 3,
  update: 3,
  backward: 4,
  "value update": 3,
  optimizer: 5,
  log: 6,
  evaluation: 7,
  record: 8,
  checkpoint: 9,
};
// Stages of the value model have the policy's colours with stripes.
const STRIPED = ["values", "value update"];

export const hasColor = (name) => COLOR[name] !== undefined;
export const isStriped = (name) => STRIPED.includes(name);

/** The classes of a stage's colour. */
export const color = (name) =>
  `stage ${hasColor(name) ? `s${COLOR[name]}` : "other"}${isStriped(name) ? " striped" : ""}`;

/** Hides names that do not fit into their bars. */
export function fitNames(bars) {
  const tight = bars.map((bar) => bar.scrollWidth > bar.clientWidth);
  bars.forEach((bar, i) => bar.classList.toggle("tight", tight[i]));
}

/** Metrics with the seconds of a stage in one step. No two of them overlap. */
export const STAGES = [
  ["rollout_time_s", "rollout"],
  ["reward_time_s", "rewards"],
  ["ref_time_s", "reference"],
  ["values_time_s", "values"],
  ["forward_time_s", "forward"],
  ["backward_time_s", "backward"],
  ["optimizer_time_s", "optimizer"],
  ["value_update_time_s", "value update"],
];

/** The time in no stage. */
export const REST = "everything else";

const sum = (values) => values.reduce((a, b) => a + b, 0);

/** The seconds of a metric in bucket `i` of a series, per step of the bucket; a step without the metric counts as 0. */
export function inBucket(series, key, i) {
  const [own, all] = [series.keys[key], series.keys.step_time];
  const mean = own?.mean[i] ?? 0;
  // The mean of a bucket covers only the steps that have a value.
  return own?.count ? (mean * own.count[i]) / Math.max(1, all.count[i]) : mean;
}

/** The number of steps in bucket `i` that have a time. */
export const stepsIn = ({ keys: { step_time: all } }, i) =>
  (all?.mean[i] ?? null) === null ? 0 : (all.count?.[i] ?? 1);

/** The number of steps in bucket `i` of a trace that have the stage `name`. */
export const tracedIn = (traced, name, i) =>
  traced.keys[name].count?.[i] ?? (traced.keys[name].mean[i] === null ? 0 : 1);

/**
 * Where the learner's seconds went: stages in the order of their seconds, and the time in no stage; they sum to
 * `whole`. Taken from the sums in profile.json; without them, from the trace; if the trace has few steps, from the
 * metrics of each step. Null if nothing was measured.
 */
export function shares(profile, series, traced) {
  const measured = profile?.measured;
  if (measured?.steps) {
    const outer = measured.stages.filter((stage) => !stage.path.includes("/")).map((stage) => [stage.path, stage.seconds]);
    // Evaluations are not part of the steps' seconds.
    const whole = measured.seconds + (outer.find(([name]) => name === "evaluation")?.[1] ?? 0);
    return complete(outer, whole, measured.steps);
  }
  if (!series.keys.step_time) return null;
  const places = series.steps.map((_, i) => i).filter((i) => stepsIn(series, i));
  const steps = sum(places.map((i) => stepsIn(series, i)));
  const over = (key) => sum(places.map((i) => inBucket(series, key, i) * stepsIn(series, i)));
  if (traced && traced.beside.steps >= TRACED * steps) return ofTrace(traced);
  const known = STAGES.filter(([key]) => series.keys[key]);
  if (!known.length || !steps) return null;
  return complete(known.map(([key, name]) => [name, over(key)]), over("step_time"), steps);
}

// A trace that covers this share of the steps represents all of them.
const TRACED = 0.9;

function ofTrace(traced) {
  const all = (name) => sum(traced.steps.map((_, i) => (traced.keys[name].mean[i] ?? 0) * tracedIn(traced, name, i)));
  const { step_s: whole, ...stages } = Object.fromEntries(Object.keys(traced.keys).map((name) => [name, all(name)]));
  return complete(Object.entries(stages), whole + (stages.evaluation ?? 0), traced.beside.steps);
}

function complete(parts, seconds, steps) {
  const covered = sum(parts.map(([, x]) => x));
  // The clocks of stages and of steps differ by rounding.
  const whole = Math.max(seconds, covered);
  const all = parts.filter(([, x]) => x > 0).sort((a, b) => b[1] - a[1]);
  return { whole, steps, parts: [...all, [REST, whole - covered]] };
}
