//! Finds the tokens of a conversation that the assistant wrote. The chat template marks them with `{% generation %}`.
//! For well-known templates without such marks, the [training](super::training) version of the template marks them. For
//! any other template, they are the part of an assistant's message that the template prints after the header of an
//! answer ([`super::turns`]).

use super::environment::{MARKS, marked};
use super::prompt::{border, no_template};
use super::turns::Conversation;
use super::{Chat, ChatTemplate, PromptEncoder};
use crate::{Error, Result};
use serde_json::Value;
use std::ops::Range;

/// The token ids of a conversation, with a mask of those that an assistant wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct AssistantTokens {
    /// The ids of the whole conversation.
    pub ids: Vec<u32>,
    /// For each id, whether an assistant wrote it.
    pub mask: Vec<bool>,
    /// The number of ids that belong to the prompt; 0 without a completion.
    pub border: usize,
}

impl PromptEncoder<'_> {
    /// Token ids of a conversation, and a mask of those that an assistant wrote (transformers'
    /// `return_assistant_tokens_mask`). `completion` continues `prompt`, and may be empty. Fails if an assistant's
    /// message cannot be found in the rendered text, or if no token was written by an assistant.
    pub fn encode_assistant(&self, prompt: &[Value], completion: &[Value]) -> Result<AssistantTokens> {
        let Some(template) = self.template else { return Err(no_template()) };
        let messages = [prompt, completion].concat();
        let chat = self.whole(&messages);
        let (name, has_marks) = template.for_training(chat.tools.is_some())?;
        let (ids, mask) =
            if has_marks { self.marked(template, &name, &chat)? } else { self.found(template, &name, &chat)? };
        if !mask.contains(&true) {
            return Err(Error::Value(
                "the conversation has no assistant tokens: remove the row, or train without assistant_only_loss".into(),
            ));
        }
        let border = match completion {
            [] => 0,
            _ => {
                let chat = Chat { messages: prompt, add_generation_prompt: true, ..chat };
                border(&self.tokenizer.encode_rendered(&template.render_as(&name, &chat)?)?, &ids)
            }
        };
        Ok(AssistantTokens { ids, mask, border })
    }

    /// Token ids, and a mask of the tokens that the template `name` marks as generated. As in transformers, a marked
    /// range starts at the token that contains its first character, and ends at the token that contains its last one.
    /// If no token contains the last character, the range extends to the end of the text. If no token contains the
    /// first character, this range and all later ones are ignored.
    fn marked(&self, template: &ChatTemplate, name: &str, chat: &Chat<'_>) -> Result<(Vec<u32>, Vec<bool>)> {
        let (text, stretches) = without_marks(&template.render_as(&marked(name), chat)?);
        let (ids, offsets) = self.tokenizer.encode_characters(&text)?;
        let token_of = |at: usize| offsets.iter().position(|token| token.contains(&at));
        let mut mask = vec![false; ids.len()];
        for stretch in stretches {
            let Some(begin) = token_of(stretch.start) else { break };
            let last = stretch.end.checked_sub(1).and_then(token_of).filter(|&last| last > 0);
            let end = last.map_or(ids.len(), |last| last + 1);
            mask[begin.min(end)..end].fill(true);
        }
        Ok((ids, mask))
    }

    /// Token ids, and a mask of the assistant's tokens, for a template `name` without marks.
    fn found(&self, template: &ChatTemplate, name: &str, chat: &Chat<'_>) -> Result<(Vec<u32>, Vec<bool>)> {
        let conversation = Conversation::new(template, name, *chat)?;
        let (ids, offsets) = self.tokenizer.encode_offsets(&conversation.text)?;
        let (special, eos) = (self.tokenizer.special_ids(), self.tokenizer.eos_id());
        let mut mask = vec![false; ids.len()];
        for i in (0..chat.messages.len()).filter(|&i| chat.messages[i]["role"] == "assistant") {
            let turn = conversation.turn(i)?;
            let tokens_in = |range: &Range<usize>| {
                let (begin, end) = (range.start, range.end);
                let own: Vec<usize> =
                    (0..ids.len()).filter(|&at| offsets[at].start < end && begin < offsets[at].end).collect();
                own
            };
            let behind: Vec<usize> =
                tokens_in(&turn.behind).into_iter().filter(|&at| offsets[at].start >= turn.behind.start).collect();
            // The turn ends with the last special token after the message. If no special token follows, the turn ends
            // with everything that the template prints after the message, or with an end token that the template prints
            // only after earlier messages.
            let end = match behind.iter().rposition(|&at| special.contains(&ids[at])) {
                Some(last) => last + 1,
                None => behind.len(),
            };
            let mut own = [tokens_in(&turn.own), behind[..end].to_vec()].concat();
            let next = (0..ids.len()).find(|&at| offsets[at].start >= turn.behind.start);
            if let Some(next) = next.filter(|&next| turn.behind.is_empty() && Some(ids[next]) == eos) {
                own.push(next);
            }
            if own.is_empty() {
                return Err(Error::Value(format!(
                    "message {} of the conversation: the chat template does not print this assistant message: remove \
                     the row, or mark the text to train on with {{% generation %}} in the template",
                    i + 1
                )));
            }
            for at in own {
                mask[at] = true;
            }
        }
        Ok((ids, mask))
    }
}

/// Removes the marks from a text, and returns the ranges of characters that were between them.
fn without_marks(marked: &str) -> (String, Vec<Range<usize>>) {
    let (mut text, mut stretches, mut begin, mut at) = (String::with_capacity(marked.len()), Vec::new(), None, 0);
    for c in marked.chars() {
        match c {
            _ if c == MARKS[0] => begin = Some(at),
            _ if c == MARKS[1] => stretches.extend(begin.take().map(|begin| begin..at)),
            _ => {
                text.push(c);
                at += 1;
            }
        }
    }
    (text, stretches)
}
