// Units of metrics: the tick labels of an axis, and its range.
import { number } from "/lib/lib.js";

// Units by the ending of a name, for the user's own metrics, which are not in the program's table.
const ENDINGS = [
  [/_bytes$/, "bytes"],
  [/tokens_per_s$/, "tokens/s"],
  [/_s$|_time$|_runtime$/, "s"],
  [/_ratio$|_share$|_accuracy$/, "share"],
  [/_tokens$|_length$/, "tokens"],
];
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

/** The unit of a metric's values; `known` has the units of the program's table. "date" means seconds since 1970. */
export function unitOf(key, known = {}) {
  if (key === "time_s") return "date";
  return known[key] ?? ENDINGS.find(([ending]) => ending.test(key))?.[1] ?? "";
}

/** The tick labels of an axis, all in the same unit. */
export function ticks(values, unit, digits = 3) {
  const most = Math.max(...values.map(Math.abs));
  if (unit === "date") {
    const apart = Math.abs(values.at(-1) - values[0]) > 86400;
    return values.map((s) => new Date(1000 * s)[apart ? "toLocaleDateString" : "toLocaleTimeString"]());
  }
  if (unit === "bytes") {
    const power = most > 0 ? Math.min(BYTES.length - 1, Math.max(0, Math.floor(Math.log2(most) / 10))) : 0;
    return values.map((x) => `${number(x / 1024 ** power, digits)} ${BYTES[power]}`);
  }
  if (unit === "s") return values.map((x) => (most < 1 ? `${number(1000 * x, digits)} ms` : `${number(x, digits)} s`));
  if (unit === "min") return values.map((x) => `${number(x, digits)} min`);
  if (unit === "tokens" && most >= 1e4) {
    const [size, name] = most >= 1e9 ? [1e9, "G"] : most >= 1e6 ? [1e6, "M"] : [1e3, "k"];
    return values.map((x) => (x === 0 ? "0" : `${number(x / size, digits)} ${name}`));
  }
  return values.map((x) => number(x, digits));
}

/** Formats a value, with its unit if numbers in this unit are shown with one. */
export const text = (x, unit) => (x === null || x === undefined || Number.isNaN(x) ? "–" : ticks([x], unit)[0]);

/** Intervals between ticks that are round numbers in the unit. */
export function increments(unit) {
  if (unit === "bytes") return Array.from({ length: 50 }, (_, power) => 2 ** power);
  if (unit === "date") return [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
  return undefined;
}

// The fraction of its length by which an axis extends beyond its values, so that a line at the limit is fully visible.
const EDGE = 0.04;

/** The range of an axis. A constant is not drawn at an edge, and shares stay between 0 and 1. */
export function rangeOf(unit, low, high) {
  if (!Number.isFinite(low)) return [0, 1];
  const isShare = unit === "share" && low >= 0 && high <= 1;
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) {
    if (isShare) return [-EDGE, 1 + EDGE];
    if (unit === "date") return [low - 60, high + 60];
    if (low === 0) return unit ? [-EDGE, 1] : [-1, 1];
    return [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  }
  const [size, edge] = [high - low, 0.07 * (high - low)];
  return [
    low >= 0 ? Math.max(-EDGE * size, low - edge) : low - edge,
    isShare ? Math.min(1 + EDGE * size, high + edge) : high <= 0 ? Math.min(EDGE * size, high + edge) : high + edge,
  ];
}
