//! Compressed bodies: clients on other machines send data for training with zstd.

use super::TinkerError;
use axum::http::{HeaderMap, StatusCode, header};
use ruzstd::decoding::StreamingDecoder;
use std::borrow::Cow;
use std::io::Read;

/// The maximum size of a body in bytes, also after decompression: data of a whole step.
pub const MOST_TRAINING_BODY: usize = 64 << 20;
/// The number of bytes at the beginning of a body that are kept, decompressed, if the body is too large.
const START: usize = 256 << 10;
/// The same of a compressed body. The decoder keeps back the last bytes of an incomplete body, up to zstd's window,
/// which has at most 8 MiB in the usual levels, and data may be incompressible.
const ENCODED_START: usize = 16 << 20;

/// The decompressed body.
pub fn unpack<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<Cow<'a, [u8]>, TinkerError> {
    match encoding(headers) {
        None => Ok(Cow::Borrowed(body)),
        Some("zstd") => {
            let mut out = Vec::new();
            let damaged = |error: &dyn std::fmt::Display| TinkerError::bad(format!("the body is not zstd: {error}"));
            let decoder = StreamingDecoder::new(body).map_err(|error| damaged(&error))?;
            decoder.take(MOST_TRAINING_BODY as u64 + 1).read_to_end(&mut out).map_err(|error| damaged(&error))?;
            if out.len() > MOST_TRAINING_BODY {
                let most = MOST_TRAINING_BODY >> 20;
                let detail = format!("the decompressed body has more than {most} MiB: send less in a request");
                return Err(TinkerError { status: StatusCode::PAYLOAD_TOO_LARGE, detail });
            }
            Ok(Cow::Owned(out))
        }
        Some(other) => {
            let detail = format!("Content-Encoding: {other} is not supported: send zstd, or no compression");
            Err(TinkerError { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, detail })
        }
    }
}

/// The number of bytes at the beginning of a body that are kept if the body is too large.
pub fn kept(headers: &HeaderMap) -> usize {
    if encoding(headers).is_some() { ENCODED_START } else { START }
}

/// The beginning of the decompressed body, as far as it is valid. `start` is the beginning of the body.
pub fn start<'a>(headers: &HeaderMap, start: &'a [u8]) -> Cow<'a, [u8]> {
    if encoding(headers) != Some("zstd") {
        return Cow::Borrowed(start);
    }
    let mut out = Vec::new();
    if let Ok(decoder) = StreamingDecoder::new(start) {
        // Bytes before an error are kept.
        let _ = decoder.take(START as u64).read_to_end(&mut out);
    }
    Cow::Owned(out)
}

fn encoding(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?")).filter(|name| *name != "identity")
}
