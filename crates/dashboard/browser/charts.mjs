// Charts: names, lines, units, marks, sections, workers, and a chart in full size with its exports.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { STEPS, drag, figure, heights, json, rows, words } from "./plots.mjs";
import { open, settled, test } from "./page.mjs";

await test("the name of a chart has a tooltip that explains the metric", async () => {
  const page = await open("#/a/overview");
  await page.waitForSelector(".chart h3");
  const titles = await page.$$eval(".chart h3", (all) => all.map((one) => [one.textContent, one.title]));
  assert.ok(
    titles.every(([, title]) => title.length > 10),
    JSON.stringify(titles),
  );
  assert.ok(titles.find(([name]) => name === "grad_norm")[1].includes("L2 norm"));
  await page.close();
});

await test("a metric with few values is drawn as a line", async () => {
  const page = await open("#/c/overview");
  const canvas = page.locator("figure.chart", { has: page.locator("h3", { hasText: /^eval_reward$/ }) }).locator("canvas");
  await canvas.waitFor();
  await settled(page);
  // Columns of the canvas with pixels in the colour of the line: both evaluations, and the line between them.
  const columns = await canvas.evaluate((canvas) => {
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const probe = document.createElement("canvas").getContext("2d");
    probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--run-a").trim();
    probe.fillRect(0, 0, 1, 1);
    const line = probe.getImageData(0, 0, 1, 1).data;
    const found = new Set();
    for (let i = 0; i < width * height; i++)
      if (data[4 * i + 3] > 0 && [0, 1, 2].every((c) => Math.abs(data[4 * i + c] - line[c]) < 24)) found.add(i % width);
    return found.size / width;
  });
  assert.ok(columns > 0.3, `${columns} of the width of the chart`);
  await page.close();
});

await test("the cursor shows the same step in all charts of both runs", async () => {
  const page = await open("#/a/overview?vs=b");
  await page.waitForSelector(".u-over");
  // This section is displayed above the charts, but loaded after them.
  await page.waitForSelector(".pair");
  await page.locator(".u-over").first().scrollIntoViewIfNeeded();
  await settled(page);
  const box = await (await page.$(".u-over")).boundingBox();
  await page.mouse.move(box.x + box.width * 0.7, box.y + 40);
  await page.waitForFunction(() =>
    [...document.querySelectorAll(".chart .value")].every((one) => one.textContent.startsWith("step ")),
  );
  const values = await page.$$eval(".chart .value", (all) => all.map((one) => one.textContent));
  const steps = new Set(values.map((value) => value.split(":")[0]));
  assert.equal(steps.size, 1, values.join("; "));
  assert.ok(
    values.every((value) => value.includes(" · ")),
    values.join("; "),
  );
  await page.close();
});

await test("constant metrics have a suitable axis, and numbers have units", async () => {
  const page = await open("#/long/overview?metrics=all");
  await page.waitForSelector(".u-over");
  await settled(page);
  const near = async (key, height) => {
    const [is] = await heights(figure(page, key), [0.5]);
    assert.ok(Math.abs(is - height) < 0.05, `${key}: found ${is}, expected ${height}`);
  };
  // The axes go from −1 to 1, from 0 to 1, and from half to one and a half.
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
  await settled(page);
  await of.scrollIntoViewIfNeeded();
  const box = await of.locator(".u-over").boundingBox();
  const hover = async (step) => {
    await page.mouse.move(box.x + ((step - 1) / 59) * box.width, box.y + 30);
    await page.waitForFunction((step) => document.querySelector(".chart .value")?.textContent.startsWith(`step ${step}:`), step);
    return of.locator(".named").textContent();
  };
  assert.equal(await hover(43), "⚠ cut short, since step 43");
  assert.equal(await hover(18), "⚠ cut short, step 18 – 30");
  assert.equal(await hover(55), "");
  const key = () => page.$$eval(".charting + .tools .key", (all) => all.map((one) => one.textContent));
  assert.deepEqual(await key(), ["alarm", "alarm that ended"]);
  await page.close();
});

await test("a closed section of metrics has no charts, and stays closed", async () => {
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

await test("each worker has a lane with its share of each batch", async () => {
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

await test("a chart in full size has its own URL, and can be saved as CSV and PNG", async () => {
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
  assert.ok(bytes.readUInt32BE(16) > 800 && bytes.readUInt32BE(20) > 300, "the picture must be at least 800 by 300 pixels");
  const serious = await page.evaluate(async () => {
    const found = (await axe.run("dialog")).violations.filter((one) => ["serious", "critical"].includes(one.impact));
    return found.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 80)}`);
  });
  assert.deepEqual(serious, []);
  await drag(page, page.locator("dialog .u-over"), 0.5, 0.6);
  await page.waitForFunction(() => location.hash.includes("from=") && location.hash.includes("chart=reward"));
  // Escape first shows the whole run, then closes the window.
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !location.hash.includes("from=") && location.hash.includes("chart=reward"));
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog.fullsize", { state: "detached" });
  assert.equal(words(page).chart, undefined);
  await page.close();
});
