//! Active check: does a backend want traffic?

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};

use super::Check;
use super::pool::Pool;

/// Asks one backend for ever.
pub(super) async fn watch(pool: Arc<Pool>, index: usize, check: Check) {
    let mut ticks = interval(check.interval);
    loop {
        ticks.tick().await;
        let answer = timeout(check.timeout, ask(&pool.address(index), &check.path)).await;
        let up = matches!(answer, Ok(Ok(true)));
        if pool.set_up(index, up) {
            let state = if up { "up" } else { "down" };
            tracing::info!("backend {} is {state}", pool.address(index));
        }
    }
}

/// True for a 2xx.
async fn ask(address: &str, path: &str) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    // "HTTP/1.1 2" is enough: any 2xx is a yes.
    let mut status = [0; 10];
    stream.read_exact(&mut status).await?;
    Ok(status.starts_with(b"HTTP/1.") && status[9] == b'2')
}
