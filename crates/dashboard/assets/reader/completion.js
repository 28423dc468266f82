// One completion: its rewards, and its tokens, its text or its text as Markdown. Thinking is folded, and long text is
// loaded on request.
import { change, counted, fill, h, hasSpread, number } from "/lib/lib.js";
import { rendered } from "/rendered/rendered.js";
import { seen } from "/reader/spaces.js";
import { opensThinking, thoughts } from "/reader/think.js";
import { tokens } from "/reader/tokens.js";
import { longer, missing, textOf } from "/reader/windows.js";

// The length that is shown at first: in tokens, or in characters if there is no tokenizer.
const FIRST = { token: 400, character: 2000 };

// The opened parts and loaded tokens of each completion, kept while its group is shown.
const states = new WeakMap();

export const stateOf = (one) => {
  if (!states.has(one)) states.set(one, { one, isWhole: false, open: new Set() });
  return states.get(one);
};

/** The sum of a completion's rewards; without a score it is null, not 0. */
export const total = (c, data) => {
  const scored = (c.rewards ?? [])
    .map((x, i) => (x === null ? null : x * (data.weights?.[i] ?? 1)))
    .filter((x) => x !== null);
  return scored.length ? scored.reduce((sum, x) => sum + x, 0) : null;
};

/** The loaded text, and its units: tokens, or characters if there is no tokenizer. */
function sourceOf(one) {
  const text = textOf(one);
  if (!one.pieces)
    return { text, unit: "character", loaded: text.length, length: text.length, at: (i) => i, unitAt: (i) => i };
  const ends = new Uint32Array(one.pieces.length + 1);
  one.pieces.forEach((piece, t) => (ends[t + 1] = ends[t] + piece.length));
  // The first token that starts at or after a character.
  const unitAt = (char) => {
    let [low, high] = [0, one.pieces.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] < char) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  return { text, unit: "token", loaded: one.pieces.length, length: one.length, at: (t) => ends[t], unitAt };
}

/** A completion that ended by itself ends with a special token, which only the views of tokens and text show. */
const endOf = (one, source) =>
  one.pieces && missing(one) === 0 && !one.truncated && /^<[^<>\s]+>$/.test(one.pieces.at(-1) ?? "")
    ? source.text.length - one.pieces.at(-1).length
    : source.text.length;

/** Fills a box with the completion as `how` says: {as, color, hasSpaces, thinks, promptEnd}. */
function drawText(box, run, data, state, how) {
  const { one } = state;
  const source = sourceOf(one);
  const end = endOf(one, source);
  const shown = (part, to) => {
    if (how.as === "tokens" && one.pieces) return tokens(one, part.first, to, how.color, how.hasSpaces);
    // The tags of thinking are not shown as text.
    const [from, last] = part.thinks && to === part.last ? part.inner : [source.at(part.first), source.at(to)];
    if (how.as !== "rendered") return h("div", { class: "text" }, seen(source.text.slice(from, last), how.hasSpaces));
    return h("div", { class: "rendered" }, rendered(source.text.slice(from, Math.min(last, end))));
  };
  const parts = thoughts(source.text, opensThinking(how.promptEnd)).map((part) => ({
    ...part,
    first: source.unitAt(part.from),
    last: source.unitAt(part.to),
  }));
  let left = state.isWhole ? Infinity : FIRST[source.unit];
  let cut = source.loaded;
  const nodes = [];
  for (const [i, part] of parts.entries()) {
    if (part.thinks) nodes.push(folded(i, part, source, state, how, () => shown(part, part.last)));
    else {
      let to = Math.min(part.last, part.first + left);
      // Markdown is truncated between lines.
      if (to < part.last && how.as === "rendered") {
        const line = source.unitAt(source.text.lastIndexOf("\n", source.at(to)));
        if (line > part.first) to = line;
      }
      if (to > part.first) nodes.push(shown(part, to));
      left -= to - part.first;
      if (to < part.last) {
        cut = to;
        break;
      }
    }
  }
  const rest = source.length - cut;
  const more = async () => {
    state.isWhole = true;
    if (cut === source.loaded) state.one = await longer(run, data, one);
    drawText(box, run, data, state, how);
  };
  const button =
    rest > 0 ? h("button", { class: "more", onclick: more }, `… ${counted(rest, `more ${source.unit}`)}`) : null;
  fill(box, nodes.length ? nodes : h("p", { class: "none" }, "(empty)"), button);
}

/** Thinking, folded unless it was opened; the content is created when it is opened. */
function folded(i, part, source, state, how, content) {
  const isOpen = how.thinks || state.open.has(i);
  const reachesEnd = !part.closed && part.last === source.loaded;
  const length = counted(part.last - part.first, source.unit);
  const summary = `Thinking, ${reachesEnd && source.loaded < source.length ? "more than " : ""}${length}${
    part.closed || source.loaded < source.length ? "" : ", not closed"
  }`;
  const inside = h("div");
  const element = h(
    "details",
    {
      class: "think",
      open: isOpen,
      ontoggle: () => {
        // Opening all parts at once does not record this part as opened.
        if (!how.thinks) state.open[element.open ? "add" : "delete"](i);
        if (element.open && !inside.firstChild) inside.append(content());
      },
    },
    h("summary", {}, summary),
    inside,
  );
  if (isOpen) inside.append(content());
  return element;
}

/** `names` are the names of rewards; `isBest` is whether the completion is the best of its group. */
export function completion(run, data, original, how, { names, isBest }) {
  const state = stateOf(original);
  const { one } = state;
  const box = h("div", { class: "body" });
  drawText(box, run, data, state, how);
  const end = one.truncated ? ["✂", "cut at max_completion_length"] : ["∎", "ended by itself"];
  const row = (name, value, attributes = {}) => h("div", attributes, h("dt", {}, name), h("dd", {}, value));
  const isSet = (x) => x !== null && x !== undefined;
  const advantage = isSet(one.advantage)
    ? `${one.advantage > 0 ? "▲ " : one.advantage < 0 ? "▼ " : ""}${number(one.advantage)}`
    : one.advantages
      ? "by token"
      : "–";
  const versions = one.versions?.length > 1 ? one.versions.map(([version, n]) => `v${version}: ${n}`).join(", ") : null;
  return h(
    "section",
    {
      class: "completion",
      "data-number": one.number,
      // A click that selects text or opens something does not choose the completion.
      onclick: (event) => {
        if (!event.target.closest("button, summary, a") && getSelection().isCollapsed) change({ c: one.number });
      },
      "aria-label": `Completion ${one.number + 1}`,
    },
    h(
      "dl",
      { class: "ledger" },
      names.map((name, i) =>
        row(name, isSet(one.rewards?.[i]) ? number(one.rewards[i]) : "no score", { class: `r${i % 4}` }),
      ),
      row("advantage", advantage, { class: "adv" }),
      row("tokens", [`${one.length} `, h("span", { title: end[1], "aria-label": end[1], role: "img" }, end[0])]),
      versions ? row("weights", versions) : null,
      isBest && hasSpread(data.spread) ? row("best", "★", { class: "best" }) : null,
    ),
    box,
  );
}
