// The head of the page: the choice of the run, the views, the state of the run.
import { address, counted, fill, h, kept, place, titleOf } from "/lib/lib.js";
import { tour, wasSeen } from "/shell/tour.js";

/**
 * Returns the function that draws the head into `box`, from the list of runs and whether the server is absent. `views` are
 * ids and names. The elements are kept and only updated, so that the focus stays.
 */
export function headOf(box, { views, bell, help }) {
  // The elements that change, once the head is about a run.
  let bar = null;

  function draw(runs, isAbsent) {
    const now = place();
    const one = runs.find((one) => one.id === now.run);
    if (!one) {
      const other = now.view === "levels" ? [] : h("nav", {}, h("a", { href: address("", "levels") }, "Levels"));
      bar = null;
      return fill(box, markLink(), other, bell);
    }
    if (!bar) {
      bar = barOf(views);
      const nav = h("nav", { "aria-label": "Views" }, bar.tabs);
      const keys = h("button", { class: "plain", onclick: help, "aria-label": "Keys" }, "?");
      fill(box, markLink(), bar.select, nav, bar.state, bar.alarms, bell, bar.tour, keys);
    }
    const options = runs.map((other) => [other.id, `${titleOf(other)} · ${other.state}`]);
    const { select } = bar;
    if (options.length !== select.options.length || options.some(([id], i) => select.options[i].value !== id))
      fill(select, options.map(([value, text]) => h("option", { value }, text)));
    options.forEach(([, text], i) => select.options[i].text !== text && (select.options[i].text = text));
    select.value = now.run;
    views.forEach(([id], i) => {
      const isShown = (views.some(([id]) => id === now.view) ? now.view : "overview") === id;
      bar.tabs[i].href = address(now.run, id, id === now.view ? now.words : kept(now.words));
      isShown ? bar.tabs[i].setAttribute("aria-current", "page") : bar.tabs[i].removeAttribute("aria-current");
    });
    const total = one.total ? ` of ${one.total.toLocaleString("en")}` : "";
    const quiet =
      one.state === "running" && one.silent_s > 120 ? `, silent for ${Math.round(one.silent_s / 60)} min` : "";
    const words = `${one.state === "running" ? "● " : ""}${one.state}, step ${one.step.toLocaleString("en")}${total}${quiet}`;
    bar.state.className = `state ${isAbsent ? "" : one.state}`.trim();
    bar.state.textContent = isAbsent ? "The server does not answer" : words;
    bar.alarms.hidden = !one.alarms;
    bar.alarms.href = address(now.run, "overview");
    bar.alarms.textContent = `⚠ ${counted(one.alarms, "alarm")}`;
    bar.tour.className = `plain${wasSeen() ? "" : " news"}`;
  }
  return draw;
}

const markLink = () => h("a", { class: "mark", href: address("", "runs"), title: "All runs" }, "Lockstep");

/** The elements of the head that change. */
const barOf = (views) => ({
  select: h("select", {
    "aria-label": "Run",
    onchange: ({ target }) => {
      const { view, words } = place();
      location.hash = address(target.value, view || "overview", kept({ ...words, vs: "" }));
    },
  }),
  tabs: views.map(([, name]) => h("a", {}, name)),
  state: h("span", {}),
  alarms: h("a", { class: "warn" }),
  tour: h("button", { onclick: () => tour(place().run) }, "Tour"),
});
