// The spans of one step from trace.json: nested, one lane per track, and the longest spans as text.
import { change, counted, fill, get, h, number, percent, refill, seconds } from "/lib/lib.js";
import { color, fitNames, hasColor } from "/time/stages.js";

// A step with more spans shows only its longest ones.
const MOST = 600;
const LISTED = 8;
const HIGH = 22;

const watched = new ResizeObserver((all) => all.forEach(({ target }) => fitNames([...target.querySelectorAll(".part")])));

/** Spans with ends, rows and parents. A span is in the first free row, so it is below its parent. */
function placed(spans) {
  const sorted = spans
    .map((span) => ({ ...span, end_us: span.start_us + span.duration_us }))
    .sort((a, b) => a.start_us - b.start_us || b.duration_us - a.duration_us);
  const rows = [];
  for (const span of sorted) {
    // Clocks are read one after the other, so an inner span may seem to end slightly later than its outer span.
    const isFree = (last) => last.end_us <= span.start_us + 1;
    span.row = rows.findIndex(isFree);
    if (span.row < 0) span.row = rows.length;
    const parent = rows[span.row - 1];
    span.parent = parent && parent.end_us >= span.end_us - 1 ? parent : null;
    rows[span.row] = span;
  }
  return { spans: sorted, rows: rows.length };
}

/** The names from the outermost span to this one. */
const path = (span) => (span.parent ? `${path(span.parent)} › ${span.name}` : span.name);

/** The stage that determines the colour of a span; a span without a colour has that of its parent. */
const stage = (span) => (hasColor(span.name) || !span.parent ? span.name : stage(span.parent));

function lane({ spans, rows }, name, first, length) {
  const part = (span) =>
    h(
      "div",
      {
        class: `part ${color(stage(span))}`,
        style: {
          left: `${(100 * (span.start_us - first)) / length}%`,
          width: `${(100 * span.duration_us) / length}%`,
          top: `${HIGH * span.row}px`,
        },
        title: `${path(span)}: ${seconds(span.duration_us / 1e6)}${span.flops ? `, ${number(span.flops / span.duration_us / 1e3)} GFLOP/s` : ""}`,
      },
      h("span", {}, span.name),
    );
  const box = h("div", { class: "lane", style: { height: `${HIGH * rows}px` } }, spans.map(part));
  watched.observe(box);
  return [h("p", { class: "legend" }, name), box];
}

function longest(spans, first, length) {
  const head = ["span", "begins at", "takes", "share"].map((name) => h("th", { scope: "col" }, name));
  const row = (span) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("i", { class: color(stage(span)) }), path(span), span.beside ? " (beside)" : ""),
      h("td", {}, seconds((span.start_us - first) / 1e6)),
      h("td", {}, seconds(span.duration_us / 1e6)),
      h("td", {}, percent(span.duration_us / length)),
    );
  const all = spans.toSorted((a, b) => b.duration_us - a.duration_us).slice(0, LISTED);
  return h("table", { class: "longest" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, all.map(row)));
}

/** Fills the section `box` with the spans of step `at`; returns whether there are any, and are still wanted. */
export async function spans(box, run, facts, at, isLate) {
  const list = (await get(`runs/${run}/spans`, { step: at })) ?? [];
  if (isLate()) return false;
  const choose = h(
    "p",
    { class: "tools" },
    h(
      "label",
      {},
      "Step ",
      h("input", {
        type: "number",
        min: 1,
        max: facts.step,
        value: at,
        onchange: (event) => change({ step: event.target.value }),
      }),
    ),
  );
  if (!list.length) {
    const none = h("p", { class: "none" }, "trace.json has no spans of this step.");
    refill(box, `no spans of ${at}`, () => [h("h2", {}, `Spans of step ${at}`), choose, none]);
    return false;
  }
  const shown = list.toSorted((a, b) => b.duration_us - a.duration_us).slice(0, MOST);
  const first = Math.min(...shown.map((span) => span.start_us));
  const length = Math.max(...shown.map((span) => span.start_us + span.duration_us)) - first;
  const own = placed(shown.filter((span) => !span.beside));
  const tracks = [...new Set(shown.filter((span) => span.beside).map((span) => span.track))].sort((a, b) => a - b);
  const beside = tracks.map((track) => placed(shown.filter((span) => span.beside && span.track === track)));
  const nameOf = (lane) => `beside it: ${[...new Set(lane.spans.filter((span) => !span.parent).map(({ name }) => name))].join(", ")}`;
  const all = [own, ...beside].flatMap(({ spans }) => spans);
  const took = seconds(length / 1e6);
  box.shows = null;
  fill(
    box,
    h("h2", {}, `Spans of step ${at}: ${took}`),
    choose,
    h(
      "div",
      { class: "lanes", role: "img", "aria-label": `${counted(all.length, "span")} of step ${at}; the longest are listed below` },
      lane(own, "the learner", first, length),
      beside.map((one) => lane(one, nameOf(one), first, length)),
    ),
    list.length > MOST ? h("p", { class: "legend" }, `The ${MOST} longest of ${counted(list.length, "span")}.`) : null,
    h("h3", {}, "The longest spans"),
    longest(all, first, length),
  );
  return true;
}
