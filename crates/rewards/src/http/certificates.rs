//! Reads private certificate authorities, such as those of a cluster or a company, from `SSL_CERT_FILE`, the variable
//! that OpenSSL uses.

use std::ffi::OsStr;
use std::path::Path;
use ureq::tls::{PemItem, RootCerts, parse_pem};

/// The environment variable that names the file.
pub(super) const VARIABLE: &str = "SSL_CERT_FILE";

/// The certificate authorities in a PEM file, which replace the built-in authorities.
pub(super) fn read(file: &OsStr) -> Result<RootCerts, String> {
    let path = Path::new(file);
    let wrong = |why: &str| format!("environment variable {VARIABLE} = {}: {why}", path.display());
    let bytes = std::fs::read(path).map_err(|error| wrong(&error.to_string()))?;
    let mut found = Vec::new();
    for item in parse_pem(&bytes) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            // A private key in the file is skipped.
            Ok(_) => {}
            Err(error) => return Err(wrong(&error.to_string())),
        }
    }
    if found.is_empty() {
        return Err(wrong("the file has no certificate (-----BEGIN CERTIFICATE-----)"));
    }
    Ok(found.into())
}
