// What makes it fast? The same steps at several levels of optimization, measured on the machine that serves the page.
import { measured, namedLevels, result } from "/levels/ladder.js";
import { counted, fill, get, h, key, number, seconds } from "/lib/lib.js";

/** Sends a request that changes something; returns the response, or an error with the reason. */
async function ask(method, body) {
  const headers = { "x-lockstep": "1", "content-type": "application/json" };
  const answer = await fetch("/api/jobs", { method, headers, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// The default number of steps; steps of a preset take longer.
const STEPS = 10;
const STEPS_OF_PRESET = 1;

export async function levels(main) {
  let state = await get("jobs");
  let [events, timer, over] = [[], null, false];
  const form = h("section", { class: "form" });
  const named = h("section", { "aria-label": "Named levels" });
  const ideas = h("details", { class: "ideas" });
  const [says, table] = [h("section", {}), h("section", { class: "stack" })];
  main.append(
    h("h1", {}, "What makes it fast?"),
    h("p", {}, "The same steps, from the same weights and with the same noise, at four levels of optimization."),
    form,
    named,
    ideas,
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
  const steps = h("input", { id: "steps", type: "number", min: 1, max: state.most_steps ?? 1, value: STEPS });
  const run = h("button", { class: "run", onclick: () => start([...chosen]) });

  const ofPreset = () => state.presets.find(({ id }) => id === preset.value);
  const training = () => state.algorithms.find(({ id }) => id === algorithm.value);

  /** Selects another algorithm or preset; a preset has an algorithm, a model and levels. */
  function settings(event) {
    if (event?.target === algorithm && ofPreset()?.algorithm !== algorithm.value) preset.value = "";
    if (ofPreset()) [algorithm.value, shape.value] = [ofPreset().algorithm, ofPreset().shape];
    if (event) steps.value = ofPreset() ? STEPS_OF_PRESET : STEPS;
    const first = ofPreset()?.levels ?? training()?.levels.filter((level) => level.dtype !== "bf16").map((level) => level.id);
    chosen.clear();
    first?.forEach((id) => chosen.add(id));
    choose();
  }

  const isBusy = () => state.job?.state === "running";

  function label() {
    run.textContent = `Run ${counted(chosen.size, "level")}`;
    run.disabled = isBusy() || !state.allowed || !chosen.size;
  }

  function idea(level) {
    const box = h("input", {
      type: "checkbox",
      checked: chosen.has(level.id),
      disabled: isBusy(),
      onchange: (event) => {
        event.target.checked ? chosen.add(level.id) : chosen.delete(level.id);
        label();
      },
    });
    return h("li", {}, h("label", {}, box, h("b", {}, ` ${level.name}`)), h("span", {}, ` ${level.idea} `), key(level.code));
  }

  function choose() {
    const list = training()?.levels ?? [];
    [algorithm, preset, shape, steps].forEach((control) => (control.disabled = isBusy()));
    const groups = [...new Set(list.map((level) => level.stage))];
    fill(
      ideas,
      h("summary", {}, "The optimizations, one by one: choose which to run"),
      groups.map((stage) => [
        h("h2", {}, stage),
        h("ul", { class: "levels" }, list.filter((level) => level.stage === stage).map(idea)),
      ]),
    );
    fill(
      form,
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
        run,
        isBusy() ? h("button", { class: "stop", onclick: stop }, "Stop") : null,
        events.length ? h("button", { onclick: save }, "Save as JSON") : null,
      ),
      state.allowed ? null : notAllowed(),
      list.length ? h("p", { class: "settings" }, `${training().name}: ${(ofPreset() ?? training()).says}.`) : null,
      ofPreset() ? h("p", {}, "A step of its baseline takes many minutes, one of the others takes seconds.") : null,
    );
    label();
    const job = measured(events);
    const rows = job.start?.algorithm === algorithm.value ? job.rows : [];
    const of = training()?.named ?? [];
    // A level is measured together with the baseline, since its seconds alone mean little.
    const alone = (id) => [...new Set([of[0], of.find((one) => one.id === id)].map((one) => one.level))];
    fill(named, of.length ? namedLevels(of, rows, state.allowed && !isBusy(), (id) => start(alone(id))) : null);
  }

  async function start(ids) {
    try {
      const wanted = training()
        .levels.map((level) => level.id)
        .filter((id) => ids.includes(id));
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

  /** Loads new lines twice per second while the job runs. */
  async function follow() {
    clearTimeout(timer);
    if (over || !state.job) return;
    const { number } = state.job;
    try {
      const news = await get(`jobs/${number}`, { from: events.length });
      // Another job may have been started in the meantime.
      if (over || state.job?.number !== number) return;
      if (news) events = [...events, ...news.events];
      // A server that was started again knows no earlier job.
      if (news?.state !== state.job.state) state = await get("jobs");
      draw();
    } catch {
      // The next call asks again.
    }
    if (!over && isBusy()) timer = setTimeout(follow, 500);
  }

  function draw() {
    choose();
    const { start, rows, running, report } = measured(events);
    const job = state.job;
    const now = running ? start?.levels.find((level) => level.id === running)?.name : null;
    const done = rows.find((row) => row.id === running)?.steps.length ?? 0;
    const last = rows.at(-1);
    const sentence = {
      running: now ? `Measuring ${now}, step ${done + 1} of ${start.steps}.` : "Measuring the peak speed of this machine.",
      done: last && `A step takes ${seconds(last.step_s)}; the first level takes ${number(last.speedup)} times as long.`,
      stopped: "Stopped. The results so far are kept.",
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

  // A reopened page shows the running job, or the last one.
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

const notAllowed = () =>
  h(
    "p",
    { class: "none" },
    "This page is not allowed to start measurements. Start it with ",
    h("code", {}, "lockstep dashboard --allow-run"),
    ", or run the same measurement in a terminal with ",
    h("code", {}, "lockstep bench levels"),
    ".",
  );

const machine = (of) =>
  `${of.isa}, ${of.threads} threads, ${number(of.ceiling_flops_per_s / 1e9)} GFLOP/s, ` +
  `${number(of.ceiling_read_bytes_per_s / 1e9)} GB/s, measured before.`;
