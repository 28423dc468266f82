// A slow or absent server: nothing is lost that the reader does, or that the run writes, while a view is being built.
import assert from "node:assert/strict";
import { appendFileSync, copyFileSync } from "node:fs";
import { drawn } from "./plots.mjs";
import { base, listed, open, settled, test, work, written } from "./page.mjs";

const isListed = (name) => listed((one) => one.id === name);

await test("keys work as soon as a list is shown, even if its first entry is still loading", async () => {
  const delay = (path) => (path.includes("/prompts?") && path.includes("prompt=") ? 700 : 0);
  const page = await open("#/a/rollouts?by=prompts", { delay });
  await page.waitForSelector(".groups a[data-prompt]");
  await page.keyboard.press("w");
  await page.waitForFunction(() => document.querySelector('select[aria-label="order"]')?.value === "unsolved");
  await page.close();
});

await test("of several views that are opened quickly, only the last one is shown", async () => {
  const page = await open("#/a/overview", { delay: (path) => (path.endsWith("/api/runs/a") ? 500 : 0) });
  await page.waitForSelector("#head nav");
  for (const view of ["rollouts?step=3", "time", "run", "overview", "rollouts?step=5", "rollouts?step=7"])
    await page.evaluate((hash) => (location.hash = hash), `#/a/${view}`);
  await page.waitForFunction(() => document.querySelector(".read h1")?.textContent.endsWith("step 7"));
  await settled(page);
  const shown = await page.evaluate(() => [".map", ".verdict", ".whole", ".facts"].map((of) => document.querySelectorAll(of).length));
  assert.deepEqual(shown, [1, 0, 0, 0]);
  assert.match(await page.textContent(".read h1"), /step 7$/);
  await page.close();
});

await test("a step between the first response and the stream of updates is shown", async () => {
  const log = written("between", "max_steps = 100\n");
  await isListed("between");
  const page = await open("#/between/overview", { delay: (path) => (path.startsWith("/api/events") ? 800 : 0) });
  await drawn(page, 23);
  appendFileSync(log, '{"step":24,"reward":0.5,"step_time":0.5}\n');
  await drawn(page, 24);
  await page.close();
});

await test("a view whose requests fail is built again once the server answers", async () => {
  written("fails", "max_steps = 100\n");
  await isListed("fails");
  const page = await open("#//runs");
  await page.waitForSelector(".runs table");
  await page.route("**/api/**", (route) => route.abort());
  await page.evaluate(() => (location.hash = "#/fails/overview"));
  await page.waitForSelector("main [role=alert]");
  await page.unroute("**/api/**");
  await drawn(page, 23);
  assert.equal(await page.locator("main [role=alert]").count(), 0);
  await page.close();
});

await test("a run that does not exist yet is shown when it begins, and its rollouts once they are recorded", async () => {
  const page = await open("#/later/rollouts");
  await page.waitForSelector("text=The run later was not found.");
  const log = written("later", "max_steps = 100\n");
  await page.waitForSelector("text=No rollouts are recorded");
  for (const name of ["rollouts.bin", "rollouts.idx"]) copyFileSync(`${work}/runs/a/${name}`, `${work}/runs/later/${name}`);
  appendFileSync(log, '{"step":24,"reward":0.5,"step_time":0.5}\n');
  await page.waitForSelector(".completion");
  await page.close();
});
