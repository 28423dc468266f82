// Charts: a line for each run, the band of each bucket's least and greatest value behind it, one cursor for all.
import { css, h, number } from "/lib.js";

const sync = "lockstep";

/** The colours of runs that lie over each other, and their dashes beyond the first one. */
export const COLORS = ["--run-a", "--run-b", "--r2", "--r3", "--r4", "--r1", "--bad", "--ink2"];
const DASHES = [undefined, [5, 3], [2, 2], [8, 3], [1, 3], [8, 2, 2, 2], [4, 4], [3, 1]];

const isThere = (x) => x !== null && x !== undefined;

/** The steps of all runs, and for each run a line over them; of one or two runs the first one's band as well. */
function shape(key, runs) {
  const colors = runs.map((_, i) => css(COLORS[i]));
  const all = runs.map(({ series }) => [series.steps, series.keys[key]?.mean ?? []]);
  const steps = [...new Set(all.flatMap(([steps]) => steps))].sort((a, b) => a - b);
  const aligned = (of, series, gaps = []) => {
    // A step that the other run alone has is no gap of this one: uPlot draws the line over what is undefined.
    // A step without this metric is not a gap either: an evaluation, a reward of which several steps learn.
    const known = new Map(series.steps.map((step, i) => [step, of?.[i] ?? (gaps.includes(i) ? null : undefined)]));
    return steps.map((step) => known.get(step));
  };
  const data = [steps];
  const lines = [{ label: "step" }];
  const bands = [];
  runs.forEach(({ name, series }, i) => {
    const own = series.keys[key];
    const line = aligned(own?.mean, series, own?.gaps);
    const known = line.filter(isThere).length;
    data.push(line);
    lines.push({
      label: name,
      stroke: colors[i],
      width: 1.6,
      dash: DASHES[i],
      points: { show: known < 40, size: 4, fill: colors[i] },
    });
    if (i === 0 && own?.min && runs.length < 3) {
      data.push(aligned(own.max, series), aligned(own.min, series));
      lines.push({ stroke: "transparent" }, { stroke: "transparent" });
      bands.push({ series: [2, 3], fill: colors[0] + "2e" });
    }
  });
  const rows = lines.map((line, i) => [line.label, i]).filter(([label], i) => i && label);
  return { steps, data, lines, bands, rows, kind: lines.map(({ points }) => points?.show).join() };
}

/**
 * A chart of one metric: `runs` are up to eight [{name, series}]. Its `update` takes what has come since, and leaves the
 * keyboard's focus where it is.
 */
export function chart(key, runs, { height = 150, onstep, marks = [], meaning, range } = {}) {
  const title = h("h3", meaning ? { title: meaning } : {}, key);
  const value = h("output", { class: "value" });
  const scale = h("small", {}, range ? "one scale for all rewards" : "");
  const box = h("div", { class: "plot", tabindex: 0, role: "img" });
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, title, scale, value), box);
  let now = shape(key, runs);
  const last = (i) => now.data[i]?.filter(isThere).at(-1);
  const say = (at) => {
    const of = ([name, i]) => `${now.rows.length > 2 ? `${name} ` : ""}${number(isThere(at) ? now.data[i]?.[at] : last(i))}`;
    value.textContent = `${isThere(at) ? `step ${now.steps[at]}: ` : ""}${now.rows.map(of).join(" · ")}`;
  };
  const label = () => {
    const first = now.data[1]?.find(isThere);
    box.setAttribute("aria-label", `${key}: from ${number(first)} to ${number(last(1))} in ${now.steps.length} points`);
    if (range) figure.dataset.range = range.join(" ");
    else delete figure.dataset.range;
  };
  say(null);
  label();
  const axis = {
    stroke: css("--ink3"),
    grid: { stroke: css("--line"), width: 1 },
    ticks: { show: false },
    font: "12px 'Source Sans 3', sans-serif",
    size: 42,
  };
  const mark = (u) =>
    marks.forEach((step) => {
      const x = u.valToPos(step, "x", true);
      u.ctx.save();
      u.ctx.strokeStyle = css("--ink3");
      u.ctx.setLineDash([2, 4]);
      u.ctx.beginPath();
      u.ctx.moveTo(x, u.bbox.top);
      u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
      u.ctx.restore();
    });
  let plot = null;
  const draw = () => {
    plot?.destroy();
    plot = new uPlot(
      {
        width: Math.max(200, box.clientWidth),
        height,
        scales: { x: { time: false }, ...(range ? { y: { range: () => range } } : {}) },
        axes: [
          { ...axis, size: 26 },
          { ...axis, values: (_, ticks) => ticks.map((x) => number(x, digits(ticks))) },
        ],
        series: now.lines,
        bands: now.bands,
        legend: { show: false },
        cursor: { sync: { key: sync, setSeries: false }, y: false, drag: { x: false, y: false }, points: { size: 7 } },
        hooks: { setCursor: [(u) => say(u.cursor.idx)], draw: [mark] },
      },
      now.data,
      box,
    );
  };
  const move = (by) => {
    const at = plot?.cursor.idx ?? now.steps.length - 1;
    const next = Math.min(now.steps.length - 1, Math.max(0, at + by));
    plot.setCursor({ left: plot.valToPos(now.steps[next], "x"), top: 10 });
  };
  box.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      move(by);
      event.preventDefault();
      event.stopPropagation();
    }
    if (event.key === "Enter" && onstep && isThere(plot.cursor.idx)) onstep(now.steps[plot.cursor.idx]);
  });
  if (onstep) box.addEventListener("click", () => isThere(plot?.cursor.idx) && onstep(now.steps[plot.cursor.idx]));
  const watch = new ResizeObserver(() => {
    if (box.clientWidth && plot?.width !== box.clientWidth) draw();
  });
  watch.observe(box);
  /** The step under the cursor. */
  figure.step = () => (isThere(plot?.cursor.idx) ? now.steps[plot.cursor.idx] : null);
  /** Puts the cursor on a step, here and in the charts beside it, once all of them have what has come. */
  figure.hold = (step) => {
    if (plot && now.steps.includes(step)) plot.setCursor({ left: plot.valToPos(step, "x"), top: 10 });
  };
  figure.update = (runs, options) => {
    const [before, ranged] = [now.kind, Boolean(range)];
    now = shape(key, runs);
    [marks, range] = [options.marks ?? [], options.range];
    scale.textContent = range ? "one scale for all rewards" : "";
    if (plot && before === now.kind && ranged === Boolean(range)) plot.setData(now.data);
    else if (plot) draw();
    say(null);
    label();
  };
  figure.end = () => {
    watch.disconnect();
    plot?.destroy();
  };
  return figure;
}

/** As many digits as tell neighbouring ticks apart. */
function digits(ticks) {
  const [most, step] = [Math.max(...ticks.map(Math.abs)), Math.abs(ticks[1] - ticks[0])];
  return step > 0 && most > 0 ? Math.min(7, Math.max(3, Math.ceil(Math.log10(most / step)) + 1)) : 3;
}

/** A line without axes. */
export function sparkline(values, width = 96, height = 22) {
  const there = values.map((x, i) => [i, x]).filter(([, x]) => x !== null);
  if (there.length < 2) return null;
  const [low, high] = [Math.min(...there.map(([, x]) => x)), Math.max(...there.map(([, x]) => x))];
  const at = ([i, x]) =>
    `${(i / (values.length - 1)) * width},${height - 2 - ((x - low) / (high - low || 1)) * (height - 4)}`;
  return h(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    h("path", { d: `M${there.map(at).join("L")}`, fill: "none" }),
  );
}
