//! Tests with services whose certificates come from a private authority.

use super::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// These files were created by `openssl req -x509` and `openssl x509 -req`, and are valid for a hundred years. The
/// private key of the authority was deleted.
const AUTHORITY: &str = include_str!("tls/ca.pem");
const ANOTHER: &str = include_str!("tls/another.pem");
const CERTIFICATE: &str = include_str!("tls/server.pem");
const KEY: &str = include_str!("tls/server.key");

/// A service on `localhost` that gives one completion the score 7.
fn service() -> u16 {
    let chain = vec![CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream.unwrap());
            // A client that does not trust the certificate closes the connection.
            if read_request(&mut stream).is_ok() {
                let answer = "{\"rewards\": [7]}";
                let head = format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
                let _ = stream.write_all((head + answer).as_bytes());
            }
        }
    });
    port
}

/// A name, the file's content, the host, and the score or a part of the message.
type Row<'a> = (&'a str, Option<Vec<u8>>, &'a str, std::result::Result<f64, &'a str>);

#[test]
fn a_certificate_is_trusted_if_ssl_cert_file_has_its_authority() {
    let port = service();
    let dir = tempfile::tempdir().unwrap();
    let text = |text: &str| Some(text.as_bytes().to_vec());
    let both = format!("{ANOTHER}{AUTHORITY}");
    let noted = format!("# The cluster's own authority\r\nSubject: x\r\n{}\r\n", AUTHORITY.replace('\n', "\r\n"));
    let cut = &AUTHORITY[..AUTHORITY.len() / 2];
    let rows: [Row<'_>; 16] = [
        ("the authority", text(AUTHORITY), "localhost", Ok(7.0)),
        ("by address", text(AUTHORITY), "127.0.0.1", Ok(7.0)),
        ("two authorities", text(&both), "localhost", Ok(7.0)),
        ("with notes", text(&noted), "localhost", Ok(7.0)),
        ("the certificate twice", text(&format!("{AUTHORITY}{AUTHORITY}")), "localhost", Ok(7.0)),
        ("with a key", text(&format!("{KEY}{AUTHORITY}")), "localhost", Ok(7.0)),
        ("another authority", text(ANOTHER), "localhost", Err("UnknownIssuer")),
        ("the service's own certificate", text(&format!("{ANOTHER}{CERTIFICATE}")), "localhost", Err("UnknownIssuer")),
        ("nothing", text(""), "localhost", Err("no certificate")),
        ("a key alone", text(KEY), "localhost", Err("no certificate")),
        ("a text", text("authority"), "localhost", Err("no certificate")),
        ("cut", text(cut), "localhost", Err("SSL_CERT_FILE")),
        ("bytes", Some(vec![0, 159, 146, 150]), "localhost", Err("no certificate")),
        ("no file", None, "localhost", Err("No such file")),
        ("the built-in ones", text("unset"), "localhost", Err("UnknownIssuer")),
        ("an empty name", text("empty"), "localhost", Err("UnknownIssuer")),
    ];
    let mut wrong = Vec::new();
    for (case, content, host, expected) in rows {
        let path = dir.path().join(case);
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let file = match case {
            "the built-in ones" => None,
            "an empty name" => Some(OsStr::new("")),
            _ => Some(path.as_os_str()),
        };
        let table = json!({"url": format!("https://{host}:{port}/score"), "retries": 0});
        let result = match HttpReward::trusting(file, "service".into(), serde_json::from_value(table).unwrap()) {
            Err(error) => Err(error.to_string()),
            Ok(mut reward) => {
                let scores = ask(&mut reward, &["a"]);
                scores.values[0].ok_or_else(|| scores.problems[0].to_string())
            }
        };
        let is_right = match (&result, &expected) {
            (Ok(score), Ok(right)) => score == right,
            (Err(message), Err(part)) => message.contains(part),
            _ => false,
        };
        if !is_right {
            wrong.push(format!("{case}: expected {expected:?}, got {result:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
