//! Finds the tokens of a conversation that the assistant wrote. They are what the chat template marks with
//! `{% generation %}`, or, in a template without such marks, what it prints between the header of an answer and the
//! next message.

use super::environment::{MARKS, marked, says_what_is_generated};
use super::{Chat, ChatTemplate, PromptEncoder};
use crate::{Error, Result};
use serde_json::Value;
use std::ops::Range;

impl PromptEncoder<'_> {
    /// Token ids of a whole rendered conversation, and for each whether an assistant wrote it (transformers'
    /// `return_assistant_tokens_mask`). An error if that cannot be determined, or if no token is the assistant's.
    pub fn encode_said(&self, messages: &[Value]) -> Result<(Vec<u32>, Vec<bool>)> {
        let Some(template) = self.template else {
            return Err(Error::Value("the data has conversations, but the model has no chat template".into()));
        };
        let chat = self.whole(messages);
        let (text, said, exact) = match template.render_marked(&chat)? {
            Some((text, said)) => (text, said, true),
            None => {
                let text = template.render(&chat)?;
                let said = template.said(&chat, &text)?;
                (text, said, false)
            }
        };
        let (ids, offsets) = self.tokenizer.encode_offsets(&text)?;
        let of_said = |at: &Range<usize>| said.iter().any(|said| at.start < said.end && said.start < at.end);
        let mut mask: Vec<bool> = offsets.iter().map(of_said).collect();
        if !exact {
            end_with_the_turn(&ids, &mut mask, &self.tokenizer.special_ids());
        }
        if !mask.contains(&true) {
            return Err(Error::Value("no token of the conversation is an assistant's".into()));
        }
        Ok((ids, mask))
    }
}

impl ChatTemplate {
    /// Renders a conversation, and gives the byte ranges that the template marks as generated; none if the template has
    /// no such marks.
    fn render_marked(&self, chat: &Chat<'_>) -> Result<Option<(String, Vec<Range<usize>>)>> {
        let name = self.choose(chat.tools.is_some())?;
        if !says_what_is_generated(&self.sources[name]) {
            return Ok(None);
        }
        Ok(Some(without_marks(&self.render_as(&marked(name), chat)?)))
    }

    /// Byte ranges of the assistant's messages in `text`, the whole rendered conversation.
    fn said(&self, chat: &Chat<'_>, text: &str) -> Result<Vec<Range<usize>>> {
        let mut said = Vec::new();
        for i in (0..chat.messages.len()).filter(|&i| chat.messages[i]["role"] == "assistant") {
            let head = match i {
                0 => String::new(),
                _ => self.render(&Chat { messages: &chat.messages[..i], add_generation_prompt: true, ..*chat })?,
            };
            let with = self.render(&Chat { messages: &chat.messages[..=i], ..*chat })?;
            if text.starts_with(&with) && with.starts_with(&head) {
                said.push(head.len()..with.len());
                continue;
            }
            // The template renders an earlier answer differently from the last one: mark the answer's own text.
            let Some((_, spans)) = self.with_marked_content(chat, i)?.filter(|(same, _)| same == text) else {
                return Err(Error::Value(format!(
                    "message {} of the conversation: the chat template has no {{% generation %}}, and does not render \
                     the messages before it alone as in the whole: which tokens are the assistant's is unknown",
                    i + 1
                )));
            };
            said.extend(spans);
        }
        Ok(said)
    }

    /// Renders the conversation, and gives the byte range of the text of message `i` in it; none if that message's
    /// content is not a text.
    fn with_marked_content(&self, chat: &Chat<'_>, i: usize) -> Result<Option<(String, Vec<Range<usize>>)>> {
        let mut messages = chat.messages.to_vec();
        let Some(Value::String(content)) = messages[i].get_mut("content") else { return Ok(None) };
        *content = format!("{}{content}{}", MARKS[0], MARKS[1]);
        Ok(Some(without_marks(&self.render(&Chat { messages: &messages, ..*chat })?)))
    }
}

/// Removes the marks from a text, and gives the byte ranges that were between them.
fn without_marks(marked: &str) -> (String, Vec<Range<usize>>) {
    let (mut text, mut spans, mut begin) = (String::with_capacity(marked.len()), Vec::new(), None);
    for c in marked.chars() {
        match c {
            _ if c == MARKS[0] => begin = Some(text.len()),
            _ if c == MARKS[1] => spans.extend(begin.take().map(|begin| begin..text.len())),
            _ => text.push(c),
        }
    }
    (text, spans)
}

/// Extends each stretch of assistant tokens in `mask` to the special token that ends the turn, if that token is in it
/// or right after it; what follows that token is removed from `mask`.
fn end_with_the_turn(ids: &[u32], mask: &mut [bool], special: &[u32]) {
    let ends: Vec<usize> = (1..=mask.len()).filter(|&at| mask[at - 1] && !mask.get(at).is_some_and(|&m| m)).collect();
    for end in ends {
        let begin = mask[..end].iter().rposition(|&m| !m).map_or(0, |at| at + 1);
        if ids.get(end).is_some_and(|id| special.contains(id)) {
            mask[end] = true;
        } else if let Some(last) = (begin..end).rev().find(|&at| special.contains(&ids[at])) {
            mask[last + 1..end].fill(false);
        }
    }
}
