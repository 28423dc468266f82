//! A message between two ranks: text, whose meaning the ranks agree on, and numbers of 32 bits.
//!
//! On the socket, a message is the lengths of both (two u32), the text in UTF-8, and the numbers; all little-endian. A
//! message without text and numbers is a heartbeat; one without text and with a number is the exit code of rank 0.

use crate::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

/// The longest text of a message, in bytes.
const MAX_TEXT: u32 = 64 << 20;
/// The largest number of numbers in a message.
const MAX_NUMBERS: u32 = 1 << 29;

/// Text and numbers that one rank sends to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The subject of the message.
    pub text: String,
    /// Token ids, or the bits of f32 numbers.
    pub numbers: Vec<u32>,
}

impl Message {
    /// A message without numbers.
    pub fn of(text: impl Into<String>) -> Message {
        Message { text: text.into(), numbers: Vec::new() }
    }

    /// A message whose text is `value` as JSON.
    pub fn json(value: &impl Serialize, numbers: Vec<u32>) -> Result<Message> {
        let text = serde_json::to_string(value).map_err(|error| Error::Unreadable(error.to_string()))?;
        Ok(Message { text, numbers })
    }

    /// The value of a text that is JSON.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.text).map_err(|error| Error::Unreadable(error.to_string()))
    }

    pub(crate) fn heartbeat() -> Message {
        Message::default()
    }

    pub(crate) fn is_heartbeat(&self) -> bool {
        self.text.is_empty() && self.numbers.is_empty()
    }

    pub(crate) fn exit(code: u8) -> Message {
        Message { text: String::new(), numbers: vec![code.into()] }
    }

    /// The exit code, if that is the message.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        match self.numbers[..] {
            [code] if self.text.is_empty() => Some(code as u8),
            _ => None,
        }
    }

    /// Writes the message. A message that is too long is an error, and nothing is written.
    pub(crate) fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        let too_long =
            |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("a message has too many {what}"));
        let within = |len: usize, most: u32| u32::try_from(len).ok().filter(|len| *len <= most);
        let text = within(self.text.len(), MAX_TEXT).ok_or_else(|| too_long("bytes of text"))?;
        let numbers = within(self.numbers.len(), MAX_NUMBERS).ok_or_else(|| too_long("numbers"))?;
        let mut bytes = Vec::with_capacity(8 + self.text.len() + 4 * self.numbers.len());
        bytes.extend(text.to_le_bytes());
        bytes.extend(numbers.to_le_bytes());
        bytes.extend(self.text.as_bytes());
        bytes.extend(self.numbers.iter().flat_map(|number| number.to_le_bytes()));
        to.write_all(&bytes)
    }

    /// Reads a message. The end of the stream is an error.
    pub(crate) fn read_from(from: &mut impl Read) -> io::Result<Message> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut lengths = [[0; 4]; 2];
        lengths.iter_mut().try_for_each(|length| from.read_exact(length))?;
        let [text, numbers] = lengths.map(u32::from_le_bytes);
        if text > MAX_TEXT || numbers > MAX_NUMBERS {
            return Err(invalid("the other process sent something that is not a message"));
        }
        let mut bytes = vec![0; text as usize];
        from.read_exact(&mut bytes)?;
        let text = String::from_utf8(bytes).map_err(|_| invalid("a message's text must be UTF-8"))?;
        let mut bytes = vec![0; 4 * numbers as usize];
        from.read_exact(&mut bytes)?;
        let (numbers, _) = bytes.as_chunks::<4>();
        Ok(Message { text, numbers: numbers.iter().map(|number| u32::from_le_bytes(*number)).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_read_back_equals_the_written_one() {
        let messages = [
            Message::heartbeat(),
            Message::of("né"),
            Message { text: String::new(), numbers: vec![0, u32::MAX, f32::NAN.to_bits()] },
            Message { text: "ids".to_owned(), numbers: (0..1000).collect() },
        ];
        let mut bytes = Vec::new();
        for message in &messages {
            message.write_to(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        for message in &messages {
            assert_eq!(&Message::read_from(&mut rest).unwrap(), message);
        }
        assert_eq!(Message::read_from(&mut rest).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(messages[0].is_heartbeat() && !messages[2].is_heartbeat());
        assert_eq!(messages.map(|message| message.exit_code()), [None; 4]);
        assert_eq!([0, 143].map(|code| Message::exit(code).exit_code()), [Some(0), Some(143)]);
    }

    #[test]
    fn a_value_that_the_reader_does_not_know_is_an_error() {
        let message = Message::json(&("né", 0.1), vec![3]).unwrap();
        assert_eq!((message.value::<(String, f64)>().unwrap(), message.numbers.len()), (("né".to_owned(), 0.1), 1));
        let error = message.value::<u32>().unwrap_err().to_string();
        assert!(error.starts_with("a message cannot be read: invalid type"), "{error}");
    }

    #[test]
    fn bytes_of_another_protocol_are_refused() {
        let error = Message::read_from(&mut &b"GET / HTTP/1.1\r\n"[..]).unwrap_err();
        assert_eq!(error.to_string(), "the other process sent something that is not a message");
        let mut bytes = Vec::new();
        Message::of("ab").write_to(&mut bytes).unwrap();
        *bytes.last_mut().unwrap() = 0xff;
        assert!(Message::read_from(&mut &bytes[..]).unwrap_err().to_string().contains("UTF-8"));
        for cut in 0..bytes.len() {
            assert!(Message::read_from(&mut &bytes[..cut]).is_err(), "{cut}");
        }
    }
}
