// The charts of a run, or of two overlaid runs, with their shared controls.
import { keepCharts } from "/charts/chart.js";
import { family, isClosed } from "/charts/families.js";
import { address, change, fill, filterBox, h, isReward, place, refill, turns } from "/lib/lib.js";
import { legend, marksOf } from "/charts/marks.js";
import { SYSTEM, about, grouped, seriesOf, together } from "/charts/metrics.js";
import { axesOf, chartTools, chosenOf, isZoomed, queryOf, zoom } from "/charts/tools.js";

/** Maximum number of points of a chart, and of a chart in full size. */
export const [POINTS, FULL] = [500, 1500];

export function charts(run) {
  // Charts by metric. They are kept while the run trains, so that cursor and focus stay.
  const figures = new Map();
  const families = new Map();
  const tools = chartTools();
  const all = h("button", {
    onclick: () => {
      const { metrics, filter: text } = place().words;
      filter.value = "";
      change({ metrics: metrics || text ? "" : "all", filter: "" });
    },
  });
  const filter = filterBox("metrics");
  const explained = h("p", { class: "tools" });
  const grid = h("div", { class: "families" });
  const begin = turns();
  let [full, lanes] = [null, null];

  /** `other` is the run to compare with, {id, facts}, or null. */
  async function update(words, facts, other) {
    const isLate = begin();
    const both = [{ id: run, facts }, ...(other ? [other] : [])];
    const axes = axesOf(both.map(({ facts }) => facts.keys));
    const chosen = chosenOf(words, axes);
    const groups = grouped(facts.keys, words);
    const keys = groups.flatMap(([name, keys]) => (isClosed(name) ? [] : keys));
    const read = (keys, px) =>
      Promise.all(both.map(async ({ id }) => ({ name: id, series: await seriesOf(id, keys, { ...queryOf(chosen), px }) })));
    const isOne = grouped(facts.keys, { metrics: "all" }).some(([, keys]) => keys.includes(words.chart));
    const [runs, one] = await Promise.all([read(keys, POINTS), isOne ? read([words.chart], FULL) : null]);
    // A newer URL is already being drawn.
    if (isLate() || runs.some(({ series }) => !series)) return;
    const { width } = runs[0].series;
    const [marks, range] = [marksOf(facts), together(keys, runs)];
    const options = (key) => ({
      ...chosen,
      ...about(key, facts),
      isZoomed,
      range: isReward(key) ? range : undefined,
      marks,
      onzoom: (part) => zoom(part, chosen.x),
      onstep: facts.groups
        ? (step) => (location.hash = address(run, "rollouts", { step: step + (width > 1 ? Math.floor(width / 2) : 0) }))
        : undefined,
      onfull: () => change({ chart: key }),
    });
    tools.update(words, axes);
    fill(all, words.metrics || words.filter ? "The main metrics" : `All metrics (${facts.keys.length})`);
    refill(explained, JSON.stringify([other?.id, width, marks.map(({ kind }) => kind)]), () => [
      other ? h("span", { class: "key" }, h("i", { class: "line a" }), run, h("i", { class: "line b" }), other.id) : null,
      width > 1 ? h("span", {}, `Each point covers ${width} steps; the band shows their minimum and maximum.`) : null,
      legend(marks),
    ]);
    const step = [...figures.values()].map((one) => one.step()).find((step) => step !== null);
    keepCharts(figures, keys, runs, options);
    arrange(groups, words.filter);
    // The charts get their new scales in the next frame.
    if (step !== undefined) requestAnimationFrame(() => [...figures.values()][0]?.hold(step));
    if (one || full) {
      full ??= (await import("/charts/full.js")).fullWindow();
      if (isLate()) return;
      full.show(one ? words.chart : null, one, one && options(words.chart), [words, axes], (px) => read([words.chart], px));
    }
    await workers(facts);
  }

  /** Puts the charts into their sections. A chart that is already in place is not moved. */
  function arrange(groups, text) {
    for (const [name, keys] of groups) {
      if (!families.has(name)) families.set(name, family(name, () => change({})));
      families.get(name).put(isClosed(name) ? [] : keys.map((key) => figures.get(key)), keys.length);
    }
    const none = text ? `No metric's name contains “${text}”.` : "Nothing has been logged yet.";
    const shown = groups.map(([name]) => families.get(name));
    const isSame = grid.children.length === shown.length && shown.every((one, i) => grid.children[i] === one);
    if (!isSame || !shown.length) fill(grid, shown.length ? shown : h("p", { class: "none" }, none));
  }

  /** Adds the lanes of workers below the charts of the machine. */
  async function workers(facts) {
    const section = families.get(SYSTEM);
    if (!section || isClosed(SYSTEM) || !facts.workers) return;
    lanes ??= (await import("/charts/lanes.js")).lanes(run);
    if (lanes.parentElement !== section) section.append(lanes);
    await lanes.update();
  }

  return {
    elements: [
      h("h2", { class: "unseen" }, "Charts"),
      h("div", { class: "charting" }, tools, h("p", { class: "tools" }, all, filter)),
      explained,
      grid,
    ],
    update,
    end: () => {
      begin();
      figures.forEach((one) => one.end());
      full?.end();
    },
  };
}
