// Runs in progress: the page follows them, and the browser shows notifications.
import { spawn } from "node:child_process";
import assert from "node:assert/strict";
import { appendFileSync, mkdirSync, writeFileSync } from "node:fs";
import { drawn } from "./plots.mjs";
import { base, browser, listed, open, test, work } from "./page.mjs";

await test("the page follows a run in progress without a reload, and the displayed group stays", async () => {
  const run = spawn(
    process.env.LOCKSTEP,
    [
      "train",
      "--model",
      `${work}/model`,
      "--dataset",
      `${work}/rows.jsonl`,
      "--reward",
      "unique_chars",
      "--out",
      `${work}/runs/live`,
      ...[
        "num_generations=2",
        "per_device_train_batch_size=4",
        "max_completion_length=12",
        "max_steps=100000",
        "logging_steps=1",
        "record_rollouts=true",
        "save_strategy=no",
        "threads=1",
      ].flatMap((pair) => ["--set", pair]),
    ],
    { stdio: "ignore" },
  );
  try {
    await listed((one) => one.id === "live" && one.step > 0);
    const page = await open("#/live/overview");
    const state = () => page.textContent(".state");
    await page.waitForSelector(".state.running");
    const before = await state();
    await page.waitForFunction((before) => document.querySelector(".state").textContent !== before, before);
    await page.goto(`${base}/#/live/rollouts?step=1`);
    await page.waitForSelector(".completion .t", { state: "attached" });
    const heading = await page.textContent(".read h1");
    await page.waitForFunction(() => document.querySelector(".fresh")?.textContent.includes("new group"));
    assert.equal(await page.textContent(".read h1"), heading);
    await page.close();
  } finally {
    run.kill("SIGKILL");
  }
});

await test("the page of a run that grows requests only new values, and has the same values as a new page", async () => {
  const log = `${work}/runs/grows/metrics.jsonl`;
  mkdirSync(`${work}/runs/grows`, { recursive: true });
  writeFileSync(`${work}/runs/grows/config.toml`, "max_steps = 1000\n");
  // A few values are NaN, also in the last step.
  const line = (step) => ({ step, reward: step % 5 ? Math.sin(step) : "NaN", loss: 1 / step, step_time: 0.5 });
  const lines = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => `${JSON.stringify(line(from + i))}\n`).join("");
  writeFileSync(log, `${lines(1, 480)}{"step":481,"eval_reward":0.5}\n`);
  await listed((one) => one.id === "grows");
  // The numbers above the charts are requested together with the chart, which has no point of the evaluation.
  const page = await open("#/grows/overview?filter=loss");
  await drawn(page, 480);
  await page.goto(`${base}/#/grows/overview`);
  await drawn(page, 481);
  const asked = [];
  page.on("request", (request) => request.url().includes("/api/runs/") && asked.push(new URL(request.url())));
  // Above 500 steps, a point covers two steps. The last line is that of a run that was resumed from an earlier step.
  for (const [added, step, points] of [
    [lines(482, 495), 495, 495],
    [lines(496, 498), 498, 498],
    [lines(499, 511), 511, 256],
    [lines(512, 512), 512, 257],
    [lines(513, 513), 513, 257],
    [lines(400, 400), 400, 400],
  ]) {
    asked.length = 0;
    const answered = page.waitForResponse((answer) => answer.url().includes("/api/runs/grows/series"));
    appendFileSync(log, added);
    await answered;
    await page.waitForFunction((step) => document.querySelector(".state").textContent.includes(`step ${step} of`), step);
    await drawn(page, points);
    assert.deepEqual(asked.map((url) => url.pathname), ["/api/runs/grows/series"], `step ${step}`);
    const [known, whole] = await page.evaluate(async () => {
      const { loadSeries } = await import("/lib/series.js");
      const keys = ["reward", "loss", "eval_reward"];
      const whole = await (await fetch(`/api/runs/grows/series?px=500&keys=${keys}`)).json();
      const of = ({ width, steps, keys: all }) => [width, steps, ...keys.map((key) => ({ gaps: [], ...all[key], non_finite: 0 }))];
      return [of(await loadSeries("grows", keys, { px: 500 })), of(whole)];
    });
    assert.deepEqual(known, whole, `step ${step}`);
  }
  await page.close();
});

await test("enabled notifications report new alarms and the end of a run", async () => {
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
  // No completion contains this letter, so the reward is constant.
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
    for (let tries = 0; tries < 1200; tries++) {
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
