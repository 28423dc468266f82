// A chart of one metric: lines, bands and marks, a cursor shared by all charts, and zoom.
import { css, fill, h } from "/lib/lib.js";
import { COLORS, curve, isThere } from "/charts/curve.js";
import { drawMarks, namedAt } from "/charts/marks.js";
import { increments, rangeOf, text, ticks } from "/charts/units.js";

const sync = "lockstep";
const X = { step: "", minutes: "min", tokens: "tokens" };
// Milliseconds that a click waits for a second click, which zooms out.
const SECOND_CLICK = 250;

/**
 * A chart of the metric `key` of up to eight `runs` [{name, series}]. Options: `height`; `unit`; `meaning`; `range`
 * (shared by all rewards); `smooth`, `log`, `x`; `marks` of the first run; `onstep` (called when a step is clicked);
 * `onzoom` (from and to on the x axis; null: everything); `isZoomed`; `onfull` (opens the full-size window).
 *
 * `update` takes new data and options. It keeps the keyboard focus and the cursor.
 */
export function chart(key, runs, options = {}) {
  const { height = 150 } = options;
  const title = h("h3", options.meaning ? { title: options.meaning } : {}, key);
  const value = h("output", { class: "value" });
  const scale = h("small", {});
  const named = h("p", { class: "named", hidden: true });
  const box = h("div", { class: "plot", tabindex: 0, role: "img" });
  const full = options.onfull
    ? h("button", { class: "plain full", "aria-label": `${key} in full size`, title: "Full size, CSV, PNG", onclick: () => options.onfull() }, "⤢")
    : null;
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, title, scale, value, full), box, named);
  box.style.setProperty("height", `${height}px`);
  let now = null;
  let plot = null;

  const place = (at) => (options.x && options.x !== "step" ? text(now.places[at], X[options.x]) : `step ${now.steps[at]}`);
  // If runs have different steps, each line shows its last value up to the cursor, and no value after its end.
  const known = (line, at) => {
    const values = now.data[line];
    return now.rows.length > 1 && values.findLastIndex(isThere) >= at ? values.slice(0, at + 1).findLast(isThere) : values[at];
  };
  const last = (line) => now.data[line]?.findLast(isThere);
  const say = (at) => {
    const several = now.rows.length > 1;
    const of = ([name, line, raw], i) => {
      const [x, before] = [line, raw].map((one) => one && (isThere(at) ? known(one, at) : last(one)));
      const says = `${text(x, options.unit)}${isThere(before) ? ` (${text(before, options.unit)})` : ""}`;
      if (!several) return says;
      return [i ? " · " : "", h("i", { class: "swatch", style: { background: `var(${COLORS[i]})` } }), `${name} ${says}`];
    };
    fill(value, isThere(at) ? `${place(at)}: ` : "", now.rows.map(of));
    // Reserves as many lines as the text usually needs, so that the layout does not move with the cursor.
    value.classList.toggle("several", several);
    value.style.setProperty("--lines", Math.ceil(now.rows.length / (height > 200 ? 4 : 2)));
  };
  const point = (u) => {
    say(u.cursor.idx);
    const names = namedAt(u, options.marks ?? [], now.runs[0]);
    named.textContent = names;
    named.hidden = !names;
  };
  const label = () => {
    const [line] = now.data.slice(now.rows[0][1]);
    const ends = [line.find(isThere), line.findLast(isThere)].map((x) => text(x, options.unit));
    box.setAttribute("aria-label", `${key}: from ${ends[0]} to ${ends[1]} in ${now.places.length} points`);
    if (options.range && !now.isLog) figure.dataset.range = options.range.join(" ");
    else delete figure.dataset.range;
    const notes = [
      ["s", "bytes", "date"].includes(options.unit) ? "" : options.unit,
      options.range && !now.isLog ? "one scale for all rewards" : "",
      options.log && !now.isLog ? "not above 0: linear" : "",
      now.leftOut ? "values up to 0 are left out" : "",
      last(now.rows[0][1]) === undefined && now.rows.length < 2 ? "no value in this part" : "",
    ];
    scale.textContent = notes.filter(Boolean).join(" · ");
  };
  const take = () => {
    now = { ...curve(key, runs, options), runs };
    say(null);
    label();
  };
  take();

  const axis = (unit) => ({
    stroke: css("--ink3"),
    grid: { stroke: css("--line"), width: 1 },
    ticks: { show: false },
    font: "12px 'Source Sans 3', sans-serif",
    incrs: increments(unit),
    values: (_, all) => ticks(all.filter(isThere), unit, digits(all)),
  });
  const xRange = (u, low, high) => (low === high ? [low - 1, high + 1] : [low, high]);
  const draw = () => {
    plot?.destroy();
    const unit = options.unit;
    const range = (u, low, high) => options.range ?? (isThere(low) ? rangeOf(unit, low, high) : [0, 1]);
    const y = now.isLog ? { distr: 3, log: unit === "bytes" ? 2 : 10 } : { range };
    const narrow = !["bytes", "date", "s"].includes(unit);
    plot = new uPlot(
      {
        width: Math.max(200, box.clientWidth),
        height,
        scales: { x: { time: false, range: xRange }, y },
        axes: [
          { ...axis(X[options.x ?? "step"]), size: 26 },
          { ...axis(unit), size: narrow ? 42 : 62, ...(now.isLog ? logarithmic(unit) : {}) },
        ],
        series: now.lines,
        bands: now.bands,
        legend: { show: false },
        cursor: {
          sync: { key: sync, setSeries: false },
          y: false,
          drag: { x: Boolean(options.onzoom), y: false, setScale: false, dist: 8 },
          bind: { dblclick: () => () => zoom(null) },
          points: { size: 7 },
        },
        hooks: { setCursor: [point], draw: [(u) => drawMarks(u, options.marks ?? [], now.runs[0])], setSelect: [chosen] },
      },
      now.data,
      box,
    );
  };

  let waits = null;
  const zoom = (part) => {
    clearTimeout(waits);
    if (part || options.isZoomed?.()) options.onzoom?.(part);
  };
  /** Zooms to the selected part of the x axis. Only the chart under the pointer does so, not the others. */
  function chosen(u) {
    const { left, width } = u.select;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (!width || !u.cursor.event) return;
    zoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  }
  /** Extends the visible part of the x axis by this factor, around the cursor. */
  const stretch = (by) => {
    const { min, max } = plot.scales.x;
    const middle = isThere(plot.cursor.idx) ? now.places[plot.cursor.idx] : (min + max) / 2;
    const half = ((max - min) * by) / 2;
    if (by > 1 || now.places.length > 2) zoom([Math.max(0, middle - half), middle + half]);
  };
  const move = (by) => {
    const at = plot?.cursor.idx ?? now.places.length - 1;
    const next = Math.min(now.places.length - 1, Math.max(0, at + by));
    plot.setCursor({ left: plot.valToPos(now.places[next], "x"), top: 10 });
  };
  const keys = {
    ArrowLeft: () => move(-1),
    ArrowRight: () => move(1),
    "+": () => stretch(0.5),
    "=": () => stretch(0.5),
    "-": () => stretch(2),
    Escape: () => zoom(null),
    Enter: () => isThere(plot.cursor.idx) && options.onstep?.(now.steps[plot.cursor.idx]),
  };
  box.addEventListener("keydown", (event) => {
    const does = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
    // Escape closes the window if nothing is zoomed.
    if (!does || !plot || (event.key === "Escape" && !options.isZoomed?.())) return;
    does();
    event.preventDefault();
    event.stopPropagation();
  });
  box.addEventListener("click", (event) => {
    const at = plot?.cursor.idx;
    if (!options.onstep || !isThere(at) || event.detail > 1) return;
    const step = now.steps[at];
    waits = setTimeout(() => options.onstep?.(step), options.isZoomed?.() ? SECOND_CLICK : 0);
  });
  const watch = new ResizeObserver(() => {
    if (!box.clientWidth) return;
    if (!plot) draw();
    else if (plot.width !== box.clientWidth) plot.setSize({ width: box.clientWidth, height });
  });
  watch.observe(box);

  /** The step under the cursor. */
  figure.step = () => (isThere(plot?.cursor.idx) ? now.steps[plot.cursor.idx] : null);
  /** Puts the cursor on a step, here and in the other charts, once all of them have the data. */
  figure.hold = (step) => {
    const at = now.steps.indexOf(step);
    if (plot && at >= 0) plot.setCursor({ left: plot.valToPos(now.places[at], "x"), top: 10 });
  };
  figure.update = (newRuns, newOptions) => {
    const kind = () => [now.kind, options.x, Boolean(options.onzoom)].join();
    const before = kind();
    [runs, options] = [newRuns, { ...newOptions, height }];
    take();
    if (plot && before === kind()) plot.setData(now.data);
    else if (plot) draw();
  };
  /** The canvas on which the chart is drawn. */
  figure.canvas = () => plot?.ctx.canvas;
  figure.end = () => {
    clearTimeout(waits);
    watch.disconnect();
    plot?.destroy();
    plot = null;
  };
  return figure;
}

/** Updates the charts in `figures` (by metric), creates missing ones, and removes those that are not among `keys`. */
export function keepCharts(figures, keys, runs, options) {
  for (const key of keys) {
    if (figures.has(key)) figures.get(key).update(runs, options(key));
    else figures.set(key, chart(key, runs, options(key)));
  }
  for (const [key, one] of figures)
    if (!keys.includes(key)) {
      one.end();
      figures.delete(key);
    }
}

/** The axis of a logarithmic chart, with lines at powers of ten if there are at least two of them. */
function logarithmic(unit) {
  const isPower = (x) => x.toExponential().startsWith("1e");
  const some = (_, all) => (all.filter(isPower).length > 1 ? all.map((x) => (isPower(x) ? x : null)) : all);
  const lines = unit === "bytes" ? {} : { filter: some };
  return {
    incrs: undefined,
    grid: { stroke: css("--line"), width: 1, ...lines },
    values: (_, all) => all.map((x) => (isThere(x) ? text(x, unit) : "")),
  };
}

/** The number of digits that distinguishes neighbouring ticks. */
function digits(values) {
  const all = values.filter(isThere);
  const [most, step] = [Math.max(...all.map(Math.abs)), Math.abs(all[1] - all[0])];
  return step > 0 && most > 0 ? Math.min(7, Math.max(3, Math.ceil(Math.log10(most / step)) + 1)) : 3;
}
