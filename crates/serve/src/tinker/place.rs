//! The place of a request in its model's queue, from a body that is refused, too large or damaged.
//!
//! A client continues with the next number after a refusal, so that the refused request uses up its own. The place is
//! read from the beginning of the body, where the client writes it, whatever follows.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// The fields of `ForwardBackwardRequest` that are read.
const MODEL_ID: u32 = 1;
const SEQ_ID: u32 = 2;
const FORWARD_ONLY: u32 = 6;

/// A place in the queue of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub model: String,
    pub number: u64,
    /// Whether the request may have data for the next step.
    pub is_data: bool,
}

/// The place of a pass, from a protobuf message.
pub fn from_message(mut bytes: &[u8]) -> Option<Place> {
    let (mut model, mut number, mut is_data) = (None, None, true);
    while !bytes.is_empty() {
        let Ok((field, kind)) = decode_key(&mut bytes) else { break };
        match (field, kind) {
            (MODEL_ID, WireType::LengthDelimited) => {
                let Some(length) = decode_varint(&mut bytes).ok().and_then(|length| usize::try_from(length).ok())
                else {
                    break;
                };
                let Some((text, rest)) = bytes.split_at_checked(length) else { break };
                model = String::from_utf8(text.to_vec()).ok().or(model);
                bytes = rest;
            }
            (SEQ_ID | FORWARD_ONLY, WireType::Varint) => {
                let Ok(value) = decode_varint(&mut bytes) else { break };
                match field {
                    SEQ_ID => number = Some(value),
                    _ => is_data = value == 0,
                }
            }
            _ if skip_field(kind, field, &mut bytes, DecodeContext::default()).is_err() => break,
            _ => {}
        }
    }
    Some(Place { model: model?, number: number?, is_data })
}

/// The place of another request, from a JSON object.
pub fn from_json(bytes: &[u8]) -> Option<Place> {
    let (mut model, mut number) = (None, None);
    // The end of the object may be damaged or missing.
    let _ = serde_json::Deserializer::from_slice(bytes).deserialize_map(Fields(&mut model, &mut number));
    Some(Place { model: model?, number: number?, is_data: false })
}

/// Reads two fields of an object, also if an error follows them.
struct Fields<'a>(&'a mut Option<String>, &'a mut Option<u64>);

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "model_id" => *self.0 = Some(map.next_value()?),
                "seq_id" => *self.1 = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::{Datum, ForwardBackwardRequest};
    use super::super::read;
    use super::*;
    use proptest::prelude::*;
    use prost::Message;

    fn request(forward_only: bool) -> ForwardBackwardRequest {
        ForwardBackwardRequest {
            model_id: "s:train:0".to_owned(),
            seq_id: 300,
            data: vec![Datum::default(); 5],
            loss_fn: "cross_entropy".to_owned(),
            forward_only,
            ..ForwardBackwardRequest::default()
        }
    }

    fn place(is_data: bool) -> Option<Place> {
        Some(Place { model: "s:train:0".to_owned(), number: 300, is_data })
    }

    #[test]
    fn a_place_is_read_from_the_beginning_of_a_body() {
        let whole = request(true).encode_to_vec();
        assert_eq!(from_message(&whole), place(false));
        assert_eq!(from_message(&request(false).encode_to_vec()), place(true));
        assert!(read::pass(&whole[..19]).is_err());
        // It may have data, since its end is unknown.
        assert_eq!(from_message(&whole[..19]), place(true));
        assert_eq!((from_message(&whole[..5]), from_message(b"{}"), from_message(&[])), (None, None, None));
        let json = br#"{"model_id": "s:train:0", "path": {"a": [1, {}]}, "seq_id": 300, "x": "#;
        assert_eq!(from_json(json), place(false));
        for other in
            [&b"[]"[..], b"", b"{\"model_id\": \"a\"}", b"{\"seq_id\": 1}", b"{\"model_id\": 1, \"seq_id\": 2}"]
        {
            assert_eq!(from_json(other), None);
        }
    }

    proptest! {
        /// The end of a body may be anything.
        #[test]
        fn any_end_is_accepted(end in prop::collection::vec(any::<u8>(), 0..60)) {
            let start = request(false).encode_to_vec();
            let found = from_message(&[&start[..14], &end].concat());
            prop_assert!(found.is_some());
            from_json(&end);
        }
    }
}
