//! What is counted of TLS.

use std::time::{Duration, UNIX_EPOCH};

use grapevine_gossip::identity::Term;

use crate::metrics::{Counter, Family, Gauge, ResultLabels, label_sets, metrics};

/// All files that are watched, as labels.
const FILES: [&str; 4] = ["listener", "workers", "worker_keys", "gossip"];

label_sets! {
    /// Which files: one of `FILES`.
    FilesLabels { files: &'static str }
    /// Which files, and what became of reading them again: `loaded` or `failed`.
    ReloadLabels { files: &'static str, result: &'static str }
}

metrics! {
    /// TLS with clients, workers and replicas.
    pub TlsMetrics {
        /// And connections that spoke the wrong protocol.
        handshakes: Family<ResultLabels, Counter>, "tls_handshakes", "TLS handshakes with clients by result",
            ResultLabels { result } in ["ok", "failed", "late", "not_tls", "unexpected_tls"];
        reloads: Family<ReloadLabels, Counter>, "tls_reloads", "Certificates and keys that were read again";
        begins: Family<FilesLabels, Gauge>,
            "tls_certificate_begins" Seconds, "Begin of the certificate in use, since 1970";
        expires: Family<FilesLabels, Gauge>,
            "tls_certificate_expires" Seconds, "End of the certificate in use, since 1970";
        refused: Family<FilesLabels, Gauge>,
            "tls_files_refused", "Whether changed certificates or keys cannot be used, so that the former ones stay";
    }
}

impl TlsMetrics {
    /// Counts a handshake with a client.
    pub fn handshake(&self, result: &'static str) {
        self.handshakes
            .get_or_create(&ResultLabels { result })
            .inc();
    }

    /// Files that are watched have counters, before anything happens to them.
    pub fn watched(&self, files: &'static str) {
        for result in ["loaded", "failed"] {
            drop(self.reloads.get_or_create(&ReloadLabels { files, result }));
        }
        drop(self.refused.get_or_create(&FilesLabels { files }));
    }

    /// Changed files that cannot be used, by label.
    pub fn refused(&self) -> impl Iterator<Item = &'static str> {
        let is_refused = |files: &&'static str| {
            let gauge = self.refused.get(&FilesLabels { files });
            gauge.is_some_and(|gauge| gauge.get() > 0)
        };
        FILES.into_iter().filter(is_refused)
    }

    /// Counts a reload: `loaded` or `failed`.
    pub fn reloaded(&self, files: &'static str, result: &'static str) {
        let refused = self.refused.get_or_create(&FilesLabels { files });
        refused.set(i64::from(result == "failed"));
        self.reloads
            .get_or_create(&ReloadLabels { files, result })
            .inc();
    }

    /// Says from when until when the certificate in use is accepted.
    pub fn has_term(&self, files: &'static str, term: Term) {
        for (gauge, at) in [(&self.begins, term.from), (&self.expires, term.until)] {
            let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            gauge.get_or_create(&FilesLabels { files }).set(seconds);
        }
    }

    /// From when until when the certificate in use of these files is accepted; none where there is none.
    pub fn term(&self, files: &'static str) -> Option<Term> {
        let moment = |gauge: &Family<FilesLabels, Gauge>| {
            let seconds = u64::try_from(gauge.get(&FilesLabels { files })?.get()).ok()?;
            Some(UNIX_EPOCH + Duration::from_secs(seconds))
        };
        Some(Term {
            from: moment(&self.begins)?,
            until: moment(&self.expires)?,
        })
    }
}
