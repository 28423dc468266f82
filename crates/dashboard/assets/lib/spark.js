// Sparklines: line charts without axes.
import { h } from "/lib/lib.js";

export function sparkline(values, width = 96, height = 22) {
  const there = values.map((x, i) => [i, x]).filter(([, x]) => x !== null);
  if (there.length < 2) return null;
  const [low, high] = [Math.min(...there.map(([, x]) => x)), Math.max(...there.map(([, x]) => x))];
  const at = ([i, x]) =>
    `${(i / (values.length - 1)) * width},${height - 2 - ((x - low) / (high - low || 1)) * (height - 4)}`;
  return h(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    h("path", { d: `M${there.map(at).join("L")}`, fill: "none" }),
  );
}
