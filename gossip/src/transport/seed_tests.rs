//! Which seeds are told as silent.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use quinn::AsyncUdpSocket;
use tokio::time::{sleep, timeout};

use super::tests::Bench;
use super::*;

const SEED: &str = "router:30002";
/// A name is resolved again every 3 s, and an address that gives no answer is waited for a second.
const WITHIN: Duration = Duration::from_secs(60);

/// One name, which means these addresses now.
#[derive(Debug, Default)]
struct Names(Mutex<Vec<SocketAddr>>);

impl Names {
    fn mean(&self, addresses: &[SocketAddr]) {
        *self.0.lock() = addresses.to_vec();
    }
}

#[async_trait]
impl Network for Names {
    async fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        SystemNetwork.bind(address).await
    }

    async fn resolve(&self, _: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(self.0.lock().clone())
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WITHIN, wait).await.expect(what);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_own_address_behind_a_name_does_not_hide_the_silence_of_others() {
    let names = Arc::new(Names::default());
    let bench = Bench::on(names.clone(), &[SEED]).await;
    let own = bench.transport.address();
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let nobody = (nobody.local_addr().expect("bound"), nobody);
    let is_silent = || !bench.transport.silent_seeds().is_empty();
    until("a name without an address is silent", is_silent).await;
    names.mean(&[own]);
    until("this replica itself is all that is meant", || !is_silent()).await;
    names.mean(&[own, nobody.0]);
    until("the other one gives no answer", is_silent).await;
    let other = Bench::under(&bench.authority, "other").await;
    names.mean(&[own, nobody.0, other.transport.address()]);
    until("one of them answers", || !is_silent()).await;
}

/// One of another authority is behind the name, after one that gives no answer: that is known when the first round is over.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_answers_and_has_no_fitting_certificate_shuts_out_and_silence_does_not() {
    let names = Arc::new(Names::default());
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let silent = nobody.local_addr().expect("bound");
    let foreign = Bench::new().await;
    for (behind, is_shut_out) in [
        (vec![silent], false),
        (vec![silent, foreign.transport.address()], true),
    ] {
        names.mean(&behind);
        let bench = Bench::on(names.clone(), &[SEED]).await;
        let transport = &bench.transport;
        assert!(!transport.has_asked_seeds(), "it has just started");
        until("all were asked", || transport.has_asked_seeds()).await;
        assert_eq!(transport.is_shut_out(), is_shut_out, "{behind:?}");
    }
    // With a peer of its own authority it is not, whoever else refuses it.
    names.mean(&[]);
    let bench = Bench::on(names.clone(), &[SEED]).await;
    let other = Bench::under(&bench.authority, "other").await;
    names.mean(&[foreign.transport.address(), other.transport.address()]);
    let both = || bench.transport.shared.seeds.is_unfit() && !bench.transport.linked().is_empty();
    until("one refuses and one is connected", both).await;
    assert!(!bench.transport.is_shut_out());
}
