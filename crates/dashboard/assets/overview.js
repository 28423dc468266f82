// Is it learning? Is something wrong? How long will it take?
import { chart, sparkline } from "/chart.js";
import { address, change, counted, fill, get, h, number, seconds } from "/lib.js";

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
  "completions/mean_length",
  "completions/clipped_ratio",
  "frac_reward_zero_std",
  "grad_norm",
  "learning_rate",
  "step_time",
  "accuracy",
  "mean_token_accuracy",
  "async/lag_mean",
];
const NUMBERS = [
  ["reward", "reward"],
  ["loss", "loss"],
  ["kl", "KL"],
  ["entropy", "entropy"],
  ["completions/mean_length", "mean length"],
  ["completions/clipped_ratio", "share cut"],
  ["grad_norm", "gradient norm"],
  ["step_time", "s for a step"],
];

export async function overview(main, run, words, runs) {
  let charts = [];
  let facts = await get(`runs/${run}`);
  const say = h("section", { class: "verdict" });
  const numbers = h("section", { class: "numbers", "aria-label": "Numbers" });
  const alarms = h("section", { class: "alarms", "aria-label": "Alarms" });
  const tools = h("p", { class: "tools" });
  const grid = h("section", { class: "charts", "aria-label": "Charts" });
  main.append(say, numbers, alarms, tools, grid);

  async function draw(words, fresh) {
    if (fresh) facts = (await get(`runs/${run}`)) ?? facts;
    const keys = chosen(facts.keys);
    const all = [...new Set([...keys, ...NUMBERS.map(([key]) => key)])].filter((key) => facts.keys.includes(key));
    const query = { keys: all.join(","), px: 500 };
    const series = await get(`runs/${run}/series`, query);
    const other = words.vs && words.vs !== run ? await get(`runs/${words.vs}/series`, query) : null;
    fill(say, h("h1", {}, facts.verdict.says), h("p", {}, health(facts), " ", left(facts, series)));
    fill(
      numbers,
      ...NUMBERS.filter(([key]) => facts.keys.includes(key)).map(([key, name]) => {
        const values = series.keys[key].mean;
        return h(
          "div",
          {},
          h("span", { class: "name", title: facts.meanings?.[key] }, name),
          h("b", {}, number(values.filter((x) => x !== null).at(-1))),
          sparkline(values),
        );
      }),
    );
    // The browser keeps what the reader has opened.
    const opened = new Set([...alarms.querySelectorAll("details[open]")].map((one) => one.dataset.alarm));
    const [open, over] = [facts.alarms.filter(isOpen), facts.alarms.filter((line) => !isOpen(line))];
    const ended = over.length
      ? h(
          "details",
          { class: "ended", "data-alarm": "ended" },
          h("summary", {}, counted(over.length, "ended alarm")),
          over.map((line) => alarm(run, line, facts)),
        )
      : null;
    fill(alarms, ...open.map((line) => alarm(run, line, facts)), ended);
    alarms.querySelectorAll("details").forEach((one) => (one.open = opened.has(one.dataset.alarm)));
    fill(
      tools,
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
            .map((one) => h("option", { value: one.id, selected: one.id === words.vs }, one.id)),
        ),
      ),
      other
        ? h("span", { class: "key" }, h("i", { class: "line a" }), run, h("i", { class: "line b" }), words.vs)
        : null,
      series.width > 1
        ? h("span", {}, `A point is ${series.width} steps; the band is their least and greatest value.`)
        : null,
    );
    charts.forEach((one) => one.end());
    const marks = (facts.record?.starts ?? []).map((start) => start.step).filter((step) => step > 0);
    const both = [{ name: run, series }, ...(other ? [{ name: words.vs, series: other }] : [])];
    const onstep = facts.groups
      ? (step) => (location.hash = address(run, "rollouts", { step: nearest(step, series.width) }))
      : undefined;
    charts = keys.map((key) => chart(key, both, { onstep, marks, meaning: facts.meanings?.[key] }));
    fill(grid, ...charts);
    if (!charts.length) fill(grid, h("p", { class: "none" }, "Nothing has been logged yet."));
  }
  await draw(words, false);
  return { update: draw, end: () => charts.forEach((one) => one.end()) };
}

const nearest = (step, width) => step + (width > 1 ? Math.floor(width / 2) : 0);

function chosen(keys) {
  const rewards = keys.filter((key) => /^rewards\/.*\/mean$/.test(key));
  const known = CHARTS.filter((key) => keys.includes(key));
  const list = [...known.slice(0, 2), ...(rewards.length > 1 ? rewards : []), ...known.slice(2)];
  return list.slice(0, 12);
}

const isOpen = (line) => line.alarm.until === undefined;

const named = ({ id, subject }) => id.replaceAll("_", " ") + (subject ? ` (${subject})` : "");

function health(facts) {
  const open = facts.alarms.filter(isOpen).map((line) => line.alarm);
  const findings = facts.profile?.findings ?? [];
  const slow = findings.length ? ` Time: ${findings.map(named).join(", ")}.` : "";
  if (!open.length) return `No alarm is active.${slow}`;
  const since = open.map((one) => `${named(one)}, since step ${one.since}`).join("; ");
  return `${counted(open.length, "alarm")}: ${since}.${slow}`;
}

function left(facts, series) {
  const times = (series.keys.step_time?.mean ?? []).filter((x) => x !== null);
  const mean = times.slice(-20).reduce((a, b) => a + b, 0) / Math.min(20, times.length);
  if (facts.state !== "running")
    return facts.state === "finished"
      ? `It has ended after step ${facts.step}.`
      : `It stopped after step ${facts.step}.`;
  if (!facts.total || !times.length) return "";
  return `About ${seconds(mean * (facts.total - facts.step))} are left.`;
}

/** One line that opens: what was measured, what helps, examples, and the step's rollouts. */
function alarm(run, { alarm }, facts) {
  const open = alarm.until === undefined;
  const steps = open ? `since step ${alarm.since}` : `step ${alarm.since} – ${alarm.until}`;
  const [first, last] = facts.group_steps ?? [];
  const isRecorded = facts.groups && first <= alarm.since && alarm.since <= last;
  return h(
    "details",
    { class: open ? "alarm open" : "alarm", "data-alarm": `${alarm.id} ${alarm.subject ?? ""} ${alarm.since}` },
    h("summary", {}, open ? "⚠ " : "", h("b", {}, named(alarm)), `, ${steps}`),
    h("p", {}, `${alarm.evidence}.`),
    alarm.remedy ? h("p", {}, h("b", {}, "What helps: "), alarm.remedy) : null,
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
