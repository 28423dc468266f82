// Exports a chart in the browser: its values as CSV, its picture as PNG.
import { css } from "/lib/lib.js";
import { COLORS } from "/charts/curve.js";

/** A CSV field. Spreadsheets evaluate text that starts with one of these signs, so a quote is put before it. */
function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return `${value}`;
  const plain = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** The values of a metric: a row per step with, for each run, the position on the x axis, mean, minimum and maximum. */
export function csv(key, runs, x) {
  const columns = runs.flatMap(({ name, series }) => {
    const { mean = [], min, max } = series.keys[key] ?? {};
    const named = (what) => (runs.length > 1 ? `${name} ${what}` : what);
    const of = (values) => new Map(series.steps.map((step, i) => [step, values[i]]));
    return [
      ...(series.x ? [[named(x), of(series.x)]] : []),
      [named(key), of(mean)],
      ...(min ? [[named(`${key} min`), of(min)], [named(`${key} max`), of(max)]] : []),
    ];
  });
  const steps = [...new Set(runs.flatMap(({ series }) => series.steps))].sort((a, b) => a - b);
  const rows = steps.map((step) => [step, ...columns.map(([, of]) => of.get(step))]);
  const said = rows.filter((row) => row.slice(1).some((value) => value !== null && value !== undefined));
  return [["step", ...columns.map(([name]) => name)], ...said].map((row) => row.map(field).join(",")).join("\n") + "\n";
}

/** The picture of a chart, with its title and the names of its runs. */
export async function png(canvas, title, names) {
  const scale = devicePixelRatio;
  const [edge, head] = [16 * scale, (names.length > 1 ? 54 : 34) * scale];
  const picture = Object.assign(document.createElement("canvas"), {
    width: canvas.width + 2 * edge,
    height: canvas.height + head + edge,
  });
  const to = picture.getContext("2d");
  to.fillStyle = css("--bg");
  to.fillRect(0, 0, picture.width, picture.height);
  to.fillStyle = css("--ink");
  to.font = `600 ${15 * scale}px 'Source Sans 3', sans-serif`;
  to.fillText(title, edge, 24 * scale);
  to.font = `${13 * scale}px 'Source Sans 3', sans-serif`;
  let at = edge;
  for (const [i, name] of (names.length > 1 ? names : []).entries()) {
    to.fillStyle = css(COLORS[i]);
    to.fillRect(at, 40 * scale, 14 * scale, 3 * scale);
    to.fillText(name, at + 18 * scale, 46 * scale);
    at += to.measureText(name).width + 36 * scale;
  }
  to.drawImage(canvas, edge, head);
  return new Promise((done) => picture.toBlob(done, "image/png"));
}

/** Saves a blob as a file of this name, as a download. */
export function save(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = Object.assign(document.createElement("a"), { href: url, download: name.replace(/[^\w.-]+/g, "-") });
  link.click();
  // The browser has started the download by then.
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
