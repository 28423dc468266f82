// Parts that are folded only on a narrow screen, so that the first completion is visible without scrolling.
import { h } from "/lib/lib.js";

const narrow = matchMedia("(max-width: 640px)");
// Parts that were opened stay open when the page redraws them.
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
