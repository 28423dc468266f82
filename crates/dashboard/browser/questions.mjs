// Six questions about a good, a gamed and a constant run. Starting at the Overview, each is answered after at most two
// actions, and the answer must match the run's files.
import assert from "node:assert/strict";
import { lines, mean, open, short, test, text } from "./page.mjs";

const MOST_ACTIONS = 2;
const file = (run, name) => text(`kinds/${run}/${name}`);
const jsonl = (run, name) => lines(`kinds/${run}/${name}`);
const metrics = (run) => jsonl(run, "metrics.jsonl").filter((line) => !line.alarm);
const alarms = (run) => jsonl(run, "metrics.jsonl").flatMap((line) => (line.alarm ? [line.alarm] : []));

/** The lines of config.toml as text: key, and value without the comment on its origin. */
function config(run) {
  const set = file(run, "config.toml").split("\n").map((line) => /^(\w+) = (.+?) {2}# [^#"]*$/.exec(line));
  return new Map(set.flatMap((found) => (found ? [[found[1], found[2]]] : [])));
}

/** A reader at the Overview of a run, who counts the actions. */
async function reader(run) {
  const page = await open(`#/${run}/overview`);
  await page.waitForSelector(".verdict h1");
  let actions = 0;
  return {
    page,
    click: (selector) => page.click(selector).then(() => actions++),
    choose: (selector, value) => page.selectOption(selector, value).then(() => actions++),
    headline: () => page.textContent(".verdict h1"),
    done: async () => {
      assert.ok(actions <= MOST_ACTIONS, `${actions} actions`);
      await page.close();
      return actions;
    },
  };
}

/** Asks a question about several runs. `answered` performs the actions and compares the answer with the files. */
const ask = (question, runs, answered) =>
  test(`question: ${question}`, async () => {
    const asked = async (run) => {
      const at = await reader(run);
      await answered(at, run);
      return `${run}: ${await at.done()} actions`;
    };
    console.log(`    ${(await Promise.all(runs.map(asked))).join(", ")}`);
  });

const THREE = ["grpo", "gamed", "constant"];

await ask("Is it learning?", THREE, async (at, run) => {
  const says = await at.headline();
  const rewards = jsonl(run, "steps.jsonl").map((line) => line.reward);
  const held = metrics(run).flatMap((line) => line.eval_reward ?? []);
  if (run === "constant") {
    assert.equal(new Set(rewards).size, 1);
    assert.equal(Number(/^Nothing to learn from: reward was ([\d.]+) in every step\.$/.exec(says)[1]), rewards[0]);
    return;
  }
  const [, from, to] = /reward went from ([\d.e-]+) to ([\d.e-]+)/.exec(says);
  const tenth = Math.ceil(rewards.length / 10);
  // The first step, or the first tenth if a single step is too noisy.
  const firsts = [rewards[0], mean(rewards.slice(0, Math.floor(rewards.length / 10)))].map(short);
  assert.ok(firsts.includes(Number(from)), `${from} of ${firsts}`);
  assert.equal(Number(to), short(mean(rewards.slice(-tenth))));
  assert.match(says, run === "gamed" ? /^Gamed: / : /^Learned: /);
  const [, first, last] = / Held-out: ([\d.e-]+) to ([\d.e-]+)\.$/.exec(says);
  assert.deepEqual([Number(first), Number(last)], [short(held[0]), short(held.at(-1))]);
});

await ask("What does it write now, against the beginning?", THREE, async (at, run) => {
  await at.page.waitForSelector(".pair .text");
  const pairs = await at.page.$$eval(".pair", (all) =>
    all.map((one) => ({
      prompt: one.querySelector(".prompt").textContent,
      captions: [...one.querySelectorAll("figcaption")].map((caption) => caption.textContent),
      texts: [...one.querySelectorAll(".text")].map((box) => box.textContent),
    })),
  );
  assert.ok(pairs.length > 0);
  const recorded = lines(`${run}.${run === "constant" ? "training" : "evaluations"}.jsonl`);
  const vocabulary = JSON.parse(file(run, "model/tokenizer.json")).model.vocab;
  const letters = new Map(Object.entries(vocabulary).map(([letter, id]) => [id, letter]));
  for (const { prompt, captions, texts } of pairs) {
    const of = recorded.filter((line) => line.prompt === prompt);
    const steps = captions.map((caption) => Number(/step (\d+)/.exec(caption)[1]));
    assert.deepEqual(steps, [of[0].step, of.at(-1).step], prompt);
    steps.forEach((step, i) => {
      const reward = Number(/reward ([-\d.e]+)/.exec(captions[i])[1]);
      const same = of.filter((line) => line.step === step && short(line.rewards[0]) === reward);
      const written = same.map((line) => line.completion_ids.map((id) => letters.get(id)).join(""));
      assert.ok(written.includes(texts[i].replace(/ …$/, "")), `${texts[i]} must be one of ${written}`);
    });
    if (run === "gamed") assert.match(texts[1], /aaaa/);
  }
});

await ask("Which prompts got worse?", THREE, async (at, run) => {
  await at.click('nav a:text-is("Rollouts")');
  await at.click('button:text-is("Prompts")');
  await at.page.waitForSelector(".groups a[data-prompt]");
  // Means of the first and of the last third of a prompt's groups, and whether they differ significantly.
  const groups = new Map();
  for (const one of lines(`${run}.index.jsonl`))
    groups.set(one.prompt_hash, [...(groups.get(one.prompt_hash) ?? []), one.reward]);
  const of = (rewards) => {
    const m = mean(rewards);
    return [m, rewards.reduce((sum, x) => sum + (x - m) ** 2, 0) / Math.max(1, rewards.length - 1) / rewards.length];
  };
  const falls = [...groups.values()].map((rewards) => {
    const third = Math.ceil(rewards.length / 3);
    const [[from, before], [to, after]] = [of(rewards.slice(0, third)), of(rewards.slice(-third))];
    return { from, to, fell: rewards.length > 3 && from - to > 2 * Math.sqrt(before + after) };
  });
  const fell = falls.filter((one) => one.fell).length;
  const says = await at.page.textContent(".tools");
  if (fell) assert.ok(says.includes(`The reward of ${fell} of ${groups.size} prompts fell by more than noise`), says);
  else assert.ok(says.includes("No prompt's reward fell by more than noise"), says);
  const worst = falls.reduce((a, b) => (b.from - b.to > a.from - a.to ? b : a));
  const first = await at.page.textContent(".groups a small");
  assert.ok(first.includes(`first third ${short(worst.from)} · last third ${short(worst.to)}`), first);
});

await ask("Is the reward being gamed?", THREE, async (at, run) => {
  const says = await at.headline();
  const open = alarms(run).filter((one) => one.id === "one_text_wins");
  assert.equal(open.length > 0, run === "gamed");
  assert.equal(says.startsWith("Gamed: "), run === "gamed", says);
  if (run === "gamed") {
    assert.ok(says.includes(`one text wins whatever the prompt (since step ${open[0].since})`), says);
    // The alarm precedes all other alarms.
    assert.match(await at.page.textContent(".alarms summary"), new RegExp(`one text wins, since step ${open[0].since}`));
  }
});

await ask("Where does the time go, and what helps?", [...THREE, "slow"], async (at, run) => {
  await at.click('nav a:text-is("Time")');
  await at.page.waitForSelector('.stack table:has(th:text-is("per step"))');
  const [, took, unit, share, stage] = /A step takes ([\d.]+) (ms|s) on average; ([\d.]+) % of the time is (.+)\./.exec(
    await at.headline(),
  );
  let [seconds, names] = [0, {}];
  try {
    const { measured } = JSON.parse(file(run, "profile.json"));
    seconds = measured.seconds / measured.steps;
    const outer = measured.stages.filter((one) => !one.path.includes("/"));
    const whole = measured.seconds + (outer.find((one) => one.path === "evaluation")?.seconds ?? 0);
    names = Object.fromEntries(outer.map((one) => [one.path, one.seconds / whole]));
  } catch (error) {
    // A run of a few seconds has no profile, but its metrics have the times of its steps.
    assert.equal(error.code, "ENOENT");
    const steps = metrics(run).filter((line) => line.step_time !== undefined);
    const total = (key) => steps.reduce((sum, line) => sum + (line[key] ?? 0), 0);
    seconds = total("step_time") / steps.length;
    const keys = { rollout: "rollout_time_s", rewards: "reward_time_s", forward: "forward_time_s", backward: "backward_time_s" };
    names = Object.fromEntries(Object.entries(keys).map(([name, key]) => [name, total(key) / total("step_time")]));
  }
  assert.ok(Math.abs((took * (unit === "ms" ? 0.001 : 1)) / seconds - 1) < 0.01, `${took} ${unit}: ${seconds} s`);
  assert.ok(Math.abs(share / 100 - names[stage]) < 0.01, `${share} % ${stage}: ${JSON.stringify(names)}`);
  assert.equal(Math.max(...Object.values(names)), names[stage]);
  if (run === "slow") {
    assert.equal(stage, "rewards");
    const says = await at.page.textContent("main");
    for (const { remedy } of JSON.parse(file(run, "profile.json")).findings)
      assert.ok(says.replaceAll("`", "").includes(remedy.replaceAll("`", "")), remedy);
    assert.ok(says.includes("by_group"));
  }
});

await ask("What differs between two runs?", THREE, async (at, run) => {
  const other = run === "gamed" ? "grpo" : "gamed";
  await at.choose(".tools select", other);
  await at.page.waitForSelector(".results td");
  const [a, b] = [config(run), config(other)];
  const keys = [...new Set([...a.keys(), ...b.keys()])];
  const differ = keys.filter((key) => a.get(key) !== b.get(key) && !["output_dir", "run_name", "logging_dir"].includes(key));
  assert.ok(differ.includes("reward_funcs"));
  const named = await at.page.$$eval(".results > p code", (all) => all.map((one) => one.textContent));
  assert.ok(named.every((key) => differ.includes(key)), `${named}`);
  if (differ.length <= 12) assert.deepEqual([...new Set(named)].sort(), [...differ].sort());
  assert.match(await at.page.textContent(".results .warn"), /These runs differ in .*reward_funcs.*not for the same task/);
  const rows = await at.page.$$eval(".results tbody tr", (all) => all.map((row) => [...row.children].map((cell) => cell.textContent)));
  const reached = [run, other].map((one) => {
    const rewards = metrics(one).flatMap((line) => line.reward ?? []);
    return short(mean(rewards.slice(-Math.max(2, Math.ceil(rewards.length / 10)))));
  });
  assert.deepEqual(rows.find(([name]) => name.startsWith("reward,")).slice(1, 3).map(Number), reached);
});
