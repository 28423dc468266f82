// Selects the metrics of a run's charts and their sections, and loads their values from the server.
import { sections } from "/charts/families.js";
import { isReward } from "/lib/lib.js";
import { loadSeries } from "/lib/series.js";
import { unitOf } from "/charts/units.js";

// The main charts show the first of these metrics that the run has.
const CHARTS = [
  "reward",
  "loss",
  "eval_reward",
  "eval_loss",
  "rewards/accuracies",
  "rewards/margins",
  "kl",
  "entropy",
  // Metrics of PPO, and of workers.
  "policy/approxkl_avg",
  "policy/clipfrac_avg",
  "loss/value_avg",
  "val/explained_variance",
  "async/lag_mean",
  "completions/mean_length",
  "completions/clipped_ratio",
  "frac_reward_zero_std",
  "grad_norm",
  "learning_rate",
  "step_time",
  "accuracy",
  "mean_token_accuracy",
];
// Maximum number of main charts.
const MOST_CHARTS = 15;
/** The section for the machine's metrics. */
export const SYSTEM = "system";
// The machine's charts. The first one is computed from two metrics.
const CORES = "cores busy";
const OF_CORES = ["cpu_time_s", "step_time"];
const OF_SYSTEM = [CORES, "peak_bytes", "device/peak_bytes", "rollout_tokens_per_s", "update_tokens_per_s", "rollout_activations_share"];
// Time spent waiting for Python's lock, by all rewards or by each reward.
const LOCK = "reward_lock_wait_s";

/** The sections [name, metrics] of charts: the main metrics, or all, or those whose name contains the filter text. */
export function grouped(keys, { metrics, filter }) {
  const rewards = keys.filter(isReward);
  const known = CHARTS.filter((key) => keys.includes(key));
  const at = known.indexOf("reward") + 1;
  const main = [...known.slice(0, at), ...(rewards.length > 1 ? rewards : []), ...known.slice(at)];
  const lock = keys.includes(LOCK) ? [LOCK] : keys.filter((key) => key.endsWith("/gil_wait_s"));
  const has = (key) => keys.includes(key) || (key === CORES && OF_CORES.every((of) => keys.includes(of)));
  const system = [...OF_SYSTEM.filter(has), ...lock];
  const text = (filter ?? "").toLowerCase();
  const found = (names) => names.filter((key) => key.toLowerCase().includes(text));
  const first =
    metrics || text
      ? sections(found([...new Set([...main, ...keys])].filter((key) => !system.includes(key))))
      : [["", main.slice(0, MOST_CHARTS)]];
  return [...first, [SYSTEM, found(system)]].filter(([, keys]) => keys.length);
}

/** The values of a run for these charts; null if the run does not exist. */
export async function seriesOf(id, keys, query) {
  const series = await loadSeries(id, keys.flatMap((key) => (key === CORES ? OF_CORES : key)), query);
  if (!series || !keys.includes(CORES)) return series;
  const [busy, time] = OF_CORES.map((key) => series.keys[key].mean);
  const mean = busy.map((s, i) => (s !== null && time[i] > 0 ? s / time[i] : null));
  return { ...series, keys: { ...series.keys, [CORES]: { mean } } };
}

/** The unit and the meaning of a metric. */
export function about(key, facts) {
  if (key !== CORES) return { unit: unitOf(key, facts.units), meaning: facts.meanings?.[key] };
  const cores = facts.profile?.measured?.cores;
  return {
    unit: "cores",
    meaning: `cpu_time_s / step_time: processor seconds of all threads for each second of a step.${cores ? ` This machine has ${cores} cores.` : ""}`,
  };
}

/** One range for the charts of all rewards, so that their curves can be compared; none if one is much larger. */
export function together(keys, runs) {
  const of = (key) =>
    runs
      .flatMap(({ series }) => [series.keys[key]?.min, series.keys[key]?.max, series.keys[key]?.mean])
      .flatMap((values) => values ?? [])
      .filter((x) => x !== null);
  const rewards = keys.filter(isReward);
  const [all, sizes] = [rewards.flatMap(of), rewards.map((key) => Math.max(0, ...of(key).map(Math.abs)))];
  if (rewards.length < 2 || !all.length || Math.max(...sizes) > 5 * Math.min(...sizes)) return undefined;
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const edge = 0.05 * (high - low || 1);
  return [low - edge, high + edge];
}
