// The frame of the page: runs, views, keyboard shortcuts, and updates of the displayed run.
import { address, change, counted, fill, get, h, kept, place, titleOf } from "/lib/lib.js";
import { announce } from "/shell/live.js";
import { notices } from "/shell/notices.js";
import { tour, wasSeen } from "/shell/tour.js";

// Each view is loaded when it is first opened.
const VIEWS = {
  overview: ["Overview", async () => (await import("/overview/overview.js")).overview],
  rollouts: ["Rollouts", async () => (await import("/rollouts/rollouts.js")).rollouts],
  time: ["Time", async () => (await import("/time/time.js")).time],
  run: ["Run", async () => (await import("/run/run.js")).run],
  levels: ["Levels", async () => (await import("/levels/levels.js")).levels],
};
// Views of the machine and of all runs, which do not need a run.
const FREE = { runs: ["Runs", async () => (await import("/home/home.js")).home], levels: VIEWS.levels };
const KEYS = [
  ["0", "all runs"],
  ["1 – 5", "Overview, Rollouts, Time, Run, Levels"],
  ["[ and ]", "previous run, next run"],
  ["j and k", "Rollouts: next completion, previous completion; after the last one, the next group"],
  ["J and K", "Rollouts: next group, previous group"],
  ["← and →", "Rollouts: previous step, next step; on a chart, the map, a curve or a text: move between its parts"],
  ["+ and −, Escape", "on a chart: zoom in, zoom out, show the whole run"],
  ["c", "Rollouts: colour tokens by surprise, entropy, advantage, nothing"],
  ["v", "Rollouts: completions as tokens, as text, as Markdown"],
  ["s, f", "Rollouts: visible spaces; thinking open or folded"],
  ["a", "Rollouts: two completions side by side"],
  ["y", "Rollouts: copy the chosen completion as JSON"],
  ["h", "Rollouts: the history of this prompt"],
  ["p", "Rollouts: the list of prompts, which fell, rose, or were never solved"],
  ["b, w, z, t", "Rollouts: best, worst, no spread, cut; in the list of prompts, b and w: largest rise, worst"],
  ["/", "Rollouts: search"],
  ["d", "light or dark"],
  ["T", "a tour of the run in five steps"],
  ["?", "these keys"],
];
const main = document.getElementById("main");
const bell = notices(() => runs);
let shown = { run: null, view: null, update: null, end: null };
let runs = [];
let stream = null;

async function start() {
  const token = /^#token=([0-9a-f]+)$/.exec(location.hash)?.[1];
  if (token) {
    await fetch("/api/login", { headers: { Authorization: `Bearer ${token}` } });
    history.replaceState(null, "", "#");
  }
  window.addEventListener("hashchange", show);
  window.addEventListener("theme", redraw);
  document.addEventListener("keydown", key);
  document.getElementById("skip").addEventListener("click", () => main.focus());
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : listen(true)));
  await show();
  setInterval(async () => {
    // A hidden page only checks for notices.
    if (document.hidden && !bell?.isOn()) return;
    runs = await get("runs").catch(() => runs);
    bell?.look(runs);
    if (document.hidden) return;
    head();
    hear();
  }, 5000);
}

async function show() {
  try {
    if (!runs.length) runs = await get("runs");
    const now = place();
    const free = !now.run || now.view === "levels";
    if (!runs.length && now.view !== "levels")
      return fill(
        main,
        h(
          "p",
          { class: "none" },
          "There is no run yet. The first one appears here when it starts. ",
          h("a", { href: address("", "levels") }, "Levels"),
          " measures this machine in the meantime.",
        ),
      );
    if (!now.run && !FREE[now.view]) {
      // The default is the run in progress, or the only run.
      const live = runs.filter((one) => one.state === "running");
      const [one] = live.length === 1 ? live : runs.length === 1 ? runs : [];
      return void location.replace(one ? address(one.id, "overview") : address("", "runs"));
    }
    if (now.run && !runs.some((one) => one.id === now.run)) runs = await get("runs");
    if (now.run && now.view !== "levels" && !runs.some((one) => one.id === now.run)) {
      shown.end?.();
      shown = { run: null, view: null, update: null, end: null };
      head();
      return fill(
        main,
        h("p", { class: "none", role: "alert" }, `The run ${now.run} was not found. `, h("a", { href: address("", "runs") }, "All runs")),
      );
    }
    const views = free ? FREE : VIEWS;
    const view = views[now.view] ? now.view : "overview";
    const same = shown.run === now.run && shown.view === view && shown.of === now.words.of && shown.update;
    if (same) await shown.update(now.words);
    else {
      shown.end?.();
      fill(main);
      shown = { run: now.run, view, of: now.words.of, update: null, end: null };
      // A view may take time to load, for example the first one with a large vocabulary.
      head();
      const make = await views[view][1]();
      const made = await make(main, now.run, now.words, runs);
      Object.assign(shown, made);
      listen(false);
    }
    head();
    const one = runs.find((one) => one.id === now.run);
    document.title = [views[view][0], one && titleOf(one), "Lockstep"].filter(Boolean).join(" · ");
    hear();
  } catch (error) {
    fill(main, h("p", { class: "none", role: "alert" }, error.message));
  }
}

/** Draws the view again with the current colours. */
function redraw() {
  shown.view = null;
  show();
}

function head() {
  const now = place();
  const one = runs.find((one) => one.id === now.run);
  const mark = h("a", { class: "mark", href: address("", "runs"), title: "All runs" }, "Lockstep");
  if (!one) {
    const other = now.view === "levels" ? [] : h("nav", {}, h("a", { href: address("", "levels") }, "Levels"));
    return fill(document.getElementById("head"), mark, other, bell);
  }
  const select = h(
    "select",
    {
      "aria-label": "Run",
      onchange: (event) =>
        (location.hash = address(event.target.value, now.view || "overview", kept({ ...now.words, vs: "" }))),
    },
    runs.map((other) =>
      h("option", { value: other.id, selected: other.id === now.run }, `${titleOf(other)} · ${other.state}`),
    ),
  );
  const tab = ([id, [name]]) =>
    h(
      "a",
      {
        href: address(now.run, id, id === now.view ? now.words : kept(now.words)),
        "aria-current": (VIEWS[now.view] ? now.view : "overview") === id ? "page" : null,
      },
      name,
    );
  const progress = one.total
    ? `step ${one.step.toLocaleString("en")} of ${one.total.toLocaleString("en")}`
    : `step ${one.step.toLocaleString("en")}`;
  const quiet =
    one.state === "running" && one.silent_s > 120 ? `, silent for ${Math.round(one.silent_s / 60)} min` : "";
  const alarms = one.alarms
    ? h("a", { class: "warn", href: address(now.run, "overview") }, `⚠ ${counted(one.alarms, "alarm")}`)
    : null;
  const words = `${one.state === "running" ? "● " : ""}${one.state}, ${progress}${quiet}`;
  const state = document.querySelector("#head .state");
  // The focused element is kept.
  if (state && document.activeElement?.closest?.("#head") && shown.run === now.run) {
    state.textContent = words;
    return;
  }
  fill(
    document.getElementById("head"),
    mark,
    select,
    h("nav", { "aria-label": "Views" }, Object.entries(VIEWS).map(tab)),
    h(
      "span",
      { class: `state ${one.state}` },
      words,
    ),
    alarms,
    bell,
    h("button", { class: `plain${wasSeen() ? "" : " news"}`, onclick: () => tour(place().run) }, "Tour"),
    h("button", { class: "plain", onclick: help, "aria-label": "Keys" }, "?"),
  );
}

/** Announces changes of the run to screen readers. */
function hear() {
  const one = runs.find((one) => one.id === shown.run);
  if (one) announce(one);
}

function close() {
  stream?.close();
  stream = null;
}

/** Updates of the run arrive as a stream, which is closed while the page is hidden. */
function listen(again) {
  close();
  if (!shown.run) return;
  stream = new EventSource(`/api/events?run=${encodeURIComponent(shown.run)}`);
  let first = !again;
  let facts = {};
  stream.addEventListener("mark", async (event) => {
    const news = JSON.parse(event.data);
    const one = runs.find((one) => one.id === shown.run);
    if (one) Object.assign(one, news.run);
    // The first event has all facts, and the others those that have changed.
    facts = { ...facts, ...news.facts };
    head();
    hear();
    // The data of the first mark is already displayed.
    if (!first) await shown.update?.(place().words, facts);
    first = false;
  });
}

function help() {
  const dialog = document.getElementById("help");
  fill(
    dialog,
    h("h2", {}, "Keys"),
    h(
      "dl",
      {},
      KEYS.map(([keys, what]) => [h("dt", {}, keys), h("dd", {}, what)]),
    ),
    h("button", { onclick: () => dialog.close() }, "Close"),
  );
  dialog.showModal();
}

/** Shows tooltips on touch screens: touching an element shows what hovering shows with a mouse. */
function tips() {
  const tip = document.getElementById("tip");
  document.addEventListener("pointerup", (event) => {
    const of = event.pointerType === "mouse" ? null : event.target;
    const text = of?.querySelector(":scope > title")?.textContent ?? of?.closest("[title]")?.getAttribute("title");
    tip.textContent = text ?? "";
    tip.hidden = !text;
  });
}

function key(event) {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const now = place();
  const views = Object.keys(VIEWS);
  const at = runs.findIndex((one) => one.id === now.run);
  if (event.key === "0") location.hash = address("", "runs");
  else if ("12345".includes(event.key) && now.run) location.hash = address(now.run, views[event.key - 1], kept(now.words));
  else if ((event.key === "[" || event.key === "]") && runs.length) {
    const next = runs[(at + (event.key === "]" ? 1 : runs.length - 1)) % runs.length];
    location.hash = address(next.id, now.view || "overview", kept({ ...now.words, vs: "" }));
  } else if (event.key === "d") {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
    redraw();
  } else if (event.key === "?") help();
  else if (event.key === "T" && now.run) tour(now.run);
  else if (shown.key?.(event, now.words, change)) event.preventDefault();
}

tips();
start();
