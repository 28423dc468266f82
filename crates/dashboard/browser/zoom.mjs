// The axes of charts: zoom, smoothing, a logarithmic axis, minutes and tokens.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { STEPS, drag, drawn, figure, heights, json, points, rows, words } from "./plots.mjs";
import { base, open, settled, short, test, work } from "./page.mjs";

await test("zooming one chart zooms all charts with finer points, and the URL keeps the range", async () => {
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
  // The numbers above the charts cover the whole run.
  assert.equal(await page.textContent(".numbers b"), `${short(rows.at(-1).reward)}`);
  const again = await open(new URL(page.url()).hash);
  await again.waitForSelector(".u-over");
  await drawn(again, part.steps.length);
  await again.close();
  await of.dblclick();
  await page.waitForFunction(() => !location.hash.includes("from="));
  await drawn(page, whole);
  // The keyboard zooms around the middle, and back.
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
  // The fields also work by touch.
  await page.fill('input[aria-label="Charts from"]', "3001");
  await page.fill('input[aria-label="Charts to"]', "3100");
  await page.press('input[aria-label="Charts to"]', "Enter");
  await drawn(page, 100);
  await page.click("text=Whole run");
  await drawn(page, whole);
  await page.close();
});

await test("a click opens the step and does not zoom", async () => {
  const page = await open("#/a/overview");
  const of = figure(page, "reward").locator(".u-over");
  await of.waitFor();
  await settled(page);
  await of.click();
  await page.waitForFunction(() => location.hash.startsWith("#/a/rollouts?step="));
  assert.equal(words(page).from, undefined);
  await page.close();
});

await test("smoothing shows the weighted mean of the values so far, and the raw value beside it", async () => {
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
  await page.waitForFunction((last) => document.querySelector(".chart .value")?.textContent === last, `${short(values.at(-1))}`);
  await page.close();
});

await test("a doubling value is a straight line on a logarithmic axis, and nonpositive charts stay linear", async () => {
  const page = await open("#/long/overview?metrics=all&filter=doubling");
  const of = figure(page, "objective/doubling");
  await of.locator(".u-over").waitFor();
  await settled(page);
  const [low, middle, high] = await heights(of, [0.1, 0.5, 0.9]);
  assert.ok(middle < low + 0.3 * (high - low), `${[low, middle, high]}`);
  await page.check(".charting input[type=checkbox]");
  await page.waitForFunction(() => location.hash.includes("log=1"));
  await settled(page);
  const logs = await heights(of, [0.1, 0.5, 0.9]);
  assert.ok(Math.abs(logs[1] - (logs[0] + logs[2]) / 2) < 0.03, `${logs}`);
  await page.goto(`${base}/#/long/overview?log=1`);
  await figure(page, "loss").locator(".u-over").waitFor();
  assert.equal(await figure(page, "loss").locator("small").textContent(), "not above 0: linear");
  await page.close();
});

await test("the x axis can be minutes or tokens, and can be zoomed", async () => {
  const page = await open("#/long/overview");
  await page.waitForSelector(".u-over");
  await page.selectOption('select[aria-label="x axis"]', "minutes");
  await page.waitForFunction(() => location.hash.includes("x=minutes"));
  await settled(page);
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
  // Another axis shows the whole run first.
  await page.selectOption('select[aria-label="x axis"]', "tokens");
  await page.waitForFunction(() => location.hash.includes("x=tokens") && !location.hash.includes("from="));
  await settled(page);
  const tokens = /^([\d.]+) k: /.exec(await at(0.5));
  assert.ok(Math.abs(tokens[1] - 500) < 10, `${tokens}`);
  // A run without tokens does not offer that axis.
  await page.goto(`${base}/#/logged/overview?x=tokens`);
  await page.waitForFunction(() => document.querySelector("#head select")?.value === "logged");
  await page.waitForSelector(".u-over");
  const offered = await page.$$eval('select[aria-label="x axis"] option', (all) => all.map((one) => one.value));
  assert.deepEqual(offered, ["step", "minutes"]);
  await page.close();
});

await test("curves of compared runs can be zoomed and smoothed", async () => {
  const page = await open("#//runs?on=a,b&smooth=0.5");
  const of = figure(page, "reward");
  await of.locator(".u-over").waitFor();
  await settled(page);
  assert.match(await of.locator(".value").textContent(), /^a [\d.]+ \([\d.]+\) · b [\d.]+ \([\d.]+\)$/);
  await drag(page, of.locator(".u-over"), 0.5, 1);
  await page.waitForFunction(() => location.hash.includes("from="));
  const { from, to } = words(page);
  const { steps } = await json(`runs/a/series?keys=reward&from=${from}&to=${to}`);
  await page.waitForFunction((n) => document.querySelector(".plot")?.getAttribute("aria-label").includes(`in ${n} points`), steps.length);
  assert.ok(steps.length < 30);
  await page.close();
});
