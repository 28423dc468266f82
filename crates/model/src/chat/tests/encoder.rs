//! Prompts and answers as token ids. Tokens are characters. The tokenizer adds the start token `^` to every text; `#`
//! is the end token.

use super::*;

const TEMPLATE: &str = "{{ tools[0].name if tools else '' }}{{ x }}{% for m in messages %}{{ m.role[0] }}:\
    {{ m.content }}#{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

struct Encoders {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    kwargs: Map<String, Value>,
    tools: Vec<Value>,
}

impl Encoders {
    fn new(template: &str) -> Encoders {
        let special = SpecialTokens { bos: Some("^".into()), eos: Some("#".into()), ..SpecialTokens::default() };
        let dir = tempfile::tempdir().unwrap();
        let chars = " abcdefghijklmnopqrstuvwxyz:+1234".chars();
        Tokenizer::characters(chars, &special).unwrap().save(dir.path()).unwrap();
        let config = json!({"bos_token": "^", "eos_token": "#", "add_bos_token": true}).to_string();
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        Encoders {
            tokenizer: Tokenizer::load(dir.path()).unwrap(),
            template: ChatTemplate::new(template, &special).unwrap(),
            kwargs: json!({"x": "k"}).as_object().unwrap().clone(),
            tools: vec![json!({"name": "t"})],
        }
    }
    fn chat(&self) -> PromptEncoder<'_> {
        let template = Some(&self.template);
        PromptEncoder { tokenizer: &self.tokenizer, template, kwargs: &self.kwargs, tools: Some(&self.tools) }
    }
    fn plain(&self) -> PromptEncoder<'_> {
        PromptEncoder { template: None, ..self.chat() }
    }
    fn text(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, false).unwrap()
    }
}

fn say(turns: &[(&str, &str)]) -> Content {
    Content::Messages(turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect())
}

const NO_TEMPLATE: &str = "the data has conversations, but the model has no chat template (chat_template.jinja or \
                           tokenizer_config.json): use a model that has one, or text prompts";

#[test]
fn prompts_are_rendered_and_encoded() {
    let all = Encoders::new(TEMPLATE);
    let encode = |e: PromptEncoder<'_>, prompt: &Content| e.encode(prompt).map(|ids| all.text(&ids));
    // A text begins with the start token; a rendered conversation has only the tokens that its template prints.
    assert_eq!(encode(all.chat(), &"hi".into()).unwrap(), "^hi");
    assert_eq!(encode(all.plain(), &"hi".into()).unwrap(), "^hi");
    assert_eq!(encode(all.chat(), &say(&[("user", "hi")])).unwrap(), "tku:hi#a:");
    assert_eq!(encode(all.chat(), &say(&[("user", "hi"), ("assistant", "so")])).unwrap(), "tku:hi#a:so");
    let error = all.plain().encode(&say(&[("user", "hi")])).unwrap_err().to_string();
    assert_eq!(error, NO_TEMPLATE);
}

#[test]
fn answers_are_encoded_after_their_prompt() {
    let all = Encoders::new(TEMPLATE);
    let answered = |prompt: Content, answer: Content| all.text(&all.chat().encode_answered(&prompt, &answer).unwrap());
    assert_eq!(answered("hi".into(), " ho".into()), "^hi ho#");
    assert_eq!(answered("hi".into(), " ho#".into()), "^hi ho#", "one end token");
    assert_eq!(answered("hi#".into(), "ho".into()), "^hi#ho#");
    assert_eq!(answered("hi".into(), say(&[("assistant", "ho")])), "^hiho#");
    assert_eq!(answered(say(&[("user", "hi")]), "ho".into()), "tku:hi#a:ho#");
    assert_eq!(answered(say(&[("user", "hi")]), say(&[("assistant", "ho"), ("user", "b")])), "tku:hi#a:ho#u:b#");
    let plain = all.plain().encode_answered(&say(&[("user", "hi")]), &"ho".into()).unwrap_err().to_string();
    assert_eq!(plain, NO_TEMPLATE);
    // As in TRL, the end token is added unless the answer's own text ends with it, and the tokenizer's start token is
    // added even if the text begins with one.
    assert_eq!(answered("hi#".into(), "".into()), "^hi##");
    assert_eq!(answered("hi".into(), "a#b".into()), "^hia#b#");
    assert_eq!(answered("^hi".into(), "a".into()), "^^hia#");
}

#[test]
fn a_pair_shares_the_common_beginning_of_both_answers() {
    let all = Encoders::new(TEMPLATE);
    let pair = |prompt: &Content, chosen: &str, rejected: &str| {
        let pair = all.chat().encode_pair(prompt, &chosen.into(), &rejected.into());
        pair.map(|pair| pair.map(|ids| all.text(&ids))).map_err(|e| e.to_string())
    };
    let text = |list: [&str; 3]| Ok(list.map(str::to_owned));
    assert_eq!(pair(&"hi".into(), " a", " b"), text(["^hi", " a#", " b#"]));
    assert_eq!(pair(&say(&[("user", "hi")]), "a", "b"), text(["tku:hi#a:", "a#", "b#"]));
    // Tokens that the answers share beyond the prompt still belong to the answers. No list is empty.
    assert_eq!(pair(&"hi".into(), "ab", "ac"), text(["^hi", "ab#", "ac#"]));
    assert_eq!(pair(&"hi".into(), "", "b"), text(["^hi", "#", "b#"]));
    assert_eq!(pair(&"hi#".into(), "", "b"), text(["^hi#", "#", "b#"]));
    let same = "`chosen` and `rejected` have the same tokens, so the pair teaches nothing: remove it";
    assert_eq!(pair(&"hi".into(), "a", "a").unwrap_err(), same);
    assert_eq!(pair(&"hi".into(), "a", "a#").unwrap_err(), same);
    // With this template, the encoded answers begin with only a part of the prompt, or with none of it.
    let other = Encoders::new("{% for m in messages %}{{ m.content }}#{% endfor %}{{ 'b' if add_generation_prompt }}");
    let of = |prompt: &Content| other.chat().encode_pair(prompt, &"a".into(), &"c".into());
    let [shared, chosen, rejected] = of(&say(&[("user", "hi")])).unwrap().map(|ids| other.text(&ids));
    assert_eq!([shared, chosen, rejected], ["hi#", "a#", "c#"]);
    let nothing = Encoders::new("{{ 'b' if add_generation_prompt else messages[1].content }}");
    let error = nothing.chat().encode_pair(&say(&[("user", "hi")]), &"a".into(), &"c".into()).unwrap_err().to_string();
    assert!(error.starts_with("the prompt has no tokens: add a `prompt` column, give answers that begin"), "{error}");
    // Whole conversations of a reward model need no prompt.
    let whole = |asked: &str| say(&[("user", asked), ("assistant", "so")]);
    let pair = all.chat().encode_pair(&Content::Messages(Vec::new()), &whole("a"), &whole("b")).unwrap();
    assert_eq!(pair.map(|ids| all.text(&ids)), ["tku:", "a#a:so#", "b#a:so#"]);
}

#[test]
fn completions_are_encoded_with_their_prompt() {
    let all = Encoders::new(TEMPLATE);
    // Shows the ids as text, with a bar where the completion begins.
    let complete = |e: PromptEncoder<'_>, prompt: Content, completion: Content| {
        let completed = e.encode_completion(&prompt, &completion).map_err(|e| e.to_string())?;
        let (before, after) = completed.ids.split_at(completed.border);
        Ok::<String, String>(format!("{}|{}", all.text(before), all.text(after)))
    };
    let (user, answer) = (|| say(&[("user", "hi")]), || say(&[("assistant", "ho")]));
    assert_eq!(complete(all.chat(), "hi".into(), " ho".into()).unwrap(), "^hi| ho#");
    assert_eq!(complete(all.chat(), "hi".into(), "h#o".into()).unwrap(), "^hi|h#o#", "an end token within the text");
    assert_eq!(complete(all.chat(), "hi".into(), "ho#".into()).unwrap(), "^hi|ho#", "one end token");
    assert_eq!(complete(all.chat(), user(), " ho".into()).unwrap(), "tku:hi#a:| ho#", "a string after a conversation");
    assert_eq!(complete(all.chat(), user(), answer()).unwrap(), "tku:hi#a:|ho#");
    let two = complete(all.chat(), user(), say(&[("assistant", "ho"), ("user", "b"), ("assistant", "c")]));
    assert_eq!(two.unwrap(), "tku:hi#a:|ho#u:b#a:c#");
    // A prompt that ends with an assistant's message gets the header of another answer, as in TRL.
    let twice = complete(all.chat(), say(&[("user", "hi"), ("assistant", "he")]), answer());
    assert_eq!(twice.unwrap(), "tku:hi#a:he#a:|ho#");
    let error = complete(all.chat(), "hi".into(), answer()).unwrap_err();
    assert!(
        error.starts_with("the prompt is a string, but the completion is a conversation: give two strings"),
        "{error}"
    );
    assert_eq!(complete(all.plain(), user(), answer()).unwrap_err(), NO_TEMPLATE);
    // The template renders this prompt differently without a completion, so the completion begins where the tokens
    // differ.
    let other = Encoders::new("{{ messages | length }}{% for m in messages %}{{ m.content }}#{% endfor %}");
    assert_eq!(complete(other.chat(), user(), answer()).unwrap(), "|2hi#ho#");
    assert!(other.chat().encode_completion(&user(), &answer()).unwrap().prompt_differs);
    let opens = Encoders::new(
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}#{% endfor %}{{ 'a:t' if add_generation_prompt }}",
    );
    assert_eq!(complete(opens.chat(), user(), answer()).unwrap(), "u:hi#a:|ho#");
    assert_eq!(complete(opens.chat(), user(), say(&[("assistant", "the")])).unwrap(), "u:hi#a:t|he#");
}

#[test]
fn the_assistants_tokens_end_with_the_turn() {
    let chat = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"},
        {"role": "user", "content": "he"}, {"role": "assistant", "content": "hu"}]);
    let plain = |end: &str| {
        format!(
            "{{% for m in messages %}}{{{{ m.role }}}}:{{{{ m.content }}}}{end}\n{{% endfor %}}\
             {{% if add_generation_prompt %}}assistant:{{% endif %}}"
        )
    };
    // Without a special token, everything printed belongs to the answer.
    assert_eq!(assistant_text(&plain(""), &chat).unwrap(), "ho\nhu\n");
    // Special tokens inside the message do not end the turn. If several follow the message, the last one ends the turn.
    let twice = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "h#o"}]);
    assert_eq!(assistant_text(&plain(""), &twice).unwrap(), "h#o\n");
    assert_eq!(assistant_text(&plain("#"), &twice).unwrap(), "h#o#");
    assert_eq!(assistant_text(&plain("##"), &twice).unwrap(), "h#o##");
    // The last message ends differently from the others, and each message has its own end.
    assert_eq!(assistant_text(&plain("{% if not loop.last %}#{% endif %}"), &chat).unwrap(), "ho#hu");
    // The first message may be the assistant's.
    let first = json!([{"role": "assistant", "content": "ho"}, {"role": "user", "content": "hi"}]);
    assert!(assistant_text(&plain("#"), &first).unwrap().ends_with("ho#"));
    // The template does not print this message.
    let calls = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": ["f"]},
        {"role": "user", "content": "he"}]);
    let changes = "{% for m in messages %}{{ m.role }}{{ 'b' if loop.last else 'a' }}{% endfor %}";
    let error = assistant_text(changes, &calls).unwrap_err().to_string();
    let why = "message 2 of the conversation: the tokens of this answer are unknown, because the chat template has no \
               {% generation %}";
    assert!(error.starts_with(why) && error.contains("write {% generation %} and {% endgeneration %}"), "{error}");
    let all = Encoders::new(TEMPLATE);
    let error = all.plain().encode_assistant(chat.as_array().unwrap(), &[]).unwrap_err().to_string();
    assert_eq!(error, NO_TEMPLATE);
}
