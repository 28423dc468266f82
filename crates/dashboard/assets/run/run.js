// The view of one run: its configuration, its inputs, and its resumes.
import { lasted } from "/overview/results.js";
import { change, counted, fill, get, h, key, number, reportLink, seconds, titleOf, turns } from "/lib/lib.js";

// A number of steps that no run reaches: 2³² − 1, or more.
const NEVER = 2 ** 32 - 1;

export async function run(main, { run: name, facts, runs, rebuild }) {
  const table = h("section", {});
  const named = (id) => titleOf(runs.find((one) => one.id === id) ?? { id });
  const record = facts.record ?? {};
  const times = await get(`runs/${name}/series`, { keys: "num_tokens" });
  const [first, last] = facts.written_s;
  const date = (s) => new Date(1000 * s).toLocaleString();
  const list = (title, rows) =>
    rows.length
      ? h(
          "section",
          {},
          h("h2", {}, title),
          h(
            "dl",
            { class: "facts" },
            rows.map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]),
          ),
        )
      : null;
  const files = (all) =>
    (all ?? []).map((file) => [
      file.name,
      `${file.bytes ? `${file.bytes.toLocaleString("en")} bytes, ` : ""}SHA-256 ${file.sha256}`,
    ]);
  main.append(
    ...[
      h("h1", {}, titleOf(facts)),
      h("p", {}, h("code", {}, facts.directory)),
      h("p", { class: "tools" }, reportLink(name)),
      table,
      list(
        "Duration",
        first !== null
          ? [
              ["first line", date(first)],
              ["last line", date(last)],
              ["time between them", seconds(lasted(facts))],
              ...times.keys.num_tokens.mean
                .filter((x) => x !== null)
                .slice(-1)
                .map((count) => ["tokens", count.toLocaleString("en")]),
            ]
          : [],
      ),
      list(
        "Machine",
        [
          ["instruction set", record.isa],
          ["device", record.device],
          ["arithmetic", record.arithmetic],
          ["threads", record.threads],
          [
            "measured ceilings",
            record.ceilings
              ? `${number(record.ceilings.flops_per_s / 1e9)} GFLOP/s, ${number(record.ceilings.read_bytes_per_s / 1e9)} GB/s`
              : null,
          ],
          ["version", record.versions?.lockstep],
          ["seed", record.seed],
        ].filter(([, value]) => value !== undefined && value !== null),
      ),
      list(
        "Starts",
        (record.starts ?? []).map((start) => [
          `step ${start.step}`,
          `${new Date(1000 * start.time_s).toLocaleString()}${start.changes?.length ? `, changed: ${start.changes.join("; ")}` : ""}${start.command && `${start.command}` !== `${record.command}` ? ` · ${start.command.join(" ")}` : ""}`,
        ]),
      ),
      record.command ? h("section", {}, h("h2", {}, "Command"), h("pre", {}, record.command.join(" "))) : null,
      list(
        "Checkpoints",
        facts.checkpoints.map((step) => [step, `${facts.directory}/checkpoints/${step}`]),
      ),
      list("Model", files(record.model)),
      list("Data", files(record.data)),
      list("Rewards", files(record.rewards)),
    ].filter(Boolean),
  );

  const begin = turns();
  async function draw(words) {
    const isLate = begin();
    const other = words.vs && words.vs !== name ? await get(`runs/${words.vs}`) : null;
    if (isLate()) return;
    const shown = words.keys ?? (other ? "differing" : "set");
    const all = Object.keys({ ...facts.config, ...(other?.config ?? {}) }).sort();
    const plain = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));
    const text = (value, of = "") => (of.endsWith("_steps") && value >= NEVER ? `never (${value})` : plain(value));
    const differs = (one) => text(facts.config[one]) !== text(other?.config[one]);
    const isSet = (one) => facts.origins[one] !== undefined;
    const keys = all.filter((one) => shown === "all" || (shown === "differing" ? other && differs(one) : isSet(one)));
    const choice = (id, what) =>
      h("button", { "aria-pressed": String(shown === id), onclick: () => change({ keys: id }) }, what);
    const toChoose = shown === "differing" && !other;
    fill(
      table,
      h("h2", {}, "Configuration"),
      h(
        "p",
        { class: "tools" },
        choice("set", "set here"),
        choice("all", "all keys"),
        choice("differing", "differing"),
        h(
          "label",
          {},
          " from ",
          h(
            "select",
            { onchange: (event) => change({ vs: event.target.value, keys: "differing" }) },
            h("option", { value: "" }, "another run"),
            runs
              .filter((one) => one.id !== name)
              .map((one) => h("option", { value: one.id, selected: one.id === words.vs }, titleOf(one))),
          ),
        ),
        toChoose ? null : h("span", { class: "count" }, counted(keys.length, "key")),
      ),
      toChoose ? h("p", { class: "none" }, "Choose another run to see which keys differ.") : null,
      h(
        "table",
        { hidden: toChoose },
        h(
          "thead",
          {},
          h("tr", {}, [
            h("th", { scope: "col" }, "key"),
            h("th", { scope: "col" }, named(name)),
            other ? h("th", { scope: "col" }, named(words.vs)) : null,
          ]),
        ),
        h(
          "tbody",
          {},
          keys.map((one) =>
            h(
              "tr",
              { class: other && differs(one) ? "differs" : isSet(one) ? "" : "default" },
              h("th", { scope: "row" }, key(one)),
              h(
                "td",
                { title: facts.origins[one] ? `from ${facts.origins[one]}` : "the default" },
                text(facts.config[one], one),
              ),
              other ? h("td", {}, text(other.config[one], one)) : null,
            ),
          ),
        ),
      ),
    );
  }
  // The table is not touched while the run only takes steps: the reader may have opened its list of runs.
  const about = ({ state, record, checkpoints, config }) => JSON.stringify([state, record, checkpoints, config]);
  return { update: (words, news) => (!news ? draw(words) : about(news) === about(facts) ? null : rebuild()) };
}
