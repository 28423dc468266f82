// A group as one thing: the prompt once, its completions beside what they earned.
import { address, around, change, counted, fill, get, h, hasSpread, number } from "/lib.js";

// What a token's colour says: its name, what a full colour means, and the value of token t (null: none).
export const COLORS = {
  surprise: {
    says: "Surprise: −log p of the token when it was sampled, 0 to 6 nats.",
    full: 6,
    of: (c, t) => (c.logprobs?.[t] === undefined || c.logprobs === null ? null : -c.logprobs[t]),
  },
  entropy: {
    says: "Entropy of the distribution that the token was drawn from, 0 to 4 nats.",
    full: 4,
    of: (c, t) => c.entropies?.[t] ?? null,
  },
  advantage: {
    says: "Advantage: blue is pushed up, orange is pushed down; full at 2.",
    full: 2,
    of: (c, t) => c.advantages?.[t] ?? c.advantage ?? null,
  },
  ratio: {
    says: "Ratio after the step: blue became likelier, orange less likely; full at × 1.5 and × 0.67.",
    full: Math.log(1.5),
    of: (c, t) =>
      c.new_logprobs?.[t] === undefined || c.new_logprobs === null || c.logprobs === null
        ? null
        : c.new_logprobs[t] - c.logprobs[t],
  },
  value: {
    says: "What PPO's value model expected before the token; blue is above 0, orange below; full at 2.",
    full: 2,
    of: (c, t) => c.values?.[t] ?? null,
  },
  none: { says: "Plain text.", full: 1, of: () => null },
};

// Colours of two directions.
const TURNS = ["advantage", "ratio", "value"];

/** The name of the token's colour and how much of it, from 0 to 1: absolute, never by what else is shown. */
export function shade(color, completion, t) {
  if (completion.mask && !completion.mask[t]) return ["masked", 0];
  const x = COLORS[color].of(completion, t);
  if (x === null || x === undefined || Number.isNaN(x)) return ["", 0];
  const amount = Math.min(1, Math.abs(x) / COLORS[color].full);
  return [TURNS.includes(color) ? (x >= 0 ? "up" : "down") : color, amount];
}

/** The colours that say something of a group: values are of PPO alone. */
export const colorsOf = (data) =>
  Object.keys(COLORS).filter((name) => name !== "value" || data?.completions.some((one) => one.values));

/** From the groups of a step to those of the prompt, or back: the group that is read stays. */
export const turn = (data, words) =>
  words.prompt || words.by
    ? change({ prompt: "", by: "", step: data.step, g: data.place, all: "" })
    : change({ prompt: data.prompt_hash, g: data.place, all: "" });

/** What a group teaches, where its rewards are equal; empty where they are not, or where nothing was recorded. */
function lesson(data, config) {
  if (hasSpread(data.spread) || data.of === "evaluations") return "";
  const all = data.completions.flatMap((one) => one.advantages ?? one.advantage ?? []);
  if (!all.length || all.some((x) => x !== null && Math.abs(x) > 1e-8)) return "";
  const penalty = config.algorithm === "ppo" ? 0 : config.beta;
  return penalty > 0 ? ", so only the divergence from the reference model is learned from it" : ", so nothing is learned from it";
}

export function group(box, run, data, words, config) {
  const color = COLORS[words.color] ? words.color : "surprise";
  const names = data.reward_names ?? [];
  const chosen = Number(words.c ?? -1);
  const totals = data.completions.map((c) => total(c, data)).filter(Number.isFinite);
  const best = Math.max(...totals);
  const isAlone = totals.filter((x) => x === best).length === 1;
  const what = data.of === "evaluations" ? `Evaluation of row ${(data.prompt_id ?? 0) + 1}` : `Group ${data.group}`;
  const heading = h("h1", {}, `${what}, step ${data.step}`);
  const columns = Object.entries(data.columns ?? {});
  const history = h(
    "button",
    { onclick: () => turn(data, words) },
    words.prompt || words.by ? `All groups of step ${data.step}` : "History of this prompt",
  );
  const colors = h(
    "div",
    { class: "colors", role: "group", "aria-label": "Colour of tokens" },
    colorsOf(data).map((name) =>
      h("button", { "aria-pressed": String(name === color), onclick: () => change({ color: name }) }, name),
    ),
    h(
      "span",
      { class: "scale" },
      (TURNS.includes(color) ? [-1, -0.5, 0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]).map((share) =>
        h(
          "i",
          {
            class: `t ${TURNS.includes(color) ? (share < 0 ? "down" : "up") : color}`,
            style: { "--a": Math.abs(share) },
          },
          color === "ratio" ? `× ${number(Math.exp(share * COLORS.ratio.full))}` : number(share * COLORS[color].full),
        ),
      ),
    ),
    h("small", {}, missing(color, data, run, words) ?? COLORS[color].says),
  );
  fill(
    box,
    h(
      "header",
      {},
      heading,
      h(
        "p",
        {},
        `Reward ${around(data.reward, data.spread)}${lesson(data, config)}.`,
        " ",
        history,
      ),
    ),
    prompt(data.prompt),
    columns.length
      ? h(
          "dl",
          { class: "columns" },
          columns.map(([name, value]) => [
            h("dt", {}, name),
            h("dd", {}, typeof value === "string" ? value : JSON.stringify(value)),
          ]),
        )
      : null,
    colors,
    color === "ratio" ? pushed(data) : null,
    ...(data.problems ?? []).map((problem) => h("p", { class: "warn" }, `⚠ ${problem.reward}: ${problem.message}`)),
    ...data.completions.map((one) =>
      completion(run, data, one, names, color, one.number === chosen, isAlone && total(one, data) === best),
    ),
  );
  if (chosen >= 0) box.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
}

function missing(color, data, run, words) {
  if (color === "entropy" && !data.completions.some((c) => c.entropies))
    return "Entropies are not recorded: record_entropies = true records them.";
  if (color !== "ratio" || data.completions.some((c) => c.new_logprobs)) return null;
  const near = data.nearest_scored;
  if (!near) return "This group was not scored after its step, and no other one was.";
  const there = { color, step: near.step, g: near.place };
  return [
    "This group was not scored after its step. Nearest that was: ",
    h("a", { href: address(run, "rollouts", there) }, `a group of step ${near.step}`),
    ". The filter “scored after the step” lists all.",
  ];
}

/** What the step did to the tokens of the group: each token once, with the mean change of all its places, in logs. */
export function moves(data) {
  const found = new Map();
  for (const one of data.completions)
    (one.pieces ?? []).forEach((piece, t) => {
      const change = one.mask && !one.mask[t] ? null : COLORS.ratio.of(one, t);
      if (change === null || Number.isNaN(change)) return;
      const now = found.get(one.ids[t]) ?? { piece, sum: 0, count: 0, low: change, top: change, number: one.number, most: 0 };
      const isMore = Math.abs(change) > now.most;
      found.set(one.ids[t], {
        ...now,
        sum: now.sum + change,
        count: now.count + 1,
        low: Math.min(now.low, change),
        top: Math.max(now.top, change),
        ...(isMore ? { most: Math.abs(change), number: one.number } : {}),
      });
    });
  // What rounds to × 1 was not pushed.
  const all = [...found.values()]
    .map((one) => ({ ...one, change: one.sum / one.count }))
    .filter((one) => Math.abs(one.change) >= 0.005)
    .sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
  return [1, -1].map((sign) => all.filter((one) => one.change * sign > 0).slice(0, 8));
}

/** The tokens that the step made likelier and less likely, the strongest first. */
function pushed(data) {
  if (!data.completions.some((c) => c.new_logprobs && c.pieces)) return null;
  const list = (name, tokens) =>
    h(
      "div",
      {},
      h("dt", {}, name),
      h(
        "dd",
        {},
        tokens.length
          ? tokens.map((one) =>
              h(
                "button",
                {
                  class: "token",
                  title:
                    one.count > 1
                      ? `${one.count} times in this group, × ${number(Math.exp(one.low))} to × ${number(Math.exp(one.top))}, × ${number(Math.exp(one.change))} on average; the strongest is in completion ${one.number + 1}`
                      : `once in this group, in completion ${one.number + 1}`,
                  onclick: () => change({ c: one.number }),
                },
                h("span", { class: `t ${one.change > 0 ? "up" : "down"}`, style: { "--a": 0.6 } }, visible(one.piece)),
                ` × ${number(Math.exp(one.change))}${one.count > 1 ? ` (${one.count})` : ""}`,
              ),
            )
          : "none",
      ),
    );
  const [up, down] = moves(data);
  return h("dl", { class: "pushed" }, list("Pushed up most", up), list("Pushed down most", down));
}

// A token on its own: its spaces and line ends are seen.
const visible = (piece) => piece.replaceAll(" ", "␣").replaceAll("\n", "⏎");

// A completion without a score has a total of null, not 0.
const total = (c, data) => {
  const scored = (c.rewards ?? []).map((x, i) => (x === null ? null : x * (data.weights?.[i] ?? 1))).filter((x) => x !== null);
  return scored.length ? scored.reduce((sum, x) => sum + x, 0) : null;
};

function prompt(content) {
  if (Array.isArray(content))
    return h(
      "section",
      { class: "asked", "aria-label": "Prompt" },
      content.map((message) => h("div", {}, h("small", {}, message.role), h("p", {}, String(message.content ?? "")))),
    );
  return h("section", { class: "asked", "aria-label": "Prompt" }, h("p", {}, content ?? ""));
}

function completion(run, data, one, names, color, isChosen, isBest) {
  const text = h("p", { class: "text" });
  tokens(text, one, color);
  const rest = one.length - (one.from + one.ids.length);
  const more =
    rest > 0
      ? h(
          "button",
          {
            onclick: async () => {
              const next = await get(`runs/${run}/groups/${data.place}/completions/${one.number}`, {
                from: one.from + one.ids.length,
                of: data.of,
              });
              one = { ...next, advantage: one.advantage };
              const paragraph = h("p", { class: "text" });
              tokens(paragraph, one, color);
              more.replaceWith(paragraph);
            },
          },
          `${counted(rest, "more token")}`,
        )
      : null;
  const end = one.truncated ? ["✂", "cut at max_completion_length"] : ["∎", "ended by itself"];
  const versions =
    one.versions?.length > 1
      ? h(
          "div",
          {},
          h("dt", {}, "weights"),
          h("dd", {}, one.versions.map(([version, n]) => `v${version}: ${n}`).join(", ")),
        )
      : null;
  return h(
    "section",
    {
      class: `completion${isChosen ? " chosen" : ""}`,
      onclick: () => change({ c: one.number }),
      "aria-label": `Completion ${one.number + 1}`,
    },
    h(
      "dl",
      { class: "ledger" },
      names.map((name, i) =>
        h(
          "div",
          { class: `r${i % 4}` },
          h("dt", {}, name),
          h(
            "dd",
            {},
            one.rewards?.[i] === null || one.rewards?.[i] === undefined ? "no score" : number(one.rewards[i]),
          ),
        ),
      ),
      h(
        "div",
        { class: "adv" },
        h("dt", {}, "advantage"),
        h(
          "dd",
          {},
          one.advantage === null || one.advantage === undefined
            ? one.advantages
              ? "by token"
              : "–"
            : `${one.advantage > 0 ? "▲ " : one.advantage < 0 ? "▼ " : ""}${number(one.advantage)}`,
        ),
      ),
      h(
        "div",
        {},
        h("dt", {}, "tokens"),
        h("dd", { title: end[1] }, `${one.length} `, h("span", { "aria-label": end[1] }, end[0])),
      ),
      versions,
      isBest && hasSpread(data.spread) ? h("div", { class: "best" }, h("dt", {}, "best"), h("dd", {}, "★")) : null,
    ),
    h("div", {}, text, more),
  );
}

/** The tokens as they were sampled; without a tokenizer the text alone. */
function tokens(box, one, color) {
  if (!one.pieces) return box.append(one.text ?? one.ids.join(" "));
  box.append(
    ...one.pieces.map((piece, t) => {
      const [name, amount] = shade(color, one, t);
      const facts = [
        `token ${one.from + t}, id ${one.ids[t]}`,
        one.logprobs ? `log p ${number(one.logprobs[t])}` : null,
        one.entropies ? `entropy ${number(one.entropies[t])}` : null,
        one.advantages ? `advantage ${number(one.advantages[t])}` : null,
        one.new_logprobs && one.logprobs
          ? `ratio after the step ${number(Math.exp(one.new_logprobs[t] - one.logprobs[t]))}`
          : null,
        one.values ? `value ${number(one.values[t])}` : null,
      ];
      return h(
        "span",
        {
          class: name ? `t ${name}` : "t",
          style: { "--a": amount.toFixed(3) },
          title: facts.filter(Boolean).join(", "),
        },
        piece,
      );
    }),
  );
}
