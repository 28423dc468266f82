//! Content from strings and conversations: parsing, system prompts, common prefixes, and the text to score.

use super::*;

fn read(value: Value) -> std::result::Result<Content, String> {
    Content::read(&value)
}

fn messages(value: Value) -> Content {
    let Value::Array(messages) = value else { panic!("a list") };
    Content::Messages(messages)
}

#[test]
fn content_is_read_from_strings_and_message_lists() {
    assert_eq!(read(json!("hi")), Ok(Content::Text("hi".into())));
    let chat = json!([{"role": "user", "content": "hi", "name": "x"}, {"role": "assistant", "tool_calls": []}]);
    assert_eq!(read(chat.clone()), Ok(messages(chat)));
    let share_gpt = json!([{"from": "human", "value": "hi"}, {"role": "user", "content": "a", "from": 1, "value": 2}]);
    let expected = json!([{"role": "human", "content": "hi"}, {"role": "user", "content": "a", "from": 1, "value": 2}]);
    assert_eq!(read(share_gpt), Ok(messages(expected)));
    assert_eq!(Content::from("hi"), Content::from("hi".to_owned()));
    assert_eq!(Content::assistant("ho"), messages(json!([{"role": "assistant", "content": "ho"}])));
}

#[test]
fn the_error_for_invalid_content_shows_the_value() {
    let neither = "expected a string or a list of messages {\"role\": …, \"content\": …}, got ";
    for value in [json!(7), json!(null), json!({}), json!([])] {
        assert_eq!(read(value.clone()), Err(format!("{neither}{value}")));
    }
    let good = json!({"role": "user", "content": "hi"});
    for (bad, shown) in [
        (json!({"content": "hi"}), r#"{"content":"hi"}"#),
        (json!({"role": 7, "content": "hi"}), r#"{"role":7,"content":"hi"}"#),
        (json!({"role": "user"}), r#"{"role":"user"}"#),
        (json!("hi"), "\"hi\""),
    ] {
        let why = |n: usize| Err(format!("message {n} of the conversation has no `role` or no `content`: {shown}"));
        assert_eq!(read(json!([bad])), why(1));
        assert_eq!(read(json!([good, good, bad])), why(3));
    }
    // The error shows sixty characters of the value.
    let text = |n: usize| json!({"k": "é".repeat(n)});
    assert_eq!(read(text(52)), Err(format!("{neither}{{\"k\":\"{}\"}}", "é".repeat(52))));
    assert_eq!(read(text(53)), Err(format!("{neither}{{\"k\":\"{}\"…", "é".repeat(53))));
    assert_eq!(read(text(90)), Err(format!("{neither}{{\"k\":\"{}…", "é".repeat(54))));
}

#[test]
fn a_system_prompt_is_added_if_the_prompt_has_none() {
    let (system, user) = (json!({"role": "system", "content": "S"}), json!({"role": "user", "content": "hi"}));
    assert_eq!(Content::from("hi").after_system("S"), messages(json!([system, user])));
    assert_eq!(messages(json!([user, user])).after_system("S"), messages(json!([system, user, user])));
    let own = messages(json!([{"role": "system", "content": "own"}, user]));
    assert_eq!(own.clone().after_system("S"), own);
}

#[test]
fn answers_are_split_at_their_first_difference() {
    let split = |c: &str, r: &str| match Content::split_common(c.into(), r.into()).unwrap() {
        [Content::Text(a), Content::Text(b), Content::Text(c)] => [a, b, c],
        other => panic!("{other:?}"),
    };
    assert_eq!(split("2+2 is 4", "2+2 is 5"), ["2+2 is", " 4", " 5"], "the space belongs to the remainder");
    assert_eq!(split("abc", "abd"), ["ab", "c", "d"]);
    assert_eq!(split("abc", "xyz"), ["", "abc", "xyz"]);
    assert_eq!(split(" a", " b"), ["", " a", " b"]);
    assert_eq!(split("ab", "abcd"), ["a", "b", "bcd"], "neither remainder may be empty");
    assert_eq!(split("same", "same"), ["sam", "e", "e"]);
    assert_eq!(split("éa", "éb"), ["é", "a", "b"]);
    assert_eq!(split("", "b"), ["", "", "b"]);
    let [a, b, c] = ["a", "b", "c"].map(|text| json!({"role": "user", "content": text}));
    let of = |c: Value, r: Value| Content::split_common(messages(c), messages(r));
    let expected = [messages(json!([a])), messages(json!([b])), messages(json!([c, b]))];
    assert_eq!(of(json!([a, b]), json!([a, c, b])).unwrap(), expected);
    let error = of(json!([a]), json!([b])).unwrap_err();
    let why =
        "the row has no prompt, and `chosen` and `rejected` do not begin with the same message: add a `prompt` column";
    assert_eq!(error, why);
    for (chosen, rejected) in [(Content::from("a"), messages(json!([a]))), (messages(json!([a])), Content::from("a"))] {
        let error = Content::split_common(chosen, rejected).unwrap_err();
        assert_eq!(error, "`chosen` and `rejected` must both be strings or both be conversations");
    }
}

#[test]
fn the_text_of_a_conversation_joins_its_messages() {
    assert_eq!(Content::from("hi").text(), "hi");
    let parts = json!([{"type": "text", "text": "b"}, {"type": "image"}, {"text": 7}, {"text": "c"}]);
    let chat = json!([{"role": "user", "content": "a"}, {"role": "user", "content": parts}, {"role": "assistant"},
        {"role": "user", "content": 7}, {"role": "user", "content": "d"}]);
    assert_eq!(messages(chat).text(), "a\nbc\n\n\nd");
}
