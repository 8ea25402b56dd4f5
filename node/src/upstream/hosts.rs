//! Addresses of workers' hosts: who is asked for them, and to which of them this replica may connect.
//!
//! The name servers of `dns.servers` come first, where there are some: the targets of SRV records often stand in their zone
//! alone. What they do not know is asked of the system, for workers of other sources. Everybody is asked each time, since a
//! worker may move; how long a connection may take as a whole is the caller's limit. A resolver that says nothing, or that it
//! cannot tell now, would make all workers unreachable at once though nothing is wrong with them: then the latest answer
//! counts for a while ([`Known`]).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use grapevine_discovery::dns::{self, DnsSettings, NoAnswer};
use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout};

use crate::config::DnsConfig;
use crate::config::allow::Allow;

/// The system is asked, too, when the servers that are set have been silent for so long: they may be down, and
/// `timeouts.connect` has to be enough for both. Longer than a server of the same network takes.
const SYSTEM_AFTER: Duration = Duration::from_millis(400);

/// So long an answer is of use where there is no new one: an address may be another's later.
const KNOWN_FOR: Duration = Duration::from_secs(5 * 60);
/// A resolver that is silent for so long is not waited for where a former answer is known. It repeats a lost packet only
/// after 5 s (resolv.conf(5)), later than a connection may take.
const SILENT_AFTER: Duration = Duration::from_millis(500);
/// Most hosts whose addresses are remembered.
const KNOWN_MAX: usize = 16_384;

/// A name could not be resolved.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAddress {
    #[error("its name has no address: {0}")]
    Unknown(io::Error),
    #[error("its name has no address: {system}; the servers of dns.servers: {own}")]
    UnknownToAll {
        system: io::Error,
        own: String,
        /// The servers of `dns.servers` could tell nothing of the name.
        is_blind: bool,
    },
}

impl NoAddress {
    /// What the system said.
    pub(super) fn system(&self) -> &io::Error {
        let (Self::Unknown(system) | Self::UnknownToAll { system, .. }) = self;
        system
    }
}

impl NoAddress {
    /// The system cannot tell now (`EAI_AGAIN`), which is no word about the name. The standard library has it as text only,
    /// that of glibc or of musl.
    ///
    /// Of a zone that only the servers of `dns.servers` have, the system says that there is no such name: where those can
    /// tell nothing, that is no word about it either.
    fn is_for_now(&self) -> bool {
        if matches!(self, Self::UnknownToAll { is_blind: true, .. }) {
            return true;
        }
        let why = self.system().to_string();
        why.contains("Temporary failure in name resolution") || why.contains("Try again")
    }
}

/// The latest addresses of hosts that were asked for by name.
#[derive(Debug, Default)]
struct Known(Mutex<HashMap<String, (Instant, Vec<IpAddr>)>>);

impl Known {
    /// What `asked` says of a host, or, where that is nothing, what it said before.
    async fn or_ask(
        &self,
        host: &str,
        port: u16,
        asked: impl Future<Output = Result<Vec<SocketAddr>, NoAddress>>,
    ) -> Result<Vec<SocketAddr>, NoAddress> {
        let found = match self.of(host) {
            None => asked.await?,
            Some(known) => match timeout(SILENT_AFTER, asked).await {
                Ok(Ok(found)) => found,
                Ok(Err(why)) if !why.is_for_now() => return Err(why),
                Ok(Err(_)) | Err(_) => return Ok(at_port(known, port)),
            },
        };
        self.note(host, &found);
        Ok(found)
    }

    fn of(&self, host: &str) -> Option<Vec<IpAddr>> {
        let known = self.0.lock();
        let (at, addresses) = known.get(host)?;
        (at.elapsed() < KNOWN_FOR).then(|| addresses.clone())
    }

    fn note(&self, host: &str, found: &[SocketAddr]) {
        let addresses = found.iter().map(SocketAddr::ip).collect();
        let mut known = self.0.lock();
        if known.len() >= KNOWN_MAX && !known.contains_key(host) {
            known.retain(|_, (at, _)| at.elapsed() < KNOWN_FOR);
            if known.len() >= KNOWN_MAX {
                return;
            }
        }
        known.insert(host.to_owned(), (Instant::now(), addresses));
    }
}

impl From<NoAddress> for io::Error {
    fn from(error: NoAddress) -> Self {
        Self::new(error.system().kind(), error)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Hosts {
    allow: Allow,
    /// None: the system alone is asked.
    own: Option<DnsSettings>,
    known: Known,
}

impl Hosts {
    pub(super) fn new(allow: Allow, config: &DnsConfig) -> Self {
        let own = (!config.servers.is_empty()).then(|| DnsSettings {
            nameservers: config.servers.clone(),
            timeout: config.timeout,
            ..DnsSettings::new(Vec::new())
        });
        let known = Known::default();
        Self { allow, own, known }
    }

    /// Where workers may be.
    pub(super) fn allow(&self) -> &Allow {
        &self.allow
    }

    /// Addresses of a host that this replica may connect to.
    pub(super) async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let mut refused = None;
        let mut permitted = Vec::new();
        for address in self.addresses(host, port).await? {
            match self.allow.address(host, address.ip()) {
                Ok(()) => permitted.push(address),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if permitted.is_empty() => {
                Err(io::Error::new(io::ErrorKind::PermissionDenied, error))
            }
            _ => Ok(permitted),
        }
    }

    async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, NoAddress> {
        let asked = self.ask(host, port);
        match is_in_dns(host) {
            true => self.known.or_ask(host, port, asked).await,
            false => asked.await,
        }
    }

    async fn ask(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, NoAddress> {
        let system = async {
            let found = lookup_host((host, port)).await?;
            Ok::<Vec<_>, io::Error>(found.collect())
        };
        let own = self.own.as_ref().filter(|_| is_in_dns(host));
        let Some(settings) = own else {
            return system.await.map_err(NoAddress::Unknown);
        };
        let own = async {
            let found = dns::addresses(settings, host).await?;
            Ok::<Vec<_>, NoAnswer>(at_port(found, port))
        };
        tokio::pin!(system, own);
        let of_all = |system, own: NoAnswer| NoAddress::UnknownToAll {
            system,
            own: own.why,
            is_blind: !own.is_final,
        };
        match timeout(SYSTEM_AFTER, &mut own).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(why)) => return system.await.map_err(|error| of_all(error, why)),
            Err(_) => {}
        }
        tokio::select! {
            biased;
            found = &mut own => match found {
                Ok(found) => Ok(found),
                Err(why) => system.await.map_err(|error| of_all(error, why)),
            },
            found = &mut system => match found {
                Ok(found) => Ok(found),
                Err(error) => own.await.map_err(|why| of_all(error, why)),
            },
        }
    }
}

/// Gives reqwest only addresses that the rule permits.
pub(super) struct Resolver(pub(super) Arc<Hosts>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let hosts = Arc::clone(&self.0);
        Box::pin(async move {
            // Port 0: reqwest puts the URL's port in its place.
            let addresses = hosts.resolve(name.as_str(), 0).await?;
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}

/// Whether a name server can know a host: it is neither an address nor this machine.
fn is_in_dns(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_err() && !host.eq_ignore_ascii_case("localhost")
}

fn at_port(addresses: Vec<IpAddr>, port: u16) -> Vec<SocketAddr> {
    let addresses = addresses.into_iter();
    addresses.map(|ip| SocketAddr::new(ip, port)).collect()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use grapevine_gossip::worker::{RawWorker, WorkerSpec};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, UdpSocket};
    use tokio::task::JoinHandle;
    use tokio::time::advance;

    use super::*;
    use crate::config::{AllowedHost, WorkerHttp2};
    use crate::upstream::address::Address;
    use crate::upstream::tls::WorkerIo;
    use crate::upstream::{Connector, ConnectorParts};

    /// The name that it knows, as it stands in a question.
    const KNOWN: &[u8] = b"\x02w0\x01w\x04test\x00";

    /// A name server that knows `w0.w.test`, at 127.0.0.1, and no other name; or answers nothing. It ends with this.
    struct Server {
        at: SocketAddr,
        asked: Arc<AtomicUsize>,
        task: JoinHandle<()>,
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    async fn server(is_silent: bool) -> Server {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
        let at = socket.local_addr().expect("bound");
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            let mut buffer = [0; 512];
            while let Ok((bytes, from)) = socket.recv_from(&mut buffer).await {
                count.fetch_add(1, Ordering::Relaxed);
                if !is_silent {
                    let _gone = socket.send_to(&answer(&buffer[..bytes]), from).await;
                }
            }
        });
        Server { at, asked, task }
    }

    /// RFC 1035, section 4: header, question, and an A record of the question's name.
    fn answer(question: &[u8]) -> Vec<u8> {
        let name = question[12..].iter().position(|&byte| byte == 0);
        let end = 12 + name.expect("a name") + 1;
        const A: u8 = 1;
        let is_known = question[12..end].eq_ignore_ascii_case(KNOWN);
        let has_record = is_known && question[end + 1] == A;
        let (code, count) = (if is_known { 0 } else { 3 }, u8::from(has_record));
        let mut answer = question[..2].to_vec();
        answer.extend([0x84, code, 0, 1, 0, count, 0, 0, 0, 0]);
        answer.extend(&question[12..end + 4]);
        if has_record {
            let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1];
            answer.extend(record);
        }
        answer
    }

    fn connector(server: &Server, allow: &str) -> Connector {
        let mut parts = ConnectorParts {
            check_within: Duration::from_secs(10),
            ..ConnectorParts::default()
        };
        parts.workers.allow = vec![AllowedHost::new(allow).expect("an entry")];
        parts.dns.servers = vec![server.at];
        Connector::load(parts).expect("nothing is read")
    }

    fn address(host: &str, port: u16) -> Address {
        let raw = RawWorker::at(format!("http://{host}:{port}"));
        Address::of(&WorkerSpec::new(raw).expect("a worker")).expect("an address")
    }

    /// A worker that answers 200 to every request.
    async fn worker() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 1024];
                let _read = stream.read(&mut head).await;
                let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                let _written = stream.write_all(ok).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn a_target_that_only_the_set_servers_know_is_reached_by_requests_and_checks() {
        const WITHIN: Duration = Duration::from_secs(10);
        let (server, port) = (server(false).await, worker().await);
        let target = address("w0.w.test", port);
        let here = connector(&server, "127.0.0.0/8");
        let dialled = here.dial(&target, WITHIN, WorkerHttp2::Off).await;
        let WorkerIo::Plain(stream) = dialled.expect("the server knows it") else {
            panic!("no TLS was asked for");
        };
        let is_looked_at = socket2::SockRef::from(&stream).keepalive();
        assert!(is_looked_at.expect("a socket"), "while it is silent");
        // The worker takes one after the other.
        drop(stream);
        let check = here.get(&target, "/health").await.expect("permitted");
        let check = check.send().await.expect("the server knows it");
        assert_eq!(check.status(), 200);
        let host = check.url().host_str().map(str::to_owned);
        assert_eq!(host.as_deref(), Some("w0.w.test"), "`Host` is the target");

        // What they say is judged as what the system says.
        let elsewhere = connector(&server, "10.0.0.0/8");
        let refused = elsewhere.dial(&target, WITHIN, WorkerHttp2::Off).await;
        let refused = refused.expect_err("not permitted");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);

        let unknown = address("w1.w.invalid", port);
        let unknown = here.dial(&unknown, WITHIN, WorkerHttp2::Off).await;
        let why = unknown.expect_err("nobody knows it").to_string();
        assert!(why.starts_with("its name has no address: "), "{why}");
        assert!(why.contains("dns.servers: there is no such name"), "{why}");

        let asked = server.asked.load(Ordering::Relaxed);
        for host in ["127.0.0.1", "localhost"] {
            let worker = address(host, port);
            let dialled = here.dial(&worker, WITHIN, WorkerHttp2::Off).await;
            dialled.expect(host);
        }
        let more = server.asked.load(Ordering::Relaxed) - asked;
        assert_eq!(more, 0, "no server has to be asked for these");
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_answer_counts_while_nobody_can_tell() {
        let (known, host) = (Known::default(), "w0.w.test");
        let said = |why: &'static str| async move {
            Err::<Vec<SocketAddr>, _>(NoAddress::Unknown(io::Error::other(why)))
        };
        let at = |address: &str| vec![address.parse::<SocketAddr>().expect("an address")];
        const BUSY: &str =
            "failed to lookup address information: Temporary failure in name resolution";
        const UNKNOWN: &str = "failed to lookup address information: Name or service not known";
        let nothing = known.or_ask(host, 80, said(BUSY)).await;
        assert!(nothing.is_err(), "nothing was known before");
        for address in ["10.0.0.7:80", "10.0.0.8:80"] {
            let found = known.or_ask(host, 80, ready(Ok(at(address)))).await;
            assert_eq!(found.expect("told"), at(address), "a new answer counts");
        }
        let silent = known.or_ask(host, 81, pending()).await;
        assert_eq!(silent.expect("known"), at("10.0.0.8:81"));
        let busy = known.or_ask(host, 80, said(BUSY)).await;
        assert_eq!(busy.expect("known"), at("10.0.0.8:80"));
        let gone = known.or_ask(host, 80, said(UNKNOWN)).await;
        assert!(gone.is_err(), "it has no address any more");
        let in_zone = |is_blind| async move {
            Err::<Vec<SocketAddr>, _>(NoAddress::UnknownToAll {
                system: io::Error::other(UNKNOWN),
                own: "of dns.servers".to_owned(),
                is_blind,
            })
        };
        let blind = known.or_ask(host, 80, in_zone(true)).await;
        assert_eq!(blind.expect("known"), at("10.0.0.8:80"));
        assert!(known.or_ask(host, 80, in_zone(false)).await.is_err());
        advance(KNOWN_FOR).await;
        let late = known.or_ask(host, 80, said(BUSY)).await;
        assert!(late.is_err(), "that is too long ago");
    }

    /// The machine's own name stands for a worker of another source: the system has it without any name server.
    #[tokio::test]
    async fn what_the_set_servers_do_not_say_the_system_does() {
        let own = rustix::system::uname();
        let own = own.nodename().to_str().expect("a name").to_owned();
        if !is_in_dns(&own) {
            // A machine that is called `localhost` has no such name.
            return;
        }
        let is_known = lookup_host((&*own, 0)).await.is_ok();
        for is_silent in [false, true] {
            let server = server(is_silent).await;
            let config = DnsConfig {
                servers: vec![server.at],
                ..DnsConfig::default()
            };
            let hosts = Hosts::new(Allow::new(Vec::new()), &config);
            let found = hosts.addresses(&own, 80).await;
            assert!(server.asked.load(Ordering::Relaxed) > 0, "they come first");
            // Where a machine does not know its own name, the error shows that both were asked.
            match found {
                Ok(found) => assert!(is_known && !found.is_empty()),
                Err(error) => {
                    assert!(!is_known, "{error}");
                    assert!(matches!(error, NoAddress::UnknownToAll { .. }), "{error}");
                }
            }
        }
    }
}
