// What two runs came to, and the difference.
import { h, isReward, number, seconds } from "/lib.js";

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

/** From the first line of metrics to the last, stops between them included. */
export function lasted({ written_s: [first, last] }) {
  return first === null ? undefined : last - first;
}

const ROWS = [
  ["reward, mean of the last tenth", (series) => end(series, "reward"), number],
  ["best eval_reward", (series) => most(series, "eval_reward"), number],
  ["loss, mean of the last tenth", (series) => (there(series, "reward").length ? undefined : end(series, "loss")), number],
  ["entropy, mean of the last tenth", (series) => end(series, "entropy"), number],
  ["kl, mean of the last tenth", (series) => end(series, "kl"), number],
  ["mean length, last tenth", (series) => end(series, "completions/mean_length"), number],
  ["a step, mean of the last tenth", (series) => end(series, "step_time"), seconds],
  ["from first to last line", (series, facts) => lasted(facts), seconds],
  ["steps", (series, facts) => facts.step, number],
  ["alarms that hold", (series, facts) => facts.alarms.filter((line) => line.alarm.until === undefined).length, number],
];

/** The table of two runs: what each came to, and the second less the first. */
export function results(names, facts, series) {
  const rewards = Object.keys(series[0].keys).filter(isReward);
  const ofRewards = rewards.map((key) => [`${key}, last tenth`, (series) => end(series, key), number]);
  const all = [ROWS[0], ...(rewards.length > 1 ? ofRewards : []), ...ROWS.slice(1)];
  const rows = all.map(([name, of, text]) => [name, series.map((one, i) => of(one, facts[i])), text]);
  const sign = (x, text) => (x === 0 ? "the same" : `${x > 0 ? "+" : "−"}${text(Math.abs(x))}`);
  return h(
    "table",
    {},
    h("thead", {}, h("tr", {}, ["", ...names, "difference"].map((name) => h("th", { scope: "col" }, name)))),
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
