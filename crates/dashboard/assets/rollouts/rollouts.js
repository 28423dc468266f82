// What is it writing? A map of all groups, and the displayed groups.
import { filters, isAll, query } from "/rollouts/filters.js";
import { VIEWS, group, shownOf, turn } from "/reader/group.js";
import { sideList } from "/rollouts/list.js";
import { address, change, counted, fill, get, h, hasSpread, place, turns } from "/lib/lib.js";
import { groupMap } from "/rollouts/map.js";
import { history } from "/rollouts/prompts.js";
import { colorsOf } from "/reader/tokens.js";

const none = () =>
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
  );

export async function rollouts(main, { run, facts, words, rebuild, before }) {
  // Groups of evaluations are displayed in the same way.
  const evaluated = words.of === "evaluations" && facts.evaluated;
  const of = evaluated ? "evaluations" : undefined;
  const countOf = (facts) => (evaluated ? facts.evaluated : facts.groups);
  const stepsOf = (facts) => (evaluated ? facts.evaluated_steps : facts.group_steps);
  if (!countOf(facts)) {
    fill(main, none());
    return { update: (_, news) => news && countOf(news) && rebuild() };
  }
  // The state shared by all parts of this view. `pinned` is the step that is shown if the URL names none: the newest
  // step when the view was opened, even if the run has progressed, or if the view was rebuilt with other colours.
  const pinned = before?.pinned ?? stepsOf(facts)[1];
  const view = { run, of, facts, steps: stepsOf(facts), pinned, list: { groups: [] } };
  // The number of groups when the newest step was displayed, and the number of groups now.
  let [seen, count] = [countOf(facts), countOf(facts)];
  // The newest step and the number of groups at the time of the last message about new groups.
  let told = { step: view.pinned, count };
  // For each step that a message named, the number of groups at that time: the reader may follow the link of an older
  // message.
  const counts = new Map();
  // The prompt whose curve is shown, with its points.
  let traced = null;
  let asked = "";
  const begin = turns();

  const compares = facts.config.algorithm !== "ppo" && facts.config.num_generations > 1;
  const open = (step, g) =>
    change({ step, g, c: "", prompt: "", all: "", only: "", q: "", by: "", min: "", max: "", rest: "" });
  const map = groupMap({ run, of, compares, open });
  const tools = filters(view);
  const side = sideList(view, map.share, () => draw(place().words));
  const read = h("article", { class: "read" }, h("p", { class: "none" }, "Loading the groups."));
  const curve = h("section", { class: "history", "aria-label": "The prompt's rewards" });
  const fresh = h("p", { class: "fresh", role: "status" });
  fill(main, map.element, tools.element, fresh, h("div", { class: "two" }, side.element, h("div", {}, curve, read)));

  async function trace(hash) {
    if (traced?.prompt_hash === hash) return traced;
    return hash ? ((await get(`runs/${run}/prompts`, { of, prompt: hash }))?.prompts[0] ?? null) : null;
  }

  // By default, the first group whose rewards differ.
  const opening = ({ sort, only }) =>
    (sort || only ? null : view.list.groups.find((one) => hasSpread(one.spread))) ?? view.list.groups[0];

  const stepOf = (words) => Number(words.step ?? view.pinned);

  async function draw(words, newFacts) {
    if (newFacts) return news(newFacts);
    const isLate = begin();
    // The last message, whose link may have led here. A new message may be written while this step loads.
    const leading = told;
    if (!words.step && !words.prompt && !isAll(words)) words = { ...words, step: view.pinned };
    const byPrompt = words.by === "prompts";
    const wanted = query(words, of);
    const key = JSON.stringify([byPrompt, wanted]);
    if (key !== asked) {
      const list = await get(`runs/${run}/${byPrompt ? "prompts" : "groups"}`, wanted);
      await mapped;
      if (isLate()) return;
      [asked, view.list] = [key, list ?? { groups: [], prompts: [], total: 0 }];
      tools.draw(words);
      side.draw(words);
    }
    const hash = byPrompt ? (words.prompt ?? view.list.prompts[0]?.prompt_hash) : words.prompt;
    const found = await trace(hash);
    if (isLate()) return;
    traced = found;
    map.mark(stepOf(words), traced);
    const g = Number(words.g ?? (byPrompt ? traced?.last[2] : opening(words)?.place) ?? NaN);
    side.mark(words, hash, g);
    history(curve, traced, g);
    const known = counts.get(stepOf(words)) ?? (stepOf(words) >= leading.step ? leading.count : 0);
    const upTo = stepOf(words) >= view.steps[1] ? count : known;
    if (upTo >= seen && !words.prompt && !isAll(words)) look(upTo);
    if (Number.isNaN(g)) {
      [read.group, read.shows] = [null, null];
      return fill(read, h("p", { class: "none" }, byPrompt ? "No prompt fits." : "No group fits."));
    }
    if (read.group?.place !== g) {
      const data = await get(`runs/${run}/groups/${g}`, { of });
      if (isLate()) return;
      read.group = data && { ...data, of };
    }
    if (read.group) return group(read, run, read.group, words, facts.config);
    read.shows = null;
    fill(read, h("p", { class: "none" }, "This group does not exist."));
  }

  /** Called when the newest step is displayed, with its number of groups. Groups that arrive later count as new. */
  function look(upTo) {
    seen = Math.min(upTo, count);
    tell();
  }

  /** Reports the groups that were not displayed yet. */
  function tell() {
    told = { step: view.steps[1], count };
    counts.set(told.step, count);
    if (seen === count) return fill(fresh);
    const link = h("a", { href: address(run, "rollouts", { step: told.step, of }) }, "Read them");
    const isRead = fresh.contains(document.activeElement);
    fill(fresh, `${counted(count - seen, "new group")}, up to step ${told.step}. `, link);
    if (isRead) link.focus();
  }

  async function news(now) {
    // A run that was resumed from an earlier step has other groups at the same places.
    if (countOf(now) < count || now.record?.starts?.length !== facts.record?.starts?.length) return rebuild();
    if (countOf(now) === count) return;
    await mapped;
    [count, view.steps] = [countOf(now), stepsOf(now)];
    await map.update(view.steps[1]);
    map.mark(stepOf(place().words), traced);
    tools.news();
    // The displayed group stays; a message reports new groups.
    tell();
  }

  function next(by, words) {
    const places =
      words.by === "prompts"
        ? (traced?.points ?? []).map(([, , place]) => place)
        : view.list.groups.map((one) => one.place);
    const to = places[places.indexOf(Number(words.g ?? read.group?.place)) + by];
    if (to !== undefined) change({ g: to, c: by > 0 ? 0 : undefined });
  }

  /** Moves to the next or previous completion, and from the last one to the next group. */
  function walk(by, words) {
    const numbers = read.group ? shownOf(read.group, words) : [];
    const to = numbers[numbers.indexOf(Number(words.c ?? -1)) + by];
    to === undefined ? next(by, words) : change({ c: to });
  }

  const flip = (words, name, value) => change({ [name]: words[name] === value ? "" : value, g: "" });
  // In the list of prompts, best and worst select an order.
  const only = (name, order) => (words) =>
    words.by !== "prompts" ? flip(words, "only", name) : order ? flip(words, "order", order) : undefined;
  const go = (words, by) =>
    change({ step: Math.min(view.steps[1], Math.max(view.steps[0], stepOf(words) + by)), g: "", c: "" });
  const after = (all, now) => all[(all.indexOf(now) + 1) % all.length];
  const KEYS = {
    j: (words) => walk(1, words),
    k: (words) => walk(-1, words),
    J: (words) => next(1, words),
    K: (words) => next(-1, words),
    ArrowRight: (words) => go(words, 1),
    ArrowLeft: (words) => go(words, -1),
    c: (words) => change({ color: after(colorsOf(read.group), words.color ?? "surprise") }),
    v: (words) => change({ as: after(VIEWS, words.as || "tokens"), pair: "" }),
    s: (words) => change({ spaces: words.spaces ? "" : 1 }),
    f: (words) => change({ think: words.think ? "" : 1 }),
    a: (words) => change({ pair: words.pair ? "" : "best" }),
    y: () => read.querySelector("[data-copies=completion]")?.click(),
    h: (words) => read.group && turn(read.group, words),
    p: (words) => change({ by: words.by === "prompts" ? "" : "prompts", prompt: "", g: "", c: "" }),
    b: only("best", "rose"),
    w: only("worst", "unsolved"),
    z: only("no-spread"),
    t: only("cut"),
    "/": tools.seek,
  };
  function key(event, words) {
    if (!Object.hasOwn(KEYS, event.key)) return false;
    KEYS[event.key](words);
    return true;
  }
  const mapped = map.update(view.steps[1]);
  return { update: draw, key, pinned };
}
