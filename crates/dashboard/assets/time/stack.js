// Seconds of each step by stage, as stacked columns; one column can be selected.
import { change, h, percent, seconds } from "/lib/lib.js";
import { REST, STAGES, color, inBucket, isStriped, tracedIn } from "/time/stages.js";

const TALL = 180;
const SVG = "http://www.w3.org/2000/svg";

// Stages of the trace that metrics also measure, as a whole or in parts.
const MEASURED = [...STAGES.map(([, name]) => name), "update", "step_s"];
// Not part of a step's seconds.
const OUTSIDE = "evaluation";

/** The seconds per step of stages that only the trace has (log, record, checkpoint, …), per bucket of `series`. */
function fromTrace(series, traced) {
  const sums = series.steps.map(() => ({ steps: 0, seconds: new Map() }));
  const names = Object.keys(traced?.keys ?? {}).filter((name) => !MEASURED.includes(name));
  let i = 0;
  (traced?.steps ?? []).forEach((step, at) => {
    // A bucket of several steps is named by its first step; a logged step includes the steps since the previous one.
    const isLater = () => (series.width > 1 ? series.steps[i + 1] <= step : series.steps[i] < step);
    while (i + 1 < series.steps.length && isLater()) i++;
    const count = (name) => tracedIn(traced, name, at);
    sums[i].steps += count("step_s");
    for (const name of names)
      if (count(name)) sums[i].seconds.set(name, (sums[i].seconds.get(name) ?? 0) + traced.keys[name].mean[at] * count(name));
  });
  // The order is fixed, so that a stage has the same position in each column.
  const there = (seconds) => names.filter((name) => seconds.has(name));
  return sums.map(({ steps, seconds }) => there(seconds).map((name) => [name, seconds.get(name) / Math.max(1, steps)]));
}

/** The stages of each bucket from the bottom up: [[name, seconds]]; the last one is the time in no stage. */
function columns(series, traced) {
  const stages = STAGES.filter(([key]) => series.keys[key]);
  const others = fromTrace(series, traced);
  return series.steps.map((_, i) => {
    const known = [...stages.map(([key, name]) => [name, inBucket(series, key, i)]), ...others[i]];
    const sum = known.reduce((sum, [, x]) => sum + x, 0);
    const evaluation = others[i].find(([name]) => name === OUTSIDE)?.[1] ?? 0;
    const all = (series.keys.step_time.mean[i] ?? 0) + evaluation;
    return { all: Math.max(all, sum), parts: [...known, [REST, Math.max(0, all - sum)]] };
  });
}

/** Stripes for stages that share their colour with another; horizontal, so that they survive stretching. */
function stripes() {
  const pattern = document.createElementNS(SVG, "pattern");
  const own = { id: "stripes", width: 8, height: 6, patternUnits: "userSpaceOnUse" };
  Object.entries(own).forEach(([name, value]) => pattern.setAttribute(name, value));
  pattern.append(h("rect", { class: "stripe", width: 8, height: 2 }));
  const defs = document.createElementNS(SVG, "defs");
  defs.append(pattern);
  return defs;
}

/** The columns; arrow keys and clicks select one, whose first step is `chosen`. */
export function stack(series, traced, chosen) {
  const all = columns(series, traced);
  const high = Math.max(...all.map((column) => column.all));
  const wide = Math.max(2, Math.min(14, 720 / series.steps.length));
  const here = series.steps.indexOf(chosen);
  const go = (i) => change({ step: series.steps[Math.min(all.length - 1, Math.max(0, i))] });
  const says = ({ all, parts }) =>
    parts.filter(([, x]) => x > 0).map(([name, x]) => `${name} ${percent(x / all)}`).join(", ");
  const drawing = h("svg", {
    viewBox: `0 0 ${all.length * wide} ${TALL}`,
    width: "100%",
    height: TALL,
    preserveAspectRatio: "none",
    tabindex: 0,
    role: "slider",
    "aria-label": "Step",
    "aria-valuemin": series.steps[0],
    "aria-valuemax": series.steps.at(-1),
    "aria-valuenow": chosen,
    "aria-valuetext": `step ${chosen}: ${seconds(all[here].all)}; ${says(all[here])}`,
    onclick: (event) => {
      const box = drawing.getBoundingClientRect();
      go(Math.floor((all.length * (event.clientX - box.left)) / box.width));
    },
    onkeydown: (event) => {
      const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: all.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      go(to);
    },
  });
  drawing.append(stripes());
  all.forEach((column, i) => {
    let y = TALL;
    for (const [name, took] of column.parts) {
      const size = Math.max(0, (took / high) * TALL);
      y -= size;
      const place = { x: i * wide, y, width: wide - 0.5, height: size };
      const title = h("title", {}, `step ${series.steps[i]}: ${name} ${seconds(took)} of ${seconds(column.all)}`);
      drawing.append(h("rect", { class: color(name), ...place }, title));
      if (isStriped(name)) drawing.append(h("rect", { ...place, fill: "url(#stripes)", "pointer-events": "none" }));
    }
  });
  const edge = { class: "here", x: here * wide, y: 0, width: wide - 0.5, height: TALL, "pointer-events": "none" };
  drawing.append(h("rect", edge));
  return [
    h("h2", {}, series.width > 1 ? `Each ${series.width} steps by stage, their mean` : "Each step by stage"),
    h("p", { class: "legend" }, `Full height: ${seconds(high)}. Click a step, or move with ← and →, to see its spans.`),
    drawing,
    h(
      "p",
      { class: "legend ends" },
      h("span", {}, `step ${series.steps[0]}`),
      h("span", {}, `step ${series.steps.at(-1)}`),
    ),
  ];
}
