//! Tool calls in the text of a completion: the format in which a chat template writes them, and a parser for it.
//!
//! | format | a call |
//! |---|---|
//! | Hermes, Qwen 2.5, Qwen 3 | `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`, between other text |
//! | Llama 3 | `{"name": "f", "parameters": {…}}` alone; several calls are separated by `;` |

use super::{Chat, ChatTemplate};
use serde_json::{Value, json};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Llama's token before a call. It is special, so decoded text usually does not contain it.
const PYTHON_TAG: &str = "<|python_tag|>";

/// The format in which a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// Of Hermes, Qwen 2.5 and Qwen 3: JSON between tags.
    Hermes,
    /// Of Llama 3.1 to 3.3: JSON alone.
    Llama3,
}

impl ToolFormat {
    /// The name that users see.
    pub fn name(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "Hermes",
            ToolFormat::Llama3 => "Llama 3",
        }
    }
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// The arguments, as the JSON of an object.
    pub arguments: String,
}

/// A part of a completion, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The text outside of calls.
    pub text: String,
    /// Calls that are complete now.
    pub calls: Vec<ToolCall>,
}

impl ChatTemplate {
    /// Whether the template reads a list of tools.
    pub fn reads_tools(&self) -> bool {
        self.reads("tools", true).unwrap_or(false)
    }

    /// The format in which the template writes tool calls; `None` if it is neither of the known ones. The template
    /// renders a call, which must be parsed back.
    pub fn tool_format(&self) -> Option<ToolFormat> {
        let schema = json!({"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]});
        let function = json!({"name": "probe", "description": "A probe.", "parameters": schema});
        let tools = [json!({"type": "function", "function": function})];
        let call = json!({"name": "probe", "arguments": {"key": "value"}});
        let messages = [
            json!({"role": "user", "content": "Probe."}),
            json!({
                "role": "assistant", "content": "",
                "tool_calls": [{"id": "call00000", "type": "function", "function": call}],
            }),
        ];
        let rendered = self.render(&Chat { messages: &messages, tools: Some(&tools), ..Chat::default() }).ok()?;
        let is_probe = |call: &ToolCall| call.name == "probe" && call.arguments == r#"{"key":"value"}"#;
        let mut parser = ToolParser::new(ToolFormat::Hermes);
        let mut calls = parser.push(&rendered).calls;
        calls.extend(parser.finish().calls);
        if calls.iter().any(is_probe) {
            return Some(ToolFormat::Hermes);
        }
        // Text may follow the call, such as the token that ends the turn.
        let start = rendered.rfind("{\"name\"")?;
        let value = serde_json::Deserializer::from_str(&rendered[start..]).into_iter::<Value>().next()?.ok()?;
        value.get("parameters").and_then(|_| call_of(&value)).filter(is_probe).map(|_| ToolFormat::Llama3)
    }
}

/// Separates tool calls from the text of a completion, while it arrives. Text that is not a complete and valid call
/// stays text.
#[derive(Clone, Debug)]
pub struct ToolParser {
    format: ToolFormat,
    state: State,
    /// Text that is neither returned nor part of a complete call.
    held: String,
    /// Whether a call was returned.
    has_called: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Outside of a call.
    Text,
    /// Inside a call: after the opening tag, or in text that begins like a call of Llama.
    Call,
}

impl ToolParser {
    /// A parser of one completion.
    pub fn new(format: ToolFormat) -> ToolParser {
        // A completion of Llama is a call from its first character on, or contains none.
        let state = if format == ToolFormat::Llama3 { State::Call } else { State::Text };
        ToolParser { format, state, held: String::new(), has_called: false }
    }

    /// Adds text of the completion.
    pub fn push(&mut self, text: &str) -> Parsed {
        self.held += text;
        let mut parsed = Parsed::default();
        match self.format {
            ToolFormat::Hermes => self.hermes(&mut parsed),
            ToolFormat::Llama3 => self.llama(&mut parsed),
        }
        self.has_called |= !parsed.calls.is_empty();
        parsed
    }

    /// Ends the completion. Returns the rest of its text, or the calls that end with it.
    pub fn finish(&mut self) -> Parsed {
        let held = std::mem::take(&mut self.held);
        let calls = match (self.format, self.state) {
            (_, State::Text) => None,
            // A model may end its turn without the closing tag.
            (ToolFormat::Hermes, State::Call) => read(&held).map(|call| vec![call]),
            (ToolFormat::Llama3, State::Call) => calls_of(&held),
        };
        let text = match &calls {
            Some(_) => String::new(),
            None if (self.format, self.state) == (ToolFormat::Hermes, State::Call) => OPEN.to_owned() + &held,
            None if self.has_called && held.trim().is_empty() => String::new(),
            None => held,
        };
        Parsed { text, calls: calls.unwrap_or_default() }
    }

    fn hermes(&mut self, parsed: &mut Parsed) {
        loop {
            match self.state {
                State::Text => match self.held.find(OPEN) {
                    Some(start) => {
                        // White space before a call separates it from the text.
                        parsed.text += self.held[..start].trim_end();
                        self.held.drain(..start + OPEN.len());
                        self.state = State::Call;
                    }
                    None => {
                        let length = self.held.len() - undecided(&self.held);
                        parsed.text.extend(self.held.drain(..length));
                        return;
                    }
                },
                State::Call => {
                    let Some(end) = self.held.find(CLOSE) else { return };
                    match read(&self.held[..end]) {
                        Some(call) => {
                            parsed.calls.push(call);
                            self.held.drain(..end + CLOSE.len());
                        }
                        // The tag is text, and what follows may contain another one.
                        None => parsed.text += OPEN,
                    }
                    self.state = State::Text;
                }
            }
        }
    }

    fn llama(&mut self, parsed: &mut Parsed) {
        let begins = self.held.trim_start();
        let may_call = begins.starts_with('{') || begins.starts_with(PYTHON_TAG) || PYTHON_TAG.starts_with(begins);
        if self.state == State::Text || !may_call {
            self.state = State::Text;
            parsed.text = std::mem::take(&mut self.held);
        }
    }
}

/// The number of bytes at the end of `text` that may belong to a call: the beginning of the opening tag, and the white
/// space before it.
fn undecided(text: &str) -> usize {
    let begun = (1..OPEN.len()).rev().find(|&length| text.ends_with(&OPEN[..length])).unwrap_or(0);
    text.len() - text[..text.len() - begun].trim_end().len()
}

/// The call in this JSON.
fn read(json: &str) -> Option<ToolCall> {
    call_of(&serde_json::from_str(json).ok()?)
}

/// The calls in a completion of Llama.
fn calls_of(text: &str) -> Option<Vec<ToolCall>> {
    let mut rest = text.trim().trim_start_matches(PYTHON_TAG);
    let mut calls = Vec::new();
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        calls.push(call_of(&values.next()?.ok()?)?);
        let end = values.byte_offset();
        rest = rest[end..].trim_start_matches(|c: char| c == ';' || c.is_whitespace());
    }
    (!calls.is_empty()).then_some(calls)
}

fn call_of(value: &Value) -> Option<ToolCall> {
    let name = value.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let arguments = value.get("arguments").or(value.get("parameters")).filter(|arguments| arguments.is_object())?;
    Some(ToolCall { name: name.to_owned(), arguments: arguments.to_string() })
}
