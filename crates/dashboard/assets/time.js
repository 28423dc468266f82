// Where does the time of a step go?
import { change, fill, get, h, number, percent, seconds } from "/lib.js";
import { found, inside } from "/profile.js";
import { spans } from "/spans.js";
import { REST, STAGES, color, inBucket, shares } from "/stages.js";

export async function time(main, run, words) {
  let facts = await get(`runs/${run}`);
  const has = STAGES.filter(([key]) => facts.keys.includes(key));
  const says = h("section", { class: "verdict" });
  const stack = h("section", { class: "stack", "aria-label": "Seconds of each step by stage" });
  const deep = h("section", { class: "stack", "aria-label": "Stages inside stages" });
  const step = h("section", { class: "spans", "aria-label": "Spans of a step" });
  main.append(says, stack, deep, step);

  async function draw(words, fresh) {
    if (fresh) facts = (await get(`runs/${run}`)) ?? facts;
    fill(deep, inside(facts.profile));
    const keys = [
      ...has.map(([key]) => key),
      "step_time",
      "rollout_tokens_per_s",
      "update_tokens_per_s",
      "update_time_s",
      "reward_hidden_time_s",
    ].filter((key) => facts.keys.includes(key));
    const series = await get(`runs/${run}/series`, { keys: keys.join(","), px: 240 });
    const sums = shares(facts.profile, series);
    if (!sums || !series.keys.step_time) {
      fill(says, h("h1", {}, "No stage was measured"), h("p", {}, "The run has logged no step yet."));
      return;
    }
    const { whole, steps, parts } = sums;
    const evaluation = parts.find(([name]) => name === "evaluation")?.[1] ?? 0;
    const [first, most] = parts.find(([name]) => name !== REST) ?? parts[0];
    fill(
      says,
      h(
        "h1",
        {},
        `A step takes ${seconds((whole - evaluation) / steps)} on average; ${percent(most / whole)} of the time is ${first}.`,
      ),
      h("p", {}, pace(series, facts)),
      found(facts.profile),
    );
    const high = Math.max(...series.keys.step_time.mean.filter((x) => x !== null));
    const [wide, tall] = [Math.max(2, Math.min(14, 720 / series.steps.length)), 180];
    const chosen = series.steps.filter((at) => at <= Number(words.step ?? 1)).at(-1) ?? series.steps[0];
    const drawing = h("svg", {
      viewBox: `0 0 ${series.steps.length * wide} ${tall}`,
      width: "100%",
      height: tall,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `Steps ${series.steps[0]} to ${series.steps.at(-1)}: ${parts.map(([name, x]) => `${name} ${percent(x / whole)}`).join(", ")}`,
    });
    series.steps.forEach((at, i) => {
      let y = tall;
      const known = has.map(([key, name]) => [name, inBucket(series, key, i)]);
      const all = series.keys.step_time.mean[i] ?? 0;
      const other = Math.max(0, all - known.reduce((sum, [, x]) => sum + x, 0));
      [...known, [REST, other]].forEach(([name, took]) => {
        const size = (took / high) * tall;
        y -= size;
        drawing.append(
          h(
            "rect",
            {
              class: color(name),
              x: i * wide,
              y,
              width: wide - 0.5,
              height: Math.max(0, size),
              onclick: () => change({ step: at }),
            },
            h("title", {}, `step ${at}: ${name} ${seconds(took)} of ${seconds(all)}`),
          ),
        );
      });
      if (at === chosen)
        drawing.append(
          h("rect", { class: "here", x: i * wide, y: 0, width: wide - 0.5, height: tall, "pointer-events": "none" }),
        );
    });
    fill(
      stack,
      h("h2", {}, series.width > 1 ? `Each ${series.width} steps by stage, their mean` : "Each step by stage"),
      h("p", { class: "legend" }, `full height: ${seconds(high)}; click a step to see its spans below`),
      drawing,
      h(
        "p",
        { class: "legend ends" },
        h("span", {}, `step ${series.steps[0]}`),
        h("span", {}, `step ${series.steps.at(-1)}`),
      ),
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["stage", "per step", "share"].map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h(
          "tbody",
          {},
          parts.map(([name, took]) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, h("i", { class: color(name) }), name),
              h("td", {}, seconds(took / steps)),
              // With one decimal each, so that they sum to the whole.
              h("td", {}, `${((100 * took) / whole).toFixed(1)} %`),
            ),
          ),
        ),
      ),
    );
    await spans(step, run, facts, Number(words.step ?? 1));
  }
  await draw(words);
  return { update: draw };
}

// Tokens of all steps by the seconds of all steps, from the rates and the seconds of each.
function rate(rates, times) {
  const known = (rates?.mean ?? []).map((x, i) => [x, times?.mean[i] ?? null]).filter(([x, s]) => x !== null && s !== null);
  const all = known.reduce((sum, [, s]) => sum + s, 0);
  return all > 0 ? known.reduce((sum, [x, s]) => sum + x * s, 0) / all : undefined;
}

// How fast, and what was hidden.
function pace(series, facts) {
  const says = [];
  const total = (key) => series.steps.reduce((sum, _, i) => sum + inBucket(series, key, i), 0);
  const [hidden, whole] = [total("reward_hidden_time_s"), total("step_time")];
  if (hidden > 0.05 * whole)
    says.push(`${percent(hidden / whole)} as long again, rewards were computed behind generation.`);
  const learns = rate(series.keys.update_tokens_per_s, series.keys.update_time_s);
  const makes = rate(series.keys.rollout_tokens_per_s, series.keys.rollout_time_s);
  // With workers the learner's seconds of generation are those for which it waited.
  if (facts.keys.some((key) => key.startsWith("async/")))
    says.push("Workers generate beside the learner: its rollout is the wait for them.");
  else if (makes) says.push(`Generation makes ${number(makes)} tokens a second.`);
  if (learns) says.push(`The update learns ${number(learns)} tokens a second.`);
  return says.join(" ");
}
