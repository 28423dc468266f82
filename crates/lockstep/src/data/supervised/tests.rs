use super::*;
use model::SpecialTokens;
use model::chat::ChatTemplate;
use model::tokenizer::Tokenizer;
use serde_json::json;

const TEMPLATE: &str = "{% if tools %}{{ tools | length }}{% endif %}{% for m in messages %}{{ m.role[0] }}\
                        {{ m.content }}{{ mark }}.{% endfor %}{% if add_generation_prompt %}a{% endif %}";

/// The characters of a row; learned ones are capitals.
fn shown(learned: Learned, prompt: Value, completion: Value, columns: Value) -> anyhow::Result<String> {
    let special = SpecialTokens { eos: Some(".".into()), ..SpecialTokens::default() };
    let tokenizer = Tokenizer::characters("abcdefghijklmnopqrstuvwxyz.0123456789".chars(), &special).expect("letters");
    let template = ChatTemplate::new(TEMPLATE, &special).expect("template");
    let encoder = PromptEncoder { tokenizer: &tokenizer, template: Some(&template), kwargs: &Map::new(), tools: None };
    let content = |value: &Value| Content::read(value).expect("content");
    let Value::Object(columns) = columns else { panic!("an object") };
    let (prompt, completion) = (content(&prompt), (!completion.is_null()).then(|| content(&completion)));
    let LearnedRow { ids, learned: mask, .. } =
        learned.tokens(&encoder, &Example { row: 0, prompt, completion, columns })?;
    let letter = |(id, learned): (u32, bool)| {
        let text = tokenizer.decode(&[id], false).expect("a letter");
        if learned { text.to_uppercase() + if text == "." { "!" } else { "" } } else { text }
    };
    Ok(ids.into_iter().zip(mask).map(letter).collect())
}

const ALL: Learned = Learned { completion_only: None, assistant_only: false };

#[test]
fn learned_tokens_of_texts_and_conversations_are_marked() {
    let show = |learned, prompt: Value, completion: Value| shown(learned, prompt, completion, json!({})).unwrap();
    let everything = Learned { completion_only: Some(false), ..ALL };
    assert_eq!(show(ALL, json!("ab"), json!("cd")), "abCD.!");
    assert_eq!(show(everything, json!("ab"), json!("cd")), "ABCD.!");
    assert_eq!(show(ALL, json!("ab"), Value::Null), "AB.!");
    let assistant = Learned { assistant_only: true, ..ALL };
    let talk = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]);
    let more = json!([{"role": "user", "content": "z"}, {"role": "assistant", "content": "w"}]);
    assert_eq!(show(ALL, talk.clone(), Value::Null), "UX.!AY.!");
    assert_eq!(show(assistant, talk.clone(), Value::Null), "ux.aY.!");
    // If the row has a completion, only the completion's assistant tokens are learned; if the prompt is learned too,
    // the assistant tokens of both are.
    assert_eq!(show(assistant, talk.clone(), more.clone()), "ux.ay.uz.aW.!");
    assert_eq!(show(Learned { assistant_only: true, ..everything }, talk, more), "ux.aY.!uz.aW.!");
    let refused = shown(assistant, json!("ab"), Value::Null, json!({})).unwrap_err().to_string();
    assert!(refused.contains("assistant_only_loss is for conversations"), "{refused}");
}

#[test]
fn rows_of_token_ids_are_learned_by_labels_or_masks() {
    let show = |learned, columns: Value| shown(learned, json!("q"), Value::Null, columns);
    assert_eq!(show(ALL, json!({"input_ids": [1, 2, 3.0]})).unwrap(), "ABC");
    assert_eq!(show(ALL, json!({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]})).unwrap(), "aBC");
    let masks = json!({"input_ids": [1, 2, 3, 4], "completion_mask": [0, 1, 1, 1], "assistant_masks": [1, 1, 0, 1]});
    // As in TRL, a completion's mask has an effect only with completion_only_loss, which rows of ids alone do not turn
    // on.
    assert_eq!(show(ALL, masks.clone()).unwrap(), "ABcD");
    assert_eq!(show(Learned { completion_only: Some(true), ..ALL }, masks.clone()).unwrap(), "aBcD");
    assert_eq!(show(Learned { completion_only: Some(false), ..ALL }, masks.clone()).unwrap(), "ABcD");
    let mut with_texts = masks.as_object().unwrap().clone();
    assert!(ALL.leaves_out_completion_mask(&with_texts));
    with_texts.extend([("prompt".to_owned(), json!("q")), ("completion".to_owned(), json!("a"))]);
    assert!(!ALL.leaves_out_completion_mask(&with_texts));
    assert_eq!(show(ALL, Value::Object(with_texts)).unwrap(), "aBcD");
    for (columns, words) in [
        (json!({"input_ids": [0, 99]}), "`input_ids` must be a list of token ids from 0 to 36"),
        (json!({"input_ids": [0, -1]}), "`input_ids` must be a list of token ids"),
        (json!({"input_ids": "ab"}), "`input_ids` must be a list of token ids"),
        (json!({"input_ids": [0, 1], "labels": [1]}), "`labels` must be a list of integers, as long as"),
        (json!({"input_ids": [0, 1], "labels": [0, 2]}), "`labels` must equal `input_ids`, or be -100"),
        (json!({"input_ids": [0, 1], "completion_mask": [0, "x"]}), "`completion_mask` must be a list"),
    ] {
        let error = show(ALL, columns).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn tools_and_variables_of_a_row_reach_the_template() {
    let talk = || json!([{"role": "user", "content": "x"}]);
    let show = |columns: Value| shown(ALL, talk(), Value::Null, columns);
    assert_eq!(show(json!({"tools": [{"name": "a"}, {"name": "b"}]})).unwrap(), "2UX.!");
    assert_eq!(show(json!({"tools": "[{\"name\": \"a\"}]"})).unwrap(), "1UX.!");
    assert_eq!(show(json!({"tools": null, "chat_template_kwargs": {"mark": "m"}})).unwrap(), "UXM.!");
    assert!(show(json!({"tools": "{"})).unwrap_err().to_string().contains("`tools` must be a list of JSON schemas"));
    assert!(show(json!({"chat_template_kwargs": 3})).unwrap_err().to_string().contains("must be an object"));
}

#[test]
fn messages_with_from_and_value_are_read_as_role_and_content() {
    let other = json!([{"from": "user", "value": "x"}, {"from": "assistant", "value": "y"}]);
    assert_eq!(shown(ALL, other, Value::Null, json!({})).unwrap(), "UX.!AY.!");
    assert!(Content::read(&json!([{"from": "user"}])).unwrap_err().contains("no `role` or no `content`"));
}

#[test]
fn labels_override_masks_and_invalid_ids_are_refused() {
    let show = |learned, columns: Value| shown(learned, json!("q"), Value::Null, columns).map_err(|e| e.to_string());
    let assistant = Learned { assistant_only: true, ..ALL };
    let all = json!({"input_ids": [1, 2, 3], "labels": null, "completion_mask": null, "assistant_masks": null});
    assert_eq!(show(ALL, all.clone()), Ok("ABC".to_owned()));
    assert_eq!(show(assistant, all), Ok("ABC".to_owned()));
    // Labels override masks; any number except 0 marks a token.
    let both = json!({"input_ids": [1, 2, 3], "labels": [1, -100, 3.0], "completion_mask": [0, 0, 0]});
    assert_eq!(show(ALL, both), Ok("AbC".to_owned()));
    let explicit = Learned { completion_only: Some(true), ..ALL };
    assert_eq!(show(explicit, json!({"input_ids": [1, 2, 3], "completion_mask": [2, 0, 1.0]})), Ok("AbC".to_owned()));
    assert_eq!(show(explicit, json!({"input_ids": [1, 2], "completion_mask": [0, 1]})), Ok("aB".to_owned()));
    assert_eq!(show(ALL, json!({"input_ids": [36, 0]})), Ok("9.!".to_owned()));
    for (columns, words) in [
        (json!({"input_ids": [37]}), "`input_ids` must be a list of token ids from 0 to 36"),
        (json!({"input_ids": [1.5]}), "`input_ids` must be a list of token ids from 0 to 36"),
        (json!({"input_ids": 3}), "`input_ids` must be a list of token ids from 0 to 36"),
        (
            json!({"input_ids": [1, 2], "labels": [1, 2, 3]}),
            "`labels` must be a list of integers, as long as `input_ids`",
        ),
        (
            json!({"input_ids": [1, 2], "labels": [1, 3]}),
            "`labels` must equal `input_ids`, or be -100 where nothing is learned",
        ),
        (
            json!({"input_ids": [1, 2], "assistant_masks": [1]}),
            "`assistant_masks` must be a list of integers, as long as `input_ids`",
        ),
        (
            json!({"input_ids": [1, 2], "completion_mask": [1, 0.5]}),
            "`completion_mask` must be a list of integers, as long as `input_ids`",
        ),
    ] {
        assert_eq!(show(ALL, columns), Err(words.to_owned()));
    }
}
