//! Inputs of templates (messages, tools, variables), and the choice of the template.

use super::*;

fn rendered(template: &str, chat: &Chat<'_>) -> std::result::Result<String, String> {
    ChatTemplate::new(template, &special()).unwrap().render(chat).map_err(|e| e.to_string())
}

#[test]
fn reasoning_is_read_from_the_first_key_that_a_message_has() {
    let template = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }};{% endfor %}";
    let messages = json!([
        {"role": "assistant", "reasoning_content": "a", "thinking": "b", "reasoning": "c"},
        {"role": "assistant", "thinking": "b", "reasoning": "c"},
        {"role": "assistant", "reasoning": "c"},
        {"role": "assistant", "reasoning_content": null, "thinking": null, "reasoning": "c"},
        {"role": "assistant", "reasoning_content": "a"},
        {"role": "assistant"},
    ]);
    let expected = "a|b|c;b|b|c;c|c|c;c|c|c;a|a|;||;";
    assert_eq!(render_with(template, messages, json!({})).unwrap(), expected);
}

#[test]
fn templates_get_the_same_variables_as_in_transformers() {
    let messages = [json!({"role": "user", "content": "hi"})];
    let tools = [json!({"name": "f"})];
    let kwargs = json!({"documents": 5, "messages": 6, "tools": 7, "add_generation_prompt": 8, "eos_token": "<e>"});
    let template = "{{ documents }}|{{ messages | length }}|{{ tools }}|{{ add_generation_prompt }}|{{ bos_token }}|\
                    {{ eos_token }}|{{ pad_token is defined }}";
    let plain = Chat { messages: &messages, ..Chat::default() };
    assert_eq!(rendered(template, &plain).unwrap(), "None|1|None|False|<s>|</s>|False");
    let kwargs = kwargs.as_object();
    let full = Chat { tools: Some(&tools), add_generation_prompt: true, kwargs, ..plain };
    assert_eq!(rendered(template, &full).unwrap(), "5|1|[{'name': 'f'}]|True|<s>|<e>|False");
}

#[test]
fn rendering_errors_name_their_cause() {
    let messages = [json!({"role": "user", "content": "hi"})];
    let chat = Chat { messages: &messages, ..Chat::default() };
    let error = rendered("x", &Chat { messages: &[], ..chat }).unwrap_err();
    assert_eq!(error, "chat template: a conversation needs at least one message");
    let error = rendered("x", &Chat { messages: &[json!("hi")], ..chat }).unwrap_err();
    assert_eq!(error, "chat template: a message must be an object with `role` and `content`, got \"hi\"");
    let error = rendered("x", &Chat { add_generation_prompt: true, continue_final_message: true, ..chat }).unwrap_err();
    assert_eq!(error, "chat template: continue_final_message and add_generation_prompt cannot both be true");
    for flags in [(true, false), (false, true)] {
        let (add_generation_prompt, continue_final_message) = flags;
        let chat = Chat { add_generation_prompt, continue_final_message, ..chat };
        assert_eq!(rendered("{{ messages[0].content }}", &chat).unwrap(), "hi");
    }
    // An error in an included template is reported with the location of the include.
    let sources = [("default", "{% include 'inner' %}"), ("inner", "\n{{ raise_exception('deep inside') }}")];
    let sources = sources.map(|(name, source)| (name.to_owned(), source.to_owned()));
    let error =
        ChatTemplate::named(sources.into(), &special(), PromptTime(0)).unwrap().render(&chat).unwrap_err().to_string();
    assert!(error.contains("default:1") && error.contains(": ") && error.contains("deep inside"), "{error}");
}

#[test]
fn continue_final_message_ends_the_text_within_the_last_message() {
    let template = "{% for m in messages %}[{% if m.content is string %}{{ m.content }}{% else %}\
                    {% for part in m.content %}{{ part.text }},{% endfor %}{% endif %}]{% endfor %}";
    let go = |content: Value| {
        let messages = [json!({"role": "user", "content": "q"}), json!({"role": "assistant", "content": content})];
        rendered(template, &Chat { messages: &messages, continue_final_message: true, ..Chat::default() })
    };
    assert_eq!(go(json!("so")).unwrap(), "[q][so");
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "thinking"}]);
    assert_eq!(go(parts).unwrap(), "[q][a,b");
    let lacks = "chat template: continue_final_message: the last message has no text to continue";
    for content in [json!(null), json!(7), json!([]), json!([{"type": "thinking"}]), json!([{"text": 7}]), json!({})] {
        assert_eq!(go(content.clone()).unwrap_err(), lacks, "{content}");
    }
    let messages = [json!({"role": "assistant", "content": "so"})];
    let chat = Chat { messages: &messages, continue_final_message: true, ..Chat::default() };
    let changed = "chat template: continue_final_message: the rendered text does not contain the last message \
                   unchanged";
    for template in ["nothing of it", "{{ messages[0].content | replace('so', 'no') }}"] {
        assert_eq!(rendered(template, &chat).unwrap_err(), changed, "{template}");
    }
    // A text that itself contains the mark is truncated at the last mark.
    let messages = [json!({"role": "assistant", "content": "a CONTINUE_FINAL_MESSAGE_TAG b"})];
    let chat = Chat { messages: &messages, ..chat };
    assert_eq!(rendered("{{ messages[0].content }}.", &chat).unwrap(), "a CONTINUE_FINAL_MESSAGE_TAG b");
}

#[test]
fn template_files_take_precedence_over_the_tokenizer_config() {
    let dir = tempfile::tempdir().unwrap();
    let load = || ModelFiles::read(dir.path()).and_then(|files| ChatTemplate::of(&files, &special(), PromptTime(0)));
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("tokenizer_config.json", r#"{"chat_template": null}"#);
    assert!(load().unwrap().is_none());
    for bad in [r#"[{"name": "default"}]"#, r#"[{"template": "d"}]"#, r#"[{"name": 1, "template": "d"}]"#, "7", "{}"] {
        write("tokenizer_config.json", &format!(r#"{{"chat_template": {bad}}}"#));
        let error = load().unwrap_err().to_string();
        assert!(error.ends_with("`chat_template` must be a string or a list of named templates"), "{bad}: {error}");
    }
    let named = r#"[{"name": "rag", "template": "r"}, {"name": "b", "template": "s"}]"#;
    write("tokenizer_config.json", &format!(r#"{{"chat_template": {named}}}"#));
    let template = load().unwrap().unwrap();
    let messages = [json!({"role": "user", "content": "hi"})];
    let tools = [json!({"name": "f"})];
    let chat = Chat { messages: &messages, ..Chat::default() };
    let error = template.render(&chat).unwrap_err().to_string();
    assert_eq!(error, "chat template: the model has several templates, but none is named `default`: b, rag");
    assert_eq!(template.source(), "s", "without a default, source() returns the first by name");

    // The folder may contain several templates; files with other extensions are not templates.
    write("additional_chat_templates/tool_use.jinja", "tools");
    write("additional_chat_templates/notes.txt", "{% not a template");
    let template = load().unwrap().unwrap();
    assert_eq!(template.render(&Chat { tools: Some(&tools), ..chat }).unwrap(), "tools");
    assert!(template.render(&chat).is_err(), "with template files, tokenizer_config.json is not read");
    write("chat_template.jinja", "plain");
    let template = load().unwrap().unwrap();
    assert_eq!(template.source(), "plain");
    assert_eq!(template.render(&chat).unwrap(), "plain");
    assert_eq!(template.render(&Chat { tools: Some(&tools), ..chat }).unwrap(), "tools");
    std::fs::remove_file(dir.path().join("additional_chat_templates/tool_use.jinja")).unwrap();
    let template = load().unwrap().unwrap();
    assert_eq!(
        template.render(&Chat { tools: Some(&tools), ..chat }).unwrap(),
        "plain",
        "the directory has no other template"
    );
    std::fs::create_dir(dir.path().join("additional_chat_templates/folder.jinja")).unwrap();
    assert!(load().unwrap_err().to_string().contains("folder.jinja"), "an unreadable file is not a missing file");
}
