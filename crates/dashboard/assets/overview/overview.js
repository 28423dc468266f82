// Is it learning? Is something wrong? How long will it take?
import { POINTS, charts } from "/charts/charts.js";
import { differing, results } from "/overview/results.js";
import { sparkline } from "/lib/spark.js";
import { recorded, thenAndNow } from "/overview/then.js";
import { loadSeries } from "/lib/series.js";
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
  keepFocus,
  marked,
  number,
  percent,
  refill,
  reportLink,
  seconds,
  titleOf,
  turns,
} from "/lib/lib.js";

// Metrics in the table of two runs.
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

export async function overview(main, { run, facts, runs }) {
  const curves = charts(run);
  const say = h("section", { class: "verdict" });
  const numbers = h("section", { class: "numbers", "aria-label": "Numbers" });
  const alarms = h("section", { class: "alarms", "aria-label": "Alarms" });
  const compared = h("section", { class: "results", "aria-label": "Results of two runs" });
  const tools = h("p", { class: "tools" });
  const order = h("p", { class: "order" });
  const then = h("section", { class: "then", "aria-label": "Completions then and now" });
  main.append(say, numbers, alarms, then, tools, compared, order, ...curves.elements);
  // The steps that the section shows, and when they were loaded.
  let [told, since] = [null, 0];

  const begin = turns();
  async function draw(words, news) {
    const isLate = begin();
    facts = news ?? facts;
    const isTwo = words.vs && words.vs !== run;
    const otherFacts = isTwo ? await get(`runs/${words.vs}`) : null;
    const rewards = facts.keys.filter(isReward);
    // The query covers all steps, even while the charts show only some of them.
    const keys = [...NUMBERS.map(([key]) => key), ...RESULTS, ...rewards];
    const [series, other] = await Promise.all([
      loadSeries(run, keys, { px: POINTS }),
      otherFacts ? loadSeries(words.vs, keys, { px: POINTS }) : null,
      curves.update(words, facts, otherFacts ? { id: words.vs, facts: otherFacts } : null),
    ]);
    if (isLate()) return;
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
    // The browser remembers which alarms the reader has opened.
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
    const listed = JSON.stringify([runs.map((one) => one.id), other ? words.vs : null]);
    const controls = () => [
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
      reportLink(run, other ? words.vs : null),
    ];
    keepFocus(tools, () => refill(tools, listed, controls));
    fill(
      compared,
      other ? [differing([facts, otherFacts]), results([run, words.vs], [facts, otherFacts], [series, other])] : null,
    );
    const moved = first(facts.moved ?? []);
    fill(order, other && moved ? `${run}: ` : null, moved);
    const of = recorded([facts, otherFacts].filter(Boolean));
    const tells = JSON.stringify([words.vs, of, of ? facts.evaluated_steps : facts.group_steps]);
    // Training groups change at each step, and text from ten steps ago is just as informative.
    if (tells !== told && (of || words.vs || !told || Date.now() - since > 30000)) {
      [told, since] = [tells, Date.now()];
      const own = tells;
      thenAndNow(run, otherFacts ? words.vs : null, of)
        .then((pairs) => told === own && fill(then, pairs))
        .catch(() => told === own && (told = null));
    }
  }
  return { update: draw, end: curves.end };
}

/** One sentence: which reward moved first, and which fell. */
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
  // Groups without spread waste time, but they are not a matter of speed.
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

/** The mean reward when equal rewards raised an alarm, which shows whether all completions failed or all succeeded. */
function solved({ id, since }, series) {
  if (!["zero_variance", "entropy_collapse", "constant_reward"].includes(id)) return null;
  const at = series.steps.findLastIndex((step, i) => step <= since && (series.keys.reward?.mean[i] ?? null) !== null);
  return at < 0 ? null : ` The mean reward was ${number(series.keys.reward.mean[at])} then.`;
}

/** An expandable line: evidence, remedy, examples, and a link to the step's rollouts. */
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
