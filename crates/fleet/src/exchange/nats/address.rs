//! The address of a NATS server and of a run on it: `nats://HOST:PORT/NAME`.

use crate::error::{Error, Result};
use crate::job::WorkerName;
use std::fmt;

/// The address of a NATS server, with the name of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    scheme: &'static str,
    host: String,
    port: u16,
    name: String,
}

impl Address {
    /// Parses `nats://HOST:PORT/NAME` or `tls://HOST:PORT/NAME`. The port defaults to 4222 and the name to `run`.
    pub fn parse(text: &str) -> Result<Address> {
        let bad = |why: &str| Error::Refused(format!("{text:?} is not the address of a NATS server: {why}"));
        let (scheme, rest) = match text.split_once("://") {
            Some(("nats", rest)) => ("nats", rest),
            Some(("tls", rest)) => ("tls", rest),
            _ => {
                return Err(bad(
                    "expected nats://HOST:PORT or tls://HOST:PORT, and /NAME if the server has several runs",
                ));
            }
        };
        let (place, name) = rest.trim_end_matches('/').split_once('/').unwrap_or((rest.trim_end_matches('/'), "run"));
        if place.contains('@') {
            return Err(bad(
                "`ps` would show a secret in the address; pass it with --nats-token-file or LOCKSTEP_NATS_TOKEN",
            ));
        }
        WorkerName::new(name).map_err(|_| bad("the run's name must have 1 to 64 letters, digits, - and _"))?;
        // The colons of an IPv6 address are in brackets.
        let (host, port) = match place.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| bad("the port must be a number from 1 to 65535"))?),
            None => (place, 4222),
        };
        if host.is_empty() {
            return Err(bad("the host is missing"));
        }
        Ok(Address { scheme, host: host.to_owned(), port, name: name.to_owned() })
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.scheme == "tls"
    }

    /// The server as `HOST:PORT`.
    pub fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The name of the run.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of the server, without the run.
    pub(super) fn server(&self) -> String {
        format!("{}://{}", self.scheme, self.place())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server(), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn an_address_gets_a_default_port_and_name() {
        let of = |text: &str| Address::parse(text).unwrap().to_string();
        assert_eq!(of("nats://10.0.0.5"), "nats://10.0.0.5:4222/run");
        assert_eq!(of("nats://node-1:4333/a_b/"), "nats://node-1:4333/a_b");
        assert_eq!(of("tls://[::1]"), "tls://[::1]:4222/run");
        assert_eq!(of("tls://[::1]:4333/x"), "tls://[::1]:4333/x");
        for bad in ["", "runs/a", "http://a", "nats://", "nats://:4222", "nats://a:x", "nats://t@a", "nats://a/b/c"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
        assert!(Address::parse("nats://t@a").unwrap_err().to_string().contains("--nats-token-file"));
    }

    #[test]
    fn an_address_is_parsed_and_each_fault_has_its_message() {
        let address = Address::parse("tls://node:65535/x").unwrap();
        assert_eq!((address.is_tls(), address.name(), address.place()), (true, "x", "node:65535".to_owned()));
        assert_eq!(address.server(), "tls://node:65535");
        assert!(!Address::parse("nats://node").unwrap().is_tls());
        for (bad, why) in [
            ("nats:/a", "expected nats://HOST:PORT or tls://HOST:PORT, and /NAME if the server has several runs"),
            ("nats://", "the host is missing"),
            ("nats://:1", "the host is missing"),
            ("nats://a:65536", "the port must be a number from 1 to 65535"),
            ("nats://a/b c", "the run's name must have 1 to 64 letters, digits, - and _"),
            (
                "nats://a@b",
                "`ps` would show a secret in the address; pass it with --nats-token-file or LOCKSTEP_NATS_TOKEN",
            ),
        ] {
            let error = Address::parse(bad).unwrap_err().to_string();
            assert_eq!(error, format!("{bad:?} is not the address of a NATS server: {why}"));
        }
    }
}
