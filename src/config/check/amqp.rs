//! The keys of a RabbitMQ: whether they fit together, and whether it is one at all.

use std::path::PathBuf;

use super::{Check, show};
use crate::config::error::Severity;
use crate::config::lookup;
use crate::config::plan::Base;
use crate::config::raw::{OnConsumerTimeout, Partitioning};
use crate::config::raw_broker::{BrokerUrl, RawBroker};
use crate::transport::amqp::AmqpUri;

impl Check<'_> {
    pub(super) fn broker(&mut self) {
        if self.wrong.contains("broker.url") {
            return;
        }
        let raw = self.raw;
        match &raw.broker.url {
            BrokerUrl::Memory | BrokerUrl::Embedded(_) => self.is_not_amqp(),
            BrokerUrl::Amqp(uris) => {
                self.is_amqp();
                // All but host and port is the same in each of them.
                if let Some(uri) = uris.first() {
                    self.login(uri);
                    self.tls(uri);
                    self.twice(uri);
                }
                let by_certificate = uris.first().and_then(|uri| uri.external);
                self.management(by_certificate == Some(true));
            }
        }
    }

    /// Keys of the embedded broker, what it alone can do, and what must be chosen without it.
    fn is_amqp(&mut self) {
        let raw = self.raw;
        let (broker, default) = (&raw.broker, RawBroker::default());
        for (key, is_changed) in [
            ("sync", broker.sync != default.sync),
            ("lease", broker.lease != default.lease),
        ] {
            if is_changed {
                let reason = "has no effect with RabbitMQ: it is for the embedded broker";
                self.warn(&format!("broker.{key}"), &["broker.url"], reason);
            }
        }
        for number in 0..raw.feed.len() {
            let reason = "a feed needs the embedded broker, whose store keeps how far the file was \
                          read; remove the [[feed]]";
            self.unfit(&format!("feed[{number}].file"), reason);
        }
        for (number, consumer) in raw.consumer.iter().enumerate() {
            let key = |key: &str| format!("consumer[{number}].{key}");
            if consumer.dead_letter_queue.is_none() && consumer.on_exhausted.is_none() {
                let reason = "missing: with RabbitMQ, say what becomes of a message that is \
                              rejected or used up its attempts; write dead-letter-queue = \
                              \"<queue>\" to keep it with its reason, on-exhausted = \"broker\" to \
                              reject it (the queue's own dead-letter exchange gets it, if it has \
                              one; else it is gone), or on-exhausted = \"drop\"";
                let keys = [key("on-exhausted"), key("dead-letter-queue")];
                self.add(Severity::Error, &keys, reason.to_owned());
            }
        }
    }

    /// Keys of a RabbitMQ.
    fn is_not_amqp(&mut self) {
        let raw = self.raw;
        let (broker, default) = (&raw.broker, RawBroker::default());
        let mut changed = Vec::new();
        for (key, is_changed) in [
            ("user", broker.user.is_some()),
            ("password-file", broker.password_file.is_some()),
            ("connection-name", broker.connection_name.is_some()),
            ("heartbeat", broker.heartbeat != default.heartbeat),
            (
                "connect-timeout",
                broker.connect_timeout != default.connect_timeout,
            ),
            (
                "first-connect-tries",
                broker.first_connect_tries != default.first_connect_tries,
            ),
            ("declare", broker.declare),
            ("queue-type", broker.queue_type != default.queue_type),
            ("ca-file", broker.ca_file.is_some()),
            ("cert-file", broker.cert_file.is_some()),
            ("key-file", broker.key_file.is_some()),
            ("external", broker.external),
            ("management", broker.management.is_some()),
            ("management-user", broker.management_user.is_some()),
            (
                "management-password-file",
                broker.management_password_file.is_some(),
            ),
            (
                "publish-window",
                broker.publish_window != default.publish_window,
            ),
            ("linger", broker.linger != default.linger),
            ("consumer-timeout", broker.consumer_timeout.is_some()),
        ] {
            if is_changed {
                changed.push(format!("broker.{key}"));
            }
        }
        for (number, consumer) in raw.consumer.iter().enumerate() {
            for (key, is_changed) in [
                ("on-exhausted", consumer.on_exhausted.is_some()),
                ("priority", consumer.priority.is_some()),
                (
                    "on-consumer-timeout",
                    consumer.on_consumer_timeout != OnConsumerTimeout::Keep,
                ),
                (
                    "consume-arguments",
                    !consumer.consume_arguments.0.is_empty(),
                ),
                (
                    "partitioning",
                    consumer.partitioning != Partitioning::Direct,
                ),
                (
                    "single-active-consumer",
                    consumer.single_active_consumer.is_some(),
                ),
            ] {
                if is_changed {
                    changed.push(format!("consumer[{number}].{key}"));
                }
            }
        }
        for key in changed {
            let reason = "has no effect with this broker.url: it is for RabbitMQ (amqp:, amqps:)";
            self.warn(&key, &["broker.url"], reason);
        }
    }

    /// Who we are must be said once, and whole.
    fn login(&mut self, uri: &AmqpUri) {
        let broker = &self.raw.broker;
        let (user, file) = ("broker.user", "broker.password-file");
        let is_external = broker.external || uri.external == Some(true);
        let is_without = uri.has_user && uri.password.reveal().is_empty();
        match (&broker.user, &broker.password_file) {
            (None, None) if is_without && !is_external => {
                let reason = "names a user without a password, and RabbitMQ's own users need one; \
                              write \"amqp://user:password@host\", or leave the user out of it and \
                              set user and password-file";
                self.warn("broker.url", &[], reason);
            }
            (None, None) => {}
            (first, _) if uri.has_user => {
                let key = if first.is_some() { user } else { file };
                let reason = "broker.url names a user too; name user and password in one of the \
                              two places";
                self.unfit(key, reason);
            }
            (_, Some(_)) if is_external => {
                let reason = "has no effect where a certificate logs in (external)";
                self.warn(file, &["broker.external"], reason);
            }
            (Some(_), None) if !is_external && !self.wrong.contains(file) => {
                let reason = "has no password; add password-file, the path of a file that holds it";
                self.unfit(user, reason);
            }
            (None, Some(_)) if !self.wrong.contains(user) => {
                self.unfit(file, "has no user; add user");
            }
            _ => {}
        }
    }

    fn tls(&mut self, uri: &AmqpUri) {
        let broker = &self.raw.broker;
        let (cert, key) = ("broker.cert-file", "broker.key-file");
        let files: [(&str, &Option<PathBuf>); 3] = [
            ("broker.ca-file", &broker.ca_file),
            (cert, &broker.cert_file),
            (key, &broker.key_file),
        ];
        if !uri.tls {
            for (name, _) in files.iter().filter(|(_, file)| file.is_some()) {
                let reason = "broker.url is amqp:, which is not encrypted; write amqps:";
                self.unfit(name, reason);
            }
        }
        if broker.cert_file.is_some() && broker.key_file.is_none() {
            self.needs(cert, key, "needs key-file, the certificate's key");
        }
        if broker.key_file.is_some() && broker.cert_file.is_none() {
            self.needs(key, cert, "needs cert-file, the key's certificate");
        }
        let external = if uri.external.is_some() {
            "broker.url"
        } else {
            "broker.external"
        };
        if broker.external || uri.external == Some(true) {
            if !uri.tls {
                let reason = "a login by certificate (external) needs TLS; write amqps:";
                self.unfit(external, reason);
            } else if broker.cert_file.is_none() {
                let reason = "a login by certificate (external) needs cert-file and key-file";
                self.needs(external, cert, reason);
            }
        }
    }

    /// What stands in the URL's query and in a key of its own.
    fn twice(&mut self, uri: &AmqpUri) {
        let broker = &self.raw.broker;
        let (heartbeat, timeout) = ("broker.heartbeat", "broker.connect-timeout");
        let told = uri
            .heartbeat
            .map(|s| std::time::Duration::from_secs(s.into()));
        if let Some(seconds) = uri.heartbeat
            && self.origins.is_given(heartbeat)
            && told != Some(broker.heartbeat.get())
        {
            let reason = format!(
                "{} contradicts heartbeat={seconds} in broker.url; leave one of them out",
                show(broker.heartbeat.get())
            );
            self.unfit(heartbeat, &reason);
        } else if told.unwrap_or(broker.heartbeat.get()).is_zero() {
            let key = if told.is_some() {
                "broker.url"
            } else {
                heartbeat
            };
            let reason = "a heartbeat of 0 turns heartbeats off: a broker that is gone without a \
                          word is noticed late";
            self.warn(key, &[], reason);
        }
        if let Some(limit) = uri.connection_timeout
            && self.origins.is_given(timeout)
            && limit != broker.connect_timeout.get()
        {
            let reason = format!(
                "{} contradicts connection_timeout={} in broker.url; leave one of them out",
                show(broker.connect_timeout.get()),
                limit.as_millis()
            );
            self.unfit(timeout, &reason);
        }
        if let Some(is_external) = uri.external
            && self.origins.is_given("broker.external")
            && is_external != broker.external
        {
            let word = if is_external { "external" } else { "plain" };
            let reason = format!(
                "{} contradicts auth_mechanism={word} in broker.url; leave one of them out",
                broker.external
            );
            self.unfit("broker.external", &reason);
        }
    }

    fn management(&mut self, is_external: bool) {
        let broker = &self.raw.broker;
        let (user, file) = ("broker.management-user", "broker.management-password-file");
        let is_given = [
            (user, broker.management_user.is_some()),
            (file, broker.management_password_file.is_some()),
        ];
        if broker.management.is_none() {
            for (key, _) in is_given.iter().filter(|(_, given)| *given) {
                let reason = "has no effect without broker.management";
                self.warn(key, &["broker.management"], reason);
            }
            return;
        }
        match (is_given[0].1, is_given[1].1) {
            (true, false) => {
                let reason = "has no password; add management-password-file, the path of a file \
                              that holds it";
                self.needs(user, file, reason);
            }
            (false, true) => self.needs(file, user, "has no user; add management-user"),
            (false, false) if broker.external || is_external => {
                let reason = "needs management-user and management-password-file: a certificate \
                              does not log in there";
                self.needs("broker.management", user, reason);
            }
            _ => {}
        }
    }

    /// Reads the files with secrets. Where it is not told, one that cannot be read is left out.
    pub(super) fn secrets(&mut self, base: &Base, is_told: bool) {
        let broker = &self.raw.broker;
        if !matches!(broker.url, BrokerUrl::Amqp(_)) {
            return;
        }
        let mut read =
            |key: &str, file: &Option<PathBuf>| match lookup::secret(&base.join(file.as_ref()?)) {
                Ok(secret) => Some(secret),
                Err(reason) => {
                    if is_told {
                        self.found(key, Err(reason));
                    }
                    None
                }
            };
        let of_broker = read("broker.password-file", &broker.password_file);
        let key = "broker.management-password-file";
        let of_management = read(key, &broker.management_password_file);
        self.secrets.broker = of_broker;
        self.secrets.management = of_management;
    }

    pub(super) fn tls_files(&mut self, base: &Base) {
        let broker = &self.raw.broker;
        if !matches!(broker.url, BrokerUrl::Amqp(_)) {
            return;
        }
        for (key, file) in [
            ("broker.ca-file", &broker.ca_file),
            ("broker.cert-file", &broker.cert_file),
            ("broker.key-file", &broker.key_file),
        ] {
            if let Some(file) = file {
                self.found(key, lookup::readable_file(&base.join(file)));
            }
        }
    }

    fn unfit(&mut self, key: &str, reason: &str) {
        self.needs(key, "broker.url", reason);
    }

    fn needs(&mut self, key: &str, other: &str, reason: &str) {
        let keys = [key.to_owned(), other.to_owned()];
        self.add(Severity::Error, &keys, reason.to_owned());
    }
}
