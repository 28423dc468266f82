// Where does the time of a step go?
import { change, fill, get, h, marked, number, percent, seconds } from "/lib.js";

const STAGES = [
  ["rollout_time_s", "rollout"],
  ["reward_time_s", "rewards"],
  ["ref_time_s", "reference"],
  ["forward_time_s", "forward"],
  ["backward_time_s", "backward"],
  ["optimizer_time_s", "optimizer"],
];

// A stage has one colour everywhere; what is none of these is grey.
const COLOR = { rollout: 0, rewards: 1, reference: 2, forward: 3, update: 3, backward: 4, optimizer: 5 };
const color = (name) => `stage ${COLOR[name] === undefined ? "other" : `s${COLOR[name]}`}`;

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
      "peak_bytes",
    ].filter((key) => facts.keys.includes(key));
    const series = await get(`runs/${run}/series`, { keys: keys.join(","), px: 240 });
    const mean = (key) => average(series.keys[key]?.mean);
    const whole = mean("step_time");
    const parts = has.map(([key, name]) => [name, mean(key)]).sort((a, b) => b[1] - a[1]);
    if (!parts.length || !whole) {
      fill(
        says,
        h("h1", {}, "No stage was measured"),
        h("p", {}, "Runs of sft, dpo and reward models log the time of a step alone."),
      );
      return;
    }
    const rest = whole - parts.reduce((sum, [, x]) => sum + x, 0);
    fill(
      says,
      h(
        "h1",
        {},
        `A step takes ${seconds(whole)} on average; ${percent(parts[0][1] / whole)} of it is ${parts[0][0]}.`,
      ),
      h(
        "p",
        {},
        pace(whole, mean, [
          rate(series.keys.rollout_tokens_per_s, series.keys.rollout_time_s),
          rate(series.keys.update_tokens_per_s, series.keys.update_time_s),
        ]),
      ),
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
      "aria-label": `Steps ${series.steps[0]} to ${series.steps.at(-1)}: ${parts.map(([name, x]) => `${name} ${seconds(x)}`).join(", ")}`,
    });
    series.steps.forEach((at, i) => {
      let y = tall;
      const known = has.map(([key, name]) => [name, series.keys[key].mean[i] ?? 0]);
      const all = series.keys.step_time.mean[i] ?? 0;
      const other = Math.max(0, all - known.reduce((sum, [, x]) => sum + x, 0));
      [...known, ["everything else", other]].forEach(([name, took]) => {
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
            ["stage", "mean", "share"].map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h(
          "tbody",
          {},
          [...parts, ["everything else", Math.max(0, rest)]].map(([name, took]) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, h("i", { class: color(name) }), name),
              h("td", {}, seconds(took)),
              h("td", {}, percent(took / whole)),
            ),
          ),
        ),
      ),
    );
    await spans(words);
  }

  async function spans(words) {
    const at = Number(words.step ?? 1);
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
  await draw(words);
  return { update: draw };
}

// What the run found itself: what was measured, and what usually helps.
function found(profile) {
  if (!profile) return null;
  const findings = [...(profile.findings ?? []), ...byShare(profile.measured)];
  if (!findings.length)
    return h("p", { class: "findings" }, "No finding: none of the rules of docs/profiling.md holds.");
  return h(
    "ul",
    { class: "findings" },
    findings.map((finding) =>
      h(
        "li",
        {},
        h("b", {}, title(finding.id)),
        finding.steps ? ` (steps ${finding.steps[0]} – ${finding.steps[1]})` : "",
        ":",
        ` ${finding.says} ${finding.evidence} `,
        h("span", { class: "remedy" }, "What helps: ", marked(finding.remedy), "."),
      ),
    ),
  );
}

const title = (id) => id[0].toUpperCase() + id.slice(1).replaceAll("_", " ");

// What a stage's share offers, beside the findings.
function byShare(measured) {
  const reference = measured?.stages?.find((stage) => stage.path === "reference");
  const share = reference ? reference.seconds / measured.seconds : 0;
  if (share < 0.1) return [];
  const says = "The reference model scores each completion.";
  return [{ id: "reference", says, evidence: `It takes ${percent(share)} of a step.`, remedy: "beta = 0 removes it" }];
}

// Stages in the order of their seconds, what is inside of one below it.
function ordered(stages) {
  const below = (path, depth) =>
    stages
      .filter((stage) => stage.path.startsWith(path) && stage.path.split("/").length === depth)
      .sort((a, b) => b.seconds - a.seconds)
      .flatMap((stage) => [stage, ...below(`${stage.path}/`, depth + 1)]);
  return below("", 1);
}

// Stages inside stages, operations and bytes, beside what the machine can.
function inside(profile) {
  const measured = profile?.measured;
  if (!measured?.steps) return null;
  const { ceilings, stages, steps, seconds: whole } = measured;
  const rate = (amount, stage) => (amount > 0 ? number(amount / stage.seconds / 1e9) : "–");
  const per = (amount, stage, ceiling) =>
    amount > 0 && ceiling ? `${Math.round((100 * amount) / stage.seconds / ceiling)} %` : "–";
  return [
    h("h2", {}, `Steps ${measured.first_step} to ${measured.last_step}, measured`),
    h(
      "p",
      {},
      `${number(measured.cpu_s / whole)} of ${measured.cores} cores were busy`,
      measured.waited_s === null
        ? "."
        : `; in all of these steps together threads waited ${seconds(measured.waited_s)} for a core.`,
      ceilings
        ? ` This machine does ${number(ceilings.flops_per_s / 1e9)} GFLOP/s and reads ${number(ceilings.bytes_per_s / 1e9)} GB/s.`
        : "",
    ),
    h(
      "table",
      { class: "wide stages" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["stage", "time a step", "share", "GFLOP/s", "of the ceiling", "GB/s", "of the ceiling"].map((name) =>
            h("th", { scope: "col" }, name),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        ordered(stages).map((stage) =>
          h(
            "tr",
            {},
            h("th", { scope: "row", class: `deep${stage.path.split("/").length - 1}` }, stage.path.split("/").at(-1)),
            h("td", {}, seconds(stage.seconds / steps)),
            h("td", {}, percent(stage.seconds / whole)),
            h("td", {}, rate(stage.flops, stage)),
            h("td", {}, per(stage.flops, stage, ceilings?.flops_per_s)),
            h("td", {}, rate(stage.bytes, stage)),
            h("td", {}, per(stage.bytes, stage, ceilings?.bytes_per_s)),
          ),
        ),
      ),
    ),
    memory(measured),
  ];
}

// What tensors hold, by the parts that `lockstep plan` names, beside what the process has resident.
function memory(measured) {
  const parts = Object.entries(measured.memory ?? {}).sort((a, b) => b[1] - a[1]);
  const whole = measured.resident?.at(-1);
  if (!parts.length || !whole) return null;
  const pages = measured.memory_resident ?? {};
  const counted = Object.keys(pages).length > 0;
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const [allocated, touched] = [sum(parts.map(([, bytes]) => bytes)), sum(Object.values(pages))];
  const mib = (bytes) => h("td", {}, bytes === undefined ? "–" : `${number(bytes / 2 ** 20)} MiB`);
  const row = (name, bytes, resident) =>
    h("tr", {}, h("th", { scope: "row" }, name), mib(bytes), counted ? mib(resident) : null);
  const column = (name) => h("th", { scope: "col" }, name);
  return [
    h("h2", {}, `Memory: ${number(whole / 2 ** 20)} MiB are resident`),
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, column("tensors"), column("allocated"), counted ? column("resident") : null)),
      h(
        "tbody",
        {},
        parts.map(([name, bytes]) => row(name, bytes, pages[name])),
        row("all tensors", allocated, touched),
        counted ? row("program, tokenizer, data", undefined, Math.max(0, whole - touched)) : null,
      ),
    ),
    h("p", {}, "Pages that nothing has touched are allocated and not resident."),
  ];
}

function average(values) {
  const there = (values ?? []).filter((x) => x !== null);
  return there.length ? there.reduce((a, b) => a + b, 0) / there.length : 0;
}

// Tokens of all steps by the seconds of all steps, from the rates and the seconds of each.
function rate(rates, times) {
  const known = (rates?.mean ?? []).map((x, i) => [x, times?.mean[i] ?? null]).filter(([x, s]) => x !== null && s !== null);
  const all = known.reduce((sum, [, s]) => sum + s, 0);
  return all > 0 ? known.reduce((sum, [x, s]) => sum + x * s, 0) / all : undefined;
}

// How fast, and what was hidden.
function pace(whole, mean, rates) {
  const says = [];
  const hidden = mean("reward_hidden_time_s");
  if (hidden > 0.05 * whole) says.push(`${seconds(hidden)} of rewards were hidden behind generation.`);
  const [fast, slow] = rates;
  if (fast && slow) says.push(`Generation makes ${number(fast)} tokens a second, the update learns ${number(slow)}.`);
  return says.join(" ");
}
