// One chart in a full-size window, with its file exports.
import { chart } from "/charts/chart.js";
import { csv, png, save } from "/charts/export.js";
import { change, fill, h } from "/lib/lib.js";
import { legend } from "/charts/marks.js";
import { chartTools } from "/charts/tools.js";

// Maximum number of values in one response of the server.
const MOST_ROWS = 4000;

export function fullWindow() {
  const [title, meaning, key, place] = [h("h2", {}), h("p", { class: "meaning" }), h("p", { class: "tools" }), h("div", {})];
  const tools = chartTools();
  let [shown, figure, read, now] = [null, null, null, null];
  const names = () => now.map(({ name }) => name);
  const file = (end) => `${names().join("-")}-${shown}.${end}`;
  const asCsv = async () => save(file("csv"), new Blob([csv(shown, await read(MOST_ROWS), tools.x)], { type: "text/csv" }));
  const asPng = async () => save(file("png"), await png(figure.canvas(), shown, names()));
  const dialog = h(
    "dialog",
    { class: "fullsize", "aria-label": "Chart in full size", onclose: () => change({ chart: "" }) },
    h(
      "header",
      {},
      title,
      h("button", { onclick: asCsv }, "CSV"),
      h("button", { onclick: asPng }, "PNG"),
      h("button", { onclick: () => dialog.close() }, "Close"),
    ),
    meaning,
    h("div", { class: "charting" }, tools),
    key,
    place,
  );
  // Keyboard shortcuts of the page behind the window are disabled.
  dialog.addEventListener("keydown", (event) => event.stopPropagation());

  const close = () => {
    figure?.end();
    [shown, figure] = [null, null];
    if (dialog.isConnected) dialog.remove();
  };
  /** Shows the chart of a metric; null closes the window. `reads` loads its values with a given number of points. */
  dialog.show = (metric, runs, options, [words, axes], reads) => {
    if (!metric) return close();
    [read, now] = [reads, runs];
    if (!dialog.isConnected) {
      document.body.append(dialog);
      dialog.showModal();
    }
    tools.update(words, axes);
    tools.x = options.x;
    const height = Math.max(200, Math.min(620, innerHeight - 320));
    const own = { ...options, onfull: undefined, height };
    if (shown === metric) figure.update(runs, own);
    else {
      figure?.end();
      shown = metric;
      fill(title, metric);
      fill(meaning, options.meaning ?? "");
      figure = chart(metric, runs, own);
      fill(place, figure);
      figure.querySelector(".plot").focus();
    }
    fill(
      key,
      runs.length > 1 ? runs.map(({ name }, i) => h("span", { class: `key run-${i}` }, h("i", { class: i ? "line b" : "line a" }), name)) : null,
      legend(options.marks ?? []),
    );
  };
  dialog.end = close;
  return dialog;
}
