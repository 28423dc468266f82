// A tiny model with one token per letter, and rows whose text must not become markup.
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";

const work = process.argv[2];
const letters = ["<e>", ..."abcdefghijklmnopqrstuvwxyz .,?<>/=()'!0123456789"];
const shape = {
  model_type: "qwen3",
  architectures: ["Qwen3ForCausalLM"],
  vocab_size: letters.length,
  hidden_size: 16,
  intermediate_size: 24,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 8,
  max_position_embeddings: 128,
  rms_norm_eps: 1e-6,
  rope_theta: 10000,
  hidden_act: "silu",
  tie_word_embeddings: true,
  attention_bias: false,
  bos_token_id: null,
  eos_token_id: 0,
};
const tokenizer = {
  version: "1.0",
  truncation: null,
  padding: null,
  normalizer: null,
  post_processor: null,
  decoder: { type: "Fuse" },
  added_tokens: [
    { id: 0, content: "<e>", single_word: false, lstrip: false, rstrip: false, normalized: false, special: true },
  ],
  pre_tokenizer: { type: "Split", pattern: { Regex: "[\\s\\S]" }, behavior: "Isolated", invert: false },
  model: { type: "WordLevel", vocab: Object.fromEntries(letters.map((token, i) => [token, i])), unk_token: "" },
};
mkdirSync(`${work}/tokenizer`);
writeFileSync(`${work}/config.json`, JSON.stringify(shape));
writeFileSync(`${work}/tokenizer/tokenizer.json`, JSON.stringify(tokenizer));
writeFileSync(`${work}/tokenizer/tokenizer_config.json`, JSON.stringify({ eos_token: "<e>" }));
const prompts = ["<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "sun and moon ", "a long road "];
writeFileSync(
  `${work}/rows.jsonl`,
  prompts.map((prompt) => JSON.stringify({ prompt, note: "<b>bold</b> \u202eright to left" })).join("\n") + "\n",
);
const written = (name, row) =>
  writeFileSync(`${work}/${name}`, prompts.map((prompt) => JSON.stringify(row(prompt))).join("\n") + "\n");
written("sft.jsonl", (prompt) => ({ prompt, completion: "it was warm" }));
written("dpo.jsonl", (prompt) => ({ prompt, chosen: "it was warm", rejected: "it was cold" }));
execFileSync(process.env.LOCKSTEP ?? "../../../target/debug/lockstep", [
  "init",
  "--config",
  `${work}/config.json`,
  "--tokenizer",
  `${work}/tokenizer`,
  "--out",
  `${work}/model`,
]);
// A run with only a log: an alarm that was raised, ended and raised again, and two rewards, one of which moves later.
const metrics = [];
const rises = (step, middle) => 1 / (1 + Math.exp((middle - step) / 2)) + 0.01 * ((step * 5) % 7);
for (let step = 1; step <= 60; step++) {
  const rewards = { "rewards/early/mean": rises(step, 15), "rewards/late/mean": rises(step, 40) };
  const times = { time_s: 1.7e9 + step, step_time: 0.5 };
  metrics.push({ step, reward: rises(step, 15) + rises(step, 40), ...rewards, "rewards/still/mean": 0.8, ...times });
  const alarm = (since, rest) => metrics.push({ step, alarm: { id: "cut_short", since, evidence: "x", ...rest } });
  if (step === 20) alarm(18, {});
  if (step === 30) alarm(18, { until: 30 });
  if (step === 45) alarm(43, {});
}
mkdirSync(`${work}/runs/logged`, { recursive: true });
writeFileSync(`${work}/runs/logged/config.toml`, "max_steps = 60\nsave_steps = 4294967295  # file\n");
writeFileSync(`${work}/runs/logged/metrics.jsonl`, metrics.map((line) => JSON.stringify(line)).join("\n") + "\n");
