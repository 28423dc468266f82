// Is it learning? Is something wrong? How long will it take?
import { chart, sparkline } from "/chart.js";
import { differing, results } from "/results.js";
import { thenAndNow } from "/then.js";
import {
  address,
  change,
  counted,
  fill,
  get,
  h,
  isActive,
  isOpen,
  isReward,
  marked,
  number,
  percent,
  place,
  refill,
  reportLink,
  seconds,
  titleOf,
} from "/lib.js";

// The charts of a run, of those that it has, the first ones.
const CHARTS = [
  "reward",
  "loss",
  "eval_reward",
  "eval_loss",
  "rewards/accuracies",
  "rewards/margins",
  "kl",
  "entropy",
  // PPO's own, and workers'.
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
// How many of them are shown before all are asked for.
const MOST_CHARTS = 15;
// What the table of two runs needs beside the charts.
const RESULTS = ["reward", "entropy", "eval_reward", "loss", "eval_loss", "kl", "completions/mean_length", "step_time"];
const NUMBERS = [
  ["reward", "reward"],
  ["loss", "loss"],
  ["kl", "KL"],
  ["entropy", "entropy"],
  ["completions/mean_length", "mean length"],
  ["completions/clipped_ratio", "share cut", percent],
  ["grad_norm", "gradient norm"],
  ["step_time", "last step", seconds],
];

export async function overview(main, run, words, runs) {
  // By metric; they stay while the run trains, so that the cursor and the focus do.
  let charts = new Map();
  let facts = await get(`runs/${run}`);
  const say = h("section", { class: "verdict" });
  const numbers = h("section", { class: "numbers", "aria-label": "Numbers" });
  const alarms = h("section", { class: "alarms", "aria-label": "Alarms" });
  const compared = h("section", { class: "results", "aria-label": "Results of two runs" });
  const tools = h("p", { class: "tools" });
  const order = h("p", { class: "order" });
  // The filter stays the same element, so that it keeps the cursor while the charts are drawn anew.
  const all = h("button", {
    onclick: () => {
      const { metrics, filter: text } = place().words;
      filter.value = "";
      change({ metrics: metrics || text ? "" : "all", filter: "" });
    },
  });
  const filter = h("input", {
    type: "search",
    placeholder: "Filter metrics",
    "aria-label": "Filter metrics",
    value: words.filter ?? "",
    oninput: () => {
      clearTimeout(filter.waits);
      filter.waits = setTimeout(() => change({ filter: filter.value }), 200);
    },
  });
  const search = h("p", { class: "tools" }, all, filter);
  const grid = h("section", { class: "charts", "aria-label": "Charts" });
  const then = h("section", { class: "then", "aria-label": "Completions then and now" });
  main.append(say, numbers, alarms, then, tools, compared, order, search, h("h2", { class: "unseen" }, "Charts"), grid);
  // The steps that the section shows, and when they were read.
  let [told, since] = [null, 0];

  async function draw(words, fresh) {
    if (fresh) facts = (await get(`runs/${run}`)) ?? facts;
    const keys = shown(facts.keys, words);
    const asked = [...new Set([...keys, ...NUMBERS.map(([key]) => key), ...RESULTS])];
    const query = { keys: asked.filter((key) => facts.keys.includes(key)).join(","), px: 500 };
    const series = await get(`runs/${run}/series`, query);
    const isTwo = words.vs && words.vs !== run;
    const otherFacts = isTwo ? await get(`runs/${words.vs}`) : null;
    const other = otherFacts ? await get(`runs/${words.vs}/series`, { ...query, keys: asked.join(",") }) : null;
    fill(say, h("h1", {}, facts.verdict.says), h("p", {}, health(facts), " ", left(facts, series)));
    fill(
      numbers,
      ...NUMBERS.filter(([key]) => facts.keys.includes(key)).map(([key, name, text]) => {
        const values = series.keys[key].mean;
        return h(
          "div",
          {},
          h("span", { class: "name", title: facts.meanings?.[key] }, name),
          h("b", {}, (text ?? number)(values.filter((x) => x !== null).at(-1))),
          sparkline(values),
        );
      }),
    );
    // The browser keeps what the reader has opened.
    const opened = new Set([...alarms.querySelectorAll("details[open]")].map((one) => one.dataset.alarm));
    const [open, rest] = [facts.alarms.filter(isActive), facts.alarms.filter((line) => !isActive(line))];
    const [notes, over] = [rest.filter(isOpen), rest.filter((line) => !isOpen(line))];
    const folded = (lines, name) =>
      lines.length
        ? h(
            "details",
            { class: "ended", "data-alarm": name },
            h("summary", {}, counted(lines.length, name)),
            lines.map((line) => alarm(run, line, facts, series)),
          )
        : null;
    refill(alarms, JSON.stringify(facts.alarms), () => [
      ...open.map((line) => alarm(run, line, facts, series)),
      folded(notes, "note"),
      folded(over, "ended alarm"),
    ]);
    alarms.querySelectorAll("details").forEach((one) => (one.open = opened.has(one.dataset.alarm)));
    const listed = JSON.stringify([runs.map((one) => one.id), words.vs, Boolean(other), series.width]);
    refill(tools, listed, () => [
      h(
        "label",
        {},
        "Compare with ",
        h(
          "select",
          { onchange: (event) => change({ vs: event.target.value }) },
          h("option", { value: "" }, "no other run"),
          runs
            .filter((one) => one.id !== run)
            .map((one) => h("option", { value: one.id, selected: one.id === words.vs }, titleOf(one))),
        ),
      ),
      other
        ? h("span", { class: "key" }, h("i", { class: "line a" }), run, h("i", { class: "line b" }), words.vs)
        : null,
      reportLink(run, other ? words.vs : null),
      series.width > 1
        ? h("span", {}, `A point is ${series.width} steps; the band is their least and greatest value.`)
        : null,
    ]);
    fill(
      compared,
      other ? [differing([facts, otherFacts]), results([run, words.vs], [facts, otherFacts], [series, other])] : null,
    );
    const moved = first(facts.moved ?? []);
    fill(order, other && moved ? `${run}: ` : null, moved);
    fill(all, words.metrics || words.filter ? "The main metrics" : `All metrics (${facts.keys.length})`);
    const tells = JSON.stringify([words.vs, facts.evaluated ? facts.evaluated_steps : facts.group_steps]);
    // Groups of training come with each step, and the texts of ten steps ago are as telling.
    if (tells !== told && (facts.evaluated || words.vs || !told || Date.now() - since > 30000)) {
      [told, since] = [tells, Date.now()];
      thenAndNow(run, facts, isTwo ? words.vs : null).then((pairs) => fill(then, pairs));
    }
    const marks = (facts.record?.starts ?? []).map((start) => start.step).filter((step) => step > 0);
    const both = [{ name: run, series }, ...(other ? [{ name: words.vs, series: other }] : [])];
    const onstep = facts.groups
      ? (step) => (location.hash = address(run, "rollouts", { step: nearest(step, series.width) }))
      : undefined;
    const range = together(keys.filter(isReward), both);
    const options = (key) => ({ onstep, marks, meaning: facts.meanings?.[key], range: isReward(key) ? range : undefined });
    // A click depends on these.
    const fits = [words.vs, Boolean(facts.groups), series.width].join();
    const kept = new Map();
    const step = [...charts.values()].map((one) => one.step()).find((step) => step !== null);
    for (const key of keys) {
      const one = fresh && charts.fits === fits ? charts.get(key) : null;
      one?.update(both, options(key));
      kept.set(key, one ?? chart(key, both, options(key)));
    }
    charts.forEach((one, key) => kept.get(key) !== one && one.end());
    // The charts have their new scales in the next frame.
    if (step !== undefined) requestAnimationFrame(() => [...kept.values()][0]?.hold(step));
    charts = Object.assign(kept, { fits });
    const none = words.filter ? `No metric's name contains “${words.filter}”.` : "Nothing has been logged yet.";
    const shownCharts = [...charts.values()];
    const isSame = grid.children.length === shownCharts.length && shownCharts.every((one, i) => grid.children[i] === one);
    if (!isSame || !shownCharts.length) fill(grid, shownCharts.length ? shownCharts : h("p", { class: "none" }, none));
  }
  await draw(words, false);
  return { update: draw, end: () => charts.forEach((one) => one.end()) };
}

const nearest = (step, width) => step + (width > 1 ? Math.floor(width / 2) : 0);

/** The keys of the charts: the main ones; all of them, or those whose name contains the filter's text. */
function shown(keys, words) {
  const rewards = keys.filter(isReward);
  const known = CHARTS.filter((key) => keys.includes(key));
  const at = known.indexOf("reward") + 1;
  const main = [...known.slice(0, at), ...(rewards.length > 1 ? rewards : []), ...known.slice(at)];
  if (!words.metrics && !words.filter) return main.slice(0, MOST_CHARTS);
  const text = (words.filter ?? "").toLowerCase();
  return [...new Set([...main, ...keys])].filter((key) => key.toLowerCase().includes(text));
}

/** One range for the charts of all reward functions, so that their curves can be compared; none if one is much larger. */
function together(keys, runs) {
  const of = (key) =>
    runs
      .flatMap(({ series }) => [series.keys[key]?.min, series.keys[key]?.max, series.keys[key]?.mean])
      .flatMap((values) => values ?? [])
      .filter((x) => x !== null);
  const [all, sizes] = [keys.flatMap(of), keys.map((key) => Math.max(0, ...of(key).map(Math.abs)))];
  if (keys.length < 2 || !all.length || Math.max(...sizes) > 5 * Math.min(...sizes)) return undefined;
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const edge = 0.05 * (high - low || 1);
  return [low - edge, high + edge];
}

/** Which reward moved first, and which fell, in a sentence. */
function first(moved) {
  if (moved.length < 2) return null;
  const went = ({ name, from, to, half }) =>
    `${name} ${to > from ? "rose" : "fell"} (${number(from, 2)} → ${number(to, 2)}) at step ${half}`;
  const [moves, stays] = [moved.filter((one) => one.half !== null), moved.filter((one) => one.half === null)];
  const still = stays.length
    ? ` ${stays.map((one) => one.name).join(", ")} ${stays.length > 1 ? "do" : "does"} not move by more than noise.`
    : "";
  if (!moves.length) return `Rewards:${still}`;
  return `Rewards by the step at which half of their change was reached: ${moves.map(went).join(", ")}.${still}`;
}

const named = ({ id, subject }) => id.replaceAll("_", " ") + (subject ? ` (${subject})` : "");

function health(facts) {
  const open = facts.alarms.filter(isActive).map((line) => line.alarm);
  // Groups without spread cost time, and are no question of speed.
  const findings = (facts.profile?.findings ?? []).filter((one) => one.id !== "zero_spread");
  const slow = findings.length ? ` The view Time has findings: ${findings.map(named).join(", ")}.` : "";
  if (!open.length) return `No alarm is active.${slow}`;
  const since = open.map((one) => `${named(one)}, since step ${one.since}`).join("; ");
  return `${counted(open.length, "alarm")}: ${since}.${slow}`;
}

function left(facts, series) {
  const times = (series.keys.step_time?.mean ?? []).filter((x) => x !== null);
  const mean = times.slice(-20).reduce((a, b) => a + b, 0) / Math.min(20, times.length);
  if (facts.state !== "running")
    return facts.state === "finished"
      ? `The run has ended after step ${facts.step}.`
      : `It stopped after step ${facts.step}.`;
  if (!facts.total || facts.step >= facts.total || !times.length) return "";
  return `About ${seconds(mean * (facts.total - facts.step))} are left.`;
}

/** What all completions of a group earning the same means depends on what they earn. */
function solved({ id, since }, series) {
  if (!["zero_variance", "entropy_collapse", "constant_reward"].includes(id)) return null;
  const at = series.steps.findLastIndex((step, i) => step <= since && (series.keys.reward?.mean[i] ?? null) !== null);
  return at < 0 ? null : ` The mean reward was ${number(series.keys.reward.mean[at])} then.`;
}

/** One line that opens: what was measured, what helps, examples, and the step's rollouts. */
function alarm(run, line, facts, series) {
  const { alarm, weight } = line;
  const open = alarm.until === undefined;
  const steps = open ? `since step ${alarm.since}` : `step ${alarm.since} – ${alarm.until}`;
  const [first, last] = facts.group_steps ?? [];
  const isRecorded = facts.groups && first <= alarm.since && alarm.since <= last;
  return h(
    "details",
    { class: open ? `alarm open ${weight}` : "alarm", "data-alarm": `${alarm.id} ${alarm.subject ?? ""} ${alarm.since}` },
    h("summary", {}, isActive(line) ? "⚠ " : "", h("b", {}, named(alarm)), `, ${steps}`),
    h("p", {}, marked(`${alarm.evidence}.`), solved(alarm, series)),
    alarm.remedy ? h("p", {}, h("b", {}, "What helps: "), marked(alarm.remedy)) : null,
    alarm.examples?.length
      ? h(
          "details",
          { "data-alarm": `examples ${alarm.id} ${alarm.subject ?? ""} ${alarm.since}` },
          h("summary", {}, counted(alarm.examples.length, "example")),
          alarm.examples.map((text) => h("pre", {}, typeof text === "string" ? text : JSON.stringify(text))),
        )
      : null,
    isRecorded ? h("a", { href: address(run, "rollouts", { step: alarm.since }) }, `Read step ${alarm.since}`) : null,
  );
}
