// The frame of the page: runs, views, keyboard shortcuts, and updates of the displayed run.
import { address, change, fill, get, h, kept, oneAtATime, place, titleOf } from "/lib/lib.js";
import { headOf } from "/shell/head.js";
import { announce } from "/shell/live.js";
import { notices } from "/shell/notices.js";
import { tour } from "/shell/tour.js";

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
const names = Object.entries(VIEWS).map(([id, [name]]) => [id, name]);
const drawHead = headOf(document.getElementById("head"), { views: names, bell, help });
const head = () => drawHead(runs, isAbsent);
// The displayed view: its run, its newest facts and those that were drawn, and what its module returned. Until then,
// the view is being built, and has no `update`.
let shown = { run: null, view: null };
let runs = [];
let stream = null;
// The number of events received, and whether the last request for the list of runs failed.
let events = 0;
let isAbsent = false;
let hasFailed = false;

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
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : shown.update && listen(shown)));
  await show();
  setInterval(oneAtATime(loadRuns), 5000);
}

/** Loads the list of runs. Its row of the displayed run is dropped if an event arrived in the meantime. */
async function loadRuns() {
  // A hidden page only checks for notices.
  if (document.hidden && !bell?.isOn()) return;
  const [before, known] = [events, ids(runs)];
  const now = await get("runs").catch(() => null);
  isAbsent = !now;
  const newest = (row) => (before !== events && row.id === shown.run && runs.find((one) => one.id === row.id)) || row;
  runs = now?.map(newest) ?? runs;
  if (now) bell?.look(runs);
  if (document.hidden) return;
  // The server answers again, or the first run or the wanted one has begun.
  if (now && !shown.view && (hasFailed || ids(now) !== known)) return void show();
  // The browser opens a stream again that was interrupted, but not one that was refused.
  if (shown.update && shown.run && stream?.readyState !== EventSource.OPEN && stream?.readyState !== EventSource.CONNECTING)
    listen(shown);
  head();
  hear();
}

const ids = (runs) => runs.map(({ id }) => id).join(" ");

async function show() {
  const { hash } = location;
  let view = shown;
  hasFailed = false;
  try {
    if (!runs.length) runs = await get("runs");
    const now = place();
    if (now.run && now.view !== "levels" && !runs.some((one) => one.id === now.run)) runs = await get("runs");
    // The reader may have opened another view in the meantime.
    if (location.hash !== hash) return;
    if (!runs.length && now.view !== "levels")
      return leave(
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
    const one = runs.find((one) => one.id === now.run);
    const views = !now.run || now.view === "levels" ? FREE : VIEWS;
    if (views === VIEWS && !one) return leave(absent(now.run));
    const name = views[now.view] ? now.view : "overview";
    document.title = [views[name][0], one && titleOf(one), "Lockstep"].filter(Boolean).join(" · ");
    const wanted = { run: now.run, view: name, of: now.words.of };
    if (shown.isOld || !isSame(shown, wanted)) view = await build(views[name][1], wanted, views === VIEWS);
    // A view that is still being built is drawn afterwards, with the URL of that time.
    await view?.update?.(place().words);
    head();
    hear();
  } catch (error) {
    fail(view, error);
  }
}

const isSame = (a, b) => a.run === b.run && a.view === b.view && a.of === b.of;

/** Builds a view in place of the displayed one; null if that fails, or if another view was opened in the meantime. */
async function build(load, view, hasFacts) {
  end();
  // The same view with other colours, if any.
  const before = isSame(shown, view) ? shown : null;
  shown = view;
  const box = h("div");
  fill(main, box);
  head();
  try {
    // A view may take time to load, for example the first one with a large vocabulary.
    const [make, facts] = await Promise.all([load(), hasFacts ? get(`runs/${view.run}`) : null]);
    if (shown !== view) return null;
    if (hasFacts && !facts) return leave(absent(view.run));
    view.drawn = view.facts = facts;
    const made = await make(box, { run: view.run, facts, words: place().words, runs, rebuild, before });
    if (shown === view) return listen(Object.assign(view, made));
    made.end?.();
  } catch (error) {
    fail(view, error);
  }
  return null;
}

/** Ends the displayed view, and shows this instead. */
function leave(instead) {
  end();
  shown = { run: null, view: null };
  fill(main, instead);
  head();
}

function end() {
  shown.end?.();
  close();
}

/** Shows why a view could not be built or drawn. If the server was absent, it is built again once the server answers. */
function fail(view, error) {
  if (shown !== view) return;
  leave(h("p", { class: "none", role: "alert" }, error.message));
  hasFailed = Boolean(error.isAbsent);
}

const absent = (run) =>
  h(
    "p",
    { class: "none", role: "alert" },
    `The run ${run} was not found. `,
    h("a", { href: address("", "runs") }, "All runs"),
  );

/** Draws the view again with the current colours. */
function redraw() {
  shown.isOld = true;
  show();
}

/** Builds the view again with new data. */
function rebuild() {
  shown.pinned = undefined;
  redraw();
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

/** Receives updates of the view's run as a stream, which is closed while the page is hidden. Returns the view. */
function listen(view) {
  close();
  if (!view.run || document.hidden) return view;
  stream = new EventSource(`/api/events?run=${encodeURIComponent(view.run)}`);
  stream.addEventListener("mark", (event) => {
    const news = JSON.parse(event.data);
    events++;
    isAbsent = false;
    const one = runs.find((one) => one.id === view.run);
    if (one) Object.assign(one, news.run);
    // The first event has all facts, and the others those that have changed.
    view.facts = { ...view.facts, ...news.facts };
    head();
    hear();
    follow(view);
  });
  return view;
}

/** Draws a view's new facts. Facts that arrive in the meantime are drawn together afterwards. */
async function follow(view) {
  if (view.follows) return;
  view.follows = true;
  try {
    while (shown === view && view.drawn?.mark !== view.facts.mark) {
      view.drawn = view.facts;
      await view.update(place().words, view.facts);
    }
  } catch (error) {
    fail(view, error);
  } finally {
    view.follows = false;
  }
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
