// Two completions of a group side by side: lines are aligned, and words that only one completion has are marked.
import { total } from "/reader/completion.js";
import { aligned } from "/lib/diff.js";
import { change, counted, fill, h, number } from "/lib/lib.js";
import { seen } from "/reader/spaces.js";
import { textOf, whole } from "/reader/windows.js";

// The number of rows that are shown at first.
const FIRST = 120;

/** The two completions given in the URL; by default the best and the worst one. */
export function pairOf(data, word) {
  const named = (word ?? "").split(".").map(Number);
  const isThere = (n) => Number.isInteger(n) && n >= 0 && n < data.completions.length;
  if (named.length === 2 && named.every(isThere)) return named;
  const totals = data.completions.map((one) => total(one, data) ?? NaN);
  const of = (pick) => totals.indexOf(pick(...totals.filter(Number.isFinite)));
  const [best, worst] = [of(Math.max), of(Math.min)];
  return best >= 0 && best !== worst ? [best, worst] : [0, Math.min(1, data.completions.length - 1)];
}

export function pair(run, data, words) {
  const numbers = pairOf(data, words.pair);
  const rows = h("div", { class: "rows" }, h("p", { class: "none" }, "Loading both completions."));
  const choice = (side) => {
    const pick = (event) => change({ pair: numbers.with(side, Number(event.target.value)).join(".") });
    const name = (one) => `${one.number + 1}: reward ${number(total(one, data))}, ${counted(one.length, "token")}`;
    return h(
      "label",
      {},
      side ? "Right " : "Left ",
      h(
        "select",
        { onchange: pick },
        data.completions.map((one) =>
          h("option", { value: one.number, selected: one.number === numbers[side] }, name(one)),
        ),
      ),
    );
  };
  compare(run, data, numbers, words, rows);
  return h(
    "section",
    { class: "aligned", "aria-label": "Two completions side by side" },
    h("p", { class: "choices" }, choice(0), choice(1)),
    rows,
  );
}

async function compare(run, data, numbers, words, box) {
  const [left, right] = await Promise.all(numbers.map((n) => whole(run, data, data.completions[n])));
  const all = aligned(textOf(left), textOf(right));
  const marked = (pieces) =>
    pieces.map(([text, isDifferent]) => {
      const nodes = seen(text, Boolean(words.spaces));
      return isDifferent ? h("mark", {}, nodes) : nodes;
    });
  const row = ({ same, left, right }) =>
    h(
      "div",
      { class: same ? "row same" : "row" },
      h("div", { class: "text" }, marked(left)),
      h("div", { class: "text" }, marked(right)),
    );
  const rest = all.slice(FIRST);
  const more = h(
    "button",
    { class: "more", onclick: () => more.replaceWith(...rest.map(row)) },
    `… ${counted(rest.length, "more row")}`,
  );
  const same = all.every((one) => one.same);
  fill(
    box,
    same ? h("p", { class: "none" }, "Both have the same text.") : null,
    all.slice(0, FIRST).map(row),
    rest.length ? more : null,
  );
}
