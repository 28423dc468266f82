// The data of a chart: one line per run over the steps, minutes or tokens of all runs, optionally smoothed.
import { css } from "/lib/lib.js";
import { rangeOf } from "/charts/units.js";

/** The colours of runs that are drawn over each other; runs after the first also have dashes. */
export const COLORS = ["--run-a", "--run-b", "--r2", "--r3", "--r4", "--r1", "--bad", "--ink2"];
const DASHES = [undefined, [5, 3], [2, 2], [8, 3], [1, 3], [8, 2, 2, 2], [4, 4], [3, 1]];
// Lines with at least this many values have no dots.
const MOST_DOTS = 40;

export const isThere = (x) => x !== null && x !== undefined;

/**
 * The mean of the values so far, in which each earlier value counts `weight` times as much as the next (0 ≤ weight <
 * 1). The mean is divided by the sum of the weights, so that the first values are not biased towards 0 (Kingma and Ba
 * 2015, section 3).
 */
export function smoothed(values, weight) {
  let [mean, sum] = [0, 0];
  return values.map((x) => {
    if (!isThere(x)) return x;
    mean = weight * mean + (1 - weight) * x;
    sum = weight * sum + (1 - weight);
    return mean / sum;
  });
}

/** The values of a run at the positions of all runs. */
function aligned(values, series, places, gaps = []) {
  // A step that only another run has is not a gap: uPlot draws the line across undefined values. Neither is a step
  // in which this metric is not logged (an evaluation, or one of several steps on the same rewards).
  const known = new Map(placesOf(series).map((x, i) => [x, values?.[i] ?? (gaps.includes(i) ? null : undefined)]));
  return places.map((x) => known.get(x));
}

const placesOf = (series) => series.x ?? series.steps;

/**
 * The data for uPlot and its lines: `places` on the x axis with their `steps`, a line for each of `runs`, and the band
 * if there are one or two runs. `rows` are [name, line, line before smoothing].
 */
export function curve(key, runs, { smooth = 0, log = false, unit = "" } = {}) {
  const places = [...new Set(runs.flatMap(({ series }) => placesOf(series)))].sort((a, b) => a - b);
  const stepOf = new Map();
  runs.toReversed().forEach(({ series }) => placesOf(series).forEach((x, i) => stepOf.set(x, series.steps[i])));
  const [data, lines, bands, rows] = [[places], [{}], [], []];
  const raw = runs.map(({ series }) => aligned(series.keys[key]?.mean, series, places, series.keys[key]?.gaps));
  const all = raw.flat().filter(isThere);
  const isLog = log && all.some((x) => x > 0);
  const least = isLog ? Math.min(...all.filter((x) => x > 0)) : null;
  // A logarithmic axis cannot show 0.
  const drawn = (values) => (isLog ? values.map((x) => (isThere(x) && x <= 0 ? undefined : x)) : values);
  const bounded = (values) => (isLog ? values.map((x) => (isThere(x) ? Math.max(x, least) : x)) : values);
  runs.forEach(({ name, series }, i) => {
    const [color, dash] = [css(COLORS[i]), DASHES[i]];
    const points = { show: raw[i].filter(isThere).length < MOST_DOTS, size: 4, fill: color };
    const before = lines.length;
    if (smooth > 0) {
      data.push(drawn(raw[i]), drawn(smoothed(raw[i], smooth)));
      lines.push({ stroke: `${color}55`, width: 1, points: { show: false } }, { stroke: color, width: 2, dash, points });
      rows.push([name, before + 1, before]);
    } else {
      data.push(drawn(raw[i]));
      lines.push({ stroke: color, width: 1.6, dash, points });
      rows.push([name, before, null]);
    }
    const own = series.keys[key];
    if (i === 0 && own?.min && runs.length < 3) {
      bands.push({ series: [data.length, data.length + 1], fill: `${color}2e` });
      data.push(bounded(aligned(own.max, series, places)), bounded(aligned(own.min, series, places)));
      lines.push({ stroke: "transparent" }, { stroke: "transparent" });
    }
  });
  const seen = data.slice(1).flat().filter(isThere);
  return {
    places,
    steps: places.map((x) => stepOf.get(x)),
    data,
    lines,
    bands,
    rows,
    isLog,
    leftOut: isLog && all.some((x) => x <= 0),
    range: isLog ? null : rangeOf(unit, Math.min(...seen), Math.max(...seen)),
    // If the kind changes, the chart is created anew.
    kind: [isLog, unit, ...lines.map(({ points, stroke }) => `${points?.show} ${stroke}`)].join(),
  };
}

/** The position of a step on the x axis: that of the last line at or before it; none if the step is not visible. */
export function placeOf(step, { series }) {
  const at = series.steps.findLastIndex((known) => known <= step);
  if (at < 0 || step >= series.steps.at(-1) + series.width) return undefined;
  return series.x ? series.x[at] : step;
}
