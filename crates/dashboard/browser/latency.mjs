// Watches a run in progress: how long the page takes to show a change of the run's file. See latency.sh.
import { readFileSync, readdirSync, statSync } from "node:fs";
import { browser, open, work } from "./page.mjs";

const [server, seconds] = process.argv.slice(4).map(Number);
const file = `${work}/runs/live/metrics.jsonl`;
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const sorted = (values) => values.toSorted((a, b) => a - b);
const at = (values, share) => sorted(values)[Math.min(values.length - 1, Math.floor(values.length * share))];

/** The CPU time of the server's threads in seconds, by the scheduler's clock: ticks would miss short periods. */
function cpu() {
  const threads = readdirSync(`/proc/${server}/task`);
  const ns = threads.map((id) => Number(readFileSync(`/proc/${server}/task/${id}/schedstat`, "utf8").split(" ")[0]));
  return ns.reduce((sum, one) => sum + one, 0) / 1e9;
}

const page = await open("#/live/overview");
await page.waitForSelector(".state.running");
await page.evaluate(() => {
  window.named = [];
  window.drawn = [];
  let last = "";
  new MutationObserver((changes) => {
    const words = document.querySelector("#head .state").textContent;
    if (words !== last) window.named.push(Date.now());
    last = words;
    if (changes.some((one) => one.target.closest?.("svg") ?? one.target.querySelector?.("svg"))) window.drawn.push(Date.now());
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
});

const grown = [];
const [began, before] = [Date.now(), cpu()];
for (let size = statSync(file).size; Date.now() - began < seconds * 1000; await wait(2)) {
  const now = statSync(file).size;
  if (now !== size) grown.push(Date.now());
  size = now;
}
const percent = (100 * (cpu() - before)) / ((Date.now() - began) / 1000);
await wait(700);
const { named, drawn } = await page.evaluate(() => ({ named: window.named, drawn: window.drawn }));
await browser.close();

// The last step may have come after the last measurement. A chart has its last change before the next step.
const steps = grown.slice(0, -1);
const until = (step) => Math.min(grown[grown.indexOf(step) + 1], step + 650);
const name = steps.map((step) => named.find((time) => time >= step - 2) - step);
const chart = steps.map((step) => drawn.findLast((time) => time >= step && time < until(step)) - step);
for (const [what, times] of [["the step's number", name], ["the charts", chart]]) {
  const missed = times.filter(Number.isNaN).length;
  const ms = times.filter((time) => !Number.isNaN(time));
  console.log(
    `${what}: ${steps.length} steps, ${missed} missed, from file to screen ${at(ms, 0.5)} ms (median), ` +
      `${at(ms, 0.95)} ms (95 %), ${at(ms, 1)} ms (most)`,
  );
}
console.log(`the server: ${percent.toFixed(2)} % of a core`);
