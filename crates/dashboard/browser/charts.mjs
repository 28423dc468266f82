// Charts: zoom, smoothing, axes, marks, sections, files, workers; and the browser's notices.
import { spawn } from "node:child_process";
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { base, browser, listed, open, test, work } from "./page.mjs";

const short = (x) => Number(x.toPrecision(3));
const json = async (path) => (await fetch(`${base}/api/${path}`)).json();

// A long run by its log alone: a metric of each kind that an axis must show.
const STEPS = 4000;
const rows = Array.from({ length: STEPS }, (_, i) => ({
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

const figure = (page, key) => page.locator("figure.chart", { has: page.locator("h3", { hasText: new RegExp(`^${key}$`) }) });
const points = (page) =>
  page.$$eval(".families .plot", (all) => all.map((one) => Number(/in (\d+) points/.exec(one.getAttribute("aria-label"))[1])));
const words = (page) => Object.fromEntries(new URLSearchParams(page.url().split("?")[1] ?? ""));

/** Waits until all charts have this number of points. */
const drawn = (page, count) =>
  page.waitForFunction((count) => {
    const all = [...document.querySelectorAll(".families .plot")];
    return all.length && all.every((one) => one.getAttribute("aria-label").includes(`in ${count} points`));
  }, count);

/** Draws the pointer over a part of a chart, from 0 to 1. */
async function drag(page, of, from, to) {
  await of.scrollIntoViewIfNeeded();
  const box = await of.boundingBox();
  const at = (part) => [box.x + part * box.width, box.y + box.height / 2];
  await page.mouse.move(...at(from));
  await page.mouse.down();
  await page.mouse.move(...at((from + to) / 2));
  await page.mouse.move(...at(to));
  await page.mouse.up();
}

/** The height of the first run's line at these places of a chart, both from 0 to 1. */
const heights = (of, places) =>
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

await test("zoom: a part of a chart is shown in all of them, with finer points; the address keeps it", async () => {
  const page = await open("#/long/overview");
  const of = figure(page, "reward").locator(".u-over");
  await of.waitFor();
  const whole = (await json("runs/long/series?keys=reward&px=500")).steps.length;
  await drawn(page, whole);
  await drag(page, of, 0.25, 0.5);
  await page.waitForFunction(() => location.hash.includes("from="));
  const { from, to } = words(page);
  assert.ok(Math.abs(from - 1000) < 40 && Math.abs(to - 2000) < 40, `${from} – ${to}`);
  const part = await json(`runs/long/series?keys=reward&px=500&from=${from}&to=${to}`);
  assert.ok(part.width < STEPS / whole);
  await drawn(page, part.steps.length);
  assert.equal((await points(page)).length, 6);
  // The numbers above the charts are of the whole run.
  assert.equal(await page.textContent(".numbers b"), `${short(rows.at(-1).reward)}`);
  const again = await open(new URL(page.url()).hash);
  await again.waitForSelector(".u-over");
  await drawn(again, part.steps.length);
  await again.close();
  await of.dblclick();
  await page.waitForFunction(() => !location.hash.includes("from="));
  await drawn(page, whole);
  // By keys, from the middle, and back.
  await page.mouse.move(2, 2);
  await figure(page, "reward").locator(".plot").focus();
  await page.keyboard.press("+");
  await page.waitForFunction(() => location.hash.includes("from="));
  const near = words(page);
  assert.ok(Math.abs(near.to - near.from - STEPS / 2) < 40, JSON.stringify(near));
  await page.keyboard.press("-");
  await page.waitForFunction((to) => Number(new URLSearchParams(location.hash.split("?")[1]).get("to")) > to, Number(near.to));
  assert.ok(await page.evaluate(() => document.activeElement.matches(".plot")));
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !location.hash.includes("from="));
  // By fields, as a finger does it.
  await page.fill('input[aria-label="Charts from"]', "3001");
  await page.fill('input[aria-label="Charts to"]', "3100");
  await page.press('input[aria-label="Charts to"]', "Enter");
  await drawn(page, 100);
  await page.click("text=Whole run");
  await drawn(page, whole);
  await page.close();
});

await test("a click reads the step, and does not zoom", async () => {
  const page = await open("#/a/overview");
  const of = figure(page, "reward").locator(".u-over");
  await of.waitFor();
  await page.waitForTimeout(200);
  await of.click();
  await page.waitForFunction(() => location.hash.startsWith("#/a/rollouts?step="));
  assert.equal(words(page).from, undefined);
  await page.close();
});

await test("smoothing is the weighted mean of the values so far, and the raw value is beside it", async () => {
  const page = await open("#/logged/overview?smooth=0.8");
  await page.waitForSelector(".u-over");
  const logged = readFileSync(`${work}/runs/logged/metrics.jsonl`, "utf8").trim().split("\n").map(JSON.parse);
  const values = logged.filter((line) => line.reward !== undefined).map((line) => line.reward);
  const weights = values.map((_, i) => 0.8 ** (values.length - 1 - i));
  const mean = values.reduce((sum, x, i) => sum + weights[i] * x, 0) / weights.reduce((a, b) => a + b);
  assert.equal(await figure(page, "reward").locator(".value").textContent(), `${short(mean)} (${short(values.at(-1))})`);
  await page.locator('.charting input[type="range"]').focus();
  await page.keyboard.press("Home");
  await page.waitForFunction(() => !location.hash.includes("smooth"));
  await page.waitForFunction((last) => document.querySelector(".chart .value").textContent === last, `${short(values.at(-1))}`);
  await page.close();
});

await test("a logarithmic axis makes a straight line of a value that doubles, and a chart without values above 0 stays linear", async () => {
  const page = await open("#/long/overview?metrics=all&filter=doubling");
  const of = figure(page, "objective/doubling");
  await of.locator(".u-over").waitFor();
  await page.waitForTimeout(100);
  const [low, middle, high] = await heights(of, [0.1, 0.5, 0.9]);
  assert.ok(middle < low + 0.3 * (high - low), `${[low, middle, high]}`);
  await page.check(".charting input[type=checkbox]");
  await page.waitForFunction(() => location.hash.includes("log=1"));
  await page.waitForTimeout(200);
  const logs = await heights(of, [0.1, 0.5, 0.9]);
  assert.ok(Math.abs(logs[1] - (logs[0] + logs[2]) / 2) < 0.03, `${logs}`);
  await page.goto(`${base}/#/long/overview?log=1`);
  await figure(page, "loss").locator(".u-over").waitFor();
  assert.equal(await figure(page, "loss").locator("small").textContent(), "not above 0: linear");
  await page.close();
});

await test("x is minutes or tokens, and a part of them is zoomed", async () => {
  const page = await open("#/long/overview");
  await page.waitForSelector(".u-over");
  await page.selectOption('select[aria-label="x axis"]', "minutes");
  await page.waitForFunction(() => location.hash.includes("x=minutes"));
  await page.waitForTimeout(200);
  const of = figure(page, "reward");
  const minutes = ((STEPS - 1) * 0.6) / 60;
  const at = async (part) => {
    const box = await of.locator(".u-over").boundingBox();
    await page.mouse.move(box.x + part * box.width, box.y + 30);
    return of.locator(".value").textContent();
  };
  const half = /^([\d.]+) min: /.exec(await at(0.5));
  assert.ok(Math.abs(half[1] - minutes / 2) < 0.4, `${half}`);
  await drag(page, of.locator(".u-over"), 0.5, 0.75);
  await page.waitForFunction(() => location.hash.includes("from="));
  const { from, to } = words(page);
  assert.ok(Math.abs(from - minutes / 2) < 0.4 && Math.abs(to - (3 * minutes) / 4) < 0.4, `${from} – ${to}`);
  const part = await json(`runs/long/series?keys=reward&px=500&x=minutes&from=${from}&to=${to}`);
  assert.ok(Math.abs(part.steps[0] - STEPS / 2) < 50, `${part.steps[0]}`);
  await drawn(page, part.steps.length);
  // Another axis begins with everything.
  await page.selectOption('select[aria-label="x axis"]', "tokens");
  await page.waitForFunction(() => location.hash.includes("x=tokens") && !location.hash.includes("from="));
  await page.waitForTimeout(200);
  const tokens = /^([\d.]+) k: /.exec(await at(0.5));
  assert.ok(Math.abs(tokens[1] - 500) < 10, `${tokens}`);
  // A run without tokens has no such axis.
  await page.goto(`${base}/#/logged/overview?x=tokens`);
  await page.waitForFunction(() => document.querySelector("#head select").value === "logged");
  await page.waitForSelector(".u-over");
  const offered = await page.$$eval('select[aria-label="x axis"] option', (all) => all.map((one) => one.value));
  assert.deepEqual(offered, ["step", "minutes"]);
  await page.close();
});

await test("values that do not change have an axis that fits them, and numbers have units", async () => {
  const page = await open("#/long/overview?metrics=all");
  await page.waitForSelector(".u-over");
  await page.waitForTimeout(300);
  const near = async (key, height) => {
    const [is] = await heights(figure(page, key), [0.5]);
    assert.ok(Math.abs(is - height) < 0.05, `${key}: ${is}, and not ${height}`);
  };
  // From −1 to 1; from 0 to 1; from half to one and a half.
  await near("loss", 0.5);
  await near("completions/clipped_ratio", 0.96);
  await near("peak_bytes", 0.5);
  const says = (key, what) => figure(page, key).locator(what).textContent();
  assert.equal(await says("peak_bytes", ".value"), "512 MiB");
  assert.equal(await says("step_time", ".value"), "600 ms");
  assert.equal(await says("completions/clipped_ratio", "small"), "share");
  assert.equal(await says("num_tokens", ".value"), "1 M");
  assert.match(await says("time_s", ".value"), /^\d+:\d\d/);
  assert.equal(await says("cores busy", ".value"), `${0.9 / 0.6}`);
  await page.close();
});

await test("alarms and checkpoints are marked, named under the cursor, and explained", async () => {
  const page = await open("#/logged/overview");
  const of = figure(page, "reward");
  await of.locator(".u-over").waitFor();
  await page.waitForTimeout(200);
  await of.scrollIntoViewIfNeeded();
  const box = await of.locator(".u-over").boundingBox();
  const hover = async (step) => {
    await page.mouse.move(box.x + ((step - 1) / 59) * box.width, box.y + 30);
    await page.waitForFunction((step) => document.querySelector(".chart .value").textContent.startsWith(`step ${step}:`), step);
    return of.locator(".named").textContent();
  };
  assert.equal(await hover(43), "⚠ cut short, since step 43");
  assert.equal(await hover(18), "⚠ cut short, step 18 – 30");
  assert.equal(await hover(55), "");
  const key = () => page.$$eval(".charting + .tools .key", (all) => all.map((one) => one.textContent));
  assert.deepEqual(await key(), ["alarm", "alarm that ended"]);
  await page.close();
});

await test("sections by family of metric: a closed one has no charts, and stays closed", async () => {
  const page = await open("#/long/overview?metrics=all");
  await page.waitForSelector(".family .u-over");
  const names = () => page.$$eval(".family", (all) => all.map((one) => [one.dataset.family, one.querySelectorAll(".chart").length]));
  assert.deepEqual(await names(), [
    ["reward", 1],
    ["learning", 1],
    ["completions", 1],
    ["objective", 1],
    ["time", 2],
    ["progress", 2],
    ["system", 2],
  ]);
  await page.click('.family[data-family="time"] summary');
  await page.waitForFunction(() => !document.querySelector('.family[data-family="time"] .chart'));
  await page.reload();
  await page.waitForSelector(".family .u-over");
  assert.equal(await page.locator('.family[data-family="time"] .chart').count(), 0);
  await page.click('.family[data-family="time"] summary');
  await page.waitForSelector('.family[data-family="time"] .chart canvas');
  await page.close();
});

await test("workers have a lane each, with their part of each batch", async () => {
  const page = await open("#/long/overview");
  await page.waitForSelector(".lanes rect", { state: "attached" });
  const lanes = await page.$$eval(".lanes dd", (all) =>
    all.map((one) => [one.previousElementSibling.textContent, ...[...one.querySelectorAll("title")].map((title) => title.textContent)]),
  );
  assert.deepEqual(lanes, [
    ["dev1", "batch 0: 3 groups"],
    ["dev2", "batch 0: 1 groups", "batch 1: 4 groups"],
  ]);
  await page.close();
});

await test("one chart in full size has its own address, and is saved as CSV and as a picture", async () => {
  const page = await open("#/long/overview", { script: "node_modules/axe-core/axe.min.js" });
  await page.waitForSelector(".u-over");
  await page.getByLabel("reward in full size").click();
  await page.waitForSelector("dialog[open] .u-over");
  assert.equal(words(page).chart, "reward");
  const wide = await json("runs/long/series?keys=reward&px=1500");
  assert.ok((await page.getAttribute("dialog .plot", "aria-label")).endsWith(`in ${wide.steps.length} points`));
  const saved = async (name) => {
    const [file] = await Promise.all([page.waitForEvent("download"), page.click(`dialog button:text-is("${name}")`)]);
    return [file.suggestedFilename(), readFileSync(await file.path())];
  };
  const [name, text] = await saved("CSV");
  assert.equal(name, "long-reward.csv");
  const table = text.toString().trim().split("\n").map((line) => line.split(","));
  assert.deepEqual([table[0], table.length], [["step", "reward"], STEPS + 1]);
  rows.forEach((row, i) => assert.ok(Math.abs(table[i + 1][1] - row.reward) < 1e-5 && Number(table[i + 1][0]) === row.step));
  const [picture, bytes] = await saved("PNG");
  assert.equal(picture, "long-reward.png");
  assert.equal(bytes.subarray(1, 4).toString(), "PNG");
  assert.ok(bytes.readUInt32BE(16) > 800 && bytes.readUInt32BE(20) > 300, "its width and height");
  const serious = await page.evaluate(async () => {
    const found = (await axe.run("dialog")).violations.filter((one) => ["serious", "critical"].includes(one.impact));
    return found.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 80)}`);
  });
  assert.deepEqual(serious, []);
  await drag(page, page.locator("dialog .u-over"), 0.5, 0.6);
  await page.waitForFunction(() => location.hash.includes("from=") && location.hash.includes("chart=reward"));
  // Escape shows the whole run, and then closes the window.
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !location.hash.includes("from=") && location.hash.includes("chart=reward"));
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog.fullsize", { state: "detached" });
  assert.equal(words(page).chart, undefined);
  await page.close();
});

await test("curves of chosen runs are zoomed and smoothed, too", async () => {
  const page = await open("#//runs?on=a,b&smooth=0.5");
  const of = figure(page, "reward");
  await of.locator(".u-over").waitFor();
  await page.waitForTimeout(200);
  assert.match(await of.locator(".value").textContent(), /^a [\d.]+ \([\d.]+\) · b [\d.]+ \([\d.]+\)$/);
  await drag(page, of.locator(".u-over"), 0.5, 1);
  await page.waitForFunction(() => location.hash.includes("from="));
  const { from, to } = words(page);
  const { steps } = await json(`runs/a/series?keys=reward&from=${from}&to=${to}`);
  await page.waitForFunction((n) => document.querySelector(".plot").getAttribute("aria-label").includes(`in ${n} points`), steps.length);
  assert.ok(steps.length < 30);
  await page.close();
});

await test("notices, once asked for: an alarm was raised, a run has ended", async () => {
  const context = await browser.newContext({ permissions: ["notifications"] });
  const page = await context.newPage();
  await page.addInitScript(() => {
    window.shown = [];
    const Real = window.Notification;
    window.Notification = class extends Real {
      constructor(title, options) {
        super(title, options);
        window.shown.push([title, options.body]);
      }
    };
  });
  await page.clock.install();
  await page.goto(`${base}/#//runs`);
  await page.click("text=Notices off");
  await page.waitForSelector("text=Notices on");
  // No completion has this letter: the same reward in every step.
  const sets = ["num_generations=2", "per_device_train_batch_size=4", "max_completion_length=12", "max_steps=100000", "threads=1"];
  const training = spawn(
    process.env.LOCKSTEP,
    [
      ...["train", "--model", `${work}/model`, "--dataset", `${work}/rows.jsonl`, "--reward", "format:@"],
      ...["--out", `${work}/runs/noticed`, ...[...sets, "logging_steps=1", "save_strategy=no"].flatMap((pair) => ["--set", pair])],
    ],
    { stdio: "ignore" },
  );
  const look = async (is) => {
    for (let tries = 0; tries < 150; tries++) {
      await page.clock.fastForward(5000);
      const found = (await page.evaluate(() => window.shown)).find(is);
      if (found) return found;
      await new Promise((done) => setTimeout(done, 100));
    }
    throw new Error(`no such notice: ${JSON.stringify(await page.evaluate(() => window.shown))}`);
  };
  try {
    const [title, body] = await look(([title]) => title.includes("noticed: constant reward"));
    assert.equal(title, "⚠ noticed: constant reward");
    assert.match(body, /^Since step \d+: /);
  } finally {
    training.kill("SIGKILL");
  }
  const [end] = await look(([title]) => title.includes("has stopped"));
  assert.match(end, /^noticed has stopped after step \d+$/);
  const all = (await page.evaluate(() => window.shown)).map(([title]) => title);
  assert.equal(new Set(all).size, all.length, "each once");
  await page.click("text=Notices on");
  await page.waitForSelector("text=Notices off");
  await context.close();
});
