//! Why a name has no answer, in words that say what to check. Pure.

use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;

/// What a name server's refusal to give records means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The name exists and has no records of this type.
    Empty,
    /// The name does not exist (NXDOMAIN): under another domain it may.
    NoName,
    /// There is no answer to go by.
    Blind(String),
}

pub(super) const NO_NAME: &str =
    "there is no such name (NXDOMAIN); check its spelling and domain, and that the service exists";

/// The meaning of `error`.
pub(super) fn failure(error: &NetError) -> Failure {
    let code = match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => none.response_code,
        NetError::Dns(DnsError::ResponseCode(code)) => *code,
        NetError::Timeout => return Failure::Blind(
            "no answer in time; check that the name server is up and can be reached over UDP and TCP".to_owned(),
        ),
        NetError::Io(_) | NetError::NoConnections => return Failure::Blind(format!(
            "the name server cannot be reached ({error}); check its address and that it is up"
        )),
        NetError::Truncated => return Failure::Blind(
            "the answer is too long for UDP, and the name server does not give it over TCP; let it".to_owned(),
        ),
        other => return Failure::Blind(format!("no usable answer ({other}); check the name server")),
    };
    match code {
        ResponseCode::NoError => Failure::Empty,
        ResponseCode::NXDomain => Failure::NoName,
        ResponseCode::ServFail => Failure::Blind(
            "the name server has failed (SERVFAIL); check it, and the servers that it asks itself"
                .to_owned(),
        ),
        ResponseCode::Refused => Failure::Blind(
            "the name server refuses (REFUSED); check that it serves this domain, and this client"
                .to_owned(),
        ),
        other => Failure::Blind(format!("the name server answers {other}; check it")),
    }
}

#[cfg(test)]
mod tests {
    use hickory_resolver::net::NoRecords;
    use hickory_resolver::proto::op::Query;

    use super::*;

    #[test]
    fn every_answer_without_records_has_its_meaning() {
        let none = |code| {
            NetError::Dns(DnsError::NoRecordsFound(NoRecords::new(
                Query::default(),
                code,
            )))
        };
        let code = |code| NetError::Dns(DnsError::ResponseCode(code));
        assert_eq!(failure(&none(ResponseCode::NoError)), Failure::Empty);
        assert_eq!(failure(&none(ResponseCode::NXDomain)), Failure::NoName);
        for (error, word) in [
            (code(ResponseCode::ServFail), "SERVFAIL"),
            (none(ResponseCode::ServFail), "SERVFAIL"),
            (code(ResponseCode::Refused), "REFUSED"),
            (code(ResponseCode::NotImp), "check it"),
            (NetError::Timeout, "no answer in time"),
            (NetError::NoConnections, "cannot be reached"),
            (NetError::Truncated, "over TCP"),
            (NetError::Busy, "check the name server"),
        ] {
            let Failure::Blind(why) = failure(&error) else {
                panic!("{error}");
            };
            assert!(why.contains(word), "{why}");
        }
    }
}
