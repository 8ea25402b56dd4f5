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
        *self.0.lock().expect("whole") = addresses.to_vec();
    }
}

#[async_trait]
impl Network for Names {
    async fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        SystemNetwork.bind(address).await
    }

    async fn resolve(&self, _: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(self.0.lock().expect("whole").clone())
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
