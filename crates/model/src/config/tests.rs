use super::*;

const LLAMA: &str = r#"{"model_type":"llama","hidden_size":64,"intermediate_size":172,"num_hidden_layers":2,
    "num_attention_heads":8,"num_key_value_heads":4,"vocab_size":512}"#;

#[test]
fn defaults_are_those_of_transformers() {
    let c = ModelConfig::parse(LLAMA).unwrap();
    assert_eq!((c.head_dim, c.max_position_embeddings, c.rms_norm_eps), (8, 2048, 1e-6));
    assert_eq!((c.bos_token_id, c.eos_token_ids, c.pad_token_id), (Some(1), vec![2], None));
    assert_eq!(c.rope, Rope { theta: 10_000.0, scaling: RopeScaling::Default });
}
