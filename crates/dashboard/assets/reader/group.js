// One group: the prompt once, and its completions with their rewards.
import { completion, total } from "/reader/completion.js";
import { completionJson, copyButton, groupJson } from "/reader/copy.js";
import { fold } from "/rollouts/fold.js";
import { address, around, change, counted, h, hasSpread, keepFocus, place, refill } from "/lib/lib.js";
import { pair } from "/reader/pair.js";
import { pushed } from "/reader/pushed.js";
import { rendered } from "/rendered/rendered.js";
import { seen } from "/reader/spaces.js";
import { opensThinking, thoughts } from "/reader/think.js";
import { COLORS, colorsOf, legend } from "/reader/tokens.js";
import { textOf } from "/reader/windows.js";

export const VIEWS = ["tokens", "text", "rendered"];
// The number of characters of a prompt that are shown at first.
const OF_PROMPT = 1500;

/** Switches between the groups of a step and the groups of a prompt; the displayed group stays. */
export const turn = (data, words) =>
  words.prompt || words.by
    ? change({ prompt: "", by: "", step: data.step, g: data.place, all: "" })
    : change({ prompt: data.prompt_hash, g: data.place, all: "" });

/** Explains what is learned from a group with equal rewards; empty otherwise, or if nothing was recorded. */
function lesson(data, config) {
  if (hasSpread(data.spread) || data.of === "evaluations") return "";
  const all = data.completions.flatMap((one) => one.advantages ?? one.advantage ?? []);
  if (!all.length || all.some((x) => x !== null && Math.abs(x) > 1e-8)) return "";
  const penalty = config.algorithm === "ppo" ? 0 : config.beta;
  return penalty > 0
    ? ", so only the divergence from the reference model has a gradient"
    : ", so nothing is learned from it";
}

/** The numbers of the completions that are shown: all, or those whose reward passes the filter. */
export function shownOf(data, words) {
  const [least, most] = [words.min, words.max].map((word) => (word ? Number(word) : null));
  const isIn = (one) => {
    const reward = total(one, data);
    return reward !== null && (least === null || reward >= least) && (most === null || reward <= most);
  };
  const isFiltered = words.per === "completion" && (least !== null || most !== null) && !words.rest;
  return data.completions.filter((one) => !isFiltered || isIn(one)).map((one) => one.number);
}

const howOf = (data, words) => ({
  as: VIEWS.includes(words.as) ? words.as : "tokens",
  color: COLORS[words.color] ? words.color : "surprise",
  hasSpaces: Boolean(words.spaces),
  thinks: Boolean(words.think),
  promptEnd: data.prompt_end,
});

/** The name of a control of the group, which keeps the focus. */
const nameOf = (one) => {
  if (!one.matches("button, select, summary, [tabindex]")) return null;
  const text = one.matches("button, summary") ? one.textContent : one.getAttribute("aria-label");
  return [one.tagName, one.closest(".completion")?.dataset.number, text].join(" ");
};

/** Shows a group in a box; draws it again only if something other than the chosen completion has changed. */
export function group(box, run, data, words, config) {
  const { c, ...others } = words;
  const what = JSON.stringify([run, data.of, data.place, others]);
  if (box.shows !== what) {
    const token = box.contains(document.activeElement) ? document.activeElement.readAt?.() : undefined;
    const same = keepFocus(box, () => refill(box, what, () => content(run, data, words, config)), nameOf);
    if (token >= 0) same?.readAt?.(token);
    box.chosen = undefined;
    box.dataset.place = data.place;
  }
  if (box.chosen === c) return;
  box.chosen = c;
  box.querySelectorAll(".completion").forEach((one) => one.classList.toggle("chosen", one.dataset.number === c));
  if (Number(c ?? -1) >= 0) box.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
}

function content(run, data, words, config) {
  const how = howOf(data, words);
  const totals = data.completions.map((c) => total(c, data)).filter(Number.isFinite);
  const best = Math.max(...totals);
  const isAlone = totals.filter((x) => x === best).length === 1;
  const what = data.of === "evaluations" ? `Evaluation of row ${(data.prompt_id ?? 0) + 1}` : `Group ${data.group}`;
  const columns = Object.entries(data.columns ?? {});
  const names = data.reward_names ?? [];
  const shown = shownOf(data, words);
  const hidden = data.completions.length - shown.length;
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  return [
    h(
      "header",
      {},
      h("h1", {}, `${what}, step ${data.step}`),
      h(
        "p",
        {},
        `Reward ${around(data.reward, data.spread)}${lesson(data, config)}. `,
        h(
          "button",
          { onclick: () => turn(data, words) },
          words.prompt || words.by ? `All groups of step ${data.step}` : "History of this prompt",
        ),
      ),
    ),
    prompt(data.prompt, how),
    columns.length
      ? fold(
          "columns",
          counted(columns.length, "other column"),
          h(
            "dl",
            { class: "columns" },
            columns.map(([name, value]) => [
              h("dt", {}, name),
              h("dd", { tabindex: text(value).length > 300 ? 0 : null }, text(value)),
            ]),
          ),
        )
      : null,
    fold("display", `How it is shown: ${how.as}`, display(run, data, words, how)),
    how.as === "tokens" && how.color === "ratio" ? pushed(data) : null,
    words.pair ? pair(run, data, words) : null,
    hidden && !words.pair
      ? h(
          "p",
          { class: "filtered" },
          `${counted(hidden, "completion")} of ${data.completions.length} ${hidden === 1 ? "is" : "are"} outside the filter. `,
          h("button", { onclick: () => change({ rest: 1 }) }, "Show all"),
        )
      : null,
    words.pair
      ? null
      : shown.map((i) =>
          completion(run, data, data.completions[i], how, {
            names,
            isBest: isAlone && total(data.completions[i], data) === best,
          }),
        ),
  ];
}

/** The controls for what is shown of the completions. */
function display(run, data, words, how) {
  const toggle = (name, isOn, words) =>
    h("button", { type: "button", "aria-pressed": String(isOn), onclick: () => change(words) }, name);
  const chosen = () => Number(place().words.c ?? 0);
  const several = data.completions.length > 1;
  const thinks = data.completions.some((one) =>
    thoughts(textOf(one), opensThinking(data.prompt_end)).some((part) => part.thinks),
  );
  return h(
    "div",
    { class: "display" },
    h(
      "div",
      { class: "row", role: "group", "aria-label": "Completions as" },
      VIEWS.map((name) =>
        toggle(name, how.as === name && !words.pair, { as: name === "tokens" ? "" : name, pair: "" }),
      ),
      several ? toggle("two side by side", Boolean(words.pair), { pair: words.pair ? "" : "best" }) : null,
      how.as === "rendered" && !words.pair
        ? null
        : toggle("visible spaces", how.hasSpaces, { spaces: how.hasSpaces ? "" : 1 }),
      thinks && !words.pair ? toggle("open thinking", how.thinks, { think: how.thinks ? "" : 1 }) : null,
      copyButton("group", () => groupJson(run, data)),
      copyButton("completion", () => completionJson(run, data, chosen())),
    ),
    how.as === "tokens" && !words.pair
      ? h(
          "div",
          { class: "colors", role: "group", "aria-label": "Colour of tokens" },
          colorsOf(data).map((name) => toggle(name, name === how.color, { color: name })),
          legend(how.color),
          h("small", {}, absent(how.color, data, run) ?? COLORS[how.color].says),
        )
      : null,
  );
}

/** Explains why a group has no values for a colour. */
function absent(color, data, run) {
  if (color === "entropy" && !data.completions.some((c) => c.entropies))
    return "Entropies are not recorded: record_entropies = true records them.";
  if (color !== "ratio" || data.completions.some((c) => c.new_logprobs)) return null;
  const near = data.nearest_scored;
  if (!near) return "This group was not scored after its step, and neither was any other.";
  const there = { color, step: near.step, g: near.place };
  return [
    "This group was not scored after its step. The nearest scored group: ",
    h("a", { href: address(run, "rollouts", there) }, `a group of step ${near.step}`),
    ". The filter “scored after the step” lists all of them.",
  ];
}

function prompt(content, how) {
  const text = (content) => (typeof content === "string" ? content : JSON.stringify(content ?? ""));
  const messages = Array.isArray(content) ? content : [{ content: content ?? "" }];
  const length = messages.reduce((sum, message) => sum + text(message.content).length, 0);
  return h(
    "section",
    // A long prompt is scrolled on a narrow screen.
    { class: "asked", "aria-label": "Prompt", tabindex: length > 200 ? 0 : null },
    messages.map((message) =>
      h("div", {}, message.role ? h("small", {}, message.role) : null, long(text(message.content), how)),
    ),
  );
}

/** Text of a prompt; the rest of a long text is opened on request. */
function long(text, how) {
  const shown = (text) =>
    how.as === "rendered" ? h("div", { class: "rendered" }, rendered(text)) : h("p", {}, seen(text, how.hasSpaces));
  if (text.length <= OF_PROMPT * 1.2) return shown(text);
  const box = h("div", {}, shown(text.slice(0, OF_PROMPT)));
  const rest = text.length - OF_PROMPT;
  const more = h(
    "button",
    { class: "more", onclick: () => box.replaceWith(shown(text)) },
    `… ${counted(rest, "more character")}`,
  );
  box.append(more);
  return box;
}
