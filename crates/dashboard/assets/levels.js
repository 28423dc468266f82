// What makes it fast? The same steps at levels of optimization, measured on the machine that serves this page.
import { fill, get, h, number, seconds } from "/lib.js";

/** Asks the server to change something; its answer, or an error that says why not. */
async function ask(method, body) {
  const headers = { "x-lockstep": "1", "content-type": "application/json" };
  const answer = await fetch("/api/jobs", { method, headers, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

const median = (list) => [...list].sort((a, b) => a - b)[Math.floor((list.length - 1) / 2)];

/** Everything that is shown, from the lines of a job. */
export function measured(events) {
  const start = events.find((event) => event.event === "start");
  const all = (start?.levels ?? []).map((level) => ({
    ...level,
    steps: events.filter((event) => event.event === "step" && event.level === level.id),
  }));
  const rows = all.filter((level) => level.steps.length);
  rows.forEach((row, i) => {
    row.rollout = median(row.steps.map((step) => step.rollout_s));
    row.update = median(row.steps.map((step) => step.update_s));
    row.step = median(row.steps.map((step) => step.rollout_s + step.update_s));
    row.speedup = rows[0].step / row.step;
    row.gain = i ? rows[i - 1].step / row.step : null;
    const same = (key) => (i ? row.steps.every((step) => step[key]) : null);
    [row.completions, row.weights] = [same("same_completions"), same("same_weights")];
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
      "The same GRPO steps, from the same weights and with the same noise. Each level adds one idea to the one before it.",
    ),
    form,
    says,
    table,
  );

  const chosen = new Set(state.levels.map((level) => level.id).filter((id) => id !== "bf16"));
  const shape = h(
    "select",
    { id: "shape" },
    state.shapes.map((name) => h("option", { value: name, selected: name === "tiny" }, name)),
  );
  const steps = h("input", { id: "steps", type: "number", min: 1, max: state.most_steps ?? 1, value: 10 });

  function choose() {
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
    const groups = [...new Set(state.levels.map((level) => level.stage))];
    fill(
      form,
      groups.map((stage) => [
        h("h2", {}, stage),
        h("ul", { class: "levels" }, state.levels.filter((level) => level.stage === stage).map(one)),
      ]),
      h(
        "p",
        { class: "tools" },
        h("label", { for: "shape" }, "model "),
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
      const wanted = state.levels.map((level) => level.id).filter((id) => chosen.has(id));
      state = await ask("POST", { shape: shape.value, steps: Number(steps.value), levels: wanted });
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

  /** New lines come twice a second while the job goes on. */
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
    fill(table, rows.length ? result(rows) : null);
  }

  choose();
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

/** Bars of one scale, on which the slowest level that was chosen is the whole width. */
function result(rows) {
  const slowest = Math.max(...rows.map((row) => row.step));
  const bar = (row) => {
    const wide = (s) => (240 * s) / slowest;
    return h(
      "svg",
      { viewBox: "0 0 240 14", width: 240, height: 14, role: "img", "aria-label": `${seconds(row.step)} a step` },
      h("rect", { class: "stage s0", x: 0, y: 1, width: wide(row.rollout), height: 12 }),
      h("rect", { class: "stage s1", x: wide(row.rollout), y: 1, width: wide(row.update), height: 12 }),
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
  const head = ["level", "rollout", "update", "step", "× first", "× before", "same tokens", "same weights", "reward"];
  return [
    h("p", { class: "legend" }, [
      h("span", {}, h("i", { class: "stage s0" }), "rollout"),
      h("span", {}, h("i", { class: "stage s1" }), "update"),
    ]),
    h("div", { class: "wide" }, [
      h(
        "table",
        { class: "ladder" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            [...head.slice(0, 1), "", ...head.slice(1)].map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h(
          "tbody",
          {},
          rows.map((row) =>
            h("tr", { "data-level": row.id }, [
              h("th", { scope: "row", title: row.idea }, row.name),
              h("td", {}, bar(row)),
              h("td", {}, seconds(row.rollout)),
              h("td", {}, seconds(row.update)),
              h("td", {}, seconds(row.step)),
              h("td", {}, number(row.speedup)),
              h("td", {}, number(row.gain)),
              h("td", {}, same(row.completions)),
              h("td", {}, same(row.weights)),
              h("td", {}, curve(row), ` ${number(row.steps.at(-1).reward)}`),
            ]),
          ),
        ),
      ),
    ]),
    h(
      "p",
      { class: "legend" },
      "Same tokens and same weights: compared with the level before, bit for bit, over all steps. Medians of the steps; × is a ratio of this run.",
    ),
  ];
}
