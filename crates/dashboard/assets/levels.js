// What makes it fast? The same steps at levels of optimization, measured on the machine that serves this page.
import { fill, get, h, number, seconds } from "/lib.js";

/** Asks the server to change something; its answer, or an error that says why not. */
async function ask(method, body) {
  const headers = { "x-lockstep": "1", "content-type": "application/json" };
  const answer = await fetch("/api/jobs", { method, headers, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/** The step that took as long as half of the others at most: its stages sum to its seconds. */
const median = (steps, seconds) => [...steps].sort((a, b) => seconds(a) - seconds(b))[Math.floor((steps.length - 1) / 2)];

/** What step 1 is compared in with that of the level before, bit for bit. */
const SAME = [
  ["same tokens", "same_completions"],
  ["same values", "same_values"],
  ["same weights", "same_weights"],
];

/** Everything that is shown, from the lines of a job. */
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
    row.step = whole(middle);
    row.speedup = rows[0].step / row.step;
    row.gain = i ? rows[i - 1].step / row.step : null;
    const same = (key) => (i ? row.steps[0][key] : null);
    row.same = SAME.filter(([, key]) => key in row.steps[0]).map(([name, key]) => [name, same(key)]);
  });
  const running = events.findLast((event) => event.event === "level")?.level;
  return { start, rows, running, report: events.find((event) => event.event === "end")?.report };
}

export async function levels(main) {
  let state = await get("jobs");
  let [events, timer, over] = [[], null, false];
  const [form, says, table] = [h("section", { class: "form" }), h("section", {}), h("section", { class: "stack" })];
  main.append(
    h("h1", {}, "What makes it fast?"),
    h(
      "p",
      {},
      "The same steps, from the same weights and with the same noise. Each level adds one idea to the one before it.",
    ),
    form,
    says,
    table,
  );

  const chosen = new Set();
  const algorithm = h(
    "select",
    { id: "algorithm", onchange: settings },
    state.algorithms.map(({ id, name }) => h("option", { value: id }, name)),
  );
  const preset = h(
    "select",
    { id: "preset", onchange: settings },
    h("option", { value: "" }, "small, for a first look"),
    state.presets.map(({ id, name }) => h("option", { value: id }, name)),
  );
  const shape = h(
    "select",
    { id: "shape" },
    state.shapes.map((name) => h("option", { value: name, selected: name === "tiny" }, name)),
  );
  const steps = h("input", { id: "steps", type: "number", min: 1, max: state.most_steps ?? 1, value: 10 });

  const named = () => state.presets.find(({ id }) => id === preset.value);
  const training = () => state.algorithms.find(({ id }) => id === algorithm.value);

  /** Another algorithm, or another set of hyperparameters, which has an algorithm, a model and levels of its own. */
  function settings(event) {
    if (event?.target === algorithm && named()?.algorithm !== algorithm.value) preset.value = "";
    if (named()) [algorithm.value, shape.value] = [named().algorithm, named().shape];
    const first = named()?.levels ?? training()?.levels.map((level) => level.id).filter((id) => id !== "bf16");
    chosen.clear();
    first?.forEach((id) => chosen.add(id));
    choose();
  }

  function choose() {
    const list = training()?.levels ?? [];
    [algorithm, preset, shape, steps].forEach((control) => (control.disabled = state.job?.state === "running"));
    const busy = state.job?.state === "running";
    const one = (level) =>
      h(
        "li",
        {},
        h(
          "label",
          {},
          h("input", {
            type: "checkbox",
            checked: chosen.has(level.id),
            disabled: busy,
            onchange: (event) => (event.target.checked ? chosen.add(level.id) : chosen.delete(level.id)),
          }),
          h("b", {}, ` ${level.name}`),
        ),
        h("span", {}, ` ${level.idea} `),
        h("code", {}, level.code),
      );
    const groups = [...new Set(list.map((level) => level.stage))];
    fill(
      form,
      groups.map((stage) => [
        h("h2", {}, stage),
        h("ul", { class: "levels" }, list.filter((level) => level.stage === stage).map(one)),
      ]),
      list.length ? h("p", { class: "settings" }, `${training().name}: ${(named() ?? training()).says}.`) : null,
      h(
        "p",
        { class: "tools" },
        h("label", { for: "algorithm" }, "algorithm "),
        algorithm,
        h("label", { for: "preset" }, " hyperparameters "),
        preset,
        h("label", { for: "shape" }, " model "),
        shape,
        h("label", { for: "steps" }, " steps "),
        steps,
        h("button", { class: "run", onclick: start, disabled: busy || !state.allowed }, "Run"),
        busy ? h("button", { class: "stop", onclick: stop }, "Stop") : null,
        events.length ? h("button", { onclick: save }, "Save as JSON") : null,
      ),
      state.allowed
        ? null
        : h(
            "p",
            { class: "none" },
            "This page may run nothing. ",
            h("code", {}, "lockstep dashboard --allow-run"),
            " lets it; ",
            h("code", {}, "lockstep bench levels"),
            " measures the same on the command line.",
          ),
    );
  }

  async function start() {
    try {
      const wanted = training()
        .levels.map((level) => level.id)
        .filter((id) => chosen.has(id));
      const what = { algorithm: algorithm.value, preset: preset.value || null, shape: shape.value };
      state = await ask("POST", { ...what, steps: Number(steps.value), levels: wanted });
      events = [];
      draw();
      follow();
    } catch (error) {
      fill(says, h("p", { class: "none", role: "alert" }, error.message));
    }
  }

  async function stop() {
    state = await ask("DELETE");
  }

  function save() {
    const { start, rows, report } = measured(events);
    const text = JSON.stringify({ start, rows, report }, null, 2);
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    h("a", { href: url, download: "levels.json" }).click();
    URL.revokeObjectURL(url);
  }

  /** New lines come twice a second during the job. */
  async function follow() {
    clearTimeout(timer);
    if (over || !state.job) return;
    const news = await get(`jobs/${state.job.number}`, { from: events.length });
    if (over) return;
    if (news?.events.length) events = [...events, ...news.events];
    if (news && news.state !== state.job.state) state = await get("jobs");
    if (news) draw();
    if (state.job?.state === "running") timer = setTimeout(follow, 500);
  }

  function draw() {
    choose();
    const { start, rows, running, report } = measured(events);
    const job = state.job;
    const now = running ? start?.levels.find((level) => level.id === running)?.name : null;
    const done = rows.find((row) => row.id === running)?.steps.length ?? 0;
    const last = rows.at(-1);
    const sentence = {
      running: now ? `Measuring ${now}, step ${done + 1} of ${start.steps}.` : "Measuring what this machine reaches.",
      done: last && `A step takes ${seconds(last.step)}; the first level takes ${number(last.speedup)} times as long.`,
      stopped: "Stopped. What was measured until then stays.",
      failed: `It failed: ${job?.why}`,
    };
    fill(
      says,
      job ? h("h2", { "aria-live": "polite" }, sentence[job.state]) : null,
      start ? h("p", {}, start.what, ".") : null,
      start ? h("p", {}, machine(start.machine), report ? ` ${report.notes.at(-1)}.` : "") : null,
    );
    fill(table, rows.length ? result(start.stages, rows) : null);
  }

  // A page that is opened again shows what is running, or ran.
  const asked = state.job?.asked;
  if (asked) [algorithm.value, preset.value] = [asked.algorithm ?? algorithm.value, asked.preset ?? ""];
  settings();
  if (asked) {
    [shape.value, steps.value] = [asked.shape, asked.steps];
    chosen.clear();
    asked.levels.forEach((id) => chosen.add(id));
    choose();
  }
  await follow();
  return {
    update: async () => {},
    end: () => {
      over = true;
      clearTimeout(timer);
    },
  };
}

const machine = (of) =>
  `${of.isa}, ${of.threads} threads, ${number(of.ceiling_flops_per_s / 1e9)} GFLOP/s, ` +
  `${number(of.ceiling_read_bytes_per_s / 1e9)} GB/s, measured before.`;

/** Of the bar of the slowest level, in pixels. */
const WIDTH = 150;

/** Bars of one scale, on which the slowest level that was chosen is the whole width. */
function result(stages, rows) {
  const slowest = Math.max(...rows.map((row) => row.step));
  const bar = (row) => {
    const wide = (s) => (WIDTH * s) / slowest;
    const from = (i) => wide(row.stages.slice(0, i).reduce((sum, s) => sum + s, 0));
    return h(
      "svg",
      { viewBox: `0 0 ${WIDTH} 14`, width: WIDTH, height: 14, role: "img", "aria-label": `${seconds(row.step)} a step` },
      row.stages.map((s, i) => h("rect", { class: `stage s${i}`, x: from(i), y: 1, width: wide(s), height: 12 })),
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
      stages.map(({ name }, i) => h("span", {}, h("i", { class: `stage s${i}` }), name)),
    ),
    // Beyond a narrow screen it scrolls, by keys, too.
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
              h("td", {}, seconds(row.step)),
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
      `${sames.join(", ")}: step 1 beside that of the level before, bit for bit. `,
      "Where the updated weights differ by rounding, later steps may draw other tokens. ",
      "The seconds are those of the median step; × is a ratio of this run.",
    ),
  ];
}
