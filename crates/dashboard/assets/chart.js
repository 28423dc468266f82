// Charts: a line for each run, the band of each bucket's least and greatest value behind it, one cursor for all.
import { css, h, number } from "/lib.js";

const sync = "lockstep";

/** The colours of runs that lie over each other, and their dashes beyond the first one. */
export const COLORS = ["--run-a", "--run-b", "--r2", "--r3", "--r4", "--r1", "--bad", "--ink2"];
const DASHES = [undefined, [5, 3], [2, 2], [8, 3], [1, 3], [8, 2, 2, 2], [4, 4], [3, 1]];

/** A chart of one metric: `runs` are up to eight [{name, series}]; of one or two the first one's band is shown. */
export function chart(key, runs, { height = 150, onstep, marks = [], meaning, range } = {}) {
  const title = h("h3", meaning ? { title: meaning } : {}, key);
  const value = h("output", { class: "value" });
  const box = h("div", { class: "plot", tabindex: 0, role: "img" });
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, title, range ? h("small", {}, "one scale for all rewards") : null, value), box);
  const colors = COLORS.map(css);
  const all = runs.map(({ series }) => [series.steps, series.keys[key]?.mean ?? []]);
  const steps = [...new Set(all.flatMap(([steps]) => steps))].sort((a, b) => a - b);
  const aligned = (of, series, gaps = []) => {
    // A step that the other run alone has is no gap of this one: uPlot draws the line over what is undefined.
    // Nor is a step that has no such metric: an evaluation, a reward of which several steps learn.
    const known = new Map(series.steps.map((step, i) => [step, of?.[i] ?? (gaps.includes(i) ? null : undefined)]));
    return steps.map((step) => known.get(step));
  };
  const data = [steps];
  const lines = [{ label: "step" }];
  const bands = [];
  runs.forEach(({ name, series }, i) => {
    const own = series.keys[key];
    const line = aligned(own?.mean, series, own?.gaps);
    const known = line.filter((x) => x !== null && x !== undefined).length;
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
  const last = (i) => data[i]?.filter((x) => x !== null && x !== undefined).at(-1);
  // The lines of the runs; the band's edges lie between the first and the second one.
  const rows = lines.map((line, i) => [line.label, i]).filter(([label], i) => i && label);
  const say = (at) => {
    const isEnd = at === null || at === undefined;
    const of = ([name, i]) => `${rows.length > 2 ? `${name} ` : ""}${number(isEnd ? last(i) : data[i]?.[at])}`;
    value.textContent = `${isEnd ? "" : `step ${steps[at]}: `}${rows.map(of).join(" · ")}`;
  };
  say(null);
  const first = data[1]?.find((x) => x !== null && x !== undefined);
  box.setAttribute("aria-label", `${key}: from ${number(first)} to ${number(last(1))} in ${steps.length} points`);
  const axis = {
    stroke: css("--ink3"),
    grid: { stroke: css("--line"), width: 1 },
    ticks: { show: false },
    font: "12px 'Source Sans 3', sans-serif",
    size: 42,
  };
  let plot = null;
  const draw = () => {
    plot?.destroy();
    plot = new uPlot(
      {
        width: Math.max(200, box.clientWidth),
        height,
        scales: { x: { time: false }, ...(range ? { y: { range } } : {}) },
        axes: [
          { ...axis, size: 26 },
          { ...axis, values: (_, ticks) => ticks.map((x) => number(x, digits(ticks))) },
        ],
        series: lines,
        bands,
        legend: { show: false },
        cursor: { sync: { key: sync, setSeries: false }, y: false, drag: { x: false, y: false }, points: { size: 7 } },
        hooks: {
          setCursor: [(u) => say(u.cursor.idx)],
          draw: [
            (u) =>
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
              }),
          ],
        },
      },
      data,
      box,
    );
  };
  const move = (by) => {
    const now = plot?.cursor.idx ?? steps.length - 1;
    const next = Math.min(steps.length - 1, Math.max(0, now + by));
    plot.setCursor({ left: plot.valToPos(steps[next], "x"), top: 10 });
  };
  box.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      move(by);
      event.preventDefault();
      event.stopPropagation();
    }
    if (event.key === "Enter" && onstep && plot.cursor.idx !== null) onstep(steps[plot.cursor.idx]);
  });
  if (onstep)
    box.addEventListener(
      "click",
      () => plot?.cursor.idx !== null && plot?.cursor.idx !== undefined && onstep(steps[plot.cursor.idx]),
    );
  const watch = new ResizeObserver(() => {
    if (box.clientWidth && plot?.width !== box.clientWidth) draw();
  });
  watch.observe(box);
  if (range) figure.dataset.range = range.join(" ");
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
