//! A connection that is told to leave, and what had come by then.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::Full;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::time::{Duration, sleep};

use super::tests::LIMITS;
use super::*;

/// What comes here is not read before the runtime knows of it, as with a socket of which the system has still to be asked.
struct Unheard {
    io: DuplexStream,
    is_known: Arc<AtomicBool>,
}

impl AsyncRead for Unheard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_known.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Unheard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_come_is_answered_though_nobody_knows_of_it_yet() {
    let waits = Waits {
        header: Duration::from_secs(15),
        keep_alive: Duration::from_secs(75),
    };
    let refusals = RefusalMetrics::register(&mut Registry::default());
    for place_is_wanted in [false, true] {
        for has_come in [true, false] {
            let (mut client, io) = duplex(4096);
            let is_known = Arc::new(AtomicBool::new(false));
            let server = Unheard {
                io,
                is_known: Arc::clone(&is_known),
            };
            let wire = Wire::shared(server, LIMITS);
            let service = async |_| {
                let here = Full::new(Bytes::from_static(b"here"));
                Ok::<_, ClientLeft>(Response::new(here))
            };
            let mut serving = pin!(serve(&wire, waits, &refusals, service));
            tokio::select! {
                biased;
                ended = serving.as_mut() => panic!("{ended:?}"),
                () = sleep(LAST_CALL * 2) => {}
            }
            if has_come {
                let get = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
                client.write_all(get).await.expect("room");
            }
            match place_is_wanted {
                true => lock(&wire).make_room(),
                false => lock(&wire).leave(),
            }
            // What the runtime does next.
            tokio::spawn(async move { is_known.store(true, Ordering::SeqCst) });
            let ended = serving.await;
            assert!(matches!(ended, Ok(Ended::Closed)), "{ended:?}");
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("text");
            let case = format!("{place_is_wanted} {has_come}: {answer}");
            assert_eq!(answer.contains("connection: close\r\n"), has_come, "{case}");
            assert_eq!(answer.ends_with("\r\n\r\nhere"), has_come, "{case}");
        }
    }
}
