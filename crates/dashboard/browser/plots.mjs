// Helpers to read charts, and a long run with a metric of each kind.
import { mkdirSync, writeFileSync } from "node:fs";
import { base, listed, work } from "./page.mjs";

export const json = async (path) => (await fetch(`${base}/api/${path}`)).json();

// A long run with only a log: a metric of each kind that an axis must show.
export const STEPS = 4000;
export const rows = Array.from({ length: STEPS }, (_, i) => ({
  step: i + 1,
  reward: Math.sin((i + 1) * 12.9898) * 0.5,
  loss: 0,
  "objective/doubling": 2 ** ((i + 1) / 400),
  "completions/clipped_ratio": 1,
  peak_bytes: 512 * 2 ** 20,
  step_time: 0.6,
  cpu_time_s: 0.9,
  num_tokens: 250 * (i + 1),
  time_s: 1.7e9 + 0.6 * (i + 1),
}));
mkdirSync(`${work}/runs/long/fleet`, { recursive: true });
writeFileSync(`${work}/runs/long/config.toml`, `max_steps = ${STEPS}\n`);
writeFileSync(`${work}/runs/long/metrics.jsonl`, `${rows.map((row) => JSON.stringify(row)).join("\n")}\n`);
const made = [
  { batch: 0, groups: { dev1: [0, 1, 2], dev2: [3] } },
  { batch: 1, groups: { dev2: [4, 5, 6, 7] } },
];
writeFileSync(`${work}/runs/long/fleet/made_by.jsonl`, `${made.map((line) => JSON.stringify(line)).join("\n")}\n`);
await listed((one) => one.id === "long");

export const figure = (page, key) => page.locator("figure.chart", { has: page.locator("h3", { hasText: new RegExp(`^${key}$`) }) });
export const points = (page) =>
  page.$$eval(".families .plot", (all) => all.map((one) => Number(/in (\d+) points/.exec(one.getAttribute("aria-label"))[1])));
export const words = (page) => Object.fromEntries(new URLSearchParams(page.url().split("?")[1] ?? ""));

/** Waits until all charts have this number of points. */
export const drawn = (page, count) =>
  page.waitForFunction((count) => {
    const all = [...document.querySelectorAll(".families .plot")];
    return all.length && all.every((one) => one.getAttribute("aria-label").includes(`in ${count} points`));
  }, count);

/** Drags the pointer over a part of a chart, from 0 to 1. */
export async function drag(page, of, from, to) {
  await of.scrollIntoViewIfNeeded();
  const box = await of.boundingBox();
  const at = (part) => [box.x + part * box.width, box.y + box.height / 2];
  await page.mouse.move(...at(from));
  await page.mouse.down();
  await page.mouse.move(...at((from + to) / 2));
  await page.mouse.move(...at(to));
  await page.mouse.up();
}

/** The height of the first run's line at these positions in a chart, both from 0 to 1. */
export const heights = (of, places) =>
  of.evaluate((figure, places) => {
    const [canvas, over] = [figure.querySelector("canvas"), figure.querySelector(".u-over")];
    const scale = canvas.width / canvas.clientWidth;
    const probe = document.createElement("canvas").getContext("2d");
    probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--run-a").trim();
    probe.fillRect(0, 0, 1, 1);
    const color = probe.getImageData(0, 0, 1, 1).data;
    const [left, top, width, height] = [over.offsetLeft, over.offsetTop, over.clientWidth, over.clientHeight].map((x) => x * scale);
    const { data } = canvas.getContext("2d").getImageData(left, top, width, height);
    return places.map((place) => {
      const of = (y) => 4 * (y * Math.floor(width) + Math.floor(place * width));
      const rows = Array.from({ length: Math.floor(height) }, (_, y) => y).filter(
        (y) => data[of(y) + 3] > 120 && [0, 1, 2].every((c) => Math.abs(data[of(y) + c] - color[c]) < 24),
      );
      return 1 - rows.reduce((sum, y) => sum + y, 0) / rows.length / height;
    });
  }, places);
