// All runs: their results, the keys in which they differ, and up to eight of their curves in one chart.
import { COLORS } from "/charts/curve.js";
import {
  address,
  change,
  counted,
  fill,
  filterBox,
  get,
  h,
  keepFocus,
  key as named,
  number,
  oneAtATime,
  place,
  titleOf,
  turns,
} from "/lib/lib.js";
import { overlay } from "/home/overlay.js";
import { sparkline } from "/lib/spark.js";

const MOST = 8;

const date = (s) => (s === null ? "–" : new Date(1000 * s).toLocaleString());
const plain = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));

// Columns: id, heading, sort key, and cell.
const COLUMNS = [
  ["run", "run", (one) => titleOf(one), (one) => link(one)],
  ["state", "state", (one) => one.state, (one) => state(one)],
  ["verdict", "verdict", (one) => one.verdict.state, (one) => one.verdict.says],
  ["curve", "", null, (one) => sparkline(one.curve) ?? ""],
  ["reached", "reached", (one) => one.reached, (one) => (one.reached === null ? "–" : `${number(one.reached)}`)],
  ["held", "held-out", (one) => one.held_out, (one) => number(one.held_out)],
  ["alarms", "alarms", (one) => one.alarms.length, (one) => alarms(one)],
  ["changed", "last line", (one) => one.changed_s, (one) => date(one.changed_s)],
];

const link = (one) => h("a", { href: address(one.id, "overview") }, titleOf(one));
const state = ({ state, step, total }) => `${state === "running" ? "● " : ""}${state}, step ${step}${total ? ` of ${total}` : ""}`;
const alarms = (one) =>
  one.alarms.length
    ? h("span", { class: "warn" }, `⚠ ${[...new Set(one.alarms)].map((id) => id.replaceAll("_", " ")).join(", ")}`)
    : "";

/** Newest first: running runs, then by the time of the last line. */
const newest = (a, b) => (b.state === "running") - (a.state === "running") || (b.changed_s ?? 0) - (a.changed_s ?? 0);

export async function home(main) {
  const curves = overlay();
  const head = h("section", { class: "verdict" });
  const filter = filterBox("runs", "Filter runs: a name, a value, or key=value");
  const tools = h("p", { class: "tools" }, filter);
  const seeds = h("section", { class: "results", "aria-label": "Runs that differ in their seed" });
  const list = h("section", { class: "runs", "aria-label": "Runs" });
  main.append(head, tools, ...curves.elements, list, seeds);

  const begin = turns();
  let drawn = null;

  async function draw(words) {
    const isLate = begin();
    const table = await get("table");
    if (isLate()) return;
    // The list is polled every five seconds. If it has not changed, it is not redrawn, so that focus and cursor stay.
    const what = JSON.stringify([table, words]);
    if (what === drawn) return;
    const { runs, keys } = table;
    const text = (words.filter ?? "").toLowerCase();
    // A filter with = is matched with KEY=VALUE, any other filter with values only.
    const ofKeys = ([key, value]) => (text.includes("=") ? `${key}=${plain(value)}` : plain(value));
    const wordsOf = (one) => [titleOf(one), one.state, one.verdict.says, ...Object.entries(one.keys).map(ofKeys)];
    const shown = runs.filter((one) => wordsOf(one).join(" ").toLowerCase().includes(text)).sort(newest);
    const [by, up] = [words.sort?.replace("-", ""), !words.sort?.startsWith("-")];
    const of = by?.startsWith("key:")
      ? (one) => one.keys[by.slice(4)]
      : COLUMNS.find(([id]) => id === by)?.[2];
    if (of) shown.sort((a, b) => compare(of(a), of(b)) * (up ? 1 : -1));
    const chosen = (words.on ?? "").split(",").filter((id) => runs.some((one) => one.id === id));
    fill(
      head,
      h("h1", {}, counted(runs.length, "run")),
      h("p", {}, says(runs), " Choose up to eight to overlay their curves."),
    );
    const heading = (id, name) =>
      h(
        "th",
        { scope: "col", "aria-sort": by === id ? (up ? "ascending" : "descending") : null },
        name
          ? h("button", { class: "plain", onclick: () => change({ sort: by === id && up ? `-${id}` : id }) }, name)
          : h("span", { class: "unseen" }, "curve"),
      );
    const wide = keys.slice(0, 8);
    const row = (one) =>
      h(
        "tr",
        { "data-run": one.id },
        h("td", {}, box(one, chosen)),
        COLUMNS.map(([id, , , cell]) => h(id === "run" ? "th" : "td", id === "run" ? { scope: "row" } : {}, cell(one))),
        wide.map((key) => h("td", {}, plain(one.keys[key]))),
      );
    keepFocus(list, () =>
      fill(
        list,
        h(
          "table",
          { class: "wide" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "col" }, h("span", { class: "unseen" }, "chosen")),
              COLUMNS.map(([id, name, sorts]) => (sorts || !name ? heading(id, name) : h("th", { scope: "col" }, name))),
              wide.map((key) => heading(`key:${key}`, named(key))),
            ),
          ),
          h("tbody", {}, shown.map(row)),
        ),
        keys.length > wide.length
          ? h("p", {}, `${counted(keys.length - wide.length, "more key")} differ; the view Run compares two runs.`)
          : null,
      ),
    );
    fill(seeds, groups(shown));
    await curves.update(words, chosen.map((id) => runs.find((one) => one.id === id)));
    if (!isLate()) drawn = what;
  }

  function box(one, chosen) {
    const is = chosen.includes(one.id);
    // Reads the URL at the time of the click, since an earlier click may not be drawn yet.
    const toggled = () => {
      const now = (place().words.on ?? "").split(",").filter(Boolean);
      return (now.includes(one.id) ? now.filter((id) => id !== one.id) : [...now, one.id]).slice(0, MOST);
    };
    return h("input", {
      type: "checkbox",
      checked: is,
      disabled: !is && chosen.length >= MOST,
      "aria-label": `Choose ${titleOf(one)}`,
      style: is ? { "accent-color": `var(${COLORS[chosen.indexOf(one.id)]})` } : {},
      onchange: () => change({ on: toggled().join(",") }),
    });
  }
  // A poll that begins before the last one has ended would make it late. After an error, the next poll tries again.
  const poll = oneAtATime(() => draw(place().words).catch(() => {}));
  const waits = setInterval(() => document.hidden || poll(), 5000);
  return {
    update: draw,
    end: () => {
      clearInterval(waits);
      curves.end();
    },
  };
}

function compare(a, b) {
  // Missing values come last in ascending order.
  if ((a ?? null) === null || (b ?? null) === null) return ((a ?? null) === null) - ((b ?? null) === null);
  return typeof a === "number" && typeof b === "number" ? a - b : plain(a).localeCompare(plain(b), "en", { numeric: true });
}

function says(runs) {
  const count = (state) => runs.filter((one) => one.state === state).length;
  const gamed = runs.filter((one) => one.verdict.state === "gamed").length;
  const parts = ["running", "finished", "stopped"].filter(count).map((state) => `${count(state)} ${state}`);
  return `${parts.join(", ")}.${gamed ? ` ${gamed} gamed.` : ""}`;
}

/** Groups of runs whose configurations differ only in the seed, with mean and spread of their results. */
function groups(runs) {
  const all = new Map();
  for (const one of runs) all.set(one.group, [...(all.get(one.group) ?? []), one]);
  const several = [...all.values()].filter((group) => group.length > 1);
  if (!several.length) return null;
  const of = (group, key) => {
    const values = group.map((one) => one[key]).filter((x) => x !== null);
    if (values.length < 2) return "–";
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const spread = Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (values.length - 1));
    return `${number(mean)} ± ${number(spread)}`;
  };
  const heads = ["runs that differ in their seed alone", "seeds", "reached", "held-out"];
  return h(
    "table",
    {},
    h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))),
    h(
      "tbody",
      {},
      several.map((group) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, group.map(titleOf).join(", ")),
          h("td", {}, group.map((one) => plain(one.keys.seed)).join(", ")),
          h("td", {}, of(group, "reached")),
          h("td", {}, of(group, "held_out")),
        ),
      ),
    ),
  );
}
