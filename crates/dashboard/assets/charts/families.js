// Sections of charts by family of metric. Sections can be closed, and the browser remembers the closed ones.
import { fill, h } from "/lib/lib.js";

// The first sections, in this order. Other metrics form sections by the part of the name before "/".
const FIRST = ["reward", "rewards", "evaluation", "learning", "completions"];
const LAST = ["sampling", "async", "time", "memory", "progress"];

/** The section of a metric. */
export function familyOf(key) {
  if (key.startsWith("eval_")) return "evaluation";
  if (/^(reward$|reward_(std|p\d)|frac_reward)/.test(key)) return "reward";
  if (key.includes("/")) return key.split("/")[0];
  if (/_bytes$/.test(key)) return "memory";
  if (key === "epoch" || key === "num_tokens" || key === "time_s") return "progress";
  if (/_s$|_time$/.test(key)) return "time";
  return "learning";
}

/** The metrics as sections [name, metrics]. */
export function sections(keys) {
  const all = new Map();
  for (const key of keys) all.set(familyOf(key), [...(all.get(familyOf(key)) ?? []), key]);
  const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : LAST.includes(name) ? 99 + LAST.indexOf(name) : 50);
  return [...all].sort(([a], [b]) => place(a) - place(b) || a.localeCompare(b));
}

const closed = () => new Set(JSON.parse(localStorage.getItem("closed") ?? "[]"));

export const isClosed = (name) => closed().has(name);

/** An element for a section's charts. The section without a name is always open. */
export function family(name, onchange) {
  const charts = h("section", { class: "charts", "aria-label": name || "Main charts" });
  const count = h("small", {});
  const element = name
    ? h("details", { class: "family", open: !isClosed(name), "data-family": name }, h("summary", {}, h("h2", {}, name), count), charts)
    : charts;
  element.addEventListener("toggle", () => {
    if (element.open !== isClosed(name)) return;
    const now = closed();
    if (element.open) now.delete(name);
    else now.add(name);
    localStorage.setItem("closed", JSON.stringify([...now]));
    onchange();
  });
  /** Shows these charts (`all` is their total number), and moves only charts that are in another place. */
  element.put = (figures, all) => {
    count.textContent = ` ${all}`;
    const isSame = charts.children.length === figures.length && figures.every((one, i) => charts.children[i] === one);
    if (!isSame) fill(charts, figures);
  };
  return element;
}
