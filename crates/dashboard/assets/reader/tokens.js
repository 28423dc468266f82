// The tokens of a completion as they were sampled: their colours, and the numbers of each token.
import { h, number } from "/lib/lib.js";
import { pickable } from "/rollouts/pick.js";
import { seen } from "/reader/spaces.js";

// The colours of tokens: name, value at which the colour is full, and the value of token t (null: none).
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
    says: "Value: the estimate of PPO's value model before the token; blue is above 0, orange below; full at 2.",
    full: 2,
    of: (c, t) => c.values?.[t] ?? null,
  },
  none: { says: "Plain text.", full: 1, of: () => null },
};

// Diverging colour scales.
const TURNS = ["advantage", "ratio", "value"];

/** The name and the intensity (0 to 1) of a token's colour, on an absolute scale. */
function shade(color, completion, t) {
  if (completion.mask && !completion.mask[t]) return ["masked", 0];
  const x = COLORS[color].of(completion, t);
  if (x === null || x === undefined || Number.isNaN(x)) return ["", 0];
  const amount = Math.min(1, Math.abs(x) / COLORS[color].full);
  return [TURNS.includes(color) ? (x >= 0 ? "up" : "down") : color, amount];
}

/** The colours that a group has values for: only PPO has values of a value model. */
export const colorsOf = (data) =>
  Object.keys(COLORS).filter((name) => name !== "value" || data?.completions.some((one) => one.values));

/** A legend of the colours, with the values at which they are full. */
export const legend = (color) =>
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
  );

const facts = (one, t) =>
  [
    `token ${t}, id ${one.ids[t]}`,
    one.logprobs ? `log p ${number(one.logprobs[t])}` : null,
    one.entropies ? `entropy ${number(one.entropies[t])}` : null,
    one.advantages ? `advantage ${number(one.advantages[t])}` : null,
    one.new_logprobs && one.logprobs
      ? `ratio after the step ${number(Math.exp(one.new_logprobs[t] - one.logprobs[t]))}`
      : null,
    one.values ? `value ${number(one.values[t])}` : null,
  ]
    .filter(Boolean)
    .join(", ");

/** A range of tokens: one stop for the Tab key; the arrow keys move from token to token and read its numbers. */
export function tokens(one, from, to, color, hasSpaces) {
  const box = h("div", {
    class: "text",
    tabindex: 0,
    role: "group",
    "aria-label": `Tokens ${from} to ${to - 1}; the arrow keys read the numbers of each`,
  });
  const spans = one.pieces.slice(from, to).map((piece, i) => {
    const [name, amount] = shade(color, one, from + i);
    return h(
      "span",
      { class: name ? `t ${name}` : "t", style: { "--a": amount.toFixed(3) }, title: facts(one, from + i) },
      seen(piece, hasSpaces),
    );
  });
  box.append(...spans);
  let at = -1;
  const pick = pickable(box, {
    next: (key) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (by) at = Math.max(0, Math.min(spans.length - 1, at + by));
      return by ? spans[at] : null;
    },
    says: (span) => `${JSON.stringify(span.textContent)}: ${span.title}`,
  });
  // The keyboard position, restored when the group is redrawn.
  box.readAt = (to) => {
    if (to !== undefined && spans[to]) pick(spans[(at = to)]);
    return at;
  };
  return box;
}
