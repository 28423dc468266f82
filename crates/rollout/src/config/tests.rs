//! Sizes that follow from the configuration.

use super::*;

#[test]
fn defaults_have_room_for_every_sequence() {
    let config = EngineConfig::new(7, 200);
    let expected = EngineConfig {
        max_num_seqs: 7,
        kv_blocks: 8 * 4,
        max_model_len: 200,
        max_batched_tokens: 1024,
        chunked_prefill: true,
        prefix_sharing: true,
        prefix_caching: false,
        speculative: Speculative::Off,
    };
    assert_eq!(config, expected);
    assert_eq!([(1, 64), (1, 65), (3, 1)].map(|(n, len)| EngineConfig::blocks_for(n, len)), [2, 4, 4]);
}

#[test]
fn a_step_has_rows_for_its_sequences_and_for_a_whole_prompt_where_it_is_not_cut() {
    let config = |max_batched_tokens, max_num_seqs, max_model_len, chunked_prefill| EngineConfig {
        max_batched_tokens,
        max_num_seqs,
        max_model_len,
        chunked_prefill,
        ..EngineConfig::new(1, 1)
    };
    for (tokens, sequences, len, cut, whole) in
        [(100, 7, 50, 100, 100), (5, 7, 50, 7, 50), (5, 70, 50, 70, 70), (100, 7, 200, 100, 200)]
    {
        assert_eq!(config(tokens, sequences, len, true).rows(), cut);
        assert_eq!(config(tokens, sequences, len, false).rows(), whole);
    }
    let draws =
        |speculative, tokens, sequences| EngineConfig { speculative, ..config(tokens, sequences, 9, true) }.draws();
    for (speculative, least) in [(Speculative::Off, 0), (Speculative::Auto, 16), (Speculative::Always(3), 16)] {
        assert_eq!(draws(speculative, 100, 7), 7.max(least));
        assert_eq!(draws(speculative, 100, 30), 30);
        assert_eq!(draws(speculative, 10, 7), 7.max(least.min(10)), "no more than there are rows");
    }
    let bytes = |speculative| EngineConfig { speculative, ..EngineConfig::new(1, 1) }.draft_bytes();
    let (places, texts) = ((1 << 16) * (16 + 4), (1 << 20) * 4);
    assert_eq!(
        [Speculative::Off, Speculative::Auto, Speculative::Always(1)].map(bytes),
        [0, places + texts, places + texts]
    );
}
