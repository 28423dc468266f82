mod bounds;
mod contents;
mod encoder;
mod messages;
mod parts;
mod tools;
mod values;

use super::*;
use crate::tokenizer::Tokenizer;
use serde_json::json;

fn special() -> SpecialTokens {
    SpecialTokens { bos: Some("<s>".into()), eos: Some("</s>".into()), ..SpecialTokens::default() }
}

fn render_with(template: &str, messages: Value, kwargs: Value) -> Result<String> {
    let template = ChatTemplate::new(template, &special())?;
    let (Value::Array(messages), Value::Object(kwargs)) = (messages, kwargs) else { panic!("a list and an object") };
    template.render(&Chat { messages: &messages, kwargs: Some(&kwargs), ..Chat::default() })
}

fn render(template: &str, kwargs: Value) -> String {
    render_with(template, json!([{"role": "user", "content": "hi"}]), kwargs).unwrap()
}

/// The expected strings come from Python's json.dumps.
#[test]
fn tojson_matches_pythons_json_dumps() {
    let x = json!({"x": {"b": [1, 2.0, 1e16, 1e-5, true, null], "a": "<é>\u{1}\"\\\n&'"}});
    let line = r#"{"b": [1, 2.0, 1e+16, 1e-05, true, null], "a": "<é>\u0001\"\\\n&'"}"#;
    assert_eq!(render("{{ x | tojson }}", x.clone()), line);
    assert_eq!(
        render("{{ x | tojson(indent=2) }}", json!({"x": {"a": [1], "b": [], "c": {}}})),
        "{\n  \"a\": [\n    1\n  ],\n  \"b\": [],\n  \"c\": {}\n}"
    );
    let packed = "{{ x | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}";
    assert_eq!(render(packed, json!({"x": {"b": 1, "a": "é😀"}})), r#"{"a":"\u00e9\ud83d\ude00","b":1}"#);
    let places = "{{ x | tojson(false, none, ['; ', '= '], true) }}";
    assert_eq!(render(places, json!({"x": {"b": 1, "a": "é"}})), r#"{"a"= "é"; "b"= 1}"#);
    assert!(render_with("{{ x | tojson(idnent=1) }}", json!([{"role": "user"}]), x).is_err());
    assert!(render_with("{{ nothing | tojson }}", json!([{"role": "user"}]), json!({})).is_err());
}

#[test]
fn template_values_print_as_in_python() {
    let x = json!({"x": [true, null, 1.0, "it's", "a\"b'\n", {"k": 0.1}], "t": true, "n": null});
    assert_eq!(
        render("{{ x }}|{{ t }}|{{ n }}|{{ gone }}|{{ t | string }}", x),
        r#"[True, None, 1.0, "it's", 'a"b\'\n', {'k': 0.1}]|True|None||True"#
    );
}

#[test]
fn blocks_are_trimmed_and_generation_tags_print_nothing() {
    let template =
        "{% for m in messages %}\n  {% generation %}\n{{ m.content }}{% endgeneration %}\n{%- endfor %}\nend\n";
    assert_eq!(render(template, json!({})), "hiend");
    for (template, text) in [
        ("{% raw %}{{ x }}{% generation %}{% endraw %}end", "{{ x }}{% generation %}end"),
        ("{%raw%}{{ x }}{%endraw%}{% generation %}y{% endgeneration %}", "{{ x }}y"),
        ("{%- raw -%} {% if %} {%-endraw-%} end", "{% if %}end"),
    ] {
        assert_eq!(render(template, json!({})), text, "{template}");
    }
    let template = "a  {%- generation -%}  b  {%- endgeneration -%}  c{% set g = 'generation' %}{{ g }}";
    assert_eq!(render(template, json!({})), "abcgeneration");
    let template = "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}\
                    {{ i }}{% endfor %}";
    assert_eq!(render(template, json!({})), "02");
    let template =
        "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}";
    assert_eq!(render(template, json!({})), "3");
}

#[test]
fn raise_exception_is_an_error_with_its_message() {
    let error = render_with("{{ raise_exception('no tools here') }}", json!([{"role": "user"}]), json!({}));
    assert!(error.unwrap_err().to_string().contains("no tools here"));
    assert!(ChatTemplate::new("{% if %}", &special()).unwrap_err().to_string().starts_with("chat template: "));
}

#[test]
fn messages_drop_null_fields_and_reasoning_has_all_its_names() {
    let messages = json!([{"role": "assistant", "content": null, "reasoning": "r"}]);
    let template = "{{ bos_token }}{% for m in messages %}{{ 'content' in m }}{{ m.reasoning_content }}\
                    {{ m.thinking }}{% endfor %}";
    assert_eq!(render_with(template, messages, json!({"bos_token": "<b>"})).unwrap(), "<b>Falserr");
    assert!(render_with("x", json!([]), json!({})).is_err());
    assert!(render_with("x", json!(["hi"]), json!({})).is_err());
}

#[test]
fn a_final_message_is_continued_where_it_ends() {
    let plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}";
    let trimming = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}";
    let messages = [json!({"role": "user", "content": "q"}), json!({"role": "assistant", "content": "so "})];
    let go = |template: &str| {
        let chat = Chat { messages: &messages, continue_final_message: true, ..Chat::default() };
        ChatTemplate::new(template, &special()).unwrap().render(&chat)
    };
    assert_eq!(go(plain).unwrap(), "[user]q[end][assistant]so ");
    assert_eq!(go(trimming).unwrap(), "[user]q[end][assistant]so");
    assert!(go("{{ messages[0].content }}").is_err());
    let both =
        Chat { messages: &messages, continue_final_message: true, add_generation_prompt: true, ..Chat::default() };
    assert!(ChatTemplate::new(plain, &special()).unwrap().render(&both).is_err());
}

/// The constructs of Gemma 3's template: slices, comparisons of conditions, contents that are strings or lists, and a
/// renamed role. The expected strings come from jinja2 with transformers' settings.
#[test]
fn a_template_like_gemma_3s_renders_as_in_jinja2() {
    let template = "{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set content = messages[0]['content'] -%}
    {%- set prefix = (content if content is string else content[0]['text']) + '\n\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set prefix = '' -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for turn in turns -%}
    {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate') }}
    {%- endif -%}
    {%- set role = 'model' if turn['role'] == 'assistant' else turn['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else '') }}
    {%- if turn['content'] is string -%}
        {{ turn['content'] | trim }}
    {%- elif turn['content'] is iterable -%}
        {%- for item in turn['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception('no content') }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
";
    let chat = |messages: Value| {
        let Value::Array(messages) = messages else { panic!("a list") };
        let chat = Chat { messages: &messages, add_generation_prompt: true, ..Chat::default() };
        ChatTemplate::new(template, &special())?.render(&chat)
    };
    let turns = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 2+2? "},
        {"role": "assistant", "content": "4"}, {"role": "user", "content": [{"type": "text", "text": "And\n3+3? "}]}]);
    let expected = "<s><start_of_turn>user\nBe brief.\n\n2+2?<end_of_turn>\n<start_of_turn>model\n4<end_of_turn>\n\
        <start_of_turn>user\nAnd\n3+3?<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(chat(turns).unwrap(), expected);
    let twice = chat(json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]));
    assert!(twice.unwrap_err().to_string().contains("roles must alternate"));
}

#[test]
fn templates_are_loaded_from_files_or_the_tokenizer_config() {
    let dir = tempfile::tempdir().unwrap();
    let load = || ModelFiles::read(dir.path()).and_then(|files| ChatTemplate::of(&files, &special(), PromptTime(0)));
    assert!(load().unwrap().is_none());
    let messages = [json!({"role": "user", "content": "hi"})];
    let tools = [json!({"name": "f"})];
    let render = |tools| {
        let chat = Chat { messages: &messages, tools, ..Chat::default() };
        load().unwrap().unwrap().render(&chat)
    };
    let config = |json: Value| std::fs::write(dir.path().join("tokenizer_config.json"), json.to_string()).unwrap();
    config(json!({"chat_template": "one"}));
    assert_eq!(render(None).unwrap(), "one");
    config(json!({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}));
    assert_eq!((render(None).unwrap(), render(Some(&tools)).unwrap()), ("d".into(), "t".into()));
    config(json!({"chat_template": [{"name": "rag", "template": "d"}]}));
    assert!(render(None).unwrap_err().to_string().contains("rag"));
    config(json!({"chat_template": 7}));
    assert!(load().unwrap_err().to_string().contains("tokenizer_config.json"));
    std::fs::write(dir.path().join("chat_template.jinja"), "file").unwrap();
    assert_eq!(render(None).unwrap(), "file");
}

/// The expected strings come from `date -u`.
#[test]
fn strftime_matches_the_date_command() {
    let at = |seconds| python::strftime("%a %d %b %Y %H:%M:%S %j %%", seconds);
    assert_eq!(at(0), "Thu 01 Jan 1970 00:00:00 001 %");
    assert_eq!(at(951_782_400), "Tue 29 Feb 2000 00:00:00 060 %");
    assert_eq!(at(951_868_800), "Wed 01 Mar 2000 00:00:00 061 %");
    assert_eq!(at(1_735_689_599), "Tue 31 Dec 2024 23:59:59 366 %");
    assert_eq!(at(1_709_251_200), "Fri 01 Mar 2024 00:00:00 061 %");
    assert_eq!(at(4_107_542_400), "Mon 01 Mar 2100 00:00:00 060 %");
    assert_eq!(
        python::strftime("%B %A %I %p %y %F %T", 1_700_000_000),
        "November Tuesday 10 PM 23 2023-11-14 22:13:20"
    );
}

/// Counting does not change the results of operators. The expected strings come from jinja2.
#[test]
fn jinja_operators_match_python() {
    let x = json!({"x": [1, 2, 3, 4], "s": "héllo", "m": {"a": 1}});
    for (template, text) in [
        (
            "{{ 1 + 2 }} {{ 1.5 + 1 }} {{ 's' + 't' }} {{ [1] + x }} {{ (1,) + (2,) }}",
            "3 2.5 st [1, 1, 2, 3, 4] (1, 2)",
        ),
        ("{{ 2 * 3 }} {{ '-' * 3 }} {{ 3 * [0] }} {{ s * 2 }}", "6 --- [0, 0, 0] héllohéllo"),
        ("{{ s ~ 1 ~ true ~ none ~ x[:1] ~ 1e16 }}", "héllo1TrueNone[1]1e+16"),
        ("{{ s[1:3] }} {{ s[::-1] }} {{ x[1:] }} {{ x[::-1] }} {{ x[-2:] }}", "él olléh [2, 3, 4] [4, 3, 2, 1] [3, 4]"),
        (
            "{{ x == [1, 2, 3, 4] }} {{ x != x }} {{ 1 < 2 }} {{ 'b' <= 'a' }} {{ 2 > 1 }} {{ 1 >= 2 }}",
            "True False True False True False",
        ),
        ("{{ 2 in x }} {{ 'él' in s }} {{ 'a' in m }} {{ 9 not in x }}", "True True True True"),
        ("{{ {'k': [1, (2, 3)], 'l': {}} }}", "{'k': [1, (2, 3)], 'l': {}}"),
        (
            "{{ x | reverse | list }} {{ x | map('string') | join('-') }} {{ m.items() | list }}",
            "[4, 3, 2, 1] 1-2-3-4 [('a', 1)]",
        ),
        ("{{ s.replace('l', 'LL') }} {{ 'a b'.split() }} {{ '%s=%d' | format('x', 3) }}", "héLLLLo ['a', 'b'] x=3"),
        ("{{ dict(a=1) }} {% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}", "{'a': 1} 2"),
    ] {
        assert_eq!(render(template, x.clone()), text, "{template}");
    }
    let error = render_with("line\n{{ 1 + 'a' }}", json!([{"role": "user"}]), json!({})).unwrap_err().to_string();
    assert!(error.contains("default:2") && error.contains("unsupported types number and string"), "{error}");
}

/// The syntax trees of these expressions are as deep as the expressions are long.
#[test]
fn long_expressions_and_many_branches_are_rendered() {
    let sum = format!("{{{{ 1{} }}}}", " + n".repeat(950));
    assert_eq!(render(&sum, json!({"n": 1})), "951");
    assert_eq!(render(&sum.replace('n', "1"), json!({})), "951");
    let branches = format!("{{% if a %}}{}{{% else %}}last{{% endif %}}", "{% elif a %}".repeat(500));
    assert_eq!(render(&branches, json!({})), "last");
    let nested = format!("{{{{ {}1{} }}}}", "[".repeat(70), "]".repeat(70));
    assert_eq!(render(&nested, json!({})).len(), 141);
}

/// Before sizes were counted, each of these templates used up all memory or never ended.
#[test]
fn templates_that_build_huge_values_are_refused() {
    let grow = |step: &str| {
        format!(
            "{{% set ns = namespace(x='ab', l=[1]) %}}{{% for i in range(99999) %}}{step}{{% endfor %}}{{{{ ns.l }}}}"
        )
    };
    let mut templates: Vec<String> = [
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 3 %}",
        "{% set ns.x = [ns.x, ns.x] | join(',') %}",
        "{% set ns.x = ns.x | join(ns.x) %}",
        "{% set ns.x = ns.x.join([ns.x, ns.x]) %}",
        "{% set ns.x = ns.x | replace('', ns.x) %}",
        "{% set ns.x = ns.x.replace('a', ns.x) %}",
        "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}",
        "{% set ns.x = '{0}{0}'.format(ns.x) %}",
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
        "{% set ns.x %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}",
        "{% set ns.x = ns.x | tojson | tojson %}",
        "{% set ns.x = [ns.x, ns.x] | tojson(indent=ns.x) %}",
        "{% set ns.x = [ns.x, ns.x] | string %}",
        "{% set ns.x = [ns.x, ns.x] | pprint %}",
        "{% set ns.x = '\\n' ~ ns.x | indent(9, true) %}",
        "{% set ns.l = [ns.l, ns.l] %}",
        "{% set ns.l = (ns.l, ns.l) %}",
        "{% set ns.l = {'a': ns.l, 'b': ns.l} %}",
        "{% set ns.l = ns.l + ns.l %}",
        "{% set ns.l = ns.l * 3 %}",
        "{% set ns.l = dict(a=ns.l, b=ns.l) %}",
        "{% set ns.l = [ns.l] %}",
        "{% set ns.l = ns.l | batch(100000000, 'x') | first %}",
        "{% set ns.l = namespace(a=ns.l) %}",
        "{% set ns.l = ns.l | chain(ns.l) | list %}",
        "{% set ns.l = range(99999) | list + ns.l %}",
        "{% set m = {'l': ns.l} %}{% set ns.l = [m.items() | list, m.items() | list] %}",
    ]
    .map(grow)
    .into();
    templates.extend(
        [
            "{{ '%999999999d' | format(1) }}",
            "{{ '%*d' | format(999999999, 1) }}",
            "{{ '{:999999999}'.format(1) }}",
            "{{ 'a' | indent(999999999, true) }}",
            "{{ 'a\nb' | indent(width=999999999) }}",
            "{{ 'a' * 99999999 }}",
            "{{ 99999 * 'abcdefgh' * 9 }}",
            "{{ 'a' * 9 ** 7 }}",
            "{% set n = 99999999 %}{{ 'a' * n }}",
            "{% macro m(a) %}{{ m(a ~ a) }}{% endmacro %}{{ m('abc') }}",
            "{% macro m() %}0123456789{% for i in range(99999) %}{% for i in range(99999) %}abc{% endfor %}{% endfor %}\
             {% endmacro %}{{ m() }}",
            "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}",
            "{% for i in range(9999) recursive %}{{ loop(range(9999)) }}{% endfor %}",
        ]
        .map(str::to_owned),
    );
    templates.push(format!("{{{{ 1{} }}}}", " + 1".repeat(100_000)));
    templates.push(format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)));
    templates.push(format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(60_000)));
    templates.push(format!("{}{}", "{% if a %}".repeat(40_000), "{% endif %}".repeat(40_000)));
    templates.push("x".repeat(2 << 20));
    for template in templates {
        let outcome = render_with(&template, json!([{"role": "user", "content": "hi"}]), json!({}));
        let shown: String = template.chars().take(120).collect();
        let error = outcome.err().unwrap_or_else(|| panic!("{shown}: rendered")).to_string();
        let refused = ["templates must not build", "more than", "out of fuel", "recursion"];
        assert!(refused.iter().any(|why| error.contains(why)), "{shown}: {error}");
    }
}

/// Tokens are characters. `#` ends a turn and is the only special token.
fn assistant_text(template: &str, messages: &Value) -> Result<String> {
    let special = SpecialTokens { eos: Some("#".into()), ..special() };
    let tokenizer = Tokenizer::characters(" \nabcdefghijklmnopqrstuvwxyz:<>/#".chars(), &special).unwrap();
    let template = ChatTemplate::new(template, &special).unwrap();
    let encoder = PromptEncoder { tokenizer: &tokenizer, template: Some(&template), kwargs: &Map::new(), tools: None };
    let AssistantTokens { ids, mask, .. } = encoder.encode_assistant(messages.as_array().unwrap(), &[])?;
    let chat = Chat { messages: messages.as_array().unwrap(), ..Chat::default() };
    assert_eq!(ids, tokenizer.encode_rendered(&template.render(&chat)?).unwrap(), "marks must not be printed");
    let kept: Vec<u32> = ids.iter().zip(&mask).filter(|(_, is_assistant)| **is_assistant).map(|(id, _)| *id).collect();
    tokenizer.decode(&kept, false)
}

#[test]
fn assistant_tokens_are_found_with_and_without_generation_marks() {
    let messages = json!([
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"},
        {"role": "user", "content": "he"}, {"role": "assistant", "content": "hu"},
    ]);
    let marked = "{% for m in messages %}\n{{ m.role }}:\n  {%- if m.role == 'assistant' %}\n  \
                  {%- generation -%}\n  {{ m.content }}#\n  {%- endgeneration -%}\n  {% else %}{{ m.content }}#\
                  {% endif %}\n{% endfor %}\n";
    assert_eq!(assistant_text(marked, &messages).unwrap(), "ho#hu#");
    // Without marks, the answer includes the token that ends the turn, but not the line feed after it.
    let plain = "{% for m in messages %}{{ m.role }}:{{ m.content }}#\n{% endfor %}\
                 {% if add_generation_prompt %}assistant:{% endif %}";
    assert_eq!(assistant_text(plain, &messages).unwrap(), "ho#hu#");
    // This template renders the last answer differently.
    let thinks = "{% for m in messages %}{{ m.role }}:{% if loop.last and m.role == 'assistant' %}<think>{% endif %}\
                  {{ m.content }}#\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    assert_eq!(assistant_text(thinks, &messages).unwrap(), "ho#<think>hu#");
    // This template prints only the first letter of a message, and another letter after the last message.
    let first = "{% for m in messages %}{{ m.content[0] }}{{ 'a' if loop.last else 'b' }}{% endfor %}";
    assert_eq!(assistant_text(first, &messages).unwrap(), "hha");
    // This template prints one letter at the end for each letter of the messages, so another answer also changes the
    // end.
    let counts = "{% for m in messages %}{{ m.content }}{% endfor %}\
                  {{ 'z' * (messages | map(attribute='content') | join | length) }}";
    let error = assistant_text(counts, &messages).unwrap_err().to_string();
    assert!(error.contains("message 2") && error.contains("the tokens of this answer are unknown"), "{error}");
    let error = assistant_text(plain, &json!([{"role": "user", "content": "hi"}])).unwrap_err().to_string();
    assert!(error.contains("the conversation has no assistant tokens"), "{error}");
}
