//! The service with a tiny random model and adapters, without HTTP.

mod training;

use super::*;
use crate::config::ComputeDType;
use crate::models::Policy;
use model::columns::{TOP_IDS, TOP_LOGPS, Values};
use model::io::{TensorSink, TensorSource};
use model::tokenizer::SpecialTokens;
use model::weights::{Named, NamedMut};
use model::{Adapter, LoraConfig, ModelConfig, WeightSlots, Weights};
use rollout::{Engine, EngineConfig};
use std::sync::mpsc::{Receiver, channel};

/// A model with large weights, so that its distributions are far from uniform.
const CONFIG: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 40,
"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 0, "initializer_range": 0.3}"#;

struct Home {
    dir: tempfile::TempDir,
    ctx: Context,
}

impl Home {
    fn new() -> Home {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context::cpu(kernels::Isa::best(), 1);
        let path = dir.path().join("tiny");
        std::fs::create_dir(&path).unwrap();
        let config = Arc::new(ModelConfig::parse(CONFIG).unwrap());
        let weights = Weights::random(ctx.memory(), &config, 1).unwrap();
        let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
        Tokenizer::characters("abcdefghijklmnopqrstuvwxyz .,?".chars(), &special).unwrap().save(&path).unwrap();
        model::io::save_model(&path, &config, &weights, None, Default::default()).unwrap();
        Home { dir, ctx }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn policy(&self) -> Policy {
        Policy::load(&self.ctx, Path::new(&self.path("tiny")), ComputeDType::F32).unwrap()
    }

    /// Writes an adapter of this rank.
    fn adapter(&self, name: &str, rank: usize) -> NamedDir {
        let mut policy = self.policy();
        let lora = LoraConfig { r: rank, ..LoraConfig::default() };
        let base = policy.weights.base.current();
        let mut adapter = Adapter::new(self.ctx.memory(), base, &lora, rank as u64).unwrap();
        let specs = Named { params: &adapter.params }.tensors();
        for (i, spec) in specs.iter().filter(|spec| spec.name.contains("lora_B")).enumerate() {
            let values: Vec<f32> = (0..spec.shape.iter().product()).map(|j| ((i + j) % 7) as f32 * 0.1 - 0.3).collect();
            NamedMut { params: &mut adapter.params }.put(&spec.name, &values).unwrap();
        }
        policy.weights.adapter = Some(WeightSlots::new(self.ctx.memory(), adapter));
        std::fs::create_dir(self.path(name)).unwrap();
        policy.save(Path::new(&self.path(name))).unwrap();
        NamedDir { name: name.to_owned(), dir: self.path(name) }
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions {
            model: NamedDir { name: "tiny".to_owned(), dir: self.path("tiny") },
            adapters: Vec::new(),
            other_base: false,
            dtype: ComputeDType::F32,
            max_model_len: None,
            max_num_seqs: 8,
            max_waiting: 1000,
            kv_cache_blocks: Some(64),
            seed: 5,
            state: self.dir.path().join("state"),
        }
    }

    fn start(&self, options: &ServiceOptions) -> Service {
        Service::start(&self.ctx, options, |_| {}).unwrap()
    }
}

/// A request, whose prompt and fields depend on `number`.
fn request(number: usize) -> Generate {
    let prompt = (0..5 + number * 3 % 90).map(|i| 1 + (i * 7 + number * i) as u32 % 30).collect();
    Generate {
        model: "tiny".to_owned(),
        prompts: vec![prompt],
        n: 1 + number % 3,
        seed: Some(number as u64 / 2),
        max_tokens: Some(10 + number % 13),
        temperature: [1.0, 0.7, 0.0][number % 3],
        top_p: [1.0, 0.9][number % 2],
        ignore_eos: number.is_multiple_of(4),
        top_logprobs: if number.is_multiple_of(5) { 3 } else { 0 },
        ..Generate::default()
    }
}

/// A request that runs for a long time.
fn long() -> Generate {
    Generate { max_tokens: Some(200), ignore_eos: true, n: 4, ..request(0) }
}

/// The ids and the bits of the log-probabilities of each completion, and those of all alternatives.
type Bits = Vec<(Vec<u32>, Vec<u32>, Vec<(u32, u32)>)>;

fn submit(service: &Service, generate: &Generate) -> (Ticket, Receiver<Event>) {
    let (sender, events) = channel();
    (service.generate(generate.clone(), move |event| sender.send(event).is_ok()).unwrap(), events)
}

fn bits(generate: &Generate, events: &Receiver<Event>) -> Bits {
    let mut all: Bits = vec![Default::default(); generate.prompts.len() * generate.n];
    let mut open = generate.prompts.len();
    while open > 0 {
        match testing::receive("an event", events) {
            Event::Token(Token { prompt, sample, token, top, .. }) => {
                let (ids, logps, tops) = &mut all[prompt * generate.n + sample];
                ids.push(token.id);
                logps.push(token.logp.to_bits());
                tops.extend(top.iter().map(|other| (other.id, other.logp.to_bits())));
            }
            Event::Ended { .. } => open -= 1,
            Event::Failed(message) => panic!("{message}"),
            Event::Cancelled => panic!("cancelled"),
        }
    }
    all
}

fn complete(service: &Service, generate: &Generate) -> Bits {
    let (_ticket, events) = submit(service, generate);
    bits(generate, &events)
}

#[test]
fn a_request_has_the_same_bits_alone_and_among_64_others_with_adapters() {
    let home = Home::new();
    let adapters = vec![home.adapter("one", 2), home.adapter("two", 5)];
    // Few pages: sequences are preempted and recomputed, and cached pages are evicted.
    let options = ServiceOptions { adapters, kv_cache_blocks: Some(9), ..home.options() };
    let requests: Vec<Generate> = (0..64)
        .map(|number| Generate { model: ["tiny", "one", "two"][number % 3].to_owned(), ..request(number) })
        .collect();
    let service = home.start(&options);
    let alone: Vec<Bits> = requests.iter().map(|request| complete(&service, request)).collect();
    let service = home.start(&options);
    let open: Vec<_> = requests.iter().map(|request| submit(&service, request)).collect();
    for ((request, (_ticket, events)), alone) in requests.iter().zip(&open).zip(&alone) {
        assert!(bits(request, events) == *alone, "{request:?}");
    }
    wait_until_idle(&service);
    let status = service.status();
    assert!(status.engine.preemptions > 0 && status.engine.cached_tokens > 0, "{status:?}");
    // The adapters change the completions.
    let of = |model: &str| complete(&service, &Generate { model: model.to_owned(), ..request(4) });
    assert!(of("tiny") != of("one") && of("one") != of("two"));
}

#[test]
fn a_seeded_completion_equals_that_of_the_engine_alone() {
    let home = Home::new();
    let generate = Generate { prompts: vec![vec![5, 9, 2]], n: 3, seed: Some(7), top_logprobs: 3, ..request(1) };
    let found = complete(&home.start(&home.options()), &generate);
    let policy = home.policy();
    let mut engine = Engine::new(&home.ctx, policy.config(), EngineConfig::new(4, 64)).unwrap();
    let sampling = generate.sampling(policy.eos_ids.clone(), 99, 0);
    let request = Request::new(GroupId(0), Prompt::new(vec![5, 9, 2]), 3, Arc::new(sampling));
    let group = engine.generate(&policy.weights, vec![request]).unwrap().remove(0);
    for (completion, (ids, logps, top)) in group.completions.iter().zip(&found) {
        let expected: Vec<u32> = completion.logps().iter().map(|logp| logp.to_bits()).collect();
        assert_eq!((&completion.ids, &expected), (ids, logps));
        let columns = [TOP_IDS, TOP_LOGPS].map(|name| &completion.columns.get(name).unwrap().values);
        let [Values::U32(ids), Values::F32(logps)] = columns else { panic!("{columns:?}") };
        let expected: Vec<(u32, u32)> = ids.iter().zip(logps).map(|(&id, logp)| (id, logp.to_bits())).collect();
        assert_eq!(*top, expected);
    }
}

#[test]
fn samples_prompts_and_seeds_have_their_own_noise() {
    let home = Home::new();
    let service = home.start(&home.options());
    let prompt = vec![3, 4, 5, 6];
    let of = |service: &Service, seed, prompts: usize| {
        let prompts = vec![prompt.clone(); prompts];
        complete(service, &Generate { prompts, n: 4, seed, max_tokens: Some(12), ignore_eos: true, ..request(3) })
    };
    let seeded = of(&service, Some(1), 2);
    for (i, one) in seeded.iter().enumerate() {
        assert!(!seeded[..i].contains(one), "sample {i} repeats another one");
    }
    assert_eq!(of(&service, Some(1), 1), seeded[..4], "the place of a prompt and the seed decide");
    assert!(of(&service, Some(2), 1) != seeded[..4]);
    // Without a seed, the server's seed and the order of the requests decide.
    let unseeded = [(); 2].map(|()| {
        let service = home.start(&home.options());
        [of(&service, None, 1), of(&service, None, 1)]
    });
    assert_eq!(unseeded[0], unseeded[1]);
    assert!(unseeded[0][0] != unseeded[0][1]);
    let other = home.start(&ServiceOptions { seed: 6, ..home.options() });
    assert!(of(&other, None, 1) != unseeded[0][0]);
}

fn wait_until_idle(service: &Service) {
    let pages = service.sizes().kv_cache_blocks;
    testing::wait_until("all pages are free", || {
        let status = service.status();
        status.open == 0 && status.free_blocks == pages
    });
}

#[test]
fn a_client_that_leaves_frees_its_pages_and_changes_nothing_for_others() {
    let home = Home::new();
    let service = home.start(&home.options());
    let alone = complete(&service, &request(7));
    let (ticket, events) = submit(&service, &long());
    let (_other, others) = submit(&service, &request(7));
    assert!(matches!(testing::receive("an event", &events), Event::Token(_)));
    drop(ticket);
    assert_eq!(bits(&request(7), &others), alone);
    wait_until_idle(&service);
    assert_eq!(service.status().cancelled, 1);
    // A receiver that is gone has the same effect, while the ticket still exists.
    let (_ticket, events) = submit(&service, &long());
    drop(events);
    wait_until_idle(&service);
    assert_eq!(service.status().cancelled, 2);
}

#[test]
fn a_full_queue_and_a_stopping_service_refuse_requests() {
    let home = Home::new();
    let service = home.start(&ServiceOptions { max_num_seqs: 2, max_waiting: 3, ..home.options() });
    let (ticket, _events) = submit(&service, &long());
    let refused = service.generate(Generate { n: 2, ..request(0) }, |_| true).err().unwrap();
    assert_eq!(refused, Refused::Busy { open: 4, most: 5 });
    assert_eq!(complete(&service, &Generate { n: 1, ..request(1) }).len(), 1, "one slot is left");
    drop(ticket);
    wait_until_idle(&service);
    let too_many = service.generate(Generate { n: 6, ..request(0) }, |_| true).err().unwrap();
    assert!(too_many.to_string().contains("`n` is 6: expected 1 to 5"), "{too_many}");
    let prompts = Generate { prompts: vec![vec![1]; 3], n: 2, ..request(0) };
    let too_many = service.generate(prompts, |_| true).err().unwrap();
    assert!(too_many.to_string().contains("are 6 completions"), "{too_many}");
    let (_ticket, events) = submit(&service, &Generate { n: 1, ..long() });
    service.stop();
    assert_eq!(service.generate(request(0), |_| true).err().unwrap(), Refused::Stops);
    assert_eq!(bits(&Generate { n: 1, ..long() }, &events)[0].0.len(), 200, "accepted requests end as usual");
}

#[test]
fn a_wrong_field_is_refused_with_its_name_and_the_expected_value() {
    let home = Home::new();
    let service = home.start(&home.options());
    let good = request(0);
    let table = [
        (Generate { temperature: -1.0, ..good.clone() }, "temperature", "`temperature` is -1: expected 0"),
        (Generate { temperature: f64::NAN, ..good.clone() }, "temperature", "NaN"),
        (Generate { top_p: 0.0, ..good.clone() }, "top_p", "above 0, up to 1"),
        (Generate { min_p: 1.5, ..good.clone() }, "min_p", "from 0 to 1"),
        (Generate { repetition_penalty: 0.0, ..good.clone() }, "repetition_penalty", "above 0"),
        (Generate { n: 0, ..good.clone() }, "n", "expected 1 to 1008"),
        (Generate { max_tokens: Some(0), ..good.clone() }, "max_tokens", "expected 1"),
        (Generate { top_logprobs: 21, ..good.clone() }, "top_logprobs", "expected 0 to 20"),
        (Generate { stop: vec![String::new()], ..good.clone() }, "stop", "none may be empty"),
        (Generate { stop_token_ids: vec![40], ..good.clone() }, "stop_token_ids", "has 40"),
        (Generate { prompts: Vec::new(), ..good.clone() }, "prompt", "0 prompts"),
        (Generate { prompts: vec![Vec::new()], ..good.clone() }, "prompt", "at least one token"),
        (Generate { prompts: vec![vec![1], vec![2, 41]], ..good.clone() }, "prompt", "token id 41"),
    ];
    for (generate, field, words) in table {
        match service.generate(generate, |_| true) {
            Err(Refused::Field { field: found, message }) => {
                assert!(found == field && message.contains(words), "{found}: {message}");
            }
            other => panic!("{field}: {:?}", other.err()),
        }
    }
    for (tokens, max_tokens) in [(256, None), (255, Some(2)), (1, Some(usize::MAX))] {
        let generate = Generate { prompts: vec![vec![1; tokens]], max_tokens, ..good.clone() };
        let refused = service.generate(generate, |_| true).err().unwrap();
        assert!(matches!(refused, Refused::ContextLength(_)) && refused.to_string().contains("256"), "{refused}");
    }
    let unknown = service.generate(Generate { model: "tony".to_owned(), ..good }, |_| true).err().unwrap();
    assert_eq!(unknown.to_string(), "The model `tony` does not exist. This server has: tiny.");
    assert!(service.encode("A").unwrap_err().to_string().contains("no character 'A'"));
    let chat = Chat { add_generation_prompt: true, ..Chat::default() };
    assert!(service.encode_chat(&chat).unwrap_err().to_string().contains("has no chat template"));
    assert_eq!(service.open_completions(), 0);
}

#[test]
fn prompt_log_probabilities_arrive_with_the_end() {
    let home = Home::new();
    let service = home.start(&home.options());
    let generate = Generate { prompt_logprobs: true, top_logprobs: 2, max_tokens: Some(1), ..request(10) };
    let (_ticket, events) = submit(&service, &generate);
    let end = loop {
        match events.recv_timeout(testing::HANG).unwrap() {
            Event::Ended { prompt: 0, prompt_logprobs, .. } => break prompt_logprobs,
            Event::Token(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(end.len(), generate.prompts[0].len() - 1);
    assert!(end.iter().all(|(logp, top)| *logp < 0.0 && top.len() == 2 && top[0].logp >= top[1].logp));
}

#[test]
fn a_service_that_cannot_start_names_the_fix() {
    let home = Home::new();
    let why = |options: ServiceOptions| {
        let error = Service::start(&home.ctx, &options, |_| {}).err().unwrap();
        assert!(crate::error::is_bad_input(&error), "{error}");
        error.to_string()
    };
    let missing = NamedDir { name: "m".to_owned(), dir: home.path("missing") };
    assert!(why(ServiceOptions { model: missing.clone(), ..home.options() }).contains("missing"));
    let text = why(ServiceOptions { adapters: vec![missing], ..home.options() });
    assert!(text.starts_with("adapter m: ") && text.contains("PEFT"), "{text}");
    let one = home.adapter("one", 2);
    let twice = why(ServiceOptions { adapters: vec![one.clone(), one], ..home.options() });
    assert!(twice.contains("two models have the name one"), "{twice}");
    let small = why(ServiceOptions { kv_cache_blocks: Some(4), max_model_len: Some(256), ..home.options() });
    assert!(small.contains("needs 5"), "{small}");
    let long = why(ServiceOptions { max_model_len: Some(257), ..home.options() });
    assert!(long.contains("--max-model-len 257: expected 2 to 256"), "{long}");
    // Without a length, the pages decide.
    let service = home.start(&ServiceOptions { kv_cache_blocks: Some(3), ..home.options() });
    assert_eq!(service.sizes().max_model_len, 128);
}

/// The pieces of text for a completion `text` of `prompt`. The last token ends the completion.
fn pieces(prompt: &str, text: &str, stop: &[&str], reason: FinishReason) -> Vec<String> {
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    let tokenizer = Arc::new(Tokenizer::characters("abcdefghijklmnopqrstuvwxyz .,?".chars(), &special).unwrap());
    let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
    let options = TextOptions { stop, stop_ids: vec![0], show_special: false };
    let mut of = CompletionText::new(&tokenizer, &tokenizer.encode(prompt).unwrap(), &options);
    let ids = tokenizer.encode(text).unwrap();
    let last = ids.len() - 1;
    ids.iter().enumerate().map(|(i, &id)| of.push(id, (i == last).then_some(reason)).unwrap()).collect()
}

#[test]
fn text_ends_before_its_stop_string_and_is_withheld_while_undecided() {
    use FinishReason::{Length, Stop};
    assert_eq!(pieces("ab", "cd", &[], Length), ["c", "d"]);
    assert_eq!(pieces("ab", "xstop", &["stop"], Stop), ["x", "", "", "", ""]);
    assert_eq!(pieces("ab", "stosa", &["stop"], Length), ["", "", "", "sto", "sa"]);
    assert_eq!(pieces("ab", "xsto", &["stop"], Length), ["x", "", "", "sto"], "the text ends undecided");
    assert_eq!(pieces("ab", "xabab", &["ababc", "bab"], Stop), ["x", "", "", "", "a"]);
    assert_eq!(pieces("xst", "op", &["stop"], Stop), ["", ""], "the stop string begins in the prompt");
    assert_eq!(pieces("xst", "ax", &["stop"], Length), ["a", "x"], "the prompt's text is not returned");
    assert_eq!(pieces("stop", "ax", &["stop"], Length).concat(), "ax");
    assert_eq!(pieces("ab", "c<e>", &["c<"], Stop), ["", "c"], "the stop id is not part of the text");
}

#[test]
fn the_texts_of_tokens_and_of_their_alternatives_are_whole() {
    let home = Home::new();
    let service = home.start(&home.options());
    let ids = service.encode("ab cd").unwrap();
    let mut text = service.text(&ids[..2], &TextOptions::default());
    let mut whole = String::new();
    for &id in &ids[2..] {
        let (piece, others) = text.piece(id, [ids[0], 0].into_iter()).unwrap();
        assert_eq!(others, ["a", "<e>"]);
        whole += &piece;
    }
    assert_eq!(whole, " cd");
}
