//! A URL to which POST requests are sent.

use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::time::Duration;

use ureq::http::{Response, Uri};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use super::certificates;

/// The maximum number of bytes that are read from a response whose content is ignored.
const READ_BYTES: u64 = 1 << 16;

/// An `http://` or `https://` URL. Requests to it use the proxy of the environment and the certificate authorities in
/// `SSL_CERT_FILE`, and do not follow redirects. It is displayed without user, password and the values of its query.
#[derive(Clone, Debug)]
pub struct Address {
    agent: Agent,
    url: String,
    shown: String,
    pub(super) timeout_s: f64,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Address {
    /// Creates an address whose requests may take `timeout_s` seconds. Returns a message if the URL or the certificate
    /// file is invalid.
    pub fn new(url: &str, timeout_s: f64) -> Result<Address, String> {
        Self::trusting(std::env::var_os(certificates::VARIABLE).as_deref(), url.to_owned(), timeout_s)
    }

    /// Like [`Address::new`], with the file of certificate authorities as an argument.
    pub(super) fn trusting(authorities: Option<&OsStr>, url: String, timeout_s: f64) -> Result<Address, String> {
        let uri = parsed(&url)?;
        let tls = match authorities.filter(|file| !file.is_empty() && uri.scheme_str() == Some("https")) {
            None => TlsConfig::default(),
            Some(file) => TlsConfig::builder().root_certs(certificates::read(file)?).build(),
        };
        let config = Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(Duration::from_secs_f64(timeout_s)))
            .http_status_as_error(false)
            // Redirects are not followed: the body must not reach another service, and a redirect may turn the POST
            // into a GET without a body.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("lockstep/", env!("CARGO_PKG_VERSION")));
        // Requests to this machine bypass the proxy.
        let here = uri.host().is_some_and(|host| host == "localhost" || host.starts_with("127.") || host == "[::1]");
        let config = if here { config.proxy(None) } else { config };
        Ok(Address { agent: config.build().new_agent(), shown: without_secrets(&url), url, timeout_s })
    }

    /// Checks that `url` is valid. The error message continues a sentence that begins with the URL.
    pub fn check(url: &str) -> Result<(), String> {
        parsed(url).map(drop)
    }

    /// Describes the secret part of a URL: a user or a password, or a query key whose name is like `token`, `key` or
    /// `password`. `None` if no part is secret.
    pub fn secret_in(url: &str) -> Option<String> {
        let (start, end) = authority(url);
        if url[start..end].contains('@') {
            return Some("a user or a password before `@`".to_owned());
        }
        let query = url.split_once('?').map_or("", |(_, query)| query).split('#').next().unwrap_or_default();
        let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_ascii_lowercase();
        let is_secret = |name: &String| {
            let (ends, parts) =
                (["key", "sig", "pwd"], ["token", "secret", "passw", "auth", "credential", "signature"]);
            ends.iter().any(|end| name.ends_with(end)) || parts.iter().any(|part| name.contains(part))
        };
        query.split(['&', ';']).map(name).find(is_secret).map(|name| format!("`{name}` in its query"))
    }

    /// The host of the address, with its port if there is one.
    pub fn host(&self) -> &str {
        let (start, end) = authority(&self.url);
        &self.url[start..end]
    }

    /// Sends a JSON body, with the header `Authorization` if given, and returns the response.
    pub fn post(&self, body: &[u8], authorization: Option<&str>) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.post(&self.url).content_type("application/json");
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        request.send(body)
    }

    /// Sends a JSON body and ignores the content of the response. An error has a message (without any content of the
    /// response), and a flag that is true if a retry may succeed.
    pub fn notify(&self, body: &[u8], authorization: Option<&str>) -> Result<(), (String, bool)> {
        let response = self.post(body, authorization);
        let mut response = response.map_err(|error| (self.explain(&error), may_pass(&error)))?;
        // The connection can be reused only after the response was read.
        let _ = std::io::copy(&mut response.body_mut().as_reader().take(READ_BYTES), &mut std::io::sink());
        if response.status().is_success() {
            return Ok(());
        }
        Err((self.status_of(&response), matches!(response.status().as_u16(), 408 | 429 | 500..)))
    }

    /// Describes the status of a response, with the target of a redirect.
    pub(super) fn status_of<T>(&self, response: &Response<T>) -> String {
        let status = response.status();
        let to = response.headers().get("location").filter(|_| status.is_redirection());
        let to = to.map(|to| without_secrets(&String::from_utf8_lossy(to.as_bytes())));
        let to = to.map_or(String::new(), |to| {
            format!(", a redirect to {to}; redirects are not followed; if that address is right, use it")
        });
        format!("{self} answered with status {status}{to}")
    }

    /// The message for a request that got no response.
    pub(super) fn explain(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(_) => format!("no answer from {self} within {} s", self.timeout_s),
            error => format!("{self}: {error}"),
        }
    }
}

fn parsed(url: &str) -> Result<Uri, String> {
    let uri = url.parse::<Uri>().ok().filter(|uri| uri.host().is_some());
    let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
    uri.ok_or_else(|| "must be a URL such as http://localhost:8000/score".to_owned())
}

/// Whether a retry may succeed after this error.
pub(super) fn may_pass(error: &ureq::Error) -> bool {
    use ureq::Error::{ConnectionFailed, HostNotFound, Io, Protocol, Timeout};
    matches!(error, Timeout(_) | Io(_) | HostNotFound | ConnectionFailed | Protocol(_))
}

/// The byte range of user, host and port in a URL.
fn authority(url: &str) -> (usize, usize) {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    (start, end)
}

/// A URL without its secret parts: user, password, and the values of the query.
pub(super) fn without_secrets(url: &str) -> String {
    let (address, query) = url.split_once('?').map_or((url, None), |(address, query)| (address, Some(query)));
    let (start, end) = authority(address);
    let host = address[start..end].rfind('@').map_or(start, |at| start + at + 1);
    let query = query.map(|query| {
        let query = query.split('#').next().unwrap_or_default();
        let named =
            query.split('&').map(|pair| pair.split_once('=').map_or("…".to_owned(), |(name, _)| format!("{name}=…")));
        format!("?{}", named.collect::<Vec<_>>().join("&"))
    });
    format!("{}{}{}", &address[..start], &address[host..], query.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_a_url_are_named_without_their_values() {
        for (url, found) in [
            ("https://a.example/b?run=1&step=2", None),
            ("https://a.example/x@y", None),
            ("https://a.example/?design=1&keys=2", None),
            ("https://me:hush@a.example/b", Some("a user or a password before `@`")),
            ("https://me@a.example?x=1", Some("a user or a password before `@`")),
            ("https://a.example?x=1&Api_Key=hush#f", Some("`api_key` in its query")),
            ("https://a.example/?access_token=hush", Some("`access_token` in its query")),
            ("https://a.example/?a;password=hush", Some("`password` in its query")),
        ] {
            assert_eq!(Address::secret_in(url).as_deref(), found, "{url}");
            assert!(!without_secrets(url).contains("hush"), "{}", without_secrets(url));
        }
    }

    #[test]
    fn a_url_must_have_a_host_and_an_http_scheme() {
        for (url, host) in [("http://a.example:8/b?c", "a.example:8"), ("https://[::1]", "[::1]")] {
            assert_eq!(Address::new(url, 1.0).unwrap().host(), host);
        }
        for url in ["", "a", "http:", "http:///b", "ftp://a.example/", "http://a b/"] {
            assert_eq!(Address::check(url), Err("must be a URL such as http://localhost:8000/score".to_owned()));
        }
    }
}
