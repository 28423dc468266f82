//! Access to an HTTP server of this project: the host names that it answers to, and its secret. Knows no HTTP library.

use sha2::{Digest, Sha256};
use std::io::Read;
use std::net::IpAddr;

/// The values of `Host` that a server answers to. A page of another site may point its own name at this machine (DNS
/// rebinding), and could read the answers of a server that answers to any name.
#[derive(Clone, Debug)]
pub struct Hosts {
    port: u16,
    /// A host name that is allowed in addition to the names of this machine.
    own: Option<String>,
    /// Further names and ports that are allowed, such as those of a forwarded port.
    also: Vec<(String, u16)>,
    /// Whether any name is allowed. A server that listens on all addresses does not know its names.
    any: bool,
}

impl Hosts {
    /// The names of a server that listens on `address`, which the user gave as `host`.
    pub fn new(host: &str, address: IpAddr, port: u16) -> Hosts {
        let is_named = !address.is_loopback() && !address.is_unspecified();
        Hosts { port, own: is_named.then(|| host.to_owned()), also: Vec::new(), any: address.is_unspecified() }
    }

    /// Allows these values, too: `NAME:PORT`, or `NAME` for port 80.
    pub fn allow(&mut self, hosts: &[String]) {
        let parts = hosts.iter().map(|host| name_and_port(host));
        self.also.extend(parts.map(|(name, port)| (name.to_owned(), port)));
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether a request with this value of `Host` is for this server.
    pub fn accept(&self, host: &str) -> bool {
        let (name, port) = name_and_port(host);
        let is_own = ["localhost", "127.0.0.1", "[::1]"].contains(&name) || self.own.as_deref() == Some(name);
        self.also.iter().any(|also| (also.0.as_str(), also.1) == (name, port))
            || port == self.port && (is_own || self.any)
    }
}

/// Name and port in a value of `Host`; the port is 80 if missing.
fn name_and_port(host: &str) -> (&str, u16) {
    match host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|c| c.is_ascii_digit())) {
        Some((name, port)) => (name, port.parse().unwrap_or(0)),
        None => (host, 80),
    }
}

/// A secret that clients must send. Only hashes are kept and compared, so that timing reveals nothing about it.
#[derive(Clone, Copy, Debug)]
pub struct Secret([u8; 32]);

impl Secret {
    /// The secret with this text.
    pub fn new(text: &str) -> Secret {
        Secret(Sha256::digest(text.as_bytes()).into())
    }

    /// The text of a new secret: 32 random bytes of the operating system, in hexadecimal.
    pub fn random_text() -> std::io::Result<String> {
        let mut bytes = [0; 32];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether `text` is the secret.
    pub fn is(&self, text: &str) -> bool {
        Secret::new(text).0 == self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_answers_to_its_own_names_and_port() {
        let of = |host: &str, port| Hosts::new(host, host.parse().unwrap(), port);
        let local = of("127.0.0.1", 8000);
        for host in ["localhost:8000", "127.0.0.1:8000", "[::1]:8000"] {
            assert!(local.accept(host), "{host}");
        }
        for host in ["evil.example:8000", "localhost", "localhost:1", "127.0.0.1.evil.example:8000", "", "[::2]:8000"] {
            assert!(!local.accept(host), "{host}");
        }
        assert!(of("0.0.0.0", 8000).accept("box:8000") && !of("0.0.0.0", 8000).accept("box:8001"));
        let named = of("10.0.0.5", 80);
        assert!(named.accept("10.0.0.5") && named.accept("localhost") && !named.accept("box"));
        let mut forwarded = local;
        forwarded.allow(&["localhost:8888".to_owned(), "box.example".to_owned()]);
        assert!(forwarded.accept("localhost:8888") && forwarded.accept("box.example:80"));
        assert!(!forwarded.accept("box.example:8888") && !forwarded.accept("localhost:8889"));
    }

    #[test]
    fn a_secret_equals_only_its_own_text() {
        let [one, two] = [(); 2].map(|()| Secret::random_text().unwrap());
        assert!(one != two && one.len() == 64 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let secret = Secret::new(&one);
        assert!(secret.is(&one) && !secret.is(&two) && !secret.is(&one[1..]) && !secret.is(""));
    }
}
