// Levels that the page runs: one job at a time, and the table against the output of the job.
import assert from "node:assert/strict";
import { base, open, test } from "./page.mjs";

/** The rows of the table of levels: level, seconds by stage and in total, what is equal, the last reward. */
const ladder = (page) =>
  page.$$eval(".ladder", ([table]) => {
    const heads = [...table.querySelectorAll("thead tr > *")].map((head) => head.textContent);
    return [...table.querySelectorAll("tbody tr")].map((row) => {
      const cells = [...row.children].map((cell, i) => [heads[i], cell.textContent]);
      return { level: row.dataset.level, ...Object.fromEntries(cells.slice(2)) };
    });
  });

/** Runs the chosen levels, and compares the table with the output of the job. */
async function measures(page, steps, stages, sames) {
  await page.fill("#steps", `${steps}`);
  await page.click("button.run");
  await page.waitForSelector("button.stop");
  const busy = await page.evaluate(async () => {
    const body = JSON.stringify({ algorithm: "grpo", shape: "tiny", levels: ["none"], steps: 1 });
    return (await fetch("/api/jobs", { method: "POST", headers: { "x-lockstep": "1" }, body })).status;
  });
  assert.equal(busy, 409);
  await page.waitForSelector("text=A step takes");
  const { job } = await (await fetch(`${base}/api/jobs`)).json();
  const { events } = await (await fetch(`${base}/api/jobs/${job.number}`)).json();
  const rows = await ladder(page);
  const milliseconds = (text) => Number(text.split(" ")[0]) * (text.endsWith(" ms") ? 1 : 1000);
  for (const row of rows) {
    const of = events.filter((event) => event.event === "step" && event.level === row.level);
    assert.equal(of.length, steps);
    for (const [name, key] of stages) {
      const shown = milliseconds(row[name]) / 1000;
      const all = of.map((event) => event[key]);
      assert.ok(shown >= 0.99 * Math.min(...all) && shown <= 1.01 * Math.max(...all), `${name} ${shown} of ${all}`);
    }
    for (const [name, key] of sames) {
      const word = row.level === "none" ? "–" : of[0][key] ? "yes" : "no";
      assert.equal(row[name], word, `${row.level}: ${name}`);
    }
    assert.equal(Number(row.reward.split(" ").at(-1)), Number(of.at(-1).reward.toPrecision(3)));
    assert.ok(row["× before"] === "–" || Number(row["× before"]) > 0, row["× before"]);
  }
  return { rows, start: events.find((event) => event.event === "start") };
}

await test("the page runs levels, one job at a time, and shows the measured values", async () => {
  const page = await open("#/a/levels");
  await page.waitForSelector(".named button");
  await page.selectOption("#shape", "tiny");
  await page.fill("#steps", "200");
  await page.click("button.run");
  await page.click("button.stop");
  await page.waitForSelector("text=Stopped.");
  const both = [
    ["rollout", "rollout_s"],
    ["update", "update_s"],
  ];
  const bits = [
    ["same tokens", "same_completions"],
    ["same weights", "same_weights"],
  ];
  const grpo = await measures(page, 3, both, bits);
  assert.deepEqual(
    grpo.rows.map(({ level }) => level),
    ["none", "cache", "vectors", "threads", "batching", "fused", "shared"],
  );
  assert.equal(grpo.rows.find(({ level }) => level === "threads")["same weights"], "yes");
  await page.close();
});

await test("the levels of PPO include a value model, and a preset has fixed hyperparameters", async () => {
  const page = await open("#/a/levels");
  await page.click(".ideas > summary");
  await page.waitForSelector(".levels input");
  await page.selectOption("#algorithm", "ppo");
  const offered = await page.$$eval(".levels b", (all) => all.map((one) => one.textContent.trim()));
  assert.ok(offered.includes("fused head") && !offered.includes("shared prompt"), String(offered));
  const all = [
    ["rollout", "rollout_s"],
    ["values", "values_s"],
    ["update", "update_s"],
    ["value update", "value_update_s"],
  ];
  const bits = [
    ["same tokens", "same_completions"],
    ["same values", "same_values"],
    ["same weights", "same_weights"],
  ];
  const { rows, start } = await measures(page, 2, all, bits);
  assert.deepEqual(
    rows.map(({ level }) => level),
    ["none", "cache", "vectors", "threads", "batching", "fused"],
  );
  const threads = rows.find(({ level }) => level === "threads");
  assert.deepEqual([threads["same values"], threads["same weights"]], ["yes", "yes"]);
  assert.equal(start.algorithm, "ppo");
  await page.reload();
  await page.waitForSelector(".ladder");
  assert.deepEqual([await page.inputValue("#algorithm"), await page.inputValue("#steps")], ["ppo", "2"]);

  await page.click(".ideas > summary");
  await page.selectOption("#preset", "ppo-document");
  assert.equal(await page.inputValue("#shape"), "4m");
  assert.equal(await page.inputValue("#steps"), "1");
  const says = await page.textContent(".settings");
  for (const part of ["learning rate 0.0003", "γ 0.99", "λ 0.95", "± 0.2", "entropy bonus 0.01", "of up to 128"])
    assert.ok(says.includes(part), says);
  // The four named levels, starting with the baseline.
  for (const [level, is] of [["nothing", true], ["key-value cache", false], ["threads", true], ["fused head", true], ["kept activations", true]])
    assert.equal(await page.locator(".levels label", { hasText: level }).locator("input").isChecked(), is, level);
  // Another algorithm does not have PPO's hyperparameters.
  await page.selectOption("#algorithm", "grpo");
  assert.equal(await page.inputValue("#preset"), "");
  await page.close();
});
