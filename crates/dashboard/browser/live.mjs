// Runs in progress: the page follows them, and the browser shows notifications.
import { spawn } from "node:child_process";
import assert from "node:assert/strict";
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
