// A run whose completions are like those of reasoning models, with Markdown, code and formulas.
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { listed, open, work } from "./page.mjs";

export const ANSWER = `<think>Factors: (x-2)(x-3), since 2*3 = 6.</think>
# Solution

The **quadratic formula** gives _both_ \`roots\`:

$$
x = \\frac{5 \\pm \\sqrt{25 - 24}}{2}
$$

- first \\(x_1 = 2\\)
  1. second [see here](https://evil.example/a) ![plot](https://evil.example/x.png)

| root | value |
|------|------:|
| x1   | 2     |

\`\`\`python
return "ok"  # both
\`\`\`
`;
export const HOSTILE =
  "<script>alert(1)</script> **<img src=x onerror=alert(2)>** [click](javascript:alert(3)) <a href=//evil.example>a</a> " +
  "$\\href{javascript:alert(4)}{x}$ $\\label{tip}x$ $\\def\\a{\\a\\a}\\a$ \u202eturned <style>*{display:none}</style>";
export const THOUGHT = `<think>${"so it goes, and ".repeat(280)}</think>`;
export const LONG = `${THOUGHT}${"The long answer follows.\n".repeat(40)}`;
export const OPENED = "Solve it.\n<think>\n";
export const GROUPS = [
  [OPENED, [ANSWER.replace("<think>", ""), "no end of it", "I know.</think>It is 4.", "</think>2"], [1, 0, 0.5, 0.25]],
  ["Be <b>bold</b> ", [HOSTILE, LONG, "a\tb  c\n", "none"], [0.1, 0.2, 0.3, 0.6]],
  [`Again ${"and again ".repeat(200)}`, ["one two\nsame\nfive", "one 2\nsame\nfive six", "x", "y"], [1, 1, 1, 1]],
  [OPENED, ["</think>a", "</think>b", "c", "d"], [0, 0, 0, 0]],
];
const LETTERS = ["<e>", "\n", "\t", ...Array.from({ length: 95 }, (_, i) => String.fromCharCode(32 + i)), "\u202e"];
const RUN = ["logging_steps=1", "record_rollouts=true", "save_strategy=no", "threads=1"];
export const sets = (pairs) => [...RUN, ...pairs].flatMap((pair) => ["--set", pair]);

/** Trains on the completions above, with one token per letter. */
function record() {
  const shape = {
    ...{ model_type: "qwen3", architectures: ["Qwen3ForCausalLM"], vocab_size: LETTERS.length, hidden_size: 16 },
    ...{ intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8 },
    ...{ max_position_embeddings: 8192, rms_norm_eps: 1e-6, rope_theta: 10000, hidden_act: "silu" },
    ...{ tie_word_embeddings: true, attention_bias: false, bos_token_id: null, eos_token_id: 0 },
  };
  const special = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  const tokenizer = {
    ...{ version: "1.0", truncation: null, padding: null, normalizer: null, post_processor: null },
    decoder: { type: "Fuse" },
    added_tokens: [{ id: 0, content: "<e>", ...special }],
    pre_tokenizer: { type: "Split", pattern: { Regex: "[\\s\\S]" }, behavior: "Isolated", invert: false },
    model: { type: "WordLevel", vocab: Object.fromEntries(LETTERS.map((letter, i) => [letter, i])), unk_token: "" },
  };
  const directory = `${work}/reader`;
  mkdirSync(`${directory}/tokenizer`, { recursive: true });
  writeFileSync(`${directory}/config.json`, JSON.stringify(shape));
  writeFileSync(`${directory}/tokenizer/tokenizer.json`, JSON.stringify(tokenizer));
  writeFileSync(`${directory}/tokenizer/tokenizer_config.json`, JSON.stringify({ eos_token: "<e>" }));
  const init = ["init", "--config", `${directory}/config.json`, "--tokenizer", `${directory}/tokenizer`];
  execFileSync(process.env.LOCKSTEP, [...init, "--out", `${directory}/model`], { stdio: "ignore" });
  const ids = (text) => [...text].map((letter) => LETTERS.indexOf(letter));
  const lines = GROUPS.flatMap(([prompt, texts, rewards]) =>
    texts.map((text, i) => {
      const truncated = text === "no end of it";
      const completion_ids = truncated ? ids(text) : [...ids(text), 0];
      const line = { prompt_ids: ids(prompt), completion_ids, truncated, rewards: rewards[i], reward_names: ["right"] };
      return JSON.stringify(line);
    }),
  );
  writeFileSync(`${directory}/replay.jsonl`, lines.join("\n"));
  const keys = ["num_generations=4", "per_device_train_batch_size=4", "max_completion_length=6000", "max_steps=4"];
  const train = ["train", "--model", `${directory}/model`, "--replay", `${directory}/replay.jsonl`];
  execFileSync(process.env.LOCKSTEP, [...train, "--out", `${work}/runs/reader`, ...sets(keys)], { stdio: "ignore" });
}
record();
await listed((one) => one.id === "reader");

/** Opens a step of the run, and waits for its completions. */
export async function reading(step, words = "", options = {}) {
  const page = await open(`#/reader/rollouts?step=${step}${words}`, options);
  await page.waitForSelector(".completion .body > *, .aligned .row", { state: "attached" });
  return page;
}

/** The text of a completion. */
export const body = (page, i) => page.locator(".completion .body").nth(i);
