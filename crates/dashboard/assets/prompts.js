// A prompt from step to step: the list of all prompts, and the curve of one.
import { sparkline } from "/spark.js";
import { address, change, counted, fill, h, number } from "/lib.js";

export const ORDER = [
  ["", "fell most since its first groups"],
  ["rose", "rose most since its first groups"],
  ["unsolved", "lowest best reward first"],
];

/** How many prompts the model got worse at, in words. */
export const fallen = ({ fell, total }) =>
  fell
    ? `The reward of ${fell} of ${counted(total, "prompt")} fell by more than noise.`
    : "No prompt's reward fell by more than noise.";

/** One row of the list: the prompt, what it earned in its first and its last groups, and the curve between. */
export const row = (run, one, words) =>
  h(
    "li",
    {},
    h(
      "a",
      {
        href: address(run, "rollouts", { ...words, prompt: one.prompt_hash, g: one.last[2], c: "" }),
        "data-prompt": one.prompt_hash,
      },
      h("span", { class: "prompt" }, one.prompt || "empty prompt"),
      sparkline(one.points.map(([, reward]) => reward)),
      h(
        "small",
        {},
        `${counted(one.groups, "group")} · first third ${number(one.from)} · last third ${number(one.to)}${one.fell ? ", which is no noise" : ""} · best ${number(one.best[1])} (step ${one.best[0]})`,
      ),
    ),
  );

/** The reward of one prompt by step; a point leads to its group. */
export function history(box, one, chosen) {
  if (!one) return fill(box);
  const [wide, high, edge] = [640, 110, 8];
  const rewards = one.points.map(([, reward]) => reward);
  const steps = one.points.map(([step]) => step);
  const [low, top] = [Math.min(...rewards), Math.max(...rewards)];
  const x = (step) => edge + ((wide - 48 - 2 * edge) * (step - steps[0])) / (steps.at(-1) - steps[0] || 1);
  const y = (reward) => high - edge - ((high - 2 * edge) * (reward - low)) / (top - low || 1);
  const line = one.points.map(([step, reward]) => `${x(step)},${y(reward)}`).join("L");
  fill(
    box,
    h("h2", {}, "This prompt, step by step"),
    h(
      "p",
      {},
      `${counted(one.groups, "group")}: reward ${number(one.first[1])} at first (step ${one.first[0]}), ${number(one.best[1])} at best (step ${one.best[0]}), ${number(one.last[1])} at last (step ${one.last[0]}).`,
    ),
    h(
      "svg",
      {
        viewBox: `0 0 ${wide} ${high}`,
        role: "img",
        "aria-label": `Rewards from ${number(low)} to ${number(top)}, steps ${steps[0]} to ${steps.at(-1)}`,
      },
      [[top, edge + 4], [low, high - 2]].map(([value, at]) =>
        h("text", { class: "axis", x: wide - 2, y: at, "text-anchor": "end" }, number(value)),
      ),
      h("path", { class: "curve", d: `M${line}` }),
      one.points.map(([step, reward, place]) => {
        const point = h(
          "circle",
          {
            cx: x(step),
            cy: y(reward),
            r: place === chosen ? 6 : 4,
            class: place === chosen ? "point now" : "point",
            onclick: () => change({ g: place, c: "" }),
          },
          h("title", {}, `step ${step}: reward ${number(reward)}`),
        );
        point.dataset.place = place;
        return point;
      }),
    ),
  );
}
