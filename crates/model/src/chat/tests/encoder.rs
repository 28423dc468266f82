//! Prompts and answers as token ids. Tokens are characters; the tokenizer begins every text with `^`, and `#` ends one.

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

const NO_TEMPLATE: &str = "the data has conversations, but the model has no chat template";

#[test]
fn prompts_are_rendered_and_encoded() {
    let all = Encoders::new(TEMPLATE);
    let encode = |e: PromptEncoder<'_>, prompt: &Content| e.encode(prompt).map(|ids| all.text(&ids));
    // A text begins with the start token; a rendered conversation has what its template prints.
    assert_eq!(encode(all.chat(), &"hi".into()).unwrap(), "^hi");
    assert_eq!(encode(all.plain(), &"hi".into()).unwrap(), "^hi");
    assert_eq!(encode(all.chat(), &say(&[("user", "hi")])).unwrap(), "tku:hi#a:");
    assert_eq!(encode(all.chat(), &say(&[("user", "hi"), ("assistant", "so")])).unwrap(), "tku:hi#a:so");
    let error = all.plain().encode(&say(&[("user", "hi")])).unwrap_err().to_string();
    let more = " (chat_template.jinja or tokenizer_config.json): use a model that has one, or text prompts";
    assert_eq!(error, format!("{NO_TEMPLATE}{more}"));
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
    assert!(plain.starts_with(NO_TEMPLATE), "{plain}");
}

#[test]
fn pairs_share_what_both_answers_begin_with() {
    let all = Encoders::new(TEMPLATE);
    let pair = |prompt: &Content, chosen: &str, rejected: &str| {
        let pair = all.chat().encode_pair(prompt, &chosen.into(), &rejected.into());
        pair.map(|pair| pair.map(|ids| all.text(&ids))).map_err(|e| e.to_string())
    };
    let text = |list: [&str; 3]| Ok(list.map(str::to_owned));
    assert_eq!(pair(&"hi".into(), " a", " b"), text(["^hi", " a#", " b#"]));
    assert_eq!(pair(&say(&[("user", "hi")]), "a", "b"), text(["tku:hi#a:", "a#", "b#"]));
    // What answers share beyond the prompt is theirs; no list is empty.
    assert_eq!(pair(&"hi".into(), "ab", "ac"), text(["^hi", "ab#", "ac#"]));
    assert_eq!(pair(&"hi".into(), "", "b"), text(["^hi", "#", "b#"]));
    assert_eq!(pair(&"hi#".into(), "", "b"), text(["^hi", "#", "#b#"]));
    let same = "`chosen` and `rejected` are the same tokens: there is nothing to learn from such a pair, remove it";
    assert_eq!(pair(&"hi".into(), "a", "a").unwrap_err(), same);
    assert_eq!(pair(&"hi".into(), "a", "a#").unwrap_err(), same);
    // Here the prompt is the answers' beginning only in part, or in nothing.
    let other = Encoders::new("{% for m in messages %}{{ m.content }}#{% endfor %}{{ 'b' if add_generation_prompt }}");
    let of = |prompt: &Content| other.chat().encode_pair(prompt, &"a".into(), &"c".into());
    let [shared, chosen, rejected] = of(&say(&[("user", "hi")])).unwrap().map(|ids| other.text(&ids));
    assert_eq!([shared, chosen, rejected], ["hi#", "a#", "c#"]);
    let nothing = Encoders::new("{{ 'b' if add_generation_prompt else messages[1].content }}");
    let error = nothing.chat().encode_pair(&say(&[("user", "hi")]), &"a".into(), &"c".into()).unwrap_err().to_string();
    assert_eq!(error, "the prompt has no token: give a `prompt` column, or answers that begin with the same text");
}

#[test]
fn completions_are_what_follows_the_prompt() {
    let all = Encoders::new(TEMPLATE);
    let complete = |e: PromptEncoder<'_>, prompt: Content, completion: Content| {
        e.encode_completion(&prompt, &completion).map(|ids| all.text(&ids)).map_err(|e| e.to_string())
    };
    let (user, answer) = (|| say(&[("user", "hi")]), || say(&[("assistant", "ho")]));
    assert_eq!(complete(all.chat(), "hi".into(), " ho".into()).unwrap(), " ho#", "no start token");
    assert_eq!(complete(all.chat(), "hi".into(), "h#o".into()).unwrap(), "h#o", "the end token is there");
    assert_eq!(complete(all.chat(), user(), " ho".into()).unwrap(), " ho#");
    assert_eq!(complete(all.chat(), user(), answer()).unwrap(), "ho#");
    let two = complete(all.chat(), user(), say(&[("assistant", "ho"), ("user", "b"), ("assistant", "c")]));
    assert_eq!(two.unwrap(), "ho#u:b#a:c#");
    let error = complete(all.chat(), "hi".into(), answer()).unwrap_err();
    assert_eq!(error, "the prompt is a text, but the completion is a conversation");
    assert_eq!(complete(all.plain(), user(), answer()).unwrap_err(), NO_TEMPLATE);
    let other = Encoders::new("{{ messages | length }}{% for m in messages %}{{ m.content }}#{% endfor %}");
    let error = other.chat().encode_completion(&user(), &answer()).unwrap_err().to_string();
    let why = "the chat template does not render the prompt alone as it renders it before the answer, so that where \
               the completion begins is unknown";
    assert_eq!(error, why);
}

#[test]
fn what_an_assistant_said_ends_with_its_turn() {
    let chat = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"},
        {"role": "user", "content": "he"}, {"role": "assistant", "content": "hu"}]);
    let plain = |end: &str| {
        format!(
            "{{% for m in messages %}}{{{{ m.role }}}}:{{{{ m.content }}}}{end}\n{{% endfor %}}\
             {{% if add_generation_prompt %}}assistant:{{% endif %}}"
        )
    };
    // No special token: all that is printed.
    assert_eq!(said(&plain(""), &chat).unwrap(), "ho\nhu\n");
    // Of several special tokens the last ends the turn.
    let twice = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "h#o"}]);
    assert_eq!(said(&plain("#"), &twice).unwrap(), "h#o#");
    assert_eq!(said(&plain("##"), &twice).unwrap(), "h#o##");
    // The last message ends otherwise than the others; each stretch ends by itself.
    assert_eq!(said(&plain("{% if not loop.last %}#{% endif %}"), &chat).unwrap(), "ho#hu");
    // An assistant may speak first.
    let first = json!([{"role": "assistant", "content": "ho"}, {"role": "user", "content": "hi"}]);
    assert!(said(&plain("#"), &first).unwrap().ends_with("ho#"));
    // A message without a text cannot be found where the template changes it.
    let calls = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": ["f"]},
        {"role": "user", "content": "he"}]);
    let changes = "{% for m in messages %}{{ m.role }}{{ 'b' if loop.last else 'a' }}{% endfor %}";
    let error = said(changes, &calls).unwrap_err().to_string();
    let why = "message 2 of the conversation: the chat template has no {% generation %}, and does not render the \
               messages before it alone as in the whole: which tokens are the assistant's is unknown";
    assert_eq!(error, why);
    let all = Encoders::new(TEMPLATE);
    let error = all.plain().encode_said(chat.as_array().unwrap()).unwrap_err().to_string();
    assert_eq!(error, NO_TEMPLATE);
}
