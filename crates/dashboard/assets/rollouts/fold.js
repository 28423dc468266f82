// What is folded on a narrow screen alone: there, the first completion should be on the first screen.
import { h } from "/lib/lib.js";

const narrow = matchMedia("(max-width: 640px)");
// What was opened there stays open when the page draws it again.
const opened = new Set();

export function fold(name, summary, ...children) {
  const element = h(
    "details",
    { class: "fold", "data-fold": name, open: !narrow.matches || opened.has(name) },
    h("summary", {}, summary),
    ...children,
  );
  element.addEventListener("toggle", () => narrow.matches && opened[element.open ? "add" : "delete"](name));
  return element;
}

narrow.addEventListener("change", () =>
  document
    .querySelectorAll("details.fold")
    .forEach((one) => (one.open = !narrow.matches || opened.has(one.dataset.fold))),
);
