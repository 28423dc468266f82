// The controls for the list of groups or prompts: step, filters, order and search.
import { address, change, counted, fill, h, soon } from "/lib/lib.js";
import { fold } from "/rollouts/fold.js";
import { ORDER, fallen } from "/rollouts/prompts.js";

const ONLY = [
  ["", "all"],
  ["best", "best"],
  ["worst", "worst"],
  ["spread", "with spread"],
  ["no-spread", "no spread"],
  ["cut", "cut"],
  ["updated", "scored after the step"],
];
const SORT = [
  ["", "in the order of the run"],
  ["-reward", "highest reward first"],
  ["reward", "lowest reward first"],
  ["-spread", "largest spread first"],
  ["-tokens", "longest first"],
];
const PER = [
  ["", "of the group"],
  ["completion", "of a completion"],
];

/** Whether groups of all steps are listed: a filter or search without a step covers all of them. */
export const isAll = (words) =>
  Boolean(words.all || (!words.step && (words.q || words.only || words.min || words.max)));

/** The parameters of the request to the server. */
export const query = (words, of) =>
  words.by === "prompts"
    ? { of, sort: words.order, q: words.q, limit: 40 }
    : {
        of,
        step: words.prompt || isAll(words) ? undefined : words.step,
        prompt: words.prompt,
        only: words.only,
        min: words.min,
        max: words.max,
        per: words.min || words.max ? words.per : undefined,
        sort: words.sort,
        q: words.q,
        limit: 40,
      };

/** `view` has the state shared by all parts of the rollouts: run, of, facts, steps, list. */
export function filters(view) {
  const element = h("form", { class: "tools", onsubmit: (event) => event.preventDefault() });

  const choice = (words, name, choices) =>
    h(
      "select",
      {
        id: `choose-${name}`,
        "aria-label": name,
        onchange: (event) => change({ [name]: event.target.value, g: "", rest: "" }),
      },
      choices.map(([value, text]) => h("option", { value, selected: (words[name] ?? "") === value }, text)),
    );
  const lists = (words) => {
    const list = (by, text) =>
      h(
        "button",
        {
          type: "button",
          id: `list-${by || "groups"}`,
          "aria-pressed": String((words.by ?? "") === by),
          onclick: () => change({ by, prompt: "", g: "", c: "" }),
        },
        text,
      );
    return h("span", { role: "group", "aria-label": "List of" }, list("", "Groups"), " ", list("prompts", "Prompts"));
  };
  const search = (words, what) =>
    h("input", {
      type: "search",
      id: "search",
      placeholder: `Search ${what}`,
      "aria-label": "Search",
      value: words.q ?? "",
      // The list is updated while the user types.
      oninput: ({ target }) => soon(element, 300, () => change({ q: target.value, g: "" })),
    });
  const bound = (words, name, sign) =>
    h(
      "label",
      {},
      `${sign} `,
      h("input", {
        type: "number",
        step: "any",
        id: `reward-${name}`,
        "aria-label": `reward ${sign}`,
        value: words[name] ?? "",
        onchange: ({ target }) => change({ [name]: target.value, g: "", rest: "" }),
      }),
    );

  function stepOf(words) {
    const [first, last] = view.steps;
    const step = Number(words.step ?? view.pinned);
    const go = (to) => () => {
      const [first, last] = view.steps;
      change({ step: Math.min(last, Math.max(first, to)), g: "", prompt: "", all: "" });
    };
    return h(
      "span",
      {},
      h("button", { type: "button", id: "step-before", onclick: go(step - 1), "aria-label": "The previous step" }, "←"),
      h(
        "label",
        {},
        " Step ",
        h("input", {
          type: "number",
          id: "step",
          min: first,
          max: last,
          value: step,
          onchange: (event) => go(Number(event.target.value))(),
        }),
      ),
      " of ",
      h("span", { class: "range" }, `${first} – ${last}`),
      " ",
      h("button", { type: "button", id: "step-after", onclick: go(step + 1), "aria-label": "The next step" }, "→"),
    );
  }

  function ofGroups(words) {
    const { run, of, facts } = view;
    const one = !words.prompt && !isAll(words);
    const step = Number(words.step ?? view.pinned);
    const back = h(
      "a",
      { href: address(run, "rollouts", { step: words.step, color: words.color, as: words.as, of }) },
      "Back to the step",
    );
    const all = ({ target }) =>
      change({ all: target.checked ? 1 : "", step: target.checked ? words.step : step, g: "" });
    return [
      words.prompt ? h("span", {}, "Every group of one prompt. ", back) : one ? stepOf(words) : h("b", {}, "All steps"),
      words.prompt
        ? null
        : h("label", {}, h("input", { type: "checkbox", id: "all", checked: !one, onchange: all }), " all steps"),
      facts.evaluated && facts.groups ? kinds() : null,
      choice(words, "only", of ? ONLY.filter(([name]) => name !== "updated") : ONLY),
      h(
        "span",
        { class: "bounds", role: "group", "aria-label": "Filter by reward" },
        "reward ",
        bound(words, "min", "≥"),
        " ",
        bound(words, "max", "≤"),
        " ",
        choice(words, "per", PER),
      ),
      choice(words, "sort", SORT),
      search(words, "prompts and completions"),
    ];
  }

  const kinds = () =>
    h(
      "select",
      {
        id: "choose-of",
        "aria-label": "Of training or evaluations",
        onchange: (event) => (location.hash = address(view.run, "rollouts", { of: event.target.value })),
      },
      h("option", { value: "", selected: !view.of }, "training"),
      h("option", { value: "evaluations", selected: Boolean(view.of) }, "evaluations"),
    );

  /** Draws the form again; a focused field and its text stay. */
  function draw(words) {
    const { list } = view;
    const byPrompt = words.by === "prompts";
    const { activeElement: typed } = document;
    const isTyped = element.contains(typed);
    const what = byPrompt
      ? "list of prompts"
      : isAll(words)
        ? "all steps"
        : words.prompt
          ? "one prompt"
          : `step ${words.step ?? view.pinned}`;
    const unread = list.unread
      ? h(
          "span",
          {},
          `${counted(list.unread, byPrompt ? "prompt" : "group")} were not read in time${byPrompt ? "" : ": choose a step"}`,
        )
      : null;
    fill(
      element,
      fold(
        "filters",
        `Filters: ${what}`,
        h(
          "div",
          { class: "row" },
          lists(words),
          byPrompt ? [choice(words, "order", ORDER), search(words, "prompts")] : ofGroups(words),
          h("span", { class: "count" }, counted(list.total ?? 0, byPrompt ? "prompt" : "group")),
          byPrompt && !words.q ? h("span", {}, fallen(list)) : null,
          unread,
        ),
      ),
    );
    const same = isTyped && typed.id ? document.getElementById(typed.id) : null;
    if (!same) return;
    if (same.type === "search") same.value = typed.value;
    same.focus();
    if (same.type === "search") same.setSelectionRange(typed.selectionStart, typed.selectionEnd);
  }

  /** Called when the run has more steps. */
  function news() {
    const [first, last] = view.steps;
    element.querySelector(".range")?.replaceChildren(`${first} – ${last}`);
    element.querySelector("#step")?.setAttribute("max", last);
  }

  /** Puts the cursor into the search field, which may be folded. */
  function seek() {
    element.querySelectorAll("details").forEach((one) => (one.open = true));
    document.getElementById("search")?.focus();
  }
  return { element, draw, news, seek };
}
