//! The tools of a chat: schemas and earlier calls that a request has, and calls in a response.

use crate::body::{Object, wrong};
use crate::error::ApiError;
use lockstep::service::{Service, ToolCall, ToolFormat, ToolParser, ToolSupport};
use serde_json::{Map, Value, json};

/// The reason why a completion with calls ended.
pub const REASON: &str = "tool_calls";

/// The fields of a request that are about tools.
#[derive(Debug)]
pub struct Tools {
    /// The tools that the template renders; `None`: none.
    pub schemas: Option<Vec<Value>>,
    /// How calls are separated from text; `None`: they stay text.
    pub calls: Option<Calls>,
}

/// How the calls of a request are separated from text.
#[derive(Clone, Debug)]
pub struct Calls {
    pub format: ToolFormat,
    /// Whether a completion may have several calls. Otherwise only the first is returned, as in vLLM.
    pub parallel: bool,
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
pub fn read(service: &Service, o: &mut Object) -> Result<Tools, ApiError> {
    let parallel = o.flag("parallel_tool_calls")?.unwrap_or(true);
    let choice = o.take("tool_choice");
    let schemas = match o.take("tools") {
        None => Vec::new(),
        Some(Value::Array(schemas)) => schemas,
        Some(other) => return Err(wrong("tools", &other, "a list of tools")),
    };
    for (place, schema) in schemas.iter().enumerate() {
        let has_name = schema["function"]["name"].as_str().is_some_and(|name| !name.is_empty());
        if schema["type"] != "function" || !has_name {
            let expected = "{\"type\": \"function\", \"function\": {\"name\": …, \"parameters\": …}}";
            return Err(wrong(&format!("tools[{place}]"), schema, expected));
        }
    }
    let is_auto = match choice.as_ref().map(|choice| choice.as_str()) {
        None | Some(Some("auto")) => true,
        Some(Some("none")) => false,
        Some(_) => {
            let message = "`tool_choice` can be \"auto\" or \"none\": a call cannot be forced, because constrained \
                           decoding is not supported";
            return Err(ApiError::field("tool_choice", message).with_code("unsupported_parameter"));
        }
    };
    if schemas.is_empty() || !is_auto {
        return Ok(Tools { schemas: None, calls: None });
    }
    let calls = match service.tools() {
        ToolSupport::Parsed(format) => Some(Calls { format, parallel }),
        ToolSupport::Text => None,
        ToolSupport::Unread => {
            let message = "`tools` is not supported by this model: its chat template does not read tools";
            return Err(ApiError::field("tools", message).with_code("unsupported_parameter"));
        }
    };
    Ok(Tools { schemas: Some(schemas), calls })
}

/// Changes the calls of a message, the field `name`, to the form that templates read: arguments are an object, not its
/// JSON. Returns whether there are any.
pub fn plain_calls(name: &str, message: &mut Map<String, Value>) -> Result<bool, ApiError> {
    let calls = match message.get_mut("tool_calls") {
        Some(Value::Array(calls)) if !calls.is_empty() => calls,
        None | Some(Value::Null | Value::Array(_)) => {
            message.remove("tool_calls");
            return Ok(false);
        }
        Some(other) => return Err(wrong(name, other, "a list of calls")),
    };
    for (place, call) in calls.iter_mut().enumerate() {
        let own = format!("{name}[{place}]");
        if !call["function"]["name"].is_string() {
            return Err(wrong(&own, call, "{\"type\": \"function\", \"function\": {\"name\": …, \"arguments\": …}}"));
        }
        let arguments = &mut call["function"]["arguments"];
        let object = match &*arguments {
            Value::Null => Some(json!({})),
            Value::String(text) if text.trim().is_empty() => Some(json!({})),
            Value::String(text) => serde_json::from_str(text).ok().filter(Value::is_object),
            Value::Object(_) => Some(arguments.clone()),
            _ => None,
        };
        let own = format!("{own}.function.arguments");
        *arguments = object.ok_or_else(|| wrong(&own, arguments, "the JSON of an object, as a string"))?;
    }
    Ok(true)
}

impl Calls {
    /// A parser for the choice `index` of the response `id`.
    pub fn parser(&self, id: &str, index: usize) -> CallParser {
        CallParser { parser: ToolParser::new(self.format), parallel: self.parallel, id: format!("{id}-{index}") }
    }
}

/// Separates the calls of one choice from its text.
pub struct CallParser {
    parser: ToolParser,
    parallel: bool,
    /// The beginning of the ids of calls.
    id: String,
}

impl CallParser {
    /// Adds text, and the end of the completion if `is_last` is set. Returns the text outside of calls; new calls are
    /// appended to `calls`.
    pub fn push(&mut self, text: &str, is_last: bool, calls: &mut Vec<Value>) -> String {
        let mut parsed = self.parser.push(text);
        if is_last {
            let rest = self.parser.finish();
            parsed.text += &rest.text;
            parsed.calls.extend(rest.calls);
        }
        for ToolCall { name, arguments } in parsed.calls {
            if self.parallel || calls.is_empty() {
                let id = format!("call-{}-{}", self.id, calls.len());
                calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
            }
        }
        parsed.text
    }
}
