// The effect of an optimizer step on the tokens of a group.
import { change, h, number } from "/lib/lib.js";
import { COLORS } from "/reader/tokens.js";

/** The tokens of the group, each once, with the mean change of its log-probability over all its occurrences. */
function moves(data) {
  const found = new Map();
  for (const one of data.completions)
    (one.pieces ?? []).forEach((piece, t) => {
      const change = one.mask && !one.mask[t] ? null : COLORS.ratio.of(one, t);
      if (change === null || Number.isNaN(change)) return;
      const now = found.get(one.ids[t]) ?? {
        piece,
        sum: 0,
        count: 0,
        low: change,
        top: change,
        number: one.number,
        most: 0,
      };
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
  // A token whose ratio rounds to × 1 did not move.
  const all = [...found.values()]
    .map((one) => ({ ...one, change: one.sum / one.count }))
    .filter((one) => Math.abs(one.change) >= 0.005)
    .sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
  return [1, -1].map((sign) => all.filter((one) => one.change * sign > 0).slice(0, 8));
}

/** The tokens that the step made more likely and less likely, the largest changes first. */
export function pushed(data) {
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

// Spaces and line ends are visible in a single token.
const visible = (piece) => piece.replaceAll(" ", "␣").replaceAll("\n", "⏎");
