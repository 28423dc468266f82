//! Finds the text of one message in a conversation rendered by a chat template without marks. It compares the rendered
//! conversation with two others: the conversation up to the message, and the conversation with a different message in
//! its place.

use super::environment::MARKS;
use super::{Chat, ChatTemplate};
use crate::{Error, Result};
use serde_json::{Value, json};
use std::ops::Range;

/// Placeholder for a message's text: a Unicode noncharacter, which no text contains.
const PLACE: char = MARKS[0];

/// A rendered conversation.
pub(super) struct Conversation<'a> {
    template: &'a ChatTemplate,
    /// The name of the template.
    name: &'a str,
    chat: Chat<'a>,
    /// The rendered text.
    pub(super) text: String,
}

/// The location of a message in the rendered text, as ranges of bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    /// The text of the message itself, without the header of an answer.
    pub(super) own: Range<usize>,
    /// The text that the template prints after every message, regardless of the message's content.
    pub(super) behind: Range<usize>,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(template: &'a ChatTemplate, name: &'a str, chat: Chat<'a>) -> Result<Conversation<'a>> {
        let text = template.render_as(name, &chat)?;
        Ok(Conversation { template, name, chat, text })
    }

    /// Finds the assistant's message `i`.
    pub(super) fn turn(&self, i: usize) -> Result<Turn> {
        let before = i.checked_sub(1).and_then(|at| self.replaced(at)).map_or(0, |place| place.end);
        self.at_the_end(i, before).or_else(|| self.within(i, before)).ok_or_else(|| {
            Error::Value(format!(
                "message {} of the conversation: the tokens of this answer are unknown, because the chat template has \
                 no {{% generation %}} and replacing the answer changes more than the answer's own text: write {{% \
                 generation %}} and {{% endgeneration %}} around the assistant's text in the template, or train \
                 without assistant_only_loss",
                i + 1
            ))
        })
    }

    /// Finds the message if the whole text starts with the rendering of the conversation up to the message. `before` is
    /// the position where the text of the previous message ends.
    fn at_the_end(&self, i: usize, before: usize) -> Option<Turn> {
        let messages = self.chat.messages;
        let (alone, head) = (self.render(&messages[..i], false)?, self.render(&messages[..i], true)?);
        let with = self.render(&messages[..=i], false)?;
        let begin = common(&head, &with);
        // The generation prompt may differ from the message's header at its end, but not at its beginning.
        let has_header = begin == head.len() || begin > common(&alone, &head);
        if !self.text.starts_with(&with) || !has_header || begin < before {
            return None;
        }
        let behind = self.behind(i).into_iter().find(|behind| with[begin..].ends_with(behind.as_str()));
        let end = match behind {
            Some(behind) => with.len() - behind.len(),
            // Spaces after the last visible character belong to the template.
            None => begin.max(with.trim_end().len()),
        };
        Some(Turn { own: begin..end, behind: end..with.len() })
    }

    /// Finds a message that the template renders differently from a message at the end of a conversation. It is the
    /// text that changes if a different message takes its place.
    fn within(&self, i: usize, before: usize) -> Option<Turn> {
        let own = self.replaced(i).filter(|own| before <= own.start)?;
        let rest = &self.text[own.end..];
        let behind = self.behind(i).iter().map(|behind| common(behind, rest)).max().unwrap_or(0);
        let begin = self.end_of_header(i, before..own.start).unwrap_or(own.start);
        Some(Turn { own: begin..own.end, behind: own.end..own.end + behind })
    }

    /// The range of the text that changes if another message replaces message `i`.
    fn replaced(&self, i: usize) -> Option<Range<usize>> {
        others(&self.chat.messages[i]).into_iter().find_map(|other| {
            let mut messages = self.chat.messages.to_vec();
            messages[i] = other;
            let other = self.render(&messages, false)?;
            let (first, last) = (other.find(PLACE)?, other.rfind(PLACE)? + PLACE.len_utf8());
            let end = self.text.len() - other[last..].len().min(self.text.len());
            let begin = common(&self.text, &other[..first]);
            (self.text.ends_with(&other[last..]) && begin <= end).then_some(begin..end)
        })
    }

    /// The text that the template prints after each replacement of message `i` at the end of a conversation.
    fn behind(&self, i: usize) -> Vec<String> {
        let of = |other| {
            let mut messages = self.chat.messages[..=i].to_vec();
            messages[i] = other;
            let text = self.render(&messages, false)?;
            Some(text[text.rfind(PLACE)? + PLACE.len_utf8()..].to_owned())
        };
        others(&self.chat.messages[i]).into_iter().filter_map(of).collect()
    }

    /// The position within `range` where the header of answer `i` ends.
    fn end_of_header(&self, i: usize, range: Range<usize>) -> Option<usize> {
        let user = [json!({"role": "user", "content": PLACE.to_string()})];
        let messages = if i == 0 { &user[..] } else { &self.chat.messages[..i] };
        let (without, with) = (self.render(messages, false)?, self.render(messages, true)?);
        let header = &with[common(&without, &with)..];
        // The generation prompt may print more than the header of a finished answer, such as an empty think block.
        let lengths = (header.len().div_ceil(2).max(1)..=header.len()).rev().filter(|&n| header.is_char_boundary(n));
        let text = &self.text[range.clone()];
        let found = lengths.into_iter().find_map(|n| Some(text.rfind(&header[..n])? + n));
        found.map(|end| range.start + end)
    }

    /// The rendered text of `messages`; `None` if the template rejects them.
    fn render(&self, messages: &[Value], add_generation_prompt: bool) -> Option<String> {
        self.template.render_as(self.name, &Chat { messages, add_generation_prompt, ..self.chat }).ok()
    }
}

/// Messages that may replace a message: a message with only a text, and the message itself with all its strings
/// replaced, for templates that reject a conversation without the message's tool calls.
fn others(message: &Value) -> Vec<Value> {
    let place = PLACE.to_string();
    let mut all = vec![json!({"role": message["role"], "content": place})];
    if let (Value::Object(fields), Some(calls)) = (message, message.get("tool_calls")) {
        let mut fields = fields.clone();
        if fields.get("content").is_some_and(Value::is_string) {
            fields.insert("content".into(), place.into());
        }
        fields.insert("tool_calls".into(), placed(calls));
        all.push(Value::Object(fields));
    }
    all
}

/// A value with [`PLACE`] for every string, except in the fields `type` and `id` of a call.
fn placed(value: &Value) -> Value {
    match value {
        Value::String(_) => PLACE.to_string().into(),
        Value::Array(list) => list.iter().map(placed).collect(),
        Value::Object(fields) => {
            let kept = |name: &str| matches!(name, "type" | "id");
            fields.iter().map(|(name, v)| (name.clone(), if kept(name) { v.clone() } else { placed(v) })).collect()
        }
        other => other.clone(),
    }
}

/// The length in bytes of the common prefix of two strings.
fn common(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}
