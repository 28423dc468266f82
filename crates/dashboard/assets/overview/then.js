// Then and now: the first and the latest completion of a prompt side by side, or the latest completions of two runs.
import { compared } from "/lib/diff.js";
import { address, get, h, number } from "/lib/lib.js";

const PAIRS = 3;

/** The record that all of these runs have: "evaluations", "" (training), or null. */
export function recorded(facts) {
  if (facts.every((one) => one.evaluated)) return "evaluations";
  return facts.every((one) => one.groups) ? "" : null;
}

/** The section for one or two runs, from a record (`recorded`); null if nothing was recorded twice. */
export async function thenAndNow(run, vs, of) {
  if (of === null) return null;
  const list = async (run, words) => (await get(`runs/${run}/prompts`, { of, ...words }))?.prompts ?? [];
  const [rose, fell] = await Promise.all(["rose", "fell"].map((sort) => list(run, { sort, limit: PAIRS })));
  // The prompts that rose most, and the others that fell most.
  const all = new Map([...rose.slice(0, PAIRS - 1), ...fell, ...rose].map((one) => [one.prompt_hash, one]));
  const several = [...all.values()].filter((one) => vs || one.first[0] < one.last[0]);
  const pairs = [];
  for (const one of several) {
    const other = vs ? (await list(vs, { prompt: one.prompt_hash }))[0] : null;
    if (vs && !other) continue;
    const [before, after] = vs ? [one.last, other.last] : [one.first, one.last];
    pairs.push(await pair(one, [run, before], [vs || run, after], of));
    if (pairs.length === PAIRS) break;
  }
  if (!pairs.length) return null;
  const what = of ? "held-out prompts" : "training prompts";
  return [
    h("h2", {}, vs ? `The latest completions of ${run} and ${vs}` : "Then and now"),
    h(
      "p",
      {},
      `The ${what} whose reward rose and fell most. `,
      h("a", { href: address(run, "rollouts", { by: "prompts", of }) }, "All prompts"),
    ),
    ...pairs,
  ];
}

async function pair(prompt, [runA, a], [runB, b], of) {
  const read = async (run, [step, , place]) => {
    const { completions, reward_names: names, weights } = await get(`runs/${run}/groups/${place}`, { of });
    const [one] = completions;
    const total = one.rewards?.reduce((sum, x, i) => (x === null ? sum : sum + x * (weights?.[i] ?? 1)), 0);
    return { step, total, names, place, run, text: one.text ?? one.pieces?.join("") ?? "", cut: one.length > (one.ids?.length ?? 0) };
  };
  const [first, last] = await Promise.all([read(runA, a), read(runB, b)]);
  const marked = (pieces) => pieces.map(([text, isDifferent]) => (isDifferent ? h("mark", {}, text) : text));
  const [left, right] = compared(first.text, last.text).map(marked);
  const side = (one, marks) =>
    h(
      "figure",
      {},
      h(
        "figcaption",
        {},
        h(
          "a",
          { href: address(one.run, "rollouts", { step: one.step, g: one.place, of }) },
          runA === runB ? `step ${one.step}` : `${one.run}, step ${one.step}`,
        ),
        `, reward ${number(one.total)}`,
      ),
      h("p", { class: "text", tabindex: 0 }, marks.length ? marks : "(empty)", one.cut ? " …" : ""),
    );
  return h("article", { class: "pair" }, h("p", { class: "prompt" }, prompt.prompt), side(first, left), side(last, right));
}
