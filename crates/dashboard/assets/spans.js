// The spans of one step, from trace.json.
import { change, fill, get, h, number, seconds } from "/lib.js";
import { color } from "/stages.js";

/** Fills the section `step` with the spans of step `at`. */
export async function spans(step, run, facts, at) {
  const list = (await get(`runs/${run}/spans`, { step: at })) ?? [];
  if (!list.length)
    return fill(step, h("h2", {}, `Step ${at}`), h("p", { class: "none" }, "trace.json has no spans of this step."));
  const first = Math.min(...list.map((span) => span.start_us));
  const length = Math.max(...list.map((span) => span.start_us + span.duration_us)) - first;
  const tracks = [...new Set(list.map((span) => span.track))].sort((a, b) => a - b);
  const names = [...new Set(list.map((span) => span.name))];
  const drawing = h(
    "svg",
    {
      viewBox: `0 0 1000 ${tracks.length * 26}`,
      width: "100%",
      height: tracks.length * 26,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `${list.length} spans of step ${at}`,
    },
    list.map((span) =>
      h(
        "rect",
        {
          class: color(span.name),
          x: (1000 * (span.start_us - first)) / length,
          y: 26 * tracks.indexOf(span.track) + 2,
          width: Math.max(0.6, (1000 * span.duration_us) / length),
          height: 22,
        },
        h(
          "title",
          {},
          `${span.name}: ${seconds(span.duration_us / 1e6)}${span.flops ? `, ${number(span.flops / span.duration_us / 1e3)} GFLOP/s` : ""}`,
        ),
      ),
    ),
  );
  fill(
    step,
    h("h2", {}, `Step ${at}: ${seconds(length / 1e6)}`),
    h(
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
    ),
    drawing,
    h(
      "p",
      { class: "legend" },
      names.map((name) => h("span", {}, h("i", { class: color(name) }), name)),
    ),
  );
}
