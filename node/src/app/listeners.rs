//! Sockets of a replica.

use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::Context;
use tokio::net::TcpListener;

use crate::config::Config;
use crate::listener;

/// Sockets, bound.
pub(super) struct Listeners {
    pub(super) data: TcpListener,
    pub(super) admin: TcpListener,
    pub(super) metrics: Option<TcpListener>,
    pub(super) pings: Option<TcpListener>,
}

/// Binds all ports, but a data port that the service manager has bound.
pub(super) fn bind(
    config: &Config,
    data: Option<std::net::TcpListener>,
) -> anyhow::Result<Listeners> {
    let listen = |host, port, flag: &'static str| {
        let address = SocketAddr::new(host, port);
        listener::bind(address).map_err(|error| {
            let other = match error.kind() {
                ErrorKind::AddrNotAvailable => "an address of this machine",
                _ => flag,
            };
            anyhow::Error::new(error).context(format!("cannot listen on {address}; choose {other}"))
        })
    };
    Ok(Listeners {
        data: match data {
            Some(socket) => {
                inherited(socket).context("cannot use the socket that was handed over")?
            }
            None => listen(config.listen.host, config.listen.port, "another --port")?,
        },
        admin: listen(config.admin.host, config.admin.port, "another --admin-port")?,
        metrics: if config.metrics.enabled {
            let flag = "another --prometheus-port, or --disable-prometheus";
            Some(listen(config.metrics.host, config.metrics.port, flag)?)
        } else {
            None
        },
        pings: match config.pings.listen {
            Some(address) => Some(listen(
                address.ip(),
                address.port(),
                "another --vllm-discovery-address",
            )?),
            None => None,
        },
    })
}

fn inherited(socket: std::net::TcpListener) -> std::io::Result<TcpListener> {
    socket.set_nonblocking(true)?;
    let socket = TcpListener::from_std(socket)?;
    tracing::info!(address = %socket.local_addr()?, "the service manager opened the data port; listen.host and listen.port are not used");
    Ok(socket)
}

/// One line for the operator who started this process, with the ports that were bound; the log has them, too, since what
/// reads the one seldom keeps the other.
pub(super) fn announcement(
    replica: &str,
    listeners: &Listeners,
    gossip: Option<SocketAddr>,
) -> anyhow::Result<String> {
    let metrics = listeners.metrics.as_ref().map(TcpListener::local_addr);
    let pings = listeners.pings.as_ref().map(TcpListener::local_addr);
    let (metrics, pings) = (metrics.transpose()?, pings.transpose()?);
    let (data, admin) = (listeners.data.local_addr()?, listeners.admin.local_addr()?);
    let told = |address: Option<SocketAddr>| address.map(tracing::field::display);
    tracing::info!(
        %data,
        %admin,
        gossip = told(gossip),
        prometheus = told(metrics),
        pings = told(pings),
        "listening"
    );
    let line = serde_json::json!({
        "event": "listening",
        "replica": replica,
        "data": data,
        "admin": admin,
        "gossip": gossip,
        "prometheus": metrics,
        "pings": pings,
    });
    Ok(line.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::config::Layers;

    #[tokio::test]
    async fn the_log_names_the_ports_that_were_free() {
        let text = "[listen]\nport = 0\n[admin]\nport = 0\n[metrics]\nenabled = false";
        let layers = Layers {
            file: Some(("g.toml".into(), text.to_owned())),
            ..Layers::default()
        };
        let config = Config::from_layers(layers).expect("valid");
        let listeners = bind(&config, None).expect("free ports");
        let log = tempfile::NamedTempFile::new().expect("a file");
        let writer = Mutex::new(log.reopen().expect("a file"));
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(writer)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            announcement("r1", &listeners, None).expect("bound");
        });
        let log = std::fs::read_to_string(log.path()).expect("text");
        let admin = listeners.admin.local_addr().expect("bound");
        assert!(log.contains("listening data=127.0.0.1:"), "{log}");
        assert!(log.contains(&format!(" admin={admin}")), "{log}");
    }
}
