// Opens each of the runs that make_runs.sh packed, one of every kind: every metric has a chart with a line, the shares
// of time sum to 100 %, the verdict is correct, and the page is accessible.
import assert from "node:assert/strict";
import { base, finish, lines, mean, open, test } from "./page.mjs";
import { barriers, beyond, contrast } from "./readable.mjs";

const AXE = "node_modules/axe-core/axe.min.js";
const learned = /^Learned: [\w/]+ went from [\d.e-]+ to [\d.e-]+/;
const heldOut = / Held-out: [\d.]+ to [\d.]+\.$/;
// Each run with the expected verdict.
const RUNS = {
  grpo: [learned, heldOut],
  iterations: [learned],
  ppo: [learned],
  reference: [learned],
  lora: [learned],
  workers: [learned],
  dpo: [learned],
  sft: [learned],
  slow: [learned],
  resumed: [learned],
  stopped: [learned],
  gamed: [/^Gamed: reward went from [\d.]+ to [\d.]+, but one text wins whatever the prompt \(since step \d+\)\./, heldOut],
  constant: [/^Nothing to learn from: reward was 1\.00 in every step\.$/],
  diverged: [/^Worse: loss went from [\d.]+ to [\d.]+\. But the loss diverges \(since step \d+\)\.$/],
  long: [learned, heldOut],
};
const SWEEP = 50;
// The table with all shares; another table has nested stages.
const SHARES = '.stack table:has(th:text-is("per step"))';

/** For each chart, its metric and the number of its pixels in the colour of the run's line. */
function drawn() {
  const one = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  one.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--run-a");
  one.fillRect(0, 0, 1, 1);
  const color = one.getImageData(0, 0, 1, 1).data;
  return [...document.querySelectorAll(".chart")].map((figure) => {
    const canvas = figure.querySelector("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let pixels = 0;
    for (let i = 0; i < data.length; i += 4)
      if (data[i + 3] > 200 && [0, 1, 2].every((k) => Math.abs(data[i + k] - color[k]) < 24)) pixels++;
    return [figure.querySelector("h3").textContent, pixels];
  });
}

// One page for all runs: starting a page takes most of its time.
const page = await open("#//runs", { script: AXE });
const factsOf = async (run) => (await fetch(`${base}/api/runs/${run}`)).json();

for (const [run, headline] of Object.entries(RUNS))
  await test(`${run}: verdict, a line for each metric, shares that sum to 100 %, and accessibility`, async () => {
    const { keys, state, verdict } = await factsOf(run);
    assert.equal(state, run === "stopped" ? "stopped" : "finished");
    // The page shows the contents of the run's own file.
    const logged = lines(`kinds/${run}/metrics.jsonl`);
    const names = new Set(logged.filter((line) => !line.alarm).flatMap(Object.keys));
    assert.deepEqual(keys.filter((key) => !names.has(key)), []);
    headline.forEach((part) => assert.match(verdict.says, part));
    await page.goto(`${base}/#/${run}/overview?metrics=all`);
    // A server that has just started may not have read every file at the first request.
    const agrees = async (run) => {
      const { verdict } = await (await fetch(`/api/runs/${run}`)).json();
      return document.querySelector(".verdict h1")?.textContent === verdict.says;
    };
    await page.waitForFunction(agrees, run, { polling: 200 });
    await page.waitForFunction((n) => document.querySelectorAll(".chart canvas").length >= n, keys.length);
    // A line through the plot has hundreds of pixels, a single dot about ten.
    const few = (charts) => charts.filter(([, pixels]) => pixels < 8);
    let charts = await page.evaluate(drawn);
    // Charts are drawn shortly after they are created.
    for (let tries = 0; few(charts).length && tries < 400; tries++) {
      await page.waitForTimeout(50);
      charts = await page.evaluate(drawn);
    }
    const shown = new Set(charts.map(([name]) => name));
    assert.deepEqual(keys.filter((key) => !shown.has(key)), [], "metrics without a chart");
    assert.deepEqual(few(charts), [], "empty charts");
    assert.deepEqual(await barriers(page), [], "overview");

    await page.goto(`${base}/#/${run}/time`);
    await page.waitForSelector(SHARES);
    const cells = await page.$$eval(SHARES, ([table]) =>
      [...table.querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent)),
    );
    const total = cells.reduce((sum, row) => sum + Number.parseFloat(row.at(-1)), 0);
    assert.ok(Math.abs(total - 100) <= 1, `${total} %: ${JSON.stringify(cells)}`);
    const [, , most] = /(\d[\d.]*) % of the time is (.+)\./.exec(await page.textContent(".verdict h1"));
    assert.equal(most, cells[0][0] === "everything else" ? cells[1][0] : cells[0][0]);
    assert.deepEqual(await barriers(page), [], "time");
  });
await page.close();

await test("the value model of PPO and the reference model have separate shares", async () => {
  for (const [run, names] of [
    ["ppo", ["values", "value update", "reference", "rollout"]],
    ["reference", ["reference", "rollout"]],
  ]) {
    const page = await open(`#/${run}/time`);
    await page.waitForSelector(SHARES);
    const shown = await page.$$eval(`${SHARES} tbody th`, (all) => all.map((one) => one.textContent));
    names.forEach((name) => assert.ok(shown.includes(name), `${run}: ${name} of ${shown}`));
    await page.close();
  }
});

await test("a group of PPO with nonzero advantages is not shown as useless", async () => {
  const { group_steps: steps } = await factsOf("ppo");
  const page = await open(`#/ppo/rollouts?step=${steps[0]}`);
  await page.waitForSelector(".completion .t", { state: "attached" });
  assert.ok(!(await page.textContent(".read header")).includes("nothing is learned"));
  assert.equal(await page.locator("svg rect.flat").count(), 0);
  await page.close();
});

await test("a resumed run is one line with a mark at the resume", async () => {
  const { record, step } = await factsOf("resumed");
  assert.deepEqual(record.starts.map((start) => start.step), [0, 40]);
  assert.equal(step, 80);
  const page = await open("#/resumed/run");
  await page.waitForSelector("text=Starts");
  assert.ok((await page.textContent("main")).includes("step 40"));
  await page.close();
});

await test(`home: ${SWEEP} runs and one of every kind, gamed ones among them, seeds as groups`, async () => {
  const page = await open("#//runs", { script: AXE });
  await page.waitForSelector(".runs tbody tr");
  const { runs } = await (await fetch(`${base}/api/table`)).json();
  assert.equal(runs.length, SWEEP + Object.keys(RUNS).length);
  const rows = await page.$$eval(".runs tbody tr", (all) => all.map((row) => [row.dataset.run, row.textContent]));
  for (const [run, headline] of Object.entries(RUNS)) {
    const { says } = runs.find((one) => one.id === run).verdict;
    headline.forEach((part) => assert.match(says, part));
    assert.ok(rows.find(([id]) => id === run)[1].includes(says), run);
  }
  // One run with the highest learning rate also converged to a single text.
  const gamed = runs.filter((one) => one.verdict.says.startsWith("Gamed: ")).length;
  assert.ok((await page.textContent(".verdict")).includes(` ${gamed} gamed.`));
  // Ten settings with five seeds each, in order; the result of a run is the mean over its last tenth of steps.
  const groups = await page.$$eval('section[aria-label*="seed"] tbody tr', (all) =>
    all.map((row) => [...row.children].map((cell) => cell.textContent)),
  );
  const fives = groups.filter(([, seeds]) => seeds.split(", ").sort().join() === "1,2,3,4,5");
  assert.equal(fives.length, SWEEP / 5, JSON.stringify(groups));
  const rewards = (number) => lines(`sweep/${`${number}`.padStart(2, "0")}/steps.jsonl`).map((line) => line.reward);
  for (let first = 1; first <= SWEEP; first += 5) {
    const reached = [0, 1, 2, 3, 4].map((seed) => mean(rewards(first + seed).slice(-3)));
    const spread = Math.sqrt(reached.reduce((sum, x) => sum + (x - mean(reached)) ** 2, 0) / 4);
    const near = ([, , cell]) => {
      const [of, plusMinus] = cell.split(" ± ").map(Number);
      return Math.abs(of / mean(reached) - 1) < 0.005 && Math.abs(plusMinus / spread - 1) < 0.005;
    };
    assert.ok(fives.some(near), `${mean(reached)} ± ${spread}: ${JSON.stringify(fives)}`);
  }
  assert.deepEqual(await barriers(page), []);
  await page.close();
});

const VIEWS = ["overview", "rollouts", "time", "run"];

for (const run of ["grpo", "ppo", "gamed"])
  await test(`${run}: readable in light and dark at 390, 800 and 1440 pixels`, async () => {
    for (const scheme of ["light", "dark"]) {
      const page = await open(`#/${run}/overview`, { scheme, script: AXE });
      for (const view of VIEWS) {
        await page.goto(`${base}/#/${run}/${view}`);
        await page.waitForSelector(view === "rollouts" ? ".completion .t" : "main h1", { state: "attached" });
        for (const width of [390, 800, 1440]) {
          await page.setViewportSize({ width, height: 900 });
          const where = `${view} ${scheme} at ${width}`;
          assert.deepEqual(await beyond(page), [], where);
          // These rules depend on colours or positions, so one width is enough in dark mode.
          if (scheme === "light" || width === 1440) assert.deepEqual(await barriers(page), [], where);
        }
        assert.deepEqual(await page.evaluate(contrast), [], `${view} ${scheme}`);
      }
      await page.close();
    }
  });

await import("./questions.mjs");
if (process.env.PICTURES) await (await import("./pictures.mjs")).pictures(process.env.PICTURES);
await finish("runs of every kind are shown correctly");
