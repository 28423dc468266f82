// What is it writing? All groups as a map, and the ones that are read.
import { colorsOf, group, turn } from "/group.js";
import { address, around, change, counted, fill, get, h, hasSpread, number, place } from "/lib.js";
import { ORDER, fallen, history, row } from "/prompts.js";

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

export async function rollouts(main, run, words) {
  const facts = await get(`runs/${run}`);
  // Those of evaluations are read in the same way.
  const evaluated = words.of === "evaluations" && facts.evaluated;
  const of = evaluated ? "evaluations" : undefined;
  const count = (facts) => (evaluated ? facts.evaluated : facts.groups);
  const range = (facts) => (evaluated ? facts.evaluated_steps : facts.group_steps);
  if (!count(facts)) {
    main.append(
      h(
        "section",
        { class: "none" },
        h("h1", {}, "No rollouts are recorded"),
        h(
          "p",
          {},
          "A run with ",
          h("code", {}, "record_rollouts = true"),
          " keeps each group that it trains on: prompts, completions, their tokens with log-probabilities, rewards and advantages. ",
          h("code", {}, "record_entropies = true"),
          " adds the entropy at each token.",
        ),
      ),
    );
    return { update: () => {} };
  }
  const known = count(facts);
  let steps = range(facts);
  let list = { groups: [] };
  const map = h("section", {
    class: "map",
    "aria-label": "All groups: steps from left to right, each step's groups by reward",
  });
  const tools = h("form", { class: "tools", onsubmit: (event) => event.preventDefault() });
  const side = h("ol", { class: "groups", "aria-label": "Groups" });
  const read = h("article", { class: "read" });
  const curve = h("section", { class: "history", "aria-label": "The prompt's rewards" });
  const fresh = h("p", { class: "fresh", role: "status" });
  main.append(map, tools, fresh, h("div", { class: "two" }, h("div", { class: "side" }, side), h("div", {}, curve, read)));

  // What is filtered or searched without a step is of all steps.
  const isAll = (words) => words.all || (!words.step && (words.q || words.only));
  const query = (words) => ({
    of,
    step: words.prompt || isAll(words) ? undefined : words.step,
    prompt: words.prompt,
    only: words.only,
    sort: words.sort,
    q: words.q,
    limit: 40,
  });
  let asked = "";
  let searches = 0;
  // The prompt whose curve is shown, with its points.
  let traced = null;

  async function trace(hash) {
    if (traced?.prompt_hash === hash) return;
    traced = hash ? ((await get(`runs/${run}/prompts`, { of, prompt: hash }))?.prompts[0] ?? null) : null;
  }

  async function draw(words, isNews) {
    if (isNews) return news();
    // Without a step: the newest one that is recorded.
    if (!words.step && !words.prompt && !words.q && !words.only && !words.all) {
      const step = steps[1];
      words = { ...words, step };
    }
    const byPrompt = words.by === "prompts";
    const wanted = byPrompt ? { of, sort: words.order, limit: 40 } : query(words);
    if (JSON.stringify([byPrompt, wanted]) !== asked) {
      asked = JSON.stringify([byPrompt, wanted]);
      const none = { groups: [], prompts: [], total: 0 };
      list = (await get(`runs/${run}/${byPrompt ? "prompts" : "groups"}`, wanted)) ?? none;
      const typed = document.activeElement?.id === "search" ? document.activeElement : null;
      drawTools(words);
      drawSide(words);
      if (typed && !byPrompt) keep(typed);
    }
    const hash = byPrompt ? (words.prompt ?? list.prompts[0]?.prompt_hash) : words.prompt;
    await trace(hash);
    mark(words);
    const g = Number(words.g ?? (byPrompt ? traced?.last[2] : opening(words)?.place) ?? NaN);
    [...side.querySelectorAll("a")].forEach((a) => {
      const isHere = byPrompt ? a.dataset.prompt === hash : a.dataset.place === String(g);
      a.setAttribute("aria-current", String(isHere));
    });
    history(curve, traced, g);
    if (Number.isNaN(g)) return fill(read, h("p", { class: "none" }, "No group fits."));
    if (read.dataset.place !== String(g)) {
      const data = await get(`runs/${run}/groups/${g}`, { of });
      read.dataset.place = g;
      read.group = data && { ...data, of };
    }
    if (read.group) group(read, run, read.group, words, facts.config);
  }

  function keep(typed) {
    const search = document.getElementById("search");
    search.value = typed.value;
    search.focus();
    search.setSelectionRange(typed.selectionStart, typed.selectionEnd);
  }

  async function news() {
    const now = await get(`runs/${run}`);
    if (!now || count(now) === known) return;
    // What is read stays where it is: that there is more is said.
    fill(
      fresh,
      `${counted(count(now) - known, "new group")}, up to step ${range(now)[1]}. `,
      h("a", { href: address(run, "rollouts", { step: range(now)[1], of }) }, "Read them"),
    );
    steps = range(now);
  }

  // The first group that something is learned from, unless an order is asked for.
  const opening = ({ sort, only }) =>
    (sort || only ? null : list.groups.find((one) => hasSpread(one.spread))) ?? list.groups[0];

  function drawTools(words) {
    const choice = (name, choices) =>
      h(
        "select",
        { "aria-label": name, onchange: (event) => change({ [name]: event.target.value, g: "" }) },
        choices.map(([value, text]) => h("option", { value, selected: (words[name] ?? "") === value }, text)),
      );
    const [first, last] = steps;
    const step = Number(words.step ?? last);
    const go = (to) => () => change({ step: Math.min(last, Math.max(first, to)), g: "", prompt: "", all: "" });
    const byPrompt = words.by === "prompts";
    const one = !words.prompt && !isAll(words);
    const of_ = (by, text) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String((words.by ?? "") === by),
          onclick: () => change({ by, prompt: "", g: "", c: "" }),
        },
        text,
      );
    const lists = h("span", { role: "group", "aria-label": "List of" }, of_("", "Groups"), " ", of_("prompts", "Prompts"));
    const count = h("span", { class: "count" }, counted(list.total ?? 0, byPrompt ? "prompt" : "group"));
    if (byPrompt) return fill(tools, lists, choice("order", ORDER), count, h("span", {}, fallen(list)));
    fill(
      tools,
      lists,
      words.prompt
        ? h(
            "span",
            {},
            "Every group of one prompt. ",
            h(
              "a",
              { href: address(run, "rollouts", { step: words.step, color: words.color, of }) },
              "Back to the step",
            ),
          )
        : one
          ? h(
              "span",
              {},
              h("button", { type: "button", onclick: go(step - 1), "aria-label": "The step before" }, "←"),
              h(
                "label",
                {},
                " Step ",
                h("input", {
                  type: "number",
                  min: first,
                  max: last,
                  value: step,
                  onchange: (event) => go(Number(event.target.value))(),
                }),
              ),
              ` of ${first} – ${last} `,
              h("button", { type: "button", onclick: go(step + 1), "aria-label": "The next step" }, "→"),
            )
          : h("b", {}, "All steps"),
      words.prompt
        ? null
        : h(
            "label",
            {},
            h("input", {
              type: "checkbox",
              checked: !one,
              onchange: (event) =>
                change({ all: event.target.checked ? 1 : "", step: event.target.checked ? words.step : step, g: "" }),
            }),
            " all steps",
          ),
      facts.evaluated && facts.groups
        ? h(
            "select",
            {
              "aria-label": "Of training or evaluations",
              onchange: (event) => (location.hash = address(run, "rollouts", { of: event.target.value })),
            },
            h("option", { value: "", selected: !evaluated }, "training"),
            h("option", { value: "evaluations", selected: evaluated }, "evaluations"),
          )
        : null,
      choice("only", evaluated ? ONLY.filter(([name]) => name !== "updated") : ONLY),
      choice("sort", SORT),
      h("input", {
        type: "search",
        id: "search",
        placeholder: "Search prompts and completions",
        "aria-label": "Search",
        value: words.q ?? "",
        // The list follows while one writes; the field itself is drawn anew then, and keeps the cursor.
        oninput: ({ target }) => {
          clearTimeout(searches);
          searches = setTimeout(() => change({ q: target.value, g: "" }), 300);
        },
      }),
      count,
      list.unread ? h("span", {}, `${counted(list.unread, "group")} were not read in time: choose a step`) : null,
    );
  }

  function drawSide(words) {
    const marks = (one) => (one.scored ? " · scored after the step" : "");
    const line = (one) =>
      h(
        "li",
        {},
        h(
          "a",
          { href: address(run, "rollouts", { ...words, g: one.place }), "data-place": one.place },
          h("span", { class: "bar" }, bar(one)),
          h("span", { class: "prompt" }, one.prompt || `group ${one.group}`),
          h("small", {}, `step ${one.step} · reward ${around(one.reward, one.spread)}${marks(one)}`),
        ),
      );
    const byPrompt = words.by === "prompts";
    const [shown, kind] = byPrompt ? [list.prompts, "prompts"] : [list.groups, "groups"];
    const wanted = byPrompt ? { of, sort: words.order, limit: 40 } : query(words);
    const more = async () => {
      const next = await get(`runs/${run}/${kind}`, { ...wanted, cursor: list.next });
      list = { ...list, [kind]: [...shown, ...next[kind]], next: next.next };
      drawSide(words);
      await draw(place().words, false);
    };
    const left = (list.total ?? 0) - shown.length;
    fill(
      side,
      shown.map((one) => (byPrompt ? row(run, one, words) : line(one))),
      list.next
        ? h("li", { class: "more" }, h("button", { onclick: more }, `Show ${Math.min(40, left)} of ${left} more`))
        : null,
    );
  }

  let scale = [0, 1];
  function bar(one) {
    const share = Math.max(0, Math.min(1, (one.reward - scale[0]) / (scale[1] - scale[0] || 1)));
    return h("i", { style: { width: `${Math.round(100 * share)}%` } });
  }

  // Only algorithms that compare the completions of a group need a spread.
  const compares = facts.config.algorithm !== "ppo" && facts.config.num_generations > 1;
  // The map is drawn once for each new set of groups.
  const cells = await get(`runs/${run}/map`, { px: 240, rows: 32, of });
  const rewards = cells.cells
    .flat()
    .map(([reward]) => reward)
    .filter((x) => x !== null);
  scale = [Math.min(...rewards), Math.max(...rewards)];
  const rows = Math.max(...cells.cells.map((column) => column.length));
  const [wide, high] = [8, Math.max(4, Math.min(12, 96 / rows))];
  const drawing = h("svg", {
    viewBox: `0 0 ${cells.steps.length * wide} ${rows * high}`,
    preserveAspectRatio: "none",
    width: "100%",
    height: rows * high,
    role: "img",
    "aria-label": `${count(facts)} groups; rewards from ${number(scale[0])} to ${number(scale[1])}`,
  });
  // Where a run has more steps than the map has columns, a column has the groups of some steps.
  const covers = (x) => {
    const last = Math.min(cells.steps[x] + cells.width - 1, steps[1]);
    return last > cells.steps[x] ? `steps ${cells.steps[x]} – ${last}` : `step ${cells.steps[x]}`;
  };
  const open = async (x, at) => {
    const step = cells.width > 1 ? (await get(`runs/${run}/groups/${at}`, { of })).step : cells.steps[x];
    change({ step, g: at, prompt: "", all: "", only: "", q: "", by: "" });
  };
  cells.cells.forEach((column, x) =>
    column.forEach(([reward, deviation, at], y) => {
      const share = (reward - scale[0]) / (scale[1] - scale[0] || 1);
      const rect = h(
        "rect",
        {
          x: x * wide,
          y: y * high,
          width: wide - 0.5,
          height: high - 0.5,
          class: compares && !hasSpread(deviation) ? "flat" : "",
          "fill-opacity": reward === null ? 0 : 0.08 + 0.92 * share,
          onclick: () => open(x, at),
        },
        h("title", {}, `${covers(x)}: reward ${around(reward, deviation)}`),
      );
      rect.dataset.step = cells.steps[x];
      rect.dataset.place = at;
      drawing.append(rect);
    }),
  );
  map.append(
    drawing,
    h(
      "p",
      { class: "legend" },
      `Steps ${steps.join(" – ")}, ${cells.width > 1 ? `${cells.width} in a column` : "one in a column"}; its groups from the best to the worst. Full colour is a high reward (${number(scale[0])} – ${number(scale[1])})${compares ? ", a cell with a border has no spread" : ""}.`,
    ),
  );

  function mark(words) {
    drawing.querySelectorAll(".now").forEach((rect) => rect.classList.remove("now"));
    const places = new Set((traced?.points ?? []).map(([, , place]) => String(place)));
    if (traced) {
      drawing.querySelectorAll("rect").forEach((rect) => rect.classList.toggle("now", places.has(rect.dataset.place)));
      return;
    }
    const at = cells.steps.filter((step) => step <= Number(words.step ?? steps[1])).at(-1);
    drawing.querySelectorAll(`[data-step="${at}"]`).forEach((rect) => rect.classList.add("now"));
  }

  function next(by, words) {
    const places = words.by === "prompts" ? traced.points.map(([, , place]) => place) : list.groups.map((one) => one.place);
    const at = places.indexOf(Number(words.g ?? read.dataset.place));
    const to = places[at + by];
    if (to !== undefined) change({ g: to, c: by > 0 ? 0 : undefined });
  }

  function key(event, words) {
    const number = Number(words.c ?? -1);
    const completions = read.group?.completions.length ?? 0;
    const step = Number(words.step ?? steps[1]);
    switch (event.key) {
      case "j":
        number + 1 < completions ? change({ c: number + 1 }) : next(1, words);
        break;
      case "k":
        number > 0 ? change({ c: number - 1 }) : next(-1, words);
        break;
      case "J":
        next(1, words);
        break;
      case "K":
        next(-1, words);
        break;
      case "ArrowRight":
        change({ step: Math.min(steps[1], step + 1), g: "", c: "" });
        break;
      case "ArrowLeft":
        change({ step: Math.max(steps[0], step - 1), g: "", c: "" });
        break;
      case "c": {
        const all = colorsOf(read.group);
        change({ color: all[(all.indexOf(words.color ?? "surprise") + 1) % all.length] });
        break;
      }
      case "h":
        if (read.group) turn(read.group, words);
        break;
      case "p":
        change({ by: words.by === "prompts" ? "" : "prompts", prompt: "", g: "", c: "" });
        break;
      case "b":
        change({ only: words.only === "best" ? "" : "best", g: "" });
        break;
      case "w":
        change({ only: words.only === "worst" ? "" : "worst", g: "" });
        break;
      case "z":
        change({ only: words.only === "no-spread" ? "" : "no-spread", g: "" });
        break;
      case "t":
        change({ only: words.only === "cut" ? "" : "cut", g: "" });
        break;
      case "/":
        document.getElementById("search")?.focus();
        break;
      default:
        return false;
    }
    return true;
  }
  await draw(words, false);
  return { update: draw, key, end: () => clearTimeout(searches) };
}
