//! Chat templates render as in the reference library, and hostile ones end in an error.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Gguf, Kv, own_data};
use plimsoll_models::{ChatTemplate, Checkpoint, Message, ModelError, RenderOptions};
use std::time::{Duration, UNIX_EPOCH};

fn talk() -> Vec<Message> {
    vec![
        Message::new("user", "What is a load line?"),
        Message::new("assistant", "A mark on the hull."),
        Message::new("user", "Who <asks> & \"why\"?"),
    ]
}

fn prompt() -> RenderOptions {
    RenderOptions {
        add_generation_prompt: true,
        now: Some(UNIX_EPOCH + Duration::from_secs(1_709_251_200)),
        ..Default::default()
    }
}

fn render(source: &str) -> Result<String, ModelError> {
    ChatTemplate::new(source)?.with_tokens(Some("<s>"), None).render(&talk(), &prompt())
}

#[test]
fn smollm2_writes_chatml() {
    let checkpoint = Checkpoint::open(&own_data("smollm2-vocab.gguf")).unwrap();
    let template = ChatTemplate::from_checkpoint(&checkpoint).unwrap().unwrap();
    let text = template.render(&talk(), &prompt()).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nWhat is a load line?<|im_end|>\n\
         <|im_start|>assistant\nA mark on the hull.<|im_end|>\n\
         <|im_start|>user\nWho <asks> & \"why\"?<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let own = [Message::new("system", "Be brief."), Message::new("user", "Hi")];
    let text = template.render(&own, &RenderOptions::default()).unwrap();
    assert_eq!(text, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
    // What it writes are tokens.
    let tokenizer = plimsoll_models::Tokenizer::from_checkpoint(&checkpoint).unwrap().unwrap();
    assert_eq!(tokenizer.encode(&text, false, true).unwrap().iter().filter(|&&id| id == 1).count(), 2);
}

#[test]
fn the_demo_models_template_knows_its_tokens() {
    let dir = common::scratch("chat_demo");
    std::fs::write(dir.join("config.json"), "{}").unwrap();
    std::fs::copy(own_data("demo").join("tokenizer_config.json"), dir.join("tokenizer_config.json")).unwrap();
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let template = ChatTemplate::from_checkpoint(&checkpoint).unwrap().unwrap();
    let text = template.render(&[Message::new("user", "How do I reef a sail?")], &prompt()).unwrap();
    assert_eq!(text, "<|bos|><|user|>How do I reef a sail?<|assistant|>");

    // Other places, in order: the .jinja file beats the rest.
    std::fs::write(dir.join("tokenizer_config.json"), r#"{"bos_token": {"content": "B"}, "chat_template": [{"name": "rag", "template": "rag"}, {"name": "default", "template": "{{ bos_token }}!"}]}"#).unwrap();
    let text = |options: &RenderOptions| {
        ChatTemplate::from_checkpoint(&checkpoint).unwrap().unwrap().render(&[], options)
    };
    assert_eq!(text(&prompt()).unwrap(), "B!");
    std::fs::write(dir.join("chat_template.json"), r#"{"chat_template": "json {{ bos_token }}"}"#).unwrap();
    assert_eq!(text(&prompt()).unwrap(), "json B");
    std::fs::write(dir.join("chat_template.jinja"), "jinja {{ bos_token }}\n").unwrap();
    assert_eq!(text(&prompt()).unwrap(), "jinja B");
}

#[test]
fn a_checkpoint_without_a_template_has_none() {
    let checkpoint = Checkpoint::open(&common::data("golden/gguf_llama/model.gguf")).unwrap();
    assert!(ChatTemplate::from_checkpoint(&checkpoint).unwrap().is_none());
}

#[test]
fn gguf_templates_know_the_special_tokens() {
    let file = Gguf::default()
        .key("tokenizer.ggml.tokens", Kv::Strs(["<unk>", "<s>", "</s>"].map(String::from).to_vec()))
        .key("tokenizer.ggml.bos_token_id", Kv::U32(1))
        .key("tokenizer.ggml.eos_token_id", Kv::U32(2))
        .key(
            "tokenizer.chat_template",
            Kv::Str("{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token }}"),
        );
    let checkpoint = Checkpoint::from_gguf_bytes(file.bytes(), "t").unwrap();
    let template = ChatTemplate::from_checkpoint(&checkpoint).unwrap().unwrap();
    assert_eq!(template.render(&[], &prompt()).unwrap(), "<s>|</s>||");
}

/// Roles must alternate, the system's words go before the first user's: the shape of Gemma's template.
const GEMMA_LIKE: &str = "{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'] + '\n\n' -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set first = '' -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for m in rest -%}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate user/assistant') }}
    {%- endif -%}
    {%- set role = 'model' if m['role'] == 'assistant' else m['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') -}}
    {%- if m['content'] is string -%}
        {{ m['content'] | trim }}
    {%- elif m['content'] is iterable -%}
        {{ raise_exception('no pictures') }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
";

#[test]
fn a_gemma_like_template() {
    let text = render(GEMMA_LIKE).unwrap();
    assert!(
        text.starts_with(
            "<s><start_of_turn>user\nWhat is a load line?<end_of_turn>\n<start_of_turn>model\nA mark"
        ),
        "{text}"
    );
    assert!(text.ends_with("<end_of_turn>\n<start_of_turn>model\n"), "{text}");
    let template = ChatTemplate::new(GEMMA_LIKE).unwrap();
    let with_system = [Message::new("system", "S"), Message::new("user", " U ")];
    assert_eq!(
        template.render(&with_system, &RenderOptions::default()).unwrap(),
        "<start_of_turn>user\nS\n\nU<end_of_turn>\n"
    );
    let twice = [Message::new("user", "a"), Message::new("user", "b")];
    let error = template.render(&twice, &prompt()).unwrap_err();
    assert!(
        matches!(&error, ModelError::Template { reason } if reason.contains("roles must alternate")),
        "{error}"
    );
}

/// A date when the caller gives none, tools that may be undefined: the shape of Llama 3's template.
const LLAMA3_LIKE: &str = "{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now('%d %b %Y') %}
    {%- else %}
        {%- set date_string = '26 Jul 2024' %}
    {%- endif %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools is not none %}{{- 'Environment: ipython\n' }}{% for t in tools %}{{ t | tojson(indent=4) }}{% endfor %}{%- endif %}
{{- 'Today Date: ' + date_string + '\n\n<|eot_id|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
";

#[test]
fn a_llama3_like_template() {
    let text = render(LLAMA3_LIKE).unwrap();
    assert!(
        text.starts_with(
            "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 01 Mar 2024\n\n<|eot_id|>"
        ),
        "{text}"
    );
    assert!(text.ends_with("\"why\"?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"), "{text}");
    let mut options = prompt();
    options.variables.insert("date_string".into(), "long ago".into());
    options.variables.insert("tools".into(), serde_json::json!([{"name": "f", "n": [1, 2]}]));
    let text = ChatTemplate::new(LLAMA3_LIKE).unwrap().render(&talk(), &options).unwrap();
    assert!(text.contains("ipython\n{\n    \"n\": [\n        1,\n        2\n    ],\n    \"name\": \"f\"\n}Today Date: long ago"), "{text}");
}

#[test]
fn what_templates_in_the_wild_use() {
    let cases = [
        // Blocks swallow their line; a template's last newline is not text.
        ("{% if true %}\n  {% set x = 1 %}\n{% endif %}\na\n", "a"),
        ("{{ messages[0].content.split(' ')[0].upper().startswith('WH') }}", "True"),
        ("{{ messages[-1]['content'].strip().replace('why', 'how') }}", "Who <asks> & \"how\"?"),
        ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": "What is a load line?"}"#),
        ("{{ messages[2].content | tojson }}", r#""Who <asks> & \"why\"?""#),
        (
            "{{ {'b': [1, 2.5, none, true], 'a': 'é'} | tojson(ensure_ascii=False) }}",
            r#"{"b": [1, 2.5, null, true], "a": "é"}"#,
        ),
        ("{% for k, v in {'x': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "x=1"),
        ("{{ messages[0].get('name', 'nobody') }}", "nobody"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        (
            "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "user",
        ),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') }}{{ f('b') }}", "[a][b]"),
        (
            "{{ (messages | selectattr('role', 'equalto', 'user') | list | length) ~ (messages | map(attribute='role') | join(',')) }}",
            "2user,assistant,user",
        ),
        (
            "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{%- endgeneration %}{% endif %}{% endfor %}",
            "A mark on the hull.",
        ),
        ("{{ undefined_name }}{{ messages[0].tool_calls is defined }}{{ tools is none }}", "FalseTrue"),
        (
            "{{ '%s-%d' | format('a', 3) }}{{ messages[0].content[:4] }}{{ messages[::-1][0].role }}",
            "a-3Whatuser",
        ),
        ("{{- messages[0].content.lstrip('W') -}}", "hat is a load line?"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source).unwrap_or_else(|e| panic!("{source}: {e}")), expected, "{source}");
    }
}

#[test]
fn errors_say_the_line() {
    for (source, part) in [
        ("a\n{% if %}", "line 2"),
        ("a\n\n{{ raise_exception('no ' + messages[0].role) }}", "no user (line 3)"),
        ("{{ messages.nope() }}", "line 1"),
        ("{{ strftime_now('%Q') }}", "%Q"),
        ("{% include 'other' %}", "other"),
    ] {
        let error = render(source).expect_err(source).to_string();
        assert!(error.contains(part), "{source}: {error:?} lacks {part:?}");
    }
    assert!(ChatTemplate::new(&"x".repeat((1 << 17) + 1)).is_err());
}

/// Each of these would take forever, or all memory, or the stack.
#[test]
fn hostile_templates_end_in_bounded_time() {
    let double = "{% set x = x ~ x %}".repeat(60);
    let share = "{% set x = [x, x] %}".repeat(60);
    let nest = "{% set ns = namespace(x=[]) %}{% for a in range(20000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let chain = "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}{% set ns.x = ns.x + [a] %}{% endfor %}{{ ns.x }}";
    let bad: Vec<String> = vec![
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ a * b }}{% endfor %}{% endfor %}".into(),
        "{% for a in range(1000000000) %}x{% endfor %}".into(),
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".into(),
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}".into(),
        "{% for a in messages recursive %}{{ loop(messages) }}{% endfor %}".into(),
        "{{ 'x' * 1000000000 }}".into(),
        "{{ ('x' * 99999999) * 99 }}".into(),
        "{{ ([0] * 99999999) | join(',') }}".into(),
        "{{ 'x' | center(999999999) }}".into(),
        "{{ '%999999999d' | format(1) }}".into(),
        "{{ 'a' | indent(999999999) }}".into(),
        "{% for a in range(99999) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 99999 }}{% endfor %}".into(),
        format!("{{% set x = 'a' %}}{double}{{{{ x }}}}"),
        format!("{{% set x = 'a' %}}{double}{{{{ x | length }}}}"),
        format!("{{% set x = ['a'] %}}{share}{{{{ x }}}}"),
        format!("{{% set x = ['a'] %}}{share}{{{{ x | tojson }}}}"),
        format!("{{% set x = ['a'] %}}{share}{{% set y %}}{{{{ x }}}}{{% endset %}}"),
        format!("{{% set x = ['a'] %}}{share}{{{{ x | string }}}}"),
        format!("{{% set x = 'ab' %}}{}", "{% set x = x.replace('a', x) %}".repeat(60)),
        format!("{{% set x = 'ab' %}}{}", "{% set x = x | replace('a', x) %}".repeat(60)),
        format!("{}{}", "{{ ".to_owned() + &"(".repeat(130_000), "1"),
        "{% if true %}".repeat(9_000),
        "{{ [".repeat(30_000),
    ];
    // These may finish or not; they must only do so soon.
    let any = vec![
        format!("{nest}x"),
        format!("{nest}{{{{ ns.x }}}}"),
        format!("{nest}{{{{ ns.x | tojson }}}}"),
        format!("{nest}{{{{ ns.x == ns.x }}}}{{{{ ns.x | string | length }}}}"),
        chain.into(),
        format!("{{{{ a{} }}}}", ".a".repeat(65_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(130_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(32_000)),
        format!("{{{{ a{} }}}}", "|string".repeat(18_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(32_000)),
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}{{ ns | tojson }}".into(),
        "{{ messages | sort | unique | list | tojson | length }}".into(),
    ];
    for (source, must_fail) in bad.iter().map(|s| (s, true)).chain(any.iter().map(|s| (s, false))) {
        let name: String = source.chars().take(120).collect();
        let result = render(source);
        assert!(!must_fail || result.is_err(), "{name}: {} bytes", result.map_or(0, |t| t.len()));
    }
}

/// Comparing such values is the one thing that fuel does not price: the caller still gets an error in bounded time.
#[test]
fn a_template_that_never_ends_is_given_up() {
    let share = "{% set x = [x, x] %}".repeat(60);
    let error = render(&format!(
        "{{% set x = ['a'] %}}{share}{{% set y = x %}}{{% set x = ['a'] %}}{share}{{{{ x == y }}}}"
    ));
    assert!(error.unwrap_err().to_string().contains("took longer"));
}

#[test]
fn long_conversations_have_fuel() {
    let checkpoint = Checkpoint::open(&own_data("smollm2-vocab.gguf")).unwrap();
    let template = ChatTemplate::from_checkpoint(&checkpoint).unwrap().unwrap();
    let messages: Vec<Message> = (0..2000)
        .map(|i| Message::new(if i % 2 == 0 { "user" } else { "assistant" }, "word ".repeat(200)))
        .collect();
    assert!(template.render(&messages, &prompt()).unwrap().len() > 2_000_000);
    let long = [Message::new("user", "x".repeat(8 << 20))];
    assert!(template.render(&long, &prompt()).unwrap().len() > 8 << 20);
}
