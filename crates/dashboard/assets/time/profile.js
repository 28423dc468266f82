// The contents of profile.json: findings, nested stages, memory.
import { h, marked, number, percent, seconds } from "/lib/lib.js";

/** The findings: evidence and the usual remedy; the most expensive first. */
export function found({ profile, findings = [] }) {
  if (!profile) return null;
  const all = [...findings, ...ofReference(profile.measured)].sort((a, b) => (b.gain_s ?? 0) - (a.gain_s ?? 0));
  if (!all.length) return h("p", { class: "findings" }, "No finding: none of the rules of docs/profiling.md holds.");
  const perStep = profile.measured?.steps ? profile.measured.seconds / profile.measured.steps : null;
  const item = ({ id, says, evidence, remedy, steps, gain_s: gain }) =>
    h(
      "li",
      {},
      h("b", {}, title(id)),
      steps ? ` (steps ${steps[0]} – ${steps[1]})` : "",
      ": ",
      marked(`${says} ${evidence} `),
      gain && perStep ? h("b", {}, `Saves up to ${seconds(gain)} of a step's ${seconds(perStep)}. `) : null,
      h("span", { class: "remedy" }, "What helps: ", marked(remedy), "."),
    );
  return [h("h2", {}, "What would help"), h("ul", { class: "findings" }, all.map(item))];
}

const title = (id) => id[0].toUpperCase() + id.slice(1).replaceAll("_", " ");

// A stage that a configuration key removes.
function ofReference(measured) {
  const reference = measured?.stages?.find((stage) => stage.path === "reference");
  const share = reference ? reference.seconds / measured.seconds : 0;
  if (share < 0.1) return [];
  const says = "The reference model scores each completion.";
  const evidence = `It takes ${percent(share)} of a step.`;
  return [{ id: "reference", says, evidence, remedy: "`beta = 0` removes it", gain_s: reference.seconds / measured.steps }];
}

// Stages in the order of their seconds, each followed by the stages inside it.
function ordered(stages) {
  const below = (path, depth) =>
    stages
      .filter((stage) => stage.path.startsWith(path) && stage.path.split("/").length === depth)
      .sort((a, b) => b.seconds - a.seconds)
      .flatMap((stage) => [stage, ...below(`${stage.path}/`, depth + 1)]);
  return below("", 1);
}

// Nested stages, with operations and bytes compared to the machine's ceilings.
export function inside({ profile, busy_cores: busy }) {
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
      `${number(busy)} of ${measured.cores} cores were busy`,
      measured.waited_s === null
        ? "."
        : `; in all these steps together, threads waited ${seconds(measured.waited_s)} for a core.`,
      ceilings
        ? ` This machine reaches ${number(ceilings.flops_per_s / 1e9)} GFLOP/s and reads ${number(ceilings.bytes_per_s / 1e9)} GB/s.`
        : ` ${measured.without_ceilings ?? ""}`,
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

// Memory of tensors, by the parts that `lockstep plan` names, compared to the resident memory of the process.
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
    h("p", {}, "Pages that were never touched are allocated but not resident."),
  ];
}
