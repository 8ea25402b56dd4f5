//! `grapevine balancer`.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{StopSignals, announce, print_json};
use crate::balancer::{Balancer, Check, Config, Strategy};

/// Arguments of `balancer`.
#[derive(Debug, Args)]
pub struct BalancerArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port; 0 chooses a free one
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Backends as HOST:PORT
    #[arg(long = "backend", required = true, num_args = 1.., value_delimiter = ',', value_parser = backend)]
    backends: Vec<String>,
    /// Which backend gets a connection
    #[arg(long, value_enum, default_value = "round-robin")]
    strategy: Strategy,
    /// Time for a connect before the next backend is tried
    #[arg(long, value_parser = humantime::parse_duration, default_value = "1s")]
    connect_timeout: Duration,
    /// Ask backends by GET on this path whether they want traffic, e.g. /readiness
    #[arg(long)]
    check_path: Option<String>,
    /// Time between two checks of a backend, and time for the answer; above 0
    #[arg(long, value_parser = pause, default_value = "500ms")]
    check_interval: Duration,
    /// Connections at once, 1 or more; further ones wait
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    connections_max: u32,
}

impl BalancerArgs {
    /// Serves until SIGTERM or SIGINT, then prints each backend's counts as one JSON line.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let mut signals = StopSignals::new()?;
        let check = self.check_path.map(|path| Check {
            path,
            interval: self.check_interval,
            timeout: self.check_interval,
        });
        let config = Config {
            listen: SocketAddr::from((self.host, self.port)),
            backends: self.backends,
            strategy: self.strategy,
            connect_timeout: self.connect_timeout,
            check,
            connections_max: self.connections_max as usize,
        };
        let balancer = Balancer::start(config).await?;
        announce(balancer.addr())?;
        signals.next().await;
        print_json(&serde_json::json!({ "event": "stopped", "backends": balancer.stats() }))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// HOST:PORT.
fn backend(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or("is no HOST:PORT")?;
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty()
        || host.contains(':') && !is_bracketed
        || !matches!(port.parse(), Ok(1..=u16::MAX))
    {
        return Err("is no HOST:PORT".into());
    }
    Ok(text.to_owned())
}

/// A time above 0.
fn pause(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time.is_zero() {
        return Err("must be above 0".into());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: BalancerArgs,
    }

    #[test]
    fn a_balancer_that_would_take_no_connection_is_refused() {
        let connections = |max: &str| {
            let line = ["balancer", "--backend", "a:1", "--connections-max", max];
            Line::try_parse_from(line).map(|line| line.args.connections_max)
        };
        assert_eq!(connections("1").expect("one"), 1);
        assert!(connections("0").is_err());
    }

    #[test]
    fn a_backend_has_a_host_and_a_port() {
        for good in ["a:1", "127.0.0.1:30000", "[::1]:80", "r1.example.org:30000"] {
            assert_eq!(backend(good).as_deref(), Ok(good));
        }
        for wrong in ["", "foo", "a:b:c", ":1", "a:", "a:0", "a:70000", "::1"] {
            assert!(backend(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_balancer_that_would_check_without_a_pause_is_refused() {
        let interval = |time: &str| {
            let line = ["balancer", "--backend", "a:1", "--check-interval", time];
            Line::try_parse_from(line).map(|line| line.args.check_interval)
        };
        let millis = Duration::from_millis;
        assert_eq!(interval("20ms").expect("a time"), millis(20));
        assert!(interval("0s").is_err());
        assert!(interval("soon").is_err());
    }
}
