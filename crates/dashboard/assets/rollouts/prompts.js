// One prompt from step to step: the list of all prompts, and the curve of one prompt.
import { sparkline } from "/lib/spark.js";
import { address, change, counted, h, number, refill } from "/lib/lib.js";
import { pickable } from "/rollouts/pick.js";

export const ORDER = [
  ["", "fell most since its first groups"],
  ["rose", "rose most since its first groups"],
  ["unsolved", "lowest best reward first"],
];

/** The number of prompts whose reward fell, as a sentence. */
export const fallen = ({ fell, total }) =>
  fell
    ? `The reward of ${fell} of ${counted(total, "prompt")} fell by more than noise.`
    : "No prompt's reward fell by more than noise.";

/** The best reward and its step; none for a prompt whose reward never changed. */
const bestOf = ({ best, least, groups }) =>
  best[1] === null
    ? "no score"
    : best[1] === least
      ? groups > 1
        ? `always ${number(least)}`
        : `${number(least)} (step ${best[0]})`
      : `best ${number(best[1])} (step ${best[0]})`;

/** A row of the list: the prompt, its rewards in the first and the last groups, and the curve between. */
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
        `${counted(one.groups, "group")} · first third ${number(one.from)} · last third ${number(one.to)}${one.fell ? ", more than noise" : ""} · ${bestOf(one)}`,
      ),
    ),
  );

/** The reward of one prompt by step; a point links to its group. */
export function history(box, one, chosen) {
  refill(box, one && `${one.prompt_hash} ${one.groups}`, () => (one ? drawn(one) : []));
  box.querySelectorAll(".point").forEach((point) => {
    const isNow = point.dataset.place === String(chosen);
    point.classList.toggle("now", isNow);
    point.setAttribute("r", isNow ? 6 : 4);
  });
}

function drawn(one) {
  const [wide, high, edge] = [640, 110, 8];
  const rewards = one.points.map(([, reward]) => reward).filter((reward) => reward !== null);
  const steps = one.points.map(([step]) => step);
  const [low, top] = rewards.length ? [Math.min(...rewards), Math.max(...rewards)] : [0, 0];
  const x = (step) => edge + ((wide - 48 - 2 * edge) * (step - steps[0])) / (steps.at(-1) - steps[0] || 1);
  const y = (reward) => high - edge - ((high - 2 * edge) * ((reward ?? low) - low)) / (top - low || 1);
  const line = one.points.filter(([, reward]) => reward !== null).map(([step, reward]) => `${x(step)},${y(reward)}`);
  const says = ([step, reward]) => `step ${step}: reward ${number(reward)}`;
  const read = (place) => change({ g: place, c: "" });
  const points = one.points.map((point) =>
    h(
      "circle",
      { cx: x(point[0]), cy: y(point[1]), class: "point", "data-place": point[2], onclick: () => read(point[2]) },
      h("title", {}, says(point)),
    ),
  );
  const drawing = h(
    "svg",
    {
      viewBox: `0 0 ${wide} ${high}`,
      role: "application",
      tabindex: 0,
      "aria-label": `Rewards from ${number(low)} to ${number(top)}, steps ${steps[0]} to ${steps.at(-1)}. The arrow keys move from point to point, Enter opens a point's group.`,
    },
    [
      [top, edge + 4],
      [low, high - 2],
    ].map(([value, at]) => h("text", { class: "axis", x: wide - 2, y: at, "text-anchor": "end" }, number(value))),
    line.length ? h("path", { class: "curve", d: `M${line.join("L")}` }) : null,
    points,
  );
  let at = -1;
  pickable(drawing, {
    next: (key) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (!by) return null;
      at =
        at < 0
          ? Math.max(
              0,
              points.findIndex((point) => point.classList.contains("now")),
            )
          : at + by;
      at = Math.max(0, Math.min(points.length - 1, at));
      return points[at];
    },
    says: () => says(one.points[at]),
    open: () => read(one.points[at][2]),
  });
  return [
    h("h2", {}, "This prompt, step by step"),
    h(
      "p",
      {},
      `${counted(one.groups, "group")}: reward ${number(one.first[1])} at first (step ${one.first[0]}), ${number(one.best[1])} at best (step ${one.best[0]}), ${number(one.last[1])} at last (step ${one.last[0]}).`,
    ),
    drawing,
  ];
}
