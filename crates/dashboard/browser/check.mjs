// What people see is what the files say: numbers, tokens and colours of the page against a run's own records.
import { spawn } from "node:child_process";
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { base, finish, lines, listed, open, test, work } from "./page.mjs";
import { barriers, beyond, contrast } from "./readable.mjs";

const [records, index] = [lines("a.jsonl"), lines("a.index.jsonl")];

await test("a group shows the rewards, advantages, lengths, ends and tokens that are recorded", async () => {
  const page = await open("#/a/rollouts?step=7");
  await page.waitForSelector(".completion .t", { state: "attached" });
  const place = Number(await page.getAttribute('.groups a[aria-current="true"]', "data-place"));
  const of = records.filter((line) => line.group === index[place].group);
  const shown = await page.$$eval(".completion", (all) =>
    all.map((one) => ({
      ledger: [...one.querySelectorAll(".ledger div")].map((row) => [
        row.querySelector("dt").textContent,
        row.querySelector("dd").textContent,
      ]),
      tokens: [...one.querySelectorAll(".t")].map((t) => [
        t.textContent,
        t.className,
        Number(t.style.getPropertyValue("--a")),
      ]),
    })),
  );
  assert.equal(shown.length, of.length);
  for (const [i, one] of shown.entries()) {
    const ledger = Object.fromEntries(one.ledger);
    assert.equal(Number(ledger.unique_chars), Number(of[i].rewards[0].toPrecision(3)));
    assert.ok(
      Math.abs(Number(ledger.advantage.replace(/[^-\d.e]/g, "")) - of[i].advantages) <
        0.01 * Math.max(1, Math.abs(of[i].advantages)),
      ledger.advantage,
    );
    assert.ok(
      ledger.tokens.startsWith(`${of[i].completion_ids.length} `) &&
        ledger.tokens.includes(of[i].truncated ? "✂" : "∎"),
      ledger.tokens,
    );
    assert.equal(one.tokens.length, of[i].completion_ids.length);
    one.tokens.forEach(([, name, amount], t) => {
      assert.equal(name, "t surprise");
      assert.ok(Math.abs(amount - Math.min(1, -of[i].logprobs[t] / 6)) < 2e-3, `${amount} ${of[i].logprobs[t]}`);
    });
    const text = one.tokens
      .map(([piece]) => piece)
      .join("")
      .replaceAll("<e>", "");
    assert.equal(text, of[i].completion ?? text);
  }
  await page.keyboard.press("c");
  await page.waitForSelector(".t.entropy", { state: "attached" });
  await page.close();
});

await test("keys lead through completions into the next group, and the address brings them back", async () => {
  const page = await open("#/a/rollouts?step=7");
  await page.waitForSelector(".completion .t", { state: "attached" });
  for (let i = 0; i < 5; i++) {
    await page.keyboard.press("j");
    await page.waitForTimeout(150);
  }
  const state = await page.evaluate(() => location.hash);
  assert.match(state, /g=\d+/);
  const heading = await page.textContent(".read h1");
  const again = await open(state);
  await again.waitForSelector(".completion.chosen");
  assert.equal(await again.textContent(".read h1"), heading);
  await again.keyboard.press("h");
  await again.waitForFunction(() => location.hash.includes("prompt="));
  const place = Number(/g=(\d+)/.exec(state)[1]);
  const expected = index
    .filter((entry) => entry.prompt_hash === index[place].prompt_hash)
    .map((entry) => entry.step)
    .slice(0, 40);
  await again.waitForFunction((expected) => {
    const shown = [...document.querySelectorAll(".groups small")];
    return String(shown.map((one) => /step (\d+)/.exec(one.textContent)[1])) === expected;
  }, String(expected));
  await page.close();
  await again.close();
});

await test("what a step did to each token is the ratio that was recorded", async () => {
  const after = lines("c.updates.jsonl");
  const page = await open("#/c/rollouts?all=1&only=updated&color=ratio");
  await page.waitForSelector(".completion .t", { state: "attached" });
  const groups = new Set(after.map((line) => line.group));
  await page.waitForFunction((n) => document.querySelector(".count").textContent.startsWith(`${n} `), groups.size);
  const place = Number(await page.getAttribute('.groups a[aria-current="true"]', "data-place"));
  const all = [lines("c.training.jsonl"), after];
  const { group } = lines("c.index.jsonl")[place];
  const [sampled, new_] = all.map((lines) => lines.filter((line) => line.group === group));
  assert.ok(new_.length > 0 && new_.length === sampled.length);
  const shown = await page.$$eval(".completion", (all) =>
    all.map((one) =>
      [...one.querySelectorAll(".t")].map((t) => [t.className, Number(t.style.getPropertyValue("--a")), t.title]),
    ),
  );
  let moved = 0;
  for (const [i, tokens] of shown.entries())
    for (const [t, [name, amount, title]] of tokens.entries()) {
      const change = new_[i].tokens.new_logps[t] - sampled[i].logprobs[t];
      assert.equal(name, change >= 0 ? "t up" : "t down");
      assert.ok(Math.abs(amount - Math.min(1, Math.abs(change) / Math.log(1.5))) < 2e-3, `${amount} ${change}`);
      assert.ok(title.includes(`ratio after the step ${Number(Math.exp(change).toPrecision(3))}`), title);
      moved += change !== 0;
    }
  assert.ok(moved > 0, "the step moved nothing");
  await page.close();
});

await test("the completions of evaluations are read like those of training", async () => {
  const evaluated = lines("c.evaluations.jsonl");
  const page = await open("#/c/rollouts?step=100");
  await page.waitForSelector(".completion .t", { state: "attached" });
  await page.selectOption('select[aria-label="Of training or evaluations"]', "evaluations");
  await page.waitForFunction(() => document.querySelector(".read h1")?.textContent.includes("step 200"));
  const first = evaluated.filter((line) => line.step === 200);
  const groups = new Set(first.map((line) => line.prompt_id)).size;
  const count = await page.textContent(".count");
  assert.ok(count.startsWith(`${groups} `), `${groups}: ${count}`);
  const shown = await page.$$eval(".completion", (all) => all.map((one) => one.querySelectorAll(".t").length));
  assert.deepEqual(
    shown,
    first.filter((line) => line.prompt_id === first[0].prompt_id).map((line) => line.completion_ids.length),
  );
  await page.close();
});

await test("a chart's name says what the metric means", async () => {
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

await test("what is measured once in many steps has a line, too", async () => {
  const page = await open("#/c/overview");
  const canvas = page.locator("figure.chart", { has: page.locator("h3", { hasText: /^eval_reward$/ }) }).locator("canvas");
  await canvas.waitFor();
  await page.waitForTimeout(300);
  // Columns of the canvas in which something of the line's colour is drawn: both evaluations, and what is between them.
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
  assert.ok(columns > 0.3, `${columns} of the chart's width`);
  await page.close();
});

await test("filters and search find what the files have", async () => {
  const page = await open("#/a/rollouts?all=1&only=no-spread");
  await page.waitForSelector(".count");
  const count = async () => Number((await page.textContent(".count")).replace(/\D.*$/, ""));
  assert.equal(await count(), index.filter((entry) => entry.reward_std <= 1e-8).length);
  await page.goto(`${base}/#/a/rollouts?all=1&only=cut`);
  const cut = new Set(records.filter((line) => line.truncated).map((line) => line.group)).size;
  await page.waitForFunction((cut) => document.querySelector(".count").textContent.startsWith(`${cut} `), cut);
  await page.goto(`${base}/#/a/rollouts?all=1&q=moon`);
  const found = new Set(
    records.filter((line) => `${line.prompt}${line.completion ?? ""}`.includes("moon")).map((line) => line.group),
  ).size;
  await page.waitForFunction((found) => document.querySelector(".count").textContent.startsWith(`${found} `), found);
  // Completions are recorded as tokens; a search while one types finds their text.
  await page.goto(`${base}/#/a/rollouts?step=7`);
  await page.waitForFunction(() => document.querySelector(".read h1")?.textContent.endsWith("step 7"));
  // The first tokens of one completion: one that ended early has fewer.
  const starts = await page.$$eval(".completion", (all) =>
    all.map((one) => [...one.querySelectorAll(".t")].slice(0, 4).map((t) => t.textContent).join("")),
  );
  const part = starts.reduce((a, b) => (b.length > a.length ? b : a));
  await page.getByLabel("all steps").check();
  await page.locator("#search").pressSequentially(part.toUpperCase());
  await page.waitForFunction((q) => new URLSearchParams(location.hash.split("?")[1]).get("q") === q, part.toUpperCase());
  await page.waitForFunction((all) => Number(document.querySelector(".count").textContent.replace(/\D.*$/, "")) < all, index.length);
  assert.ok((await count()) >= 1, part);
  assert.equal(await page.evaluate(() => document.activeElement.id), "search");
  await page.goto(`${base}/#/a/rollouts?all=1&only=best`);
  const best = index.reduce((a, b) => (b.reward > a.reward ? b : a));
  await page.waitForFunction(
    (reward) => document.querySelector(".groups small")?.textContent.includes(`reward ${reward}`),
    Number(best.reward.toPrecision(3)),
  );
  await page.close();
});

await test("one cursor shows one step in every chart, of both runs", async () => {
  const page = await open("#/a/overview?vs=b");
  await page.waitForSelector(".u-over");
  // It is above the charts, and is read after them.
  await page.waitForSelector(".pair");
  await page.locator(".u-over").first().scrollIntoViewIfNeeded();
  await page.waitForTimeout(300);
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

await test("a run in progress moves the page without a reload, and what is read stays", async () => {
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

/** The rows of the table of levels: level, seconds of its stages and of the step, what is the same, the last reward. */
const ladder = (page) =>
  page.$$eval(".ladder", ([table]) => {
    const heads = [...table.querySelectorAll("thead tr > *")].map((head) => head.textContent);
    return [...table.querySelectorAll("tbody tr")].map((row) => {
      const cells = [...row.children].map((cell, i) => [heads[i], cell.textContent]);
      return { level: row.dataset.level, ...Object.fromEntries(cells.slice(2)) };
    });
  });

/** Runs what is chosen, and holds the table against the lines of the job. */
async function measures(page, steps, stages, sames) {
  await page.fill("#steps", `${steps}`);
  await page.click("button.run");
  await page.waitForSelector("button.stop");
  const busy = await page.evaluate(async () => {
    const body = JSON.stringify({ algorithm: "grpo", shape: "tiny", levels: ["none"], steps: 1 });
    return (await fetch("/api/jobs", { method: "POST", headers: { "x-lockstep": "1" }, body })).status;
  });
  assert.equal(busy, 409);
  await page.waitForSelector("text=A step takes", { timeout: 60000 });
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

await test("levels are run from the page, one job at a time, and what it shows is what was measured", async () => {
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

await test("PPO's levels have a value model, and its document's hyperparameters are a preset", async () => {
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
  // The four named levels, from the baseline on.
  for (const [level, is] of [["nothing", true], ["key-value cache", false], ["threads", true], ["fused head", true], ["bf16", true]])
    assert.equal(await page.locator(".levels label", { hasText: level }).locator("input").isChecked(), is, level);
  // Another algorithm has no hyperparameters of PPO's.
  await page.selectOption("#algorithm", "grpo");
  assert.equal(await page.inputValue("#preset"), "");
  await page.close();
});

await import("./answers.mjs");
await import("./kinds.mjs");
await import("./door.mjs");
await import("./charts.mjs");
await import("./reader.mjs");

const VIEWS = [
  "overview",
  "overview?metrics=all&vs=b",
  "overview?chart=reward&smooth=0.6",
  "rollouts?step=3&all=1&q=script",
  "rollouts?by=prompts&color=ratio",
  "time",
  "levels",
  "run",
];

await test("every view, light and dark, wide and narrow: nothing runs, nothing is beyond the edge, all can read it", async () => {
  const shots = process.env.SHOTS;
  if (shots) mkdirSync(shots, { recursive: true });
  // The others are opened by runs.mjs, with other runs and at three widths.
  const views = shots ? VIEWS : VIEWS.filter((view) => !["overview", "time", "run"].includes(view));
  for (const [width, height] of [
    [1280, 900],
    [390, 800],
  ]) {
    for (const scheme of ["light", "dark"]) {
      const script = "node_modules/axe-core/axe.min.js";
      const page = await open("#/a/overview", { width, height, scheme, script });
      for (const view of views) {
        await page.goto(`${base}/#/a/${view}`);
        await page.waitForTimeout(450);
        assert.deepEqual(await beyond(page), [], `${view} at ${width}`);
        const low = await page.evaluate(contrast);
        assert.deepEqual(low, [], `${view} ${scheme}`);
        assert.deepEqual(await barriers(page), [], `${view} ${scheme} at ${width}`);
        if (shots) await page.screenshot({ path: `${shots}/${view.replace(/[?=&]/g, "-")}-${width}-${scheme}.png` });
      }
      await page.keyboard.press("?");
      await page.waitForSelector("dialog[open]");
      assert.deepEqual(await barriers(page), [], `keys ${scheme} at ${width}`);
      await page.close();
    }
  }
});

await test("a finger reads what a mouse reads when it rests", async () => {
  const page = await open("#/a/overview", { width: 390, height: 800, hasTouch: true });
  const of = page.locator(".numbers .name[title]").first();
  await of.tap();
  await page.waitForSelector("#tip:not([hidden])");
  assert.equal(await page.textContent("#tip"), await of.getAttribute("title"));
  assert.deepEqual(await page.evaluate(contrast, "#tip"), []);
  await page.locator("h1, .verdict").first().tap();
  await page.waitForSelector("#tip", { state: "hidden" });
  await page.close();
});

// A connection that was cut, and a job that was refused, as the checks above wanted.
await finish("the page shows what the files say", [
  "ERR_INCOMPLETE_CHUNKED_ENCODING",
  "levels: Failed to load resource: the server responded with a status of 409",
]);
