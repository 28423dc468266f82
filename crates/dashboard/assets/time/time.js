// Where does the time of a step go?
import { ahead, besideOf, wholeStep } from "/time/bars.js";
import { fill, get, h, number, percent, refill, seconds, turns } from "/lib/lib.js";
import { found, inside } from "/time/profile.js";
import { spans } from "/time/spans.js";
import { loadSeries } from "/lib/series.js";
import { stack } from "/time/stack.js";
import { REST, STAGES, color, inBucket, shares, stepsIn } from "/time/stages.js";

// Metrics besides the stages.
const ASKED = [
  "step_time",
  "rollout_tokens_per_s",
  "update_tokens_per_s",
  "update_time_s",
  "reward_hidden_time_s",
  "async/learner_wait_s",
  "async/queue_complete",
  "async/lag_mean",
];

export async function time(main, { run, facts }) {
  const says = h("section", { class: "verdict" });
  const whole = h("section", { class: "stack", "aria-label": "A whole step by stage" });
  const sums = h("section", { class: "stack", "aria-label": "Seconds and shares" });
  const helps = h("section", { "aria-label": "Findings" });
  const steps = h("section", { class: "stack", "aria-label": "Seconds of each step by stage" });
  const step = h("section", { class: "spans", "aria-label": "Spans of a step" });
  const deep = h("section", { class: "stack", "aria-label": "Stages inside stages" });
  main.append(says, whole, h("div", { class: "side-by-side" }, sums, helps), steps, step, deep);
  // The step whose spans are shown; it stays while the run continues.
  let shown = null;

  const begin = turns();
  async function draw(words, news) {
    const isLate = begin();
    facts = news ?? facts;
    refill(deep, JSON.stringify(facts.profile), () => inside(facts) ?? []);
    const keys = [...STAGES.map(([key]) => key), ...ASKED].filter((key) => facts.keys.includes(key));
    const [series, traced] = await Promise.all([
      loadSeries(run, keys, { px: 240 }),
      get(`runs/${run}/stages`, { px: 240 }),
    ]);
    if (isLate()) return;
    const measured = shares(facts.profile, series, traced);
    if (!measured || !series.keys.step_time) {
      fill(says, h("h1", {}, "No stage was measured"), h("p", {}, "The run has logged no step yet."));
      return;
    }
    fill(says, h("h1", {}, headline(measured)), h("p", {}, pace(series)));
    fill(whole, wholeStep(measured, besideOf(series, traced?.beside)));
    fill(sums, table(measured));
    refill(helps, JSON.stringify([facts.findings, facts.profile?.measured?.steps]), () => found(facts) ?? []);
    const chosen = series.steps.filter((at) => at <= Number(words.step ?? 1)).at(-1) ?? series.steps[0];
    const hasFocus = steps.contains(document.activeElement);
    fill(steps, stack(series, traced, chosen));
    if (hasFocus) steps.querySelector("[role=slider]").focus();
    const at = Number(words.step ?? series.steps[0]);
    if (shown !== at && (await spans(step, run, facts, at, isLate))) shown = at;
  }
  return { update: draw };
}

function headline({ whole, steps, parts }) {
  const evaluation = parts.find(([name]) => name === "evaluation")?.[1] ?? 0;
  const [first, most] = parts.find(([name]) => name !== REST) ?? parts[0];
  return `A step takes ${seconds((whole - evaluation) / steps)} on average; ${percent(most / whole)} of the time is ${first}.`;
}

/** The stages in the order of their seconds, with shares that sum to the whole. */
function table({ whole, steps, parts }) {
  const head = ["stage", "per step", "share"].map((name) => h("th", { scope: "col" }, name));
  const row = ([name, took]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("i", { class: color(name) }), name),
      h("td", {}, seconds(took / steps)),
      // One decimal, so that the shares sum to the whole.
      h("td", {}, `${((100 * took) / whole).toFixed(1)} %`),
    );
  return h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, parts.map(row)));
}

// Tokens of all steps divided by the seconds of all steps, from the rates and seconds of each step.
function rate(rates, times) {
  const known = (rates?.mean ?? []).map((x, i) => [x, times?.mean[i] ?? null]).filter(([x, s]) => x !== null && s !== null);
  const all = known.reduce((sum, [, s]) => sum + s, 0);
  return all > 0 ? known.reduce((sum, [x, s]) => sum + x * s, 0) / all : undefined;
}

// Speed, and the time of rewards that was overlapped.
function pace(series) {
  const says = [];
  const total = (key) => series.steps.reduce((sum, _, i) => sum + inBucket(series, key, i) * stepsIn(series, i), 0);
  const [hidden, whole] = [total("reward_hidden_time_s"), total("step_time")];
  if (hidden > 0.05 * whole)
    says.push(`Rewards that take ${percent(hidden / whole)} of that time were computed during generation, and cost nothing.`);
  const learns = rate(series.keys.update_tokens_per_s, series.keys.update_time_s);
  const makes = rate(series.keys.rollout_tokens_per_s, series.keys.rollout_time_s);
  // With workers, the learner's generation time is the time for which it waited for them.
  const ofWorkers = ahead(series);
  if (ofWorkers) says.push(ofWorkers);
  else if (makes) says.push(`Generation produces ${number(makes)} tokens per second.`);
  if (learns) says.push(`The update processes ${number(learns)} tokens per second.`);
  return says.join(" ");
}
