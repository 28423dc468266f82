//! Writes a tiny random model: this crate has no code for models.

use serde_json::{Value, json};
use std::path::Path;

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz .,?";
/// The tokenizer has no character for the tags of a call.
const TEMPLATE: &str = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}\
     {% for m in messages %}{{ m['content'] }}{% for call in m.tool_calls or [] %}<tool_call>\
     {{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}\
     {% if add_generation_prompt %}{{ tail or '.' }}{% endif %}";
/// The maximum number of tokens of a prompt with its completion.
pub const CONTEXT: usize = 4096;
const VOCAB: usize = 31;
const HIDDEN: usize = 16;
const INNER: usize = 24;
const HEAD: usize = 8;

/// Writes the model's directory.
pub fn write(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let put = |name: &str, json: Value| std::fs::write(dir.join(name), json.to_string()).unwrap();
    put(
        "config.json",
        json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN,
            "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": HEAD, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 0,
        }),
    );
    let tokens = std::iter::once("<e>".to_owned()).chain(LETTERS.chars().map(String::from));
    let vocab: serde_json::Map<String, Value> = tokens.enumerate().map(|(id, token)| (token, json!(id))).collect();
    let flags = json!({"single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let mut end = json!({"id": 0, "content": "<e>"});
    end.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
    put(
        "tokenizer.json",
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated",
                              "invert": false},
            "post_processor": null, "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": ""},
        }),
    );
    put("tokenizer_config.json", json!({"eos_token": "<e>", "chat_template": TEMPLATE}));
    weights(&dir.join("model.safetensors"));
}

/// Writes pseudorandom weights, large enough that the distributions are far from uniform.
fn weights(path: &Path) {
    let layer = "model.layers.0";
    let attention = |name: &str, rows| (format!("{layer}.self_attn.{name}_proj.weight"), vec![rows, HIDDEN]);
    let mlp = |name: &str, shape| (format!("{layer}.mlp.{name}_proj.weight"), shape);
    let norm = |name: String| (format!("{name}.weight"), vec![HIDDEN]);
    let all = [
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
        norm("model.norm".to_owned()),
        norm(format!("{layer}.input_layernorm")),
        norm(format!("{layer}.post_attention_layernorm")),
        attention("q", 2 * HEAD),
        attention("k", HEAD),
        attention("v", HEAD),
        attention("o", HIDDEN),
        mlp("gate", vec![INNER, HIDDEN]),
        mlp("up", vec![INNER, HIDDEN]),
        mlp("down", vec![HIDDEN, INNER]),
    ];
    let (mut header, mut data, mut state) = (serde_json::Map::new(), Vec::new(), 1u64);
    for (name, shape) in all {
        let from = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            // Knuth's linear congruential generator.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
            let value = if shape.len() == 1 { 1.0 + uniform } else { uniform };
            data.extend(value.to_le_bytes());
        }
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [from, data.len()]}));
    }
    let mut header = Value::Object(header).to_string();
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(path, file).unwrap();
}
