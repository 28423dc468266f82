// The overlaid curves of up to eight chosen runs: the metric of each run's verdict, and its held-out values.
import { keepCharts } from "/charts/chart.js";
import { fill, get, h, titleOf, turns } from "/lib/lib.js";
import { loadSeries } from "/lib/series.js";
import { axesOf, chartTools, chosenOf, isZoomed, queryOf, zoom } from "/charts/tools.js";
import { unitOf } from "/charts/units.js";

export function overlay() {
  const figures = new Map();
  const tools = chartTools();
  const grid = h("section", { class: "charts overlaid", "aria-label": "Chosen runs" });
  const hasValue = ({ mean }) => mean.some((x) => x !== null);
  // For each run, its row in the table, and the axis metrics that it had logged at that time.
  const logged = new Map();
  const begin = turns();

  /** The axis metrics that a run has logged; requested again only after the run's row has changed. */
  async function loggedOf(one) {
    const row = JSON.stringify(one);
    if (logged.get(one.id)?.row !== row) {
      const series = await get(`runs/${one.id}/series`, { keys: "step_time,num_tokens", px: 1 });
      logged.set(one.id, { row, keys: Object.keys(series?.keys ?? {}).filter((key) => hasValue(series.keys[key])) });
    }
    return logged.get(one.id).keys;
  }

  /** `runs` are rows of the table of runs. */
  async function update(words, runs) {
    const isLate = begin();
    const keys = [...new Set(runs.flatMap(({ metric }) => [metric, `eval_${metric}`]))];
    // A run has an axis if it has logged the axis's metric.
    const axes = runs.length ? axesOf(await Promise.all(runs.map(loggedOf))) : [];
    const chosen = chosenOf(words, axes);
    const all = await Promise.all(
      runs.map(async (one) => ({
        name: titleOf(one),
        series: await loadSeries(one.id, keys, { ...queryOf(chosen), px: 500 }),
      })),
    );
    if (isLate() || all.some(({ series }) => !series)) return;
    tools.hidden = !runs.length;
    tools.update(words, axes);
    const options = (key) => ({
      ...chosen,
      height: 260,
      unit: unitOf(key),
      isZoomed,
      onzoom: (part) => zoom(part, chosen.x),
    });
    const shown = keys.filter((key) => all.some(({ series }) => hasValue(series.keys[key])));
    keepCharts(figures, shown, all, options);
    const now = shown.map((key) => figures.get(key));
    if (grid.children.length !== now.length || now.some((one, i) => grid.children[i] !== one)) fill(grid, now);
  }

  return {
    elements: [h("div", { class: "charting" }, tools), grid],
    update,
    end: () => {
      begin();
      figures.forEach((one) => one.end());
    },
  };
}
