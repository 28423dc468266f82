// The controls of all charts in a view: the x axis and its visible part, smoothing, and the logarithmic axis. Their
// state is in the URL.
import { change, fill, h, number, place, soon } from "/lib/lib.js";

/** The validated chart settings in the URL. `part` is the visible part of the x axis; null: everything. */
export function chosenOf(words, axes) {
  const [smooth, from, to] = [Number(words.smooth), Number(words.from ?? 0), Number(words.to ?? Infinity)];
  const isPart = (words.from !== undefined || words.to !== undefined) && from >= 0 && to > from;
  return {
    smooth: smooth > 0 && smooth < 1 ? smooth : 0,
    log: words.log === "1",
    x: axes.includes(words.x) ? words.x : "step",
    part: isPart ? [from, to] : null,
  };
}

/** The parameters of a request for series, except the keys. */
export const queryOf = ({ x, part }) => ({
  x: x === "step" ? undefined : x,
  from: part?.[0],
  to: part && Number.isFinite(part[1]) ? part[1] : undefined,
});

/** The x axes that all of these runs have, given each run's metrics. */
export const axesOf = (keys) =>
  Object.entries({ minutes: "step_time", tokens: "num_tokens" })
    .filter(([, key]) => keys.every((of) => of.includes(key)))
    .map(([axis]) => axis);

/** Whether the URL has a part of the x axis; the charts may not have drawn it yet. */
export function isZoomed() {
  const { from, to } = place().words;
  return from !== undefined || to !== undefined;
}

/** Shows a part of the x axis, which is stored in the URL; null shows everything. */
export function zoom(part, x) {
  if (!part) return change({ from: "", to: "" });
  const [low, high] = part;
  // Whole steps, at least two.
  if (x === "step") return change({ from: Math.floor(low), to: Math.max(Math.floor(low) + 1, Math.ceil(high)) });
  change({ from: Number(low.toPrecision(6)), to: Number(high.toPrecision(6)) });
}

/** The controls; `update` takes the parameters in the URL and the axes of the run. */
export function chartTools() {
  const names = { step: "step", minutes: "minutes", tokens: "tokens" };
  const axis = h("select", { "aria-label": "x axis", onchange: () => change({ x: axis.value === "step" ? "" : axis.value, from: "", to: "" }) });
  const amount = h("output", {});
  const smooth = h("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    "aria-label": "Smoothing",
    title: "Exponential moving average: the weight of an earlier point, relative to the next",
    oninput: () => {
      amount.textContent = Number(smooth.value) ? smooth.value : "off";
      soon(smooth, 80, () => change({ smooth: Number(smooth.value) || "" }));
    },
  });
  const log = h("input", { type: "checkbox", onchange: () => change({ log: log.checked ? "1" : "" }) });
  const ends = ["from", "to"].map((name) =>
    h("input", { type: "number", min: 0, step: "any", "aria-label": `Charts ${name}`, placeholder: name, onchange: () => typed() }),
  );
  const typed = () => {
    const [from, to] = ends.map((input) => (input.value === "" ? null : Number(input.value)));
    if ((to ?? Infinity) > (from ?? 0)) change({ from: from ?? "", to: to ?? "" });
  };
  const unit = h("span", {});
  const whole = h("button", { onclick: () => zoom(null) }, "Whole run");
  const element = h(
    "p",
    { class: "tools" },
    h("label", {}, "x ", axis),
    h("label", { title: "Or drag the pointer over a chart; a double click shows the whole run" }, unit, ends[0], " – ", ends[1]),
    whole,
    h("label", {}, "Smoothing ", smooth, amount),
    h("label", {}, log, " log axis"),
  );
  element.update = (words, axes) => {
    const chosen = chosenOf(words, axes);
    const shown = ["step", ...axes];
    if (axis.shows !== shown.join()) {
      axis.shows = shown.join();
      fill(axis, shown.map((name) => h("option", { value: name }, names[name])));
    }
    axis.value = chosen.x;
    unit.textContent = { step: "Steps ", minutes: "Minutes ", tokens: "Tokens " }[chosen.x];
    // A focused input keeps its text.
    const put = (input, value) => document.activeElement !== input && (input.value = value);
    ends.forEach((input, i) => put(input, Number.isFinite(chosen.part?.[i]) ? `${chosen.part[i]}` : ""));
    whole.hidden = !chosen.part;
    put(smooth, chosen.smooth);
    amount.textContent = chosen.smooth ? number(chosen.smooth) : "off";
    log.checked = chosen.log;
  };
  return element;
}
