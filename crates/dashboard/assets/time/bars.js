// The time of a whole step by stage, whose shares sum to 100 %, and the work in parallel with the learner.
import { h, number, percent, seconds } from "/lib/lib.js";
import { color, fitNames, inBucket, stepsIn } from "/time/stages.js";

const sum = (values) => values.reduce((a, b) => a + b, 0);

// Names that fit into a wide bar may not fit into a narrow one.
const watched = new ResizeObserver((all) => all.forEach(({ target }) => fitNames([...target.children])));

/** A bar of `parts` {name, stage, took}; `whole` seconds are the full width. */
function bar(parts, whole, label) {
  const part = ({ name, stage, took }) =>
    h(
      "div",
      {
        class: `part ${color(stage ?? name)}`,
        style: { width: `${(100 * took) / whole}%` },
        title: `${name}: ${seconds(took)} of a step`,
      },
      h("span", {}, `${name} ${seconds(took)}`),
    );
  const box = h("div", { class: "whole", role: "img", "aria-label": label }, parts.map(part));
  watched.observe(box);
  return box;
}

// A smaller share would be invisible.
const LEAST = 0.01;

/** The learner's bar, and below it, on the same scale, the bar of the work beside it, if any (`besideOf`). */
export function wholeStep({ whole, steps, parts }, all) {
  const beside = all.filter(({ took }) => took >= LEAST * (whole / steps));
  const own = parts.filter(([, took]) => took > 0).map(([name, took]) => ({ name, took: took / steps }));
  const scale = Math.max(whole / steps, sum(beside.map(({ took }) => took)));
  const withEvaluations = own.some(({ name }) => name === "evaluation") ? ", with its share of the evaluations" : "";
  const shares = parts.map(([name, took]) => `${name} ${percent(took / whole)}`).join(", ");
  const others = beside.map(({ name, took }) => `${name} ${seconds(took)}`).join(", ");
  return [
    h("h2", {}, `A whole step: ${seconds(whole / steps)}${withEvaluations}`),
    bar(own, scale, `A whole step: ${shares}`),
    beside.length
      ? [
          h(
            "p",
            { class: "legend" },
            "Work beside the learner at the same time, on the same scale:",
            beside.map((one) => h("span", {}, h("i", { class: color(one.stage) }), `${one.name} ${seconds(one.took)} per step`)),
          ),
          bar(beside, scale, `Beside the learner, per step: ${others}`),
        ]
      : null,
  ];
}

// The names of spans in other tracks of the trace.
const BESIDE = { checkpoint: "checkpoints in the background", rollout: "generation ahead" };

/** Work beside the learner, in seconds per step: rewards from their metric, the rest from the trace. */
export function besideOf(series, traced) {
  const all = sum(series.steps.map((_, i) => stepsIn(series, i)));
  const hidden = sum(series.steps.map((_, i) => inBucket(series, "reward_hidden_time_s", i) * stepsIn(series, i)));
  const rewards = { name: "rewards behind generation", stage: "rewards", took: all ? hidden / all : 0 };
  // The metric covers the rewards of all steps, the trace only those of traced steps.
  const others = Object.entries(traced?.seconds ?? {}).filter(([stage]) => stage !== "rewards");
  const spans = others.map(([stage, took]) => ({ name: BESIDE[stage] ?? stage, stage, took: took / traced.steps }));
  return [rewards, ...spans].filter(({ took }) => took > 0);
}

/** A sentence about workers; empty for a run without workers. */
export function ahead(series) {
  const mean = (key) => {
    const values = (series.keys[key]?.mean ?? []).filter((x) => x !== null);
    return values.length ? sum(values) / values.length : null;
  };
  const [wait, ready, lag] = ["async/learner_wait_s", "async/queue_complete", "async/lag_mean"].map(mean);
  const says = [];
  if (wait !== null) says.push("Workers generate while the learner trains: its rollout time is the wait for them.");
  if (ready !== null) says.push(`On average ${number(ready)} groups are complete before they are needed.`);
  if (lag !== null) says.push(`The weights that sampled a token are ${number(lag)} versions old when the token is trained on.`);
  return says.join(" ");
}
