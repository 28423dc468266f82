// The list of groups or prompts, next to the displayed group.
import { fold } from "/rollouts/fold.js";
import { address, around, counted, fill, get, h } from "/lib/lib.js";
import { query } from "/rollouts/filters.js";
import { row } from "/rollouts/prompts.js";

/** `view` has the state shared by all parts of the rollouts; `share` maps a reward to the scale of the map. */
export function sideList(view, share, redraw) {
  const element = h("ol", { class: "groups", tabindex: -1, "aria-label": "Groups" });
  const title = h("span", {}, "Groups");
  const box = h("div", { class: "side" }, fold("list", title, element));

  const line = (one, words) =>
    h(
      "li",
      {},
      h(
        "a",
        { href: address(view.run, "rollouts", { ...words, g: one.place, c: "" }), "data-place": one.place },
        h("span", { class: "bar" }, h("i", { style: { width: `${Math.round(100 * share(one.reward))}%` } })),
        h("span", { class: "prompt" }, one.prompt || `group ${one.group}`),
        h(
          "small",
          {},
          `step ${one.step} · reward ${around(one.reward, one.spread)}${one.scored ? " · scored after the step" : ""}`,
        ),
      ),
    );

  function draw(words) {
    const byPrompt = words.by === "prompts";
    const kind = byPrompt ? "prompts" : "groups";
    const { list } = view;
    const shown = list[kind] ?? [];
    const left = (list.total ?? 0) - shown.length;
    const more = async () => {
      const next = await get(`runs/${view.run}/${kind}`, { ...query(words, view.of), cursor: list.next });
      // The reader may have chosen another list in the meantime.
      if (!next || view.list !== list) return;
      view.list = { ...list, [kind]: [...shown, ...next[kind]], next: next.next };
      draw(words);
      await redraw();
    };
    title.textContent = counted(list.total ?? 0, byPrompt ? "prompt" : "group");
    fill(
      element,
      shown.map((one) => (byPrompt ? row(view.run, one, words) : line(one, words))),
      list.next
        ? h("li", { class: "more" }, h("button", { onclick: more }, `Show ${Math.min(40, left)} of ${left} more`))
        : null,
    );
  }

  /** Marks the displayed entry. */
  function mark(words, prompt, place) {
    element.querySelectorAll("a").forEach((a) => {
      const isHere = words.by === "prompts" ? a.dataset.prompt === prompt : a.dataset.place === String(place);
      a.setAttribute("aria-current", String(isHere));
    });
  }
  return { element: box, draw, mark };
}
