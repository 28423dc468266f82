// The stages of a step: their colours, and their shares of the learner's wall clock.

// A stage has one colour everywhere; what is none of these is grey.
const COLOR = {
  rollout: 0,
  rewards: 1,
  reference: 2,
  values: 2,
  forward: 3,
  update: 3,
  backward: 4,
  "value update": 4,
  optimizer: 5,
};
export const color = (name) => `stage ${COLOR[name] === undefined ? "other" : `s${COLOR[name]}`}`;

/** Metrics that have the seconds of a stage in one step. No two of them overlap. */
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

/** What no stage covers. */
export const REST = "everything else";

const sum = (values) => values.reduce((a, b) => a + b, 0);

/** The seconds that a metric has in bucket `i` of a series, per step of the bucket: a step without it took none. */
export function inBucket(series, key, i) {
  const [own, all] = [series.keys[key], series.keys.step_time];
  const mean = own?.mean[i] ?? 0;
  // The means of a bucket are over the steps that have a value.
  return own?.count ? (mean * own.count[i]) / Math.max(1, all.count[i]) : mean;
}

/**
 * Where the learner's seconds went: stages by their seconds, and what no stage covers; they sum to `whole`. From the sums
 * of profile.json; of a run without them, from the metrics of each step. Null if nothing was measured.
 */
export function shares(profile, series) {
  const measured = profile?.measured;
  if (measured?.steps) {
    const outer = measured.stages.filter((stage) => !stage.path.includes("/")).map((stage) => [stage.path, stage.seconds]);
    // Evaluations are no part of the steps' seconds.
    const whole = measured.seconds + (outer.find(([name]) => name === "evaluation")?.[1] ?? 0);
    return complete(outer, whole, measured.steps, [measured.first_step, measured.last_step]);
  }
  if (!series.keys.step_time) return null;
  const places = series.steps.map((_, i) => i).filter((i) => series.keys.step_time.mean[i] !== null);
  const steps = sum(places.map((i) => series.keys.step_time.count?.[i] ?? 1));
  const over = (key) => sum(places.map((i) => inBucket(series, key, i) * (series.keys.step_time.count?.[i] ?? 1)));
  const known = STAGES.filter(([key]) => series.keys[key]);
  if (!known.length || !steps) return null;
  const parts = known.map(([key, name]) => [name, over(key)]);
  return complete(parts, over("step_time"), steps, [series.steps[places[0]], series.steps[places.at(-1)]]);
}

function complete(parts, seconds, steps, [first, last]) {
  const covered = sum(parts.map(([, x]) => x));
  // Clocks of stages and of steps differ by rounding.
  const whole = Math.max(seconds, covered);
  const all = parts.filter(([, x]) => x > 0).sort((a, b) => b[1] - a[1]);
  return { whole, steps, first, last, parts: [...all, [REST, whole - covered]] };
}
