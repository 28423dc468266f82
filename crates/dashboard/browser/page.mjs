// The browser that all checks share, and helpers to compare the page with the files.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { chromium } from "playwright-core";

export const [base, work] = [process.argv[2].replace(/\/$/, ""), process.argv[3]];
export const text = (name) => readFileSync(`${work}/${name}`, "utf8");
export const lines = (name) => text(name).trim().split("\n").map(JSON.parse);
export const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
/** A number with three digits, as the page formats it. */
export const short = (x) => Number(x.toPrecision(3));
export const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM,
  args: [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});
export const noise = [];

export async function open(address, { width = 1280, height = 900, scheme = "light", hasTouch = false, script, delay } = {}) {
  const page = await browser.newPage({ viewport: { width, height }, colorScheme: scheme, hasTouch });
  if (script) await page.addInitScript({ path: script });
  // Only a page that hangs reaches this timeout, however busy the machine is.
  page.setDefaultTimeout(120_000);
  // `delay` returns the milliseconds by which the response to a request of this path and query is delayed.
  const after = (url) => new Promise((done) => setTimeout(done, delay(url.replace(base, "")) ?? 0));
  if (delay) await page.route("**/api/**", (route) => after(route.request().url()).then(() => route.continue()));
  page.on("console", (message) => noise.push(`${address}: ${message.text()}`));
  page.on("pageerror", (error) => noise.push(`${address}: ${error.message}`));
  page.on("dialog", (dialog) => {
    noise.push(`${address}: a dialog says ${dialog.message()}`);
    dialog.dismiss();
  });
  // The requests for data without a response, except for the stream of updates, which has no end.
  page.open = new Set();
  const isData = (url) => url.includes("/api/") && !url.includes("/api/events");
  page.on("request", (request) => isData(request.url()) && page.open.add(request));
  // A reload drops the requests of the page before.
  page.on("domcontentloaded", () => page.open.clear());
  for (const end of ["requestfinished", "requestfailed"]) page.on(end, (request) => page.open.delete(request));
  await page.goto(`${base}/${address}`);
  return page;
}

/** Waits until the page has loaded and drawn everything. A search field waits 300 ms before it asks for results. */
export async function settled(page) {
  const frames = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())));
  const since = Date.now();
  for (let quiet = 0; quiet < 3; quiet = page.open.size ? 0 : quiet + 1) {
    await page.evaluate(frames);
    await page.waitForTimeout(120);
    const open = [...page.open].map((request) => request.url());
    if (Date.now() - since > 60_000) throw new Error(`no response after a minute: ${open}`);
  }
}

/** Creates a run from only a log: 23 steps with these additional metrics. Returns the path of the log. */
export function written(name, config, more = {}) {
  const directory = `${work}/runs/${name}`;
  mkdirSync(directory, { recursive: true });
  writeFileSync(`${directory}/config.toml`, config);
  const line = (_, i) => `${JSON.stringify({ step: i + 1, reward: i / 100, step_time: 0.5, ...more })}\n`;
  writeFileSync(`${directory}/metrics.jsonl`, Array.from({ length: 23 }, line).join(""));
  return `${directory}/metrics.jsonl`;
}

/** Waits until the server lists a run for which `is` returns true. */
export async function listed(is) {
  for (let tries = 0; tries < 1200; tries++) {
    const runs = await (await fetch(`${base}/api/runs`)).json();
    if (runs.some(is)) return;
    await new Promise((done) => setTimeout(done, 100));
  }
  throw new Error("the run is not listed");
}

const failed = [];

/** Runs a check. If it fails, the other checks still run, and `finish` fails. */
export async function test(name, check) {
  const since = Date.now();
  try {
    await check();
    console.log(`ok: ${name} (${Date.now() - since} ms)`);
  } catch (error) {
    failed.push(name);
    console.log(`FAILED: ${name}\n${error.stack}`);
  }
}

/** Closes the browser. Every message in the pages' consoles must contain one of the strings in `wanted`. */
export async function finish(says, wanted = []) {
  await browser.close();
  assert.deepEqual(failed, [], "all checks must pass");
  const real = noise.filter((line) => !wanted.some((one) => line.includes(one)));
  assert.deepEqual(real, [], "the console must be empty");
  console.log(says);
}
