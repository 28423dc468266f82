//! Access control: requests from pages of other sites are refused, and requests from other machines need a token.

use axum::http::{HeaderMap, StatusCode, header};
use lockstep::access::{Hosts, Secret};
use std::net::IpAddr;

/// The name of the cookie that holds the token.
const COOKIE: &str = "lockstep";
/// A header that pages of other sites could send only after a CORS preflight, which this server never grants.
const OURS: &str = "x-lockstep";
/// The Content-Security-Policy of the page: nothing from other sites, no markup from strings, no frames
/// (docs/dashboard.md).
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; \
     img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types vendor";

/// The requirements for a request.
#[derive(Clone, Debug)]
pub struct Guard {
    hosts: Hosts,
    /// The token that requests must contain, if other machines can reach the server.
    token: Option<Secret>,
}

impl Guard {
    /// The guard of a server at this address. If other machines can reach the address, a token is created and returned,
    /// to be shown once.
    pub fn new(host: &str, address: IpAddr, port: u16) -> std::io::Result<(Guard, Option<String>)> {
        let token = if address.is_loopback() { None } else { Some(Secret::random_text()?) };
        let secret = token.as_deref().map(Secret::new);
        Ok((Guard { hosts: Hosts::new(host, address, port), token: secret }, token))
    }

    /// Allows these values of `Host`, too: `NAME:PORT`, or `NAME` for port 80.
    pub fn allow(&mut self, hosts: &[String]) {
        self.hosts.allow(hosts);
    }

    /// The message for a browser whose request was refused with status 421 because of its `Host`.
    pub fn misdirected(&self, headers: &HeaderMap) -> String {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("no host");
        format!(
            "This page is served on port {port} of its machine, but the browser requested {host}. Other sites could \
             read a page that answers to any host name. If you forward a port, keep its number \
             (ssh -L {port}:localhost:{port} MACHINE), or start the page with: \
             lockstep dashboard --allow-host {host}\n",
            port = self.hosts.port()
        )
    }

    /// Refuses a request with a status: 421 for a foreign host name (DNS rebinding by another site), 401 without the
    /// token.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), StatusCode> {
        let host =
            headers.get(header::HOST).and_then(|host| host.to_str().ok()).ok_or(StatusCode::MISDIRECTED_REQUEST)?;
        if !self.hosts.accept(host) {
            return Err(StatusCode::MISDIRECTED_REQUEST);
        }
        let Some(token) = self.token else { return Ok(()) };
        let given = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let given = given.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let mut tokens = given.filter(|(name, _)| *name == COOKIE).map(|(_, token)| token).chain(bearer);
        if tokens.any(|given| token.is(given)) { Ok(()) } else { Err(StatusCode::UNAUTHORIZED) }
    }

    /// Whether a request that changes something comes from the page itself. Call it only for requests that
    /// [`check`](Self::check) accepted.
    pub fn may_change(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
        headers.contains_key(OURS) && origin.is_none_or(|origin| origin == format!("http://{host}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &str, cookie: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(cookie) = cookie {
            headers.insert(header::COOKIE, cookie.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_forwarded_port_is_refused_with_advice_and_can_be_allowed() {
        let (mut guard, _) = Guard::new("127.0.0.1", "127.0.0.1".parse().unwrap(), 7860).unwrap();
        let forwarded = headers("localhost:8888", None);
        assert_eq!(guard.check(&forwarded), Err(StatusCode::MISDIRECTED_REQUEST));
        let why = guard.misdirected(&forwarded);
        assert!(why.contains("ssh -L 7860:localhost:7860") && why.contains("--allow-host localhost:8888"), "{why}");
        guard.allow(&["localhost:8888".to_owned(), "box.example:80".to_owned()]);
        for host in ["localhost:8888", "box.example", "box.example:80", "localhost:7860"] {
            assert_eq!(guard.check(&headers(host, None)), Ok(()), "{host}");
        }
        for host in ["localhost:8889", "evil.example:8888", "box.example:8888"] {
            assert_eq!(guard.check(&headers(host, None)), Err(StatusCode::MISDIRECTED_REQUEST), "{host}");
        }
        let (mut remote, token) = Guard::new("0.0.0.0", "0.0.0.0".parse().unwrap(), 7860).unwrap();
        remote.allow(&["box.example:8888".to_owned()]);
        assert_eq!(remote.check(&headers("box.example:8888", None)), Err(StatusCode::UNAUTHORIZED));
        let cookie = format!("{COOKIE}={}", token.unwrap());
        assert_eq!(remote.check(&headers("box.example:8888", Some(&cookie))), Ok(()));
    }

    #[test]
    fn foreign_hosts_are_refused_and_other_machines_need_a_token() {
        let (local, none) = Guard::new("127.0.0.1", "127.0.0.1".parse().unwrap(), 7860).unwrap();
        assert!(none.is_none() && local.token.is_none());
        for host in ["localhost:7860", "127.0.0.1:7860", "[::1]:7860"] {
            assert_eq!(local.check(&headers(host, None)), Ok(()));
        }
        for host in ["evil.example:7860", "localhost", "localhost:1", "127.0.0.1.evil.example:7860", ""] {
            assert_eq!(local.check(&headers(host, None)), Err(StatusCode::MISDIRECTED_REQUEST), "{host}");
        }
        assert_eq!(local.check(&HeaderMap::new()), Err(StatusCode::MISDIRECTED_REQUEST));

        let (open, token) = Guard::new("0.0.0.0", "0.0.0.0".parse().unwrap(), 7860).unwrap();
        let token = token.unwrap();
        assert_eq!(token.len(), 64);
        let cookie = |token: &str| format!("a=b; lockstep={token}");
        assert_eq!(open.check(&headers("box:7860", Some(&cookie(&token)))), Ok(()));
        for wrong in [None, Some(cookie("0")), Some(cookie(&token[1..])), Some(format!("x={token}"))] {
            assert_eq!(open.check(&headers("box:7860", wrong.as_deref())), Err(StatusCode::UNAUTHORIZED));
        }
    }

    #[test]
    fn only_the_page_may_change_something_and_bearer_tokens_are_accepted() {
        let (local, _) = Guard::new("127.0.0.1", "127.0.0.1".parse().unwrap(), 7860).unwrap();
        let may = |ours: bool, origin: Option<&str>| {
            let mut headers = headers("localhost:7860", None);
            ours.then(|| headers.insert(OURS, "1".parse().unwrap()));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            local.may_change(&headers)
        };
        assert!(may(true, None) && may(true, Some("http://localhost:7860")));
        assert!(!may(false, None) && !may(false, Some("http://localhost:7860")));
        for other in ["http://localhost:7861", "https://localhost:7860", "http://evil.example", "null", ""] {
            assert!(!may(true, Some(other)), "{other}");
        }
        // A server at a specific address accepts that address and the loopback names, with the token.
        let (named, token) = Guard::new("10.0.0.5", "10.0.0.5".parse().unwrap(), 80).unwrap();
        let token = token.unwrap();
        let bearer = |host: &str, token: &str| {
            let mut headers = headers(host, None);
            headers.insert(header::AUTHORIZATION, token.parse().unwrap());
            named.check(&headers)
        };
        for host in ["10.0.0.5", "10.0.0.5:80", "localhost"] {
            assert_eq!(bearer(host, &format!("Bearer {token}")), Ok(()), "{host}");
            assert_eq!(bearer(host, &token), Err(StatusCode::UNAUTHORIZED));
        }
        for host in ["box", "10.0.0.6", "10.0.0.5:81", "10.0.0.5:99999999"] {
            assert_eq!(bearer(host, &format!("Bearer {token}")), Err(StatusCode::MISDIRECTED_REQUEST), "{host}");
        }
        let two = Guard::new("a", "0.0.0.0".parse().unwrap(), 1).unwrap().1.unwrap();
        assert!(two != token && two.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
