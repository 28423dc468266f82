// Time as one bar, the report, the tour, the named levels, and screen readers.
import assert from "node:assert/strict";
import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { base, listed, open, settled, test, work, written } from "./page.mjs";

const json = async (path) => (await fetch(`${base}/api/${path}`)).json();

await test("a whole step is one bar of 100 %, in colours that everybody can distinguish", async () => {
  for (const scheme of ["light", "dark"]) {
    const page = await open("#/saved/time?step=20", { scheme });
    await page.waitForSelector(".whole .part");
    const { widths, shown } = await page.evaluate(() => {
      const parts = [...document.querySelector(".whole").children];
      return {
        widths: parts.map((part) => part.getBoundingClientRect().width / part.parentElement.clientWidth),
        shown: parts.map((part) => part.title.split(":")[0]),
      };
    });
    const total = widths.reduce((a, b) => a + b, 0);
    assert.ok(Math.abs(total - 1) < 0.01, `${total}`);
    for (const name of ["rollout", "update", "log", "record", "checkpoint"]) assert.ok(shown.includes(name), `${name} of ${shown}`);
    const near = await page.evaluate(confused);
    assert.deepEqual(near, [], scheme);
    await page.close();
  }
});

/** Pairs of stages with nearly equal colours for people with normal vision, or with one kind of cones missing. */
function confused() {
  // Matrices for severe protan, deutan and tritan vision, in linear RGB: Machado, Oliveira and Fernandes, 2009.
  const views = [
    [1, 0, 0, 0, 1, 0, 0, 0, 1],
    [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
    [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881],
    [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039],
  ];
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", {
    willReadFrequently: true,
  });
  const linear = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const bytes = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    return bytes.map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  };
  const oklab = ([r, g, b]) => {
    const root = (x) => Math.cbrt(Math.max(0, x));
    const l = root(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
    const m = root(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
    const s = root(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
    return [
      0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
      1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
      0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
    ];
  };
  const seen = (color) =>
    views.map((v) => {
      const c = linear(color);
      return oklab([0, 3, 6].map((row) => Math.min(1, Math.max(0, v[row] * c[0] + v[row + 1] * c[1] + v[row + 2] * c[2]))));
    });
  const classes = [...Array.from({ length: 10 }, (_, i) => `s${i}`), "other"];
  const colors = classes.map((name) => {
    const probe = document.body.appendChild(Object.assign(document.createElement("i"), { className: `stage ${name}` }));
    const color = getComputedStyle(probe).backgroundColor;
    probe.remove();
    return seen(color);
  });
  const near = [];
  classes.forEach((name, i) =>
    classes.slice(0, i).forEach((other, j) => {
      const apart = Math.min(...views.map((_, v) => Math.hypot(...[0, 1, 2].map((k) => colors[i][v][k] - colors[j][v][k]))));
      if (apart < 0.07) near.push(`${name} and ${other}: ${apart.toFixed(3)}`);
    }),
  );
  return near;
}

await test("the spans of a clicked step appear below it, and the longest are listed", async () => {
  const page = await open("#/saved/time");
  await page.waitForSelector(".lane .part");
  const columns = page.locator(".stack svg[role=slider]");
  const box = await columns.boundingBox();
  await columns.click({ position: { x: 0.99 * box.width, y: 0.5 * box.height } });
  await page.waitForFunction(() => location.hash.includes("step="));
  const step = Number(/step=(\d+)/.exec(page.url())[1]);
  await page.waitForFunction((step) => document.querySelector(".spans h2")?.textContent.startsWith(`Spans of step ${step}:`), step);
  const below = await page.evaluate(() => {
    const bottom = document.querySelector(".stack svg[role=slider]").getBoundingClientRect().bottom;
    return document.querySelector(".lane").getBoundingClientRect().top - bottom;
  });
  assert.ok(below > 0 && below < 220, `${below} pixels below the columns`);
  const own = (await json(`runs/saved/spans?step=${step}`)).toSorted((a, b) => b.duration_us - a.duration_us);
  const rows = await page.$$eval(".longest tbody tr", (all) => all.map((row) => row.firstElementChild.textContent));
  assert.equal(rows.length, Math.min(8, own.length));
  own.slice(0, rows.length).forEach((span, i) => assert.ok(rows[i].replace(" (beside)", "").endsWith(span.name), `${rows[i]}: ${span.name}`));
  // The widest span shows its name; narrow spans do not.
  const names = await page.$$eval(".lane .part", (all) =>
    all.map((part) => {
      const isShown = getComputedStyle(part.firstElementChild).visibility === "visible";
      return [part.textContent, isShown, part.scrollWidth > part.clientWidth];
    }),
  );
  assert.ok(names.some(([, isShown]) => isShown) && names.every(([, isShown, isTight]) => isShown !== isTight), JSON.stringify(names));
  // The arrow keys select the previous step.
  await columns.focus();
  await page.keyboard.press("ArrowLeft");
  await page.waitForFunction((step) => location.hash.includes(`step=${step - 1}`), step);
  await page.waitForFunction(() => document.activeElement?.getAttribute("role") === "slider");
  await page.close();
});

await test("work beside the learner has a separate bar", async () => {
  const { beside } = await json("runs/saved/stages");
  assert.ok(beside.seconds.checkpoint > 0, JSON.stringify(beside));
  const page = await open("#/saved/time");
  await page.waitForSelector(".whole");
  const bars = await page.$$eval(".whole", (all) => all.map((bar) => bar.getAttribute("aria-label")));
  assert.equal(bars.length, 2, String(bars));
  assert.match(bars[1], /^Beside the learner, per step: .*checkpoints in the background/);
  const lanes = await page.$$eval(".lanes .legend", (all) => all.map((one) => one.textContent));
  assert.equal(lanes[0], "the learner");
  await page.close();
});

await test("the report can be downloaded from Overview and Run", async () => {
  for (const [view, vs] of [["overview?vs=b", true], ["run", false]]) {
    const page = await open(`#/a/${view}`);
    const link = page.locator("a.button", { hasText: "Report" });
    const [download] = await Promise.all([page.waitForEvent("download"), link.click()]);
    assert.equal(download.suggestedFilename(), "report-a.html");
    const text = readFileSync(await download.path(), "utf8");
    const { verdict } = await json("runs/a");
    assert.ok(text.startsWith("<!doctype html>") && text.includes(verdict.says), text.slice(0, 400));
    assert.equal(text.includes("What differs"), vs);
    assert.ok(!text.includes("<script"), "a report must not have scripts");
    await page.close();
  }
});

await test("the tour shows the run's own numbers, works with the keyboard, and is offered once", async () => {
  const page = await open("#/c/overview", { script: "node_modules/axe-core/axe.min.js" });
  await page.waitForSelector(".verdict h1");
  assert.ok(await page.locator("button.news", { hasText: "Tour" }).isVisible());
  await page.keyboard.press("T");
  const dialog = page.locator("dialog.tour");
  const title = async (expected) => {
    await page.waitForFunction((expected) => document.querySelector(".tour h2")?.textContent === expected, expected);
    return dialog.innerText();
  };
  assert.ok((await title("Does it learn?")).includes("200 steps"));
  assert.equal(await page.locator(".toured").textContent(), (await json("runs/c")).verdict.says);
  await page.keyboard.press("Enter");
  const flat = await title("Why is nothing learned from this group?");
  const groups = await json("runs/c/groups?only=no-spread&limit=1");
  assert.ok(flat.includes(`${groups.total} of this run's 400 groups`), flat);
  assert.ok((await page.textContent(".read header")).includes("nothing is learned from it"));
  await page.keyboard.press("ArrowRight");
  const token = await title("What does a token know?");
  const surprise = Number(/surprise of ([\d.]+) nats/.exec(token)[1]);
  const shown = await page.locator(".toured").getAttribute("title");
  const own = await page.locator(".toured").textContent();
  assert.ok(token.includes(JSON.stringify(own)), `${token}: ${own}`);
  assert.ok(shown.includes(`${surprise}`) || surprise > 0, shown);
  await page.keyboard.press("ArrowLeft");
  await title("Why is nothing learned from this group?");
  await page.keyboard.press("ArrowRight");
  await title("What does a token know?");
  await page.keyboard.press("ArrowRight");
  await title("Where does the time go?");
  const serious = await page.evaluate(async () => {
    const { violations } = await axe.run(document, { preload: false, resultTypes: ["violations"] });
    return violations.filter(({ impact }) => ["serious", "critical"].includes(impact)).map(({ id }) => id);
  });
  assert.deepEqual(serious, []);
  await page.keyboard.press("ArrowRight");
  await title("What does it write now?");
  // The dialog must not cover the element that it explains.
  const covers = await page.evaluate(() => {
    const [a, b] = [".tour", ".toured"].map((of) => document.querySelector(of).getBoundingClientRect());
    return a.top < b.bottom && b.top < a.bottom && a.left < b.right && b.left < a.right;
  });
  assert.equal(covers, false);
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.querySelector(".tour") && !document.querySelector(".toured"));
  assert.deepEqual(await page.evaluate(() => ({ ...localStorage })), { tour: "seen" });
  await page.close();
});

await test("the tour skips steps without recorded data", async () => {
  written("plain", "max_steps = 100\n", { forward_time_s: 0.2 });
  await listed((one) => one.id === "plain");
  const page = await open("#/plain/overview");
  await page.waitForSelector(".verdict h1");
  await page.locator("button", { hasText: "Tour" }).click();
  await page.waitForFunction(() => document.querySelector(".tour")?.textContent.includes("1 of 2"));
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".tour h2")?.textContent === "Where does the time go?");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => !document.querySelector(".tour"));
  await page.close();
});

await test("the button of a named level measures it together with the baseline", async () => {
  const page = await open("#/a/levels");
  await page.waitForSelector(".named button");
  const named = await page.$$eval(".named tbody tr", (all) => all.map((row) => row.dataset.named));
  assert.deepEqual(named, ["baseline", "basic", "advanced", "optimal"]);
  await page.selectOption("#algorithm", "grpo");
  await page.fill("#steps", "1");
  await page.click('tr[data-named="optimal"] button');
  await page.waitForSelector("button.stop");
  await page.waitForSelector("text=A step takes");
  const { job } = await json("jobs");
  assert.deepEqual(job.asked.levels, ["none", "kept"]);
  const { events } = await json(`jobs/${job.number}`);
  const [first, last] = ["none", "kept"].map((id) => events.find((event) => event.event === "step" && event.level === id));
  const ratio = (first.rollout_s + first.update_s) / (last.rollout_s + last.update_s);
  const line = await page.textContent('tr[data-named="optimal"] td:nth-child(3)');
  assert.equal(Number(/, ([\d.,]+) × as fast/.exec(line)[1].replace(",", "")), Number(ratio.toPrecision(3)), line);
  assert.equal(await page.textContent('tr[data-named="basic"] td:nth-child(3)'), "–");
  const notes = events.at(-1).report.notes;
  assert.ok(notes[0].startsWith("baseline: ") && notes[1].startsWith("optimal: "), String(notes));
  await page.close();
});

await test("screen readers announce the end of a run and new alarms", async () => {
  const log = written("heard", "max_steps = 100\n", {});
  await listed((one) => one.id === "heard");
  const page = await open("#/heard/overview");
  await page.waitForSelector(".verdict h1");
  assert.equal(await page.textContent("#live"), "");
  const alarm = { id: "cut_short", since: 21, evidence: "x", remedy: "y" };
  appendFileSync(log, `${JSON.stringify({ step: 23, alarm })}\n${JSON.stringify({ step: 100, reward: 1 })}\n`);
  await page.waitForFunction(() => document.querySelector("#live")?.textContent.includes("is finished, at step 100"));
  await page.waitForFunction(() => document.querySelector("#live")?.textContent.includes("New alarm: cut short, since step 21."));
  await page.close();
});

await test("heading levels are consecutive, table headers are not empty, and the first link skips to the content", async () => {
  const page = await open("#/a/overview", { script: "node_modules/axe-core/axe.min.js" });
  for (const view of ["overview?vs=b", "overview?metrics=all", "time", "run?vs=b", "levels"]) {
    await page.goto(`${base}/#/a/${view}`);
    await page.waitForSelector("main h1");
    await settled(page);
    const found = await page.evaluate(async () => {
      const rules = ["heading-order", "empty-table-header", "empty-heading", "skip-link", "page-has-heading-one"];
      const { violations } = await axe.run(document, { preload: false, runOnly: rules });
      return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 80)).join(" | ")}`);
    });
    assert.deepEqual(found, [], view);
  }
  await page.goto(`${base}/#/a/time`);
  await page.waitForSelector(".whole");
  await page.evaluate(() => document.activeElement?.blur());
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.id), "skip");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await page.close();
});

await test("a run is shown by its name, and a run without its model counts as finished", async () => {
  const runs = await json("runs");
  const saved = runs.find((one) => one.id === "saved");
  assert.deepEqual([saved.name, saved.state], ["Checkpoints <b>beside</b>", "finished"]);
  const page = await open("#/saved/run");
  await page.waitForSelector("main h1");
  assert.equal(await page.textContent("main h1"), saved.name);
  assert.ok((await page.title()).includes(saved.name));
  await page.goto(`${base}/#/a/run?keys=differing`);
  const options = () => page.$$eval("main select option", (all) => all.map((one) => one.textContent));
  await page.waitForFunction(() => document.querySelectorAll("main select option").length > 1);
  assert.ok((await options()).includes(saved.name), String(await options()));
  await page.close();
});

await test("the first load of a run's page is at most 400 kB, and a view loads only its files", async () => {
  const page = await open("#/a/time");
  await page.waitForSelector(".whole");
  const loaded = new Map();
  page.on("response", async (answer) => {
    // The event stream never ends, so its body is never complete.
    const body = await answer.body().catch(() => "");
    loaded.set(new URL(answer.url()).pathname, body.length);
  });
  await page.goto(`${base}/#/a/overview`);
  await page.reload();
  await page.waitForSelector(".charts .u-over");
  await settled(page);
  const bytes = [...loaded.values()].reduce((sum, size) => sum + size, 0);
  assert.ok(bytes > 100_000 && bytes <= 400_000, `${bytes} bytes: ${[...loaded.keys()].join(" ")}`);
  assert.ok(loaded.has("/overview/overview.js") && !loaded.has("/rollouts/rollouts.js") && !loaded.has("/levels/levels.js"));
  await page.close();
});
