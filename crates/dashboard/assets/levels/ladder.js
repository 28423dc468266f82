// The results of measured optimization levels, as bars on one scale and as a table.
import { h, number, seconds } from "/lib/lib.js";
import { color } from "/time/stages.js";

/** The step of median duration; its stages sum to its seconds. */
const median = (steps, seconds) => [...steps].sort((a, b) => seconds(a) - seconds(b))[Math.floor((steps.length - 1) / 2)];

/** The parts of step 1 of a level that are compared, bit for bit, with step 1 of the previous level. */
const SAME = [
  ["same tokens", "same_completions"],
  ["same values", "same_values"],
  ["same weights", "same_weights"],
];

/** Everything to show, from the output lines of a job. */
export function measured(events) {
  const start = events.find((event) => event.event === "start");
  const all = (start?.levels ?? []).map((level) => ({
    ...level,
    steps: events.filter((event) => event.event === "step" && event.level === level.id),
  }));
  const rows = all.filter((level) => level.steps.length);
  const stages = start?.stages ?? [];
  rows.forEach((row, i) => {
    const whole = (step) => stages.reduce((sum, { key }) => sum + step[key], 0);
    const middle = median(row.steps, whole);
    row.stages = stages.map(({ key }) => middle[key]);
    row.step_s = whole(middle);
    row.speedup = rows[0].step_s / row.step_s;
    row.gain = i ? rows[i - 1].step_s / row.step_s : null;
    const same = (key) => (i ? row.steps[0][key] : null);
    row.same = SAME.filter(([, key]) => key in row.steps[0]).map(([name, key]) => [name, same(key)]);
  });
  const running = events.findLast((event) => event.event === "level")?.level;
  return { start, rows, running, report: events.find((event) => event.event === "end")?.report };
}

/** The named levels, one row each: contents, result, and a button that measures it. */
export function namedLevels(named, rows, canRun, run) {
  const line = ({ id, says, level }) => {
    const row = rows.findLast((row) => row.stage === id);
    const fast = row && row !== rows[0] ? `, ${number(row.speedup)} × as fast as the first level` : "";
    const upTo = row && row.id !== level ? ` (up to level ${row.name})` : "";
    return h(
      "tr",
      { "data-named": id },
      h("th", { scope: "row" }, id),
      h("td", {}, says),
      h("td", {}, row ? `${seconds(row.step_s)} per step${fast}${upTo}` : "–"),
      h(
        "td",
        {},
        h("button", { class: "one", disabled: !canRun, "aria-label": `Run ${id}`, onclick: () => run(id) }, "Run"),
      ),
    );
  };
  const head = ["level", "has", "measured", "run it"].map((name) => h("th", { scope: "col" }, name));
  return h("table", { class: "named" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, named.map(line)));
}

/** The width of the slowest level's bar, in pixels. */
const WIDTH = 150;

/** Bars on one scale; the slowest chosen level has the full width. */
export function result(stages, rows) {
  const slowest = Math.max(...rows.map((row) => row.step_s));
  const bar = (row) => {
    const wide = (s) => (WIDTH * s) / slowest;
    const from = (i) => wide(row.stages.slice(0, i).reduce((sum, s) => sum + s, 0));
    const part = (s, i) => h("rect", { class: color(stages[i].name), x: from(i), y: 1, width: wide(s), height: 12 });
    const label = `${seconds(row.step_s)} per step`;
    return h(
      "svg",
      { viewBox: `0 0 ${WIDTH} 14`, width: WIDTH, height: 14, role: "img", "aria-label": label },
      row.stages.map(part),
    );
  };
  const [low, high] = [0, 1].map((i) => {
    const all = rows.flatMap((row) => row.steps.map((step) => step.reward));
    return i ? Math.max(...all) : Math.min(...all);
  });
  const curve = (row) => {
    const at = (step, i) =>
      `${(i * 100) / Math.max(1, row.steps.length - 1)} ${22 - (20 * (step.reward - low)) / (high - low || 1)}`;
    const label = `reward ${row.steps.map((step) => number(step.reward)).join(", ")}`;
    return h(
      "svg",
      { viewBox: "-2 0 104 24", width: 104, height: 24, role: "img", "aria-label": label },
      h("title", {}, label),
      h("path", { class: "curve", d: `M ${row.steps.map(at).join(" L ")}` }),
    );
  };
  const same = (is) => (is === null ? "–" : is ? "yes" : "no");
  const sames = rows[0].same.map(([name]) => name);
  const head = ["level", "", ...stages.map(({ name }) => name), "step", "× first", "× before", ...sames, "reward"];
  return [
    h(
      "p",
      { class: "legend" },
      stages.map(({ name }) => h("span", {}, h("i", { class: color(name) }), name)),
    ),
    h("p", { class: "legend narrow" }, "The table continues to the right: scroll it."),
    // On a narrow screen the table scrolls, also with the keyboard.
    h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Measured levels" }, [
      h(
        "table",
        { class: "ladder" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            head.map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {}))),
          ),
        ),
        h(
          "tbody",
          {},
          rows.map((row) =>
            h("tr", { "data-level": row.id }, [
              h("th", { scope: "row", title: row.idea }, row.name),
              h("td", {}, bar(row)),
              row.stages.map((s) => h("td", {}, seconds(s))),
              h("td", {}, seconds(row.step_s)),
              h("td", {}, number(row.speedup)),
              h("td", {}, number(row.gain)),
              row.same.map(([, is]) => h("td", {}, same(is))),
              h("td", {}, curve(row), ` ${number(row.steps.at(-1).reward)}`),
            ]),
          ),
        ),
      ),
    ]),
    h(
      "p",
      { class: "legend" },
      `${sames.join(", ")}: step 1, compared bit for bit with step 1 of the previous level. `,
      "Where the updated weights differ by rounding, later steps may sample other tokens. ",
      "The seconds are those of the median step; × compares levels of this run.",
    ),
  ];
}
