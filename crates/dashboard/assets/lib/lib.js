// Helpers of all views: elements, responses of the server, the URL, numbers.

/** Creates an element with attributes, listeners (`onclick`), and children. Strings become text, never markup. */
export function h(tag, attributes = {}, ...children) {
  const svg = ["svg", "rect", "circle", "line", "path", "g", "title", "text"].includes(tag) && attributes.svg !== false;
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false || name === "svg") continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, of] of Object.entries(value)) element.style.setProperty(key, of);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...there(children));
  return element;
}

const there = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

/** Replaces the contents of an element. */
export const fill = (element, ...children) => element.replaceChildren(...there(children));

/** Replaces the contents of an element only if they have changed; otherwise the focus stays. */
export function refill(element, what, make) {
  if (element.shows === what) return;
  element.shows = what;
  fill(element, make());
}

/** The displayed title of a run: its name, or its directories. */
export const titleOf = (run) => run.name ?? run.id.replaceAll("~", "/");

/** A link that downloads the report of a run, or of two runs (`lockstep report`). */
export const reportLink = (run, vs) =>
  h(
    "a",
    {
      class: "button",
      href: `/api/runs/${encodeURIComponent(run)}/report${vs ? `?vs=${encodeURIComponent(vs)}` : ""}`,
      download: "",
      title: "One HTML file without scripts, to keep or to send",
    },
    "Report",
  );

export const isOpen = (line) => line.alarm.until === undefined;

/** Whether an alarm needs attention now: a note is explained by the configuration or by success. */
export const isActive = (line) => isOpen(line) && line.weight !== "note";

/** A search field whose text is the URL parameter `filter`. The element is reused, so that it keeps the cursor. */
export function filterBox(what, placeholder = `Filter ${what}`) {
  const filter = h("input", {
    type: "search",
    placeholder,
    "aria-label": `Filter ${what}`,
    value: place().words.filter ?? "",
    oninput: () => soon(filter, 200, () => change({ filter: filter.value })),
  });
  return filter;
}

/** Runs a function after some milliseconds without another call for the element, if the element is still shown. */
export function soon(element, milliseconds, run) {
  clearTimeout(element.waits);
  element.waits = setTimeout(() => element.isConnected && run(), milliseconds);
}

/** Wraps a function so that a call is skipped while an earlier one is in progress. */
export function oneAtATime(run) {
  let isRunning = false;
  return async (...given) => {
    if (isRunning) return;
    isRunning = true;
    try {
      await run(...given);
    } finally {
      isRunning = false;
    }
  };
}

const labelOf = (one) => `${one.tagName} ${one.getAttribute("aria-label") ?? (one.matches("select") ? "" : one.textContent)}`;

/**
 * Draws the contents of a box again, and focuses the element with the name of the one that had the focus. `nameOf`
 * returns the name of an element, or null if it does not keep the focus. Returns the focused element.
 */
export function keepFocus(box, draw, nameOf = labelOf) {
  const at = document.activeElement;
  const wanted = box.contains(at) ? nameOf(at) : null;
  draw();
  if (wanted === null) return;
  const all = box.querySelectorAll("a, button, input, select, summary, [tabindex]");
  const same = [...all].find((one) => nameOf(one) === wanted);
  same?.focus({ preventScroll: true });
  return same;
}

/** A response of the server; null for status 404. */
export async function get(path, words = {}) {
  const query = new URLSearchParams(Object.entries(words).filter(([, value]) => value !== undefined && value !== ""));
  const answer = await fetch(`/api/${path}${query.size ? `?${query}` : ""}`).catch((error) => {
    throw Object.assign(new Error(`The server does not answer (${error.message}).`), { isAbsent: true });
  });
  if (answer.status === 404) return null;
  if (!answer.ok)
    throw new Error(
      answer.status === 401 ? "This address needs the token that the program printed." : await answer.text(),
    );
  return answer.json();
}

/**
 * Numbers the drawings of something that loads data before it is drawn. Each call begins a drawing, and returns a
 * function that tells whether a later drawing has begun.
 */
export const turns = () => {
  let newest = 0;
  return () => {
    const own = ++newest;
    return () => own !== newest;
  };
};

/** The parsed URL: run, view, and parameters. */
export function place() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [, run = "", view = ""] = path.split("/");
  return { run: decodeURIComponent(run), view, words: Object.fromEntries(new URLSearchParams(query)) };
}

export function address(run, view, words = {}) {
  const query = new URLSearchParams(
    Object.entries(words).filter(([, value]) => value !== undefined && value !== null && value !== ""),
  );
  return `#/${encodeURIComponent(run)}/${view}${query.size ? `?${query}` : ""}`;
}

/** The parameters of a URL that the next view keeps: the other run, and chart settings. */
export const kept = ({ vs, smooth, log, x }) => ({ vs, smooth, log, x });

/** Changes parameters of the URL, without a new history entry. */
export function change(words) {
  const now = place();
  const all = { ...now.words, ...words };
  history.replaceState(null, "", address(now.run, now.view, all));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function number(x, digits = 3) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return x.toExponential(1);
  if (size >= 1e4) return Math.round(x).toLocaleString("en");
  return Number(x.toPrecision(digits)).toString();
}

/** Whether rewards differ by more than rounding. */
export const hasSpread = (x) => x !== null && !(Math.abs(x) <= 1e-8);

/** The mean of a group's rewards and their spread, in words; differences due to rounding are not a spread. */
export const around = (reward, deviation) =>
  reward === null
    ? "no score"
    : hasSpread(deviation) ? `${number(reward)} ± ${number(deviation)}` : `${number(reward)}, no spread`;

/** Whether a metric is the mean of one reward. */
export const isReward = (key) => /^rewards\/.*\/mean$/.test(key);

/** A share from 0 to 1. */
export function percent(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const size = Math.abs(100 * x);
  if (size > 0 && size < 0.01) return "< 0.01 %";
  return `${Number((100 * x).toFixed(size >= 10 ? 0 : size >= 1 ? 1 : 2))} %`;
}

export function seconds(s) {
  if (s === null || s === undefined || !Number.isFinite(s)) return "–";
  if (s < 1) return `${number(1000 * s)} ms`;
  if (s < 120) return `${number(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return `${number(s / 3600)} h`;
}

export const counted = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

/** Text in which `code` is in backticks; a flag such as `--distributed` is not broken over lines. */
export const marked = (text) =>
  text.split("`").map((part, i) => (i % 2 ? h("code", {}, flags(part)) : flags(part)));

const flags = (text) =>
  text.split(/(--[a-z][\w-]*)/).map((part, i) => (i % 2 ? h("span", { class: "flag" }, part) : part));

/** A configuration key as the page displays it. */
export const key = (name) => h("code", {}, name);

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
