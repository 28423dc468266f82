// The results of two runs, and their difference.
import { h, isActive, isReward, key, number, seconds } from "/lib/lib.js";

const there = (series, key) => (series.keys[key]?.mean ?? []).filter((x) => x !== null);

/** The mean over the last tenth of the points. */
function end(series, key) {
  const values = there(series, key);
  const last = values.slice(-Math.max(2, Math.ceil(values.length / 10)));
  return last.length ? last.reduce((a, b) => a + b, 0) / last.length : undefined;
}

const most = (series, key) => {
  const values = there(series, key);
  return values.length ? Math.max(...values) : undefined;
};

/** The time from the first to the last line of metrics, including stops in between. */
export function lasted({ written_s: [first, last] }) {
  return first === null ? undefined : last - first;
}

const ROWS = [
  ["reward, mean of the last tenth of the steps", (series) => end(series, "reward"), number],
  ["best eval_reward", (series) => most(series, "eval_reward"), number],
  ["loss, mean of the last tenth", (series) => (there(series, "reward").length ? undefined : end(series, "loss")), number],
  ["entropy, mean of the last tenth", (series) => end(series, "entropy"), number],
  ["kl, mean of the last tenth", (series) => end(series, "kl"), number],
  ["mean length, last tenth", (series) => end(series, "completions/mean_length"), number],
  ["seconds of a step, mean of the last tenth", (series) => end(series, "step_time"), seconds],
  ["time between the first and the last line", (series, facts) => lasted(facts), seconds],
  ["steps", (series, facts) => facts.step, number],
  ["active alarms", (series, facts) => facts.alarms.filter(isActive).length, number],
];

// Keys that name or locate a run, and do not affect training.
const OF_PLACE = ["output_dir", "run_name", "logging_dir"];
// If these keys differ, the results are not comparable.
const OF_TASK = ["reward_funcs", "reward_weights", "dataset_name", "eval_dataset_name", "model_name_or_path"];

/** The keys in which two configurations differ, as paragraphs; keys that make the results incomparable come first. */
export function differing([a, b]) {
  const all = [...new Set([...Object.keys(a.config), ...Object.keys(b.config)])].filter((key) => !OF_PLACE.includes(key));
  const differ = all.filter((key) => JSON.stringify(a.config[key]) !== JSON.stringify(b.config[key]));
  const task = OF_TASK.filter((key) => differ.includes(key));
  const names = (keys) => keys.flatMap((one, i) => [i ? ", " : "", key(one)]);
  return [
    task.length ? h("p", { class: "warn" }, "⚠ These runs differ in ", names(task), ": their results are not for the same task.") : null,
    h("p", {}, differ.length ? ["Keys that differ: ", names(differ.slice(0, 12)), differ.length > 12 ? ", …" : "", "."] : "No key differs."),
  ];
}

/** The table of two runs: the results of each, and the second minus the first. */
export function results(names, facts, series) {
  const rewards = Object.keys(series[0].keys).filter(isReward);
  const ofRewards = rewards.map((key) => [`${key}, last tenth`, (series) => end(series, key), number]);
  const all = [ROWS[0], ...(rewards.length > 1 ? ofRewards : []), ...ROWS.slice(1)];
  const rows = all.map(([name, of, text]) => [name, series.map((one, i) => of(one, facts[i])), text]);
  const sign = (x, text) => (x === 0 ? "the same" : `${x > 0 ? "+" : "−"}${text(Math.abs(x))}`);
  return h(
    "table",
    {},
    h("thead", {}, h("tr", {}, ["result", ...names, "difference"].map((name) => h("th", { scope: "col" }, name)))),
    h(
      "tbody",
      {},
      rows
        .filter(([, [a, b]]) => a !== undefined || b !== undefined)
        .map(([name, [a, b], text]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, name),
            h("td", {}, text(a)),
            h("td", {}, text(b)),
            h("td", {}, a === undefined || b === undefined ? "–" : sign(b - a, text)),
          ),
        ),
    ),
  );
}
