//! TLS: whom we trust, and who we are. The files are read at each connect, so that renewed ones count.
//!
//! The client library would trust the system's certificates besides those of `broker.ca-file`; with
//! this nobody else's word is taken for the broker's.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::error::{AmqpError, TlsTrouble, clean};
use super::options::TlsOptions;

/// Reads the files and makes of them what a connection is set up with.
///
/// # Errors
/// [`AmqpError::Tls`] when a file cannot be read or does not hold what it is for.
pub(super) fn client_config(options: &TlsOptions) -> Result<Arc<ClientConfig>, AmqpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error.to_string()))?
        .with_root_certificates(trust(options.ca_file.as_deref())?);
    let config = match (&options.cert_file, &options.key_file) {
        (Some(cert), Some(key)) => {
            let secret = PrivateKeyDer::from_pem_slice(&read(key)?)
                .map_err(|error| wrong(&format!("{} holds no key: {error}", key.display())))?;
            config
                .with_client_auth_cert(certificates(cert)?, secret)
                .map_err(|error| {
                    let (cert, key) = (cert.display(), key.display());
                    wrong(&format!("{cert} and {key} do not go together: {error}"))
                })?
        }
        _ => config.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

fn trust(ca_file: Option<&Path>) -> Result<RootCertStore, AmqpError> {
    // One that cannot be read is one that is not trusted.
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(file) => {
            let (added, _) = roots.add_parsable_certificates(certificates(file)?);
            if added == 0 {
                let text = format!("no certificate of {} can be read", file.display());
                return Err(wrong(&text));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, AmqpError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file)?).collect();
    match found {
        Ok(found) if found.is_empty() => {
            Err(wrong(&format!("{} holds no certificate", file.display())))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(&format!("{} is not PEM: {error}", file.display()))),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, AmqpError> {
    std::fs::read(file).map_err(|error| wrong(&format!("cannot read {}: {error}", file.display())))
}

fn wrong(text: &str) -> AmqpError {
    AmqpError::Tls(TlsTrouble::Other(clean(text)))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// What is said of files with this content: the authority's, ours, its key.
    fn said(ca: &str, own: Option<(&str, &str)>) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| -> PathBuf {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        let mut options = TlsOptions {
            ca_file: Some(write("ca.pem", ca)),
            ..TlsOptions::default()
        };
        if let Some((cert, key)) = own {
            options.cert_file = Some(write("cert.pem", cert));
            options.key_file = Some(write("key.pem", key));
        }
        match client_config(&options) {
            Ok(_) => "fine".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn files_that_do_not_hold_what_they_are_for_are_named() {
        let signed = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("one");
        let (ours, other) = (signed(), signed());
        let (cert, key) = (ours.cert.pem(), ours.signing_key.serialize_pem());
        let other_key = other.signing_key.serialize_pem();
        assert_eq!(said(&cert, None), "fine");
        assert_eq!(said(&cert, Some((&cert, &key))), "fine");
        let checks = [
            (said("", None), "ca.pem holds no certificate"),
            (said("text", None), "ca.pem holds no certificate"),
            (said(&key, None), "ca.pem holds no certificate"),
            (
                said(&cert, Some((&key, &key))),
                "cert.pem holds no certificate",
            ),
            (said(&cert, Some((&cert, &cert))), "key.pem holds no key"),
            (said(&cert, Some((&cert, &other_key))), "do not go together"),
        ];
        for (said, part) in checks {
            assert!(said.contains(part), "{said:?} has no {part:?}");
        }
        let options = TlsOptions {
            ca_file: Some("/nowhere/ca.pem".into()),
            ..TlsOptions::default()
        };
        let error = client_config(&options).expect_err("no file").to_string();
        assert!(error.contains("cannot read /nowhere/ca.pem"), "{error}");
    }
}
