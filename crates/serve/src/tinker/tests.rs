//! The wire: requests as the client sends them.

use super::proto::{
    Chunk, ChunkKind, ConfigValue, DType, Datum, EncodedTextChunk, Encoding, ForwardBackwardRequest, LossConfigValue,
    OtherChunk, Provenance, ProvenanceSpan, Span, SparseCsr, Tensor,
};
use super::read::{json, pass, pass_job};
use super::*;
use axum::http::HeaderValue;
use lockstep::service::training::{ClipRange, TokenLoss};
use proptest::prelude::*;
use prost::Message;

fn bytes_of<const N: usize, T: Copy>(values: &[T], of: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| of(value)).collect()
}

fn dense(bytes: Vec<u8>, dtype: DType, shape: &[i64]) -> Tensor {
    Tensor { encoding: Some(Encoding::Dense(bytes)), dtype: dtype as i32, shape: shape.to_vec() }
}

fn ids(values: &[i64], shape: &[i64]) -> Tensor {
    dense(bytes_of(values, i64::to_le_bytes), DType::Int64, shape)
}

fn floats(values: &[f32], shape: &[i64]) -> Tensor {
    dense(bytes_of(values, f32::to_le_bytes), DType::Float32, shape)
}

fn text(tokens: &[i32]) -> Chunk {
    let tokens = bytes_of(tokens, i32::to_le_bytes);
    Chunk { chunk: Some(ChunkKind::EncodedText(EncodedTextChunk { tokens })) }
}

fn request() -> ForwardBackwardRequest {
    let inputs =
        [("target_tokens".to_owned(), ids(&[2, 3, 4], &[3])), ("weights".to_owned(), floats(&[0.0, 1.0, 0.5], &[3]))];
    ForwardBackwardRequest {
        model_id: "s:train:0".to_owned(),
        seq_id: 1,
        data: vec![Datum {
            model_input: vec![text(&[1, 2]), text(&[3])],
            loss_fn_inputs: inputs.into(),
            ..Datum::default()
        }],
        loss_fn: "cross_entropy".to_owned(),
        ..ForwardBackwardRequest::default()
    }
}

fn job(change: impl FnOnce(&mut ForwardBackwardRequest)) -> Result<Job, String> {
    let mut request = request();
    change(&mut request);
    pass_job(pass(&request.encode_to_vec()).unwrap())
}

fn set(request: &mut ForwardBackwardRequest, name: &str, tensor: Tensor) {
    request.data[0].loss_fn_inputs.insert(name.to_owned(), tensor);
}

#[test]
fn a_pass_is_read_from_chunks_and_tensors() {
    let Ok(Job::Pass { datums, loss, samplers, needs_on_policy }) = job(|_| {}) else { panic!("a pass") };
    assert_eq!((loss, samplers.len(), needs_on_policy), (Some(TokenLoss::CrossEntropy), 0, false));
    assert_eq!((&datums[0].ids[..], &datums[0].targets[..], datums[0].width), (&[1, 2, 3][..], &[2, 3, 4][..], 1));
    assert_eq!(datums[0].input("weights"), Some(&[0.0, 1.0, 0.5][..]));
    // A pass without a gradient needs no loss.
    let forward = job(|r| (r.forward_only, r.loss_fn) = (true, String::new()));
    assert!(matches!(forward, Ok(Job::Pass { loss: None, .. })));
}

#[test]
fn the_beginning_of_a_compressed_body_is_enough_for_a_large_window() {
    let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static("zstd"))]);
    // Blocks without compression, as of random data, in a frame with a window of 8 MiB.
    let block: Vec<u8> = (0..128 << 10).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut body = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3];
    while body.len() < packed::kept(&headers) {
        body.extend(&(block.len() as u32 * 8).to_le_bytes()[..3]);
        body.extend(&block);
    }
    body.truncate(packed::kept(&headers));
    let start = packed::start(&headers, &body);
    assert!(start.len() == packed::kept(&HeaderMap::new()) && start.starts_with(&block), "{} bytes", start.len());
}

#[test]
fn sparse_tensors_are_read_by_rows() {
    let csr = |starts: &[i64], columns: &[i64]| SparseCsr {
        values: bytes_of(&[5i64, 6, 7], i64::to_le_bytes),
        crow_indices: bytes_of(starts, i64::to_le_bytes),
        col_indices: bytes_of(columns, i64::to_le_bytes),
    };
    let with = |csr: SparseCsr| {
        job(|r| {
            let sparse =
                Tensor { encoding: Some(Encoding::SparseCsr(csr)), dtype: DType::Int64 as i32, shape: vec![3, 2] };
            set(r, "target_tokens", sparse);
            set(r, "weights", floats(&[1.0; 6], &[3, 2]));
        })
    };
    let Ok(Job::Pass { datums, .. }) = with(csr(&[0, 2, 2, 3], &[0, 1, 1])) else { panic!("a pass") };
    assert_eq!((&datums[0].targets[..], datums[0].width), (&[5, 6, 0, 0, 0, 7][..], 2));
    let misfit = "datum 0: `target_tokens`: a sparse tensor whose indices do not fit the shape [3, 2]";
    for (starts, columns, why) in [
        (&[0, 2, 3][..], &[0, 1, 1][..], misfit),
        (&[0, 2, 1, 3], &[0, 1, 1], misfit),
        (&[1, 2, 2, 3], &[0, 1, 1], misfit),
        (&[0, 2, 2, 4], &[0, 1, 1], misfit),
        (&[0, 2, 2, 3], &[0, 1], misfit),
        (&[0, 2, 2, 3], &[0, 2, 1], "datum 0: `target_tokens`: column 2 of a sparse tensor with 2"),
        (&[0, 2, 2, 3], &[0, -1, 1], "datum 0: `target_tokens`: a negative index"),
    ] {
        assert_eq!(with(csr(starts, columns)).unwrap_err(), why);
    }
}

#[test]
fn losses_have_their_settings() {
    let loss = |name: &str, config: &[(&str, f64)]| {
        job(|r| {
            r.loss_fn = name.to_owned();
            r.loss_fn_config = config.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        })
        .map(|job| match job {
            Job::Pass { loss, needs_on_policy, .. } => (loss.unwrap(), needs_on_policy),
            other => panic!("{other:?}"),
        })
    };
    let range = |low, high| ClipRange { low, high };
    assert_eq!(loss("ppo", &[]), Ok((TokenLoss::Ppo(range(0.8, 1.2)), false)));
    let clip = [("clip_low_threshold", 0.5), ("clip_high_threshold", 3.0)];
    assert_eq!(loss("cispo", &clip), Ok((TokenLoss::Cispo(range(0.5, 3.0)), false)));
    assert_eq!(loss("gspo", &clip[1..]), Ok((TokenLoss::Gspo(range(0.8, 3.0)), false)));
    assert_eq!(loss("dro", &[("beta", 0.1)]), Ok((TokenLoss::Dro { beta: 0.1 }, false)));
    assert_eq!(loss("importance_sampling", &[]), Ok((TokenLoss::ImportanceSampling, false)));
    assert_eq!(loss("stable_reinforce", &[("kl_coeff", 0.0)]), Ok((TokenLoss::ImportanceSampling, true)));
    for (name, config, why) in [
        ("dro", &[][..], "the loss dro needs loss_fn_config.beta"),
        ("stable_reinforce", &[("kl_coeff", 0.1)], "stable_reinforce with kl_coeff 0.1 is not supported"),
        ("cross_entropy", &[("beta", 1.0)], "loss_fn_config: the loss has no setting `beta`"),
        ("custom", &[], "the loss `custom` is not supported: this server has cross_entropy, "),
        ("", &[], "the loss `` is not supported"),
    ] {
        let error = loss(name, config).unwrap_err();
        assert!(error.starts_with(why), "{error}");
    }
    // Settings of the second form win; texts are refused.
    let with = |value: ConfigValue| {
        job(|r| {
            r.loss_fn = "dro".to_owned();
            r.loss_fn_config.insert("beta".to_owned(), 1.0);
            r.loss_fn_config_v2.insert("beta".to_owned(), LossConfigValue { value: Some(value) });
        })
    };
    let Ok(Job::Pass { loss, .. }) = with(ConfigValue::Number(2.0)) else { panic!("a pass") };
    assert_eq!(loss, Some(TokenLoss::Dro { beta: 2.0 }));
    assert_eq!(with(ConfigValue::Text("a".into())).unwrap_err(), "loss_fn_config: `beta` is \"a\": expected a number");
}

#[test]
fn sampled_spans_name_their_samplers() {
    let span = |sampled: bool, sequence: &str| {
        let provenance = Provenance { sequence_id: sequence.to_owned(), offset: 0, length: 2 };
        ProvenanceSpan {
            span: Some(if sampled { Span::SampledTokens(provenance) } else { Span::PromptTokens(provenance) }),
        }
    };
    let Ok(Job::Pass { samplers, .. }) = job(|r| {
        r.data[0].model_input_spans = vec![span(false, "s:sample:9#0#0"), span(true, "s:sample:1#0#3")];
        r.data[0].loss_fn_input_spans = vec![span(true, "s:sample:1#7#0"), span(true, "s:sample:0#0#0")];
    }) else {
        panic!("a pass")
    };
    assert_eq!(samplers, ["s:sample:0", "s:sample:1"]);
}

#[test]
fn a_wrong_datum_is_refused_with_the_field() {
    let image = Chunk { chunk: Some(ChunkKind::Image(OtherChunk {})) };
    let dmel = Chunk { chunk: Some(ChunkKind::Dmel(OtherChunk {})) };
    let bf16 = dense(vec![0; 6], DType::Bfloat16, &[3]);
    for (error, why) in [
        (job(|r| r.data[0].model_input.push(image)), "an image: only encoded_text chunks are supported"),
        (job(|r| r.data[0].model_input.push(dmel)), "audio (dmel): only encoded_text chunks are supported"),
        (job(|r| r.data[0].model_input.push(Chunk::default())), "a chunk without contents"),
        (job(|r| r.data[0].model_input.push(text(&[-1]))), "-1 is not a token id"),
        (job(|r| drop(r.data[0].loss_fn_inputs.remove("target_tokens"))), "`target_tokens` is missing"),
        (job(|r| set(r, "target_tokens", ids(&[1, 2], &[3]))), "`target_tokens`: 2 numbers for the shape [3]"),
        (job(|r| set(r, "target_tokens", ids(&[1 << 40, 2, 3], &[3]))), "1099511627776 is not a token id"),
        (
            job(|r| set(r, "target_tokens", ids(&[1, 2, 3], &[3, 1, 1]))),
            "`target_tokens` has the shape [3, 1, 1]: expected [N] or [N, K]",
        ),
        (job(|r| set(r, "weights", floats(&[1.0; 3], &[-3]))), "`weights`: the shape [-3]"),
        (
            job(|r| set(r, "weights", floats(&[1.0; 3], &[i64::MAX, 4]))),
            "`weights`: the shape [9223372036854775807, 4] is too large",
        ),
        (
            job(|r| set(r, "weights", dense(vec![0; 7], DType::Float32, &[2]))),
            "`weights`: 7 bytes are not numbers of 4 bytes",
        ),
        (
            job(|r| {
                let mut sparse = |name: &str| {
                    let csr = SparseCsr { crow_indices: vec![0; 16], ..SparseCsr::default() };
                    let encoding = Some(Encoding::SparseCsr(csr));
                    set(r, name, Tensor { encoding, dtype: DType::Float32 as i32, shape: vec![1, 1 << 23] });
                };
                sparse("a");
                sparse("b");
            }),
            "`b`: the shape [1, 8388608] is too large",
        ),
        (job(|r| set(r, "weights", bf16)), "`weights`: a tensor of the dtype 4: expected float32, int64 or int32"),
        (
            job(|r| set(r, "weights", Tensor { shape: vec![3], ..Tensor::default() })),
            "`weights`: a tensor without data",
        ),
    ] {
        assert_eq!(error.unwrap_err(), format!("datum 0: {why}"));
    }
}

#[test]
fn a_sample_is_read_with_tinkers_defaults() {
    let read = |params: Value| {
        let body = json!({
            "sampling_session_id": "s", "seq_id": 3, "type": "sample", "num_samples": 2,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}, {"type": "encoded_text", "tokens": [3]}]},
            "sampling_params": params, "prompt_logprobs": null, "record_stability_info": true,
        });
        json::<read::Sample>(body.to_string().as_bytes()).and_then(read::Sample::generate)
    };
    let usual = read(json!({})).unwrap();
    assert_eq!((&usual.prompts[0][..], usual.n, usual.max_tokens, usual.seed), (&[1, 2, 3][..], 2, None, None));
    assert_eq!((usual.temperature, usual.top_k, usual.top_p, usual.ignore_eos), (1.0, 0, 1.0, false));
    assert_eq!((usual.prompt_logprobs, usual.top_logprobs), (false, 0));
    let stop = |stop: Value| {
        let read = read(json!({"stop": stop, "seed": -1, "top_k": 5})).unwrap();
        assert_eq!((read.seed, read.top_k), (Some(u64::MAX), 5));
        (read.stop, read.stop_token_ids, read.ignore_eos)
    };
    assert_eq!(stop(json!("a")), (vec!["a".to_owned()], vec![], false));
    assert_eq!(stop(json!(["a", "b"])), (vec!["a".to_owned(), "b".to_owned()], vec![], false));
    assert_eq!((stop(json!([7])), stop(json!([]))), ((vec![], vec![7], false), (vec![], vec![], true)));
    for (field, value, why) in [
        ("target_prompt_logprobs", json!({}), "`target_prompt_logprobs` is not supported"),
        ("prompt_alt_tokens_k", json!(2), "`prompt_alt_tokens_k` is not supported"),
        ("prompt", json!({"chunks": [{"type": "image"}]}), "the prompt has a chunk of type `image`"),
        ("seq_id", json!("a"), "the body does not fit the request: invalid type"),
    ] {
        let mut body = json!({"sampling_session_id": "s", "seq_id": 0, "prompt": {"chunks": []}});
        body[field] = value;
        let error = json::<read::Sample>(body.to_string().as_bytes()).and_then(read::Sample::generate).unwrap_err();
        assert!(error.starts_with(why), "{error}");
    }
}

proptest! {
    /// Whatever bytes arrive, they are read or refused.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(request) = pass(&bytes) {
            let _ = pass_job(request);
        }
        let _ = json::<read::Sample>(&bytes).map(read::Sample::generate);
    }

    /// A request with some bytes changed is read or refused.
    #[test]
    fn a_damaged_request_is_read_or_refused(changes in prop::collection::vec((any::<prop::sample::Index>(),
    any::<u8>()), 1..4)) { let mut bytes = request().encode_to_vec();
        for (index, byte) in changes {
            let place = index.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(request) = pass(&bytes) {
            let _ = pass_job(request);
        }
    }
}
