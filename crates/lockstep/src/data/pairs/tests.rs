//! Preference pairs: from rows to token ids, and the errors of invalid rows.

use super::*;
use crate::Config;
use crate::error::is_bad_input;
use model::chat::ChatTemplate;
use model::tokenizer::{SpecialTokens, Tokenizer};
use serde_json::{Map, json};

fn load(
    text: &str,
    template: bool,
    change: impl FnOnce(&mut DatasetSpec),
) -> anyhow::Result<(Vec<[String; 3]>, Pairs)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.jsonl");
    std::fs::write(&path, text).unwrap();
    let config = Config { dataset_name: Some(path.display().to_string()), ..Config::default() };
    let mut spec = DatasetSpec::train(&config).unwrap();
    change(&mut spec);
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    let tokenizer = Tokenizer::characters("abcdefghijklmnopqrstuvwxyz<>:\n ".chars(), &special).unwrap();
    let source = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt \
                  %}assistant:{% endif %}";
    let chat = ChatTemplate::new(source, tokenizer.special()).unwrap();
    let encoder =
        PromptEncoder { tokenizer: &tokenizer, template: template.then_some(&chat), kwargs: &Map::new(), tools: None };
    let pairs = Pairs::load(&spec, &encoder, 40, true, |_| Ok(()))?;
    let decode = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
    let texts = pairs.all.iter().map(|p| [decode(&p.prompt.ids), decode(&p.chosen), decode(&p.rejected)]);
    Ok((texts.collect(), pairs))
}

fn refused(text: &str, words: &[&str]) {
    let error = load(text, true, |_| {}).expect_err("it was accepted");
    let message = error.to_string();
    assert!(is_bad_input(&error) && !message.contains('\n'), "{message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn text_pairs_are_read_with_and_without_a_prompt() {
    let text = "{\"prompt\": \"ab\", \"chosen\": \" c\", \"rejected\": \" d<e>\", \"margin\": 2}\n\
                {\"chosen\": \"the sky is blue\", \"rejected\": \"the sky is green\"}\n\
                {\"chosen\": \"long\", \"rejected\": \"longer\", \"margin\": null}\n";
    let (texts, pairs) = load(text, false, |_| {}).unwrap();
    // The prompt is the longest common prefix of ids; the space that both answers begin with belongs to the answers, as
    // in TRL.
    assert_eq!(texts[0], ["ab", " c<e>", " d<e>"]);
    assert_eq!(texts[1], ["the sky is", " blue<e>", " green<e>"]);
    assert_eq!(texts[2], ["lon", "g<e>", "ger<e>"]);
    assert_eq!(pairs.all.iter().map(|p| p.margin).collect::<Vec<_>>(), [Some(2.0), None, None]);
    assert_eq!((pairs.left_out, pairs.hash.len()), (0, 64));
}

#[test]
fn conversation_pairs_are_rendered_by_the_template() {
    let user = json!({"role": "user", "content": "hi"});
    let assistant = |text: &str| json!({"role": "assistant", "content": text});
    let whole = json!({"chosen": [user, assistant("yo")], "rejected": [user, assistant("no")]});
    let apart = json!({"prompt": [user], "chosen": [assistant("yo")], "rejected": [assistant("no")]});
    // If a text prompt comes with conversations, the prompt is their common beginning.
    let repeated = json!({"prompt": "hi", "chosen": [user, assistant("yo")], "rejected": [user, assistant("no")]});
    let (texts, _) = load(&format!("{whole}\n{apart}\n{repeated}\n"), true, |_| {}).unwrap();
    for pair in texts {
        assert_eq!(pair, ["user:hi\nassistant:", "yo\n", "no\n"]);
    }
    let strange = json!({"chosen": [assistant("a")], "rejected": [user]});
    refused(&strange.to_string(), &["line 1", "do not begin with the same message", "`prompt`"]);
    let mixed = json!({"chosen": "a", "rejected": [user]});
    refused(&mixed.to_string(), &["line 1", "`chosen` and `rejected` must both be strings"]);
}

#[test]
fn columns_are_renamed_and_long_pairs_skipped() {
    let text = "{\"q\": \"ab\", \"good\": \"c\", \"bad\": \"d\"}\n{\"q\": \"ab\", \"good\": \
                \"cccccccccccccccccccccccccccccccccccccccccccccc\", \"bad\": \"d\"}\n";
    let renamed = |s: &mut DatasetSpec| {
        s.prompt_column = "q".into();
        s.columns = vec![("chosen".into(), "good".into()), ("rejected".into(), "bad".into())];
    };
    let (texts, pairs) = load(text, false, renamed).unwrap();
    assert_eq!((texts[0][1].as_str(), texts.len(), pairs.left_out), ("c<e>", 1, 1));
    // The limit is 40 tokens: a prompt of 2, an answer of 37, and the end token.
    for (length, all) in [(37, 1), (38, 0)] {
        let row = json!({"prompt": "ab", "chosen": "d", "rejected": "c".repeat(length)}).to_string();
        let fits = load(&row, false, |_| ());
        assert_eq!(fits.map_or(0, |(texts, _)| texts.len()), all, "{length}");
    }
    let error = load(&text[text.find('\n').unwrap()..], false, renamed).unwrap_err();
    assert!(error.to_string().contains("every pair is longer than max_length = 40"), "{error}");
}

#[test]
fn errors_of_invalid_pairs_name_the_line() {
    let good = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n";
    refused(
        &format!("{good}{{\"prompt\": \"a\", \"chosen\": \"b\"}}"),
        &["p.jsonl, line 2", "no column `rejected`", "`prompt`, `chosen`", "columns"],
    );
    refused(
        &format!("{good}\n{}", good.replace('c', "b").replace("bhosen", "chosen").replace("rejebted", "rejected")),
        &["line 3", "are the same"],
    );
    // An answer may be only the end token.
    let (texts, _) = load("{\"prompt\": \"a\", \"chosen\": \"\", \"rejected\": \"c\"}", true, |_| {}).unwrap();
    assert_eq!(texts, [["a", "<e>", "c<e>"].map(str::to_owned)]);
    refused("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": 3}", &["line 1", "`rejected`", "expected a string"]);
    refused("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b<e>\"}", &["line 1", "the same tokens"]);
    refused("{\"prompt\": \"\", \"chosen\": \"b\", \"rejected\": \"c\"}", &["line 1", "the prompt has no token"]);
    refused(
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"margin\": \"x\"}",
        &["`margin` must be a number"],
    );
    refused("", &["empty"]);
}

#[test]
fn all_solutions_of_a_problem_are_in_the_same_split() {
    let row = |name: &str, right: [bool; 3]| {
        let solution = |right, text: &str| json!({"is_correct": right, "solution": text});
        json!({"question": name, "ground_truth": "x", "u": solution(right[0], "p"), "v": solution(right[1], "q"),
            "w": solution(right[2], "r")})
        .to_string()
    };
    let rights =
        [[true, false, true], [true; 3], [false; 3], [false, false, true], [true, false, false], [false, true, true]];
    let text: String = rights.iter().zip('a'..).map(|(&r, name)| row(&name.to_string(), r) + "\n").collect();
    let load_split = |split: &str| {
        load(&text, false, |s| {
            s.task = Some(Task::Gsm8kSolutions);
            s.prompt_column = "question".into();
            s.split = split.into();
        })
    };
    let flat = |texts: Vec<[String; 3]>| {
        texts.iter().map(|t| t.concat().replace('\n', "").replace("<e>", "")).collect::<Vec<_>>()
    };
    assert_eq!(flat(load_split("train").unwrap().0), ["apq", "arq", "drp", "drq", "fqp", "frp"]);
    assert_eq!(flat(load_split("test").unwrap().0), ["epq", "epr"]);
    assert_eq!(load_split("test").unwrap().0[0], ["e", "\np<e>", "\nq<e>"]);
    assert!(load_split("dev").unwrap_err().to_string().contains("splits train and test"));
}

#[test]
fn pairs_of_token_ids_are_read_and_invalid_ones_refused() {
    let text = "{\"prompt_ids\": [1, 2], \"chosen_ids\": [3, 0], \"rejected_ids\": [4], \"margin\": 2}\n\
                {\"chosen_ids\": [1, 2, 3], \"rejected_ids\": [1, 2, 4, 5]}\n";
    let (texts, pairs) = load(text, false, |_| {}).unwrap();
    assert_eq!(texts, [["ab", "c<e>", "d"].map(str::to_owned), ["ab", "c", "de"].map(str::to_owned)]);
    assert_eq!(pairs.all[0].margin, Some(2.0));
    refused("{\"chosen_ids\": [1], \"rejected_ids\": [2]}\n", &["line 1", "the prompt has no tokens", "`prompt_ids`"]);
    refused("{\"chosen_ids\": [1, 2], \"rejected_ids\": [1, 2]}\n", &["line 1", "`chosen_ids`", "the same"]);
    refused("{\"chosen_ids\": [1, 999], \"rejected_ids\": [1]}\n", &["line 1", "`chosen_ids` must be a list of token"]);
    refused("{\"prompt_ids\": [1], \"chosen_ids\": [], \"rejected_ids\": [1]}\n", &["line 1", "is empty"]);
}

#[test]
fn a_shared_prompt_of_ids_leaves_each_answer_a_token() {
    let of = |row: Value| {
        let (_, pairs) = load(&row.to_string(), false, |_| {}).unwrap();
        let pair = pairs.all[0].clone();
        (pair.prompt.ids.to_vec(), pair.chosen, pair.rejected)
    };
    assert_eq!(of(json!({"chosen_ids": [1, 2], "rejected_ids": [1, 2, 3]})), (vec![1], vec![2], vec![2, 3]));
    assert_eq!(of(json!({"chosen_ids": [1, 2, 3], "rejected_ids": [1, 2]})), (vec![1], vec![2, 3], vec![2]));
    assert_eq!(of(json!({"chosen_ids": [1, 2, 3], "rejected_ids": [1, 4, 3]})), (vec![1], vec![2, 3], vec![4, 3]));
    let whole = json!({"prompt_ids": [7], "chosen_ids": [1, 2], "rejected_ids": [1, 3]});
    assert_eq!(of(whole), (vec![7], vec![1, 2], vec![1, 3]));
    // Pairs of exactly the allowed length are kept; the longer answer counts.
    for (length, fits) in [(37, true), (38, false)] {
        for (chosen, rejected) in [(length, 1), (1, length)] {
            let ids = |count: usize, last: u32| [vec![2; count - 1], vec![last]].concat();
            let row = json!({"prompt_ids": [1, 1, 1], "chosen_ids": ids(chosen, 5), "rejected_ids": ids(rejected, 6)});
            assert_eq!(load(&row.to_string(), false, |_| {}).is_ok(), fits, "{chosen}, {rejected}");
        }
    }
    // The last id of the vocabulary is accepted, and the next one refused.
    let last = |id: u32| json!({"prompt_ids": [1], "chosen_ids": [id], "rejected_ids": [1]}).to_string();
    assert!(load(&last(31), false, |_| {}).is_ok());
    refused(&last(32), &["`chosen_ids` must be a list of token ids from 0 to 31"]);
    // With ids in only one of the two columns, the row is read as text.
    refused("{\"chosen_ids\": [1, 2], \"rejected\": \"b\"}", &["no column `chosen`"]);
}

#[test]
fn margins_are_read_and_missing_columns_named() {
    let margins = |row: Value, change: fn(&mut DatasetSpec)| {
        let (_, pairs) = load(&row.to_string(), false, change).unwrap();
        pairs.all.iter().map(|pair| pair.margin).collect::<Vec<_>>()
    };
    let renamed = |s: &mut DatasetSpec| s.columns = vec![("margin".into(), "better_by".into())];
    let row = json!({"prompt": "a", "chosen": "b", "rejected": "c", "better_by": 1.5, "margin": 9});
    assert_eq!((margins(row.clone(), renamed), margins(row.clone(), |_| {})), (vec![Some(1.5)], vec![Some(9.0)]));
    let (_, pairs) = load(&row.to_string(), false, renamed).unwrap();
    let pair = pairs.all[0].clone().into_preference_pair();
    assert_eq!((pair.margin, pair.prompt.ids.len(), pair.chosen.ids.len()), (1.5, 1, 2));
    let none = json!({"prompt": "a", "chosen": "bb", "rejected": "c"});
    let (_, pairs) = load(&none.to_string(), false, |_| {}).unwrap();
    assert_eq!(pairs.all[0].clone().into_preference_pair().margin, 0.0);
    refused("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"margin\": 1e300}", &["must be a number"]);
    let (texts, _) = load("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"\"}", false, |_| {}).unwrap();
    assert_eq!(texts, [["a", "b<e>", "<e>"].map(str::to_owned)], "an empty answer is the end token alone");
    refused(
        "{\"prompt\": \"a\", \"chosen\": \"b\"}",
        &["line 1: no column `rejected`; a pair has the columns `chosen` and `rejected`, and may have `prompt` and \
             `margin`; the row has `prompt`, `chosen`. Rename one with columns = { rejected = \"…\" }"],
    );
    refused("{\"prompt\": 3, \"chosen\": \"b\", \"rejected\": \"c\"}", &["line 1: `prompt`: expected a string"]);
    // With a null prompt, the common beginning of both answers is the prompt.
    let (texts, _) = load("{\"prompt\": null, \"chosen\": \"ab\", \"rejected\": \"ac\"}", false, |_| {}).unwrap();
    assert_eq!(texts, [["a", "b<e>", "c<e>"].map(str::to_owned)]);
    let stopped = load("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", false, |s| s.stop.request());
    assert!(crate::stop::is_stopped(&stopped.unwrap_err()));
}

/// A pair with a far too long answer, chosen or rejected, is skipped before it is encoded.
#[test]
fn a_far_too_long_answer_is_not_encoded() {
    let long = "A".repeat((1 << 20) + 1);
    let good = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}";
    for (chosen, rejected) in [(long.as_str(), "b"), ("b", long.as_str())] {
        let row = json!({"prompt": "a", "chosen": chosen, "rejected": rejected});
        let (texts, pairs) = load(&format!("{row}\n{good}\n"), false, |_| {}).unwrap();
        assert_eq!((texts.len(), pairs.left_out), (1, 1));
    }
}

#[test]
fn solutions_that_form_no_pair_are_skipped_or_refused() {
    let solve = |row: &str, split: &str| {
        let loaded = load(row, false, |s| {
            s.task = Some(Task::Gsm8kSolutions);
            s.prompt_column = "question".into();
            s.split = split.into();
        });
        let error = loaded.err().map(|error| error.to_string());
        error.map(|error| error.split_once("p.jsonl").map_or(error.clone(), |(_, rest)| rest.to_owned()))
    };
    let solution = |right: bool, text: &str| json!({"is_correct": right, "solution": text});
    let reported = |row: Value| solve(&row.to_string(), "train").unwrap_or_default();
    assert_eq!(reported(json!({"question": 3})), ", line 1: `question` must be a string");
    let none = ", line 1: no column holds a solution {\"is_correct\": …, \"solution\": …}";
    assert_eq!(reported(json!({"question": "q", "u": {"is_correct": "yes", "solution": "p"}})), none);
    // A problem needs a correct and an incorrect solution; a solution marked as both gives no pair.
    assert_eq!(reported(json!({"question": "q", "u": solution(true, "p")})), " contains no pairs");
    assert_eq!(reported(json!({"question": "q", "u": solution(false, "p")})), " contains no pairs");
    assert_eq!(
        reported(json!({"question": "q", "u": solution(true, "p"), "v": solution(false, "p")})),
        " contains no pairs"
    );
    let both = json!({"question": "q", "u": solution(true, "p"), "v": solution(false, "r")});
    assert_eq!(solve(&both.to_string(), "train"), None);
    let split = solve(&both.to_string(), "dev");
    let words = ", line 1: task gsm8k_solutions has the splits train and test, but no split dev";
    assert_eq!(split.as_deref(), Some(words));
}

/// `change` removes the padding of a reward model's pairs; if only padding remains, the error names the row.
#[test]
fn the_error_of_a_refused_pair_names_its_row() {
    let text = "{\"chosen\": \"aab\", \"rejected\": \"aac\"}\n\n{\"chosen\": \"aad\", \"rejected\": \"aae\"}\n";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.jsonl");
    std::fs::write(&path, text).unwrap();
    let config = Config { dataset_name: Some(path.display().to_string()), ..Config::default() };
    let tokenizer = Tokenizer::characters("abcde".chars(), &SpecialTokens::default()).unwrap();
    let encoder = PromptEncoder { tokenizer: &tokenizer, template: None, kwargs: &Map::new(), tools: None };
    let refuse = |token: &'static str| {
        let id = tokenizer.token_id(token).unwrap();
        let change = move |pair: &mut Pair| {
            if pair.chosen.contains(&id) {
                return Err(BadInput::new("no token is left"));
            }
            pair.rejected.push(id);
            Ok(())
        };
        let loaded = Pairs::load(&DatasetSpec::train(&config).unwrap(), &encoder, 40, true, change);
        loaded.map(|pairs| pairs.all.iter().map(|pair| pair.rejected.len()).collect::<Vec<_>>())
    };
    let error = refuse("d").unwrap_err();
    assert_eq!(error.to_string(), format!("{}, line 3: no token is left", path.display()));
    assert_eq!(refuse("e").unwrap(), [2, 2]);
}
