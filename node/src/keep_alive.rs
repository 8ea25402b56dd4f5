//! Keep-alive of TCP (RFC 9293, section 3.8.4): a host that vanished without a word is noticed, though nothing is ever sent
//! to it; and boxes on the way that forget a connection which says nothing for some minutes are reminded of it, so that an
//! answer which takes that long still arrives.
//!
//! The system asks nobody who has still to acknowledge something: it would repeat that for a quarter of an hour, by which
//! its own limit on it (RFC 5482) is set to the same time here.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// A connection of which nothing is heard for a time is looked at so many times, and then given up.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    /// Silence before the first look.
    pub after: Duration,
    /// Between two looks.
    pub every: Duration,
    /// Looks without an answer.
    pub times: u32,
}

/// A host that takes nothing, and says so, passes for the system's limit as one that says nothing: it must have as much
/// longer than the limit on who takes nothing.
const ABOVE_STALL: Duration = Duration::from_secs(15);

/// Of requests and answers: below the least time after which usual balancers forget a connection (4 min of Azure's), and
/// within one and a half minutes of a host's end.
pub const OF_REQUESTS: KeepAlive = KeepAlive {
    after: Duration::from_secs(60),
    every: Duration::from_secs(10),
    times: 3,
};

impl KeepAlive {
    /// Sets it. The connections that a listening socket accepts have what it has.
    /// Errors: the system's.
    pub fn set(self, socket: &impl AsFd) -> io::Result<()> {
        let settings = socket2::TcpKeepalive::new()
            .with_time(self.after)
            .with_interval(self.every)
            .with_retries(self.times);
        socket2::SockRef::from(socket).set_tcp_keepalive(&settings)
    }

    /// When a host is given up of which nothing is heard.
    fn given_up_after(self) -> Duration {
        self.after + self.every * self.times
    }

    /// Has a host that vanished given up in that time also while it has something to acknowledge, unless one that is there
    /// may take nothing for about as long (`stall`). More time would serve nobody: it would take the place of the number of
    /// looks, too. Done by Linux alone.
    /// Errors: the system's.
    pub fn set_for_unacknowledged(self, socket: &impl AsFd, stall: Duration) -> io::Result<()> {
        let within = self.given_up_after();
        if within < stall + ABOVE_STALL {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        socket2::SockRef::from(socket).set_tcp_user_timeout(Some(within))?;
        let _ = socket;
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The system's limit takes one that reads nothing for one that is gone.
    #[test]
    fn a_host_that_vanished_has_no_more_time_for_what_it_did_not_acknowledge() {
        let all = OF_REQUESTS.given_up_after();
        assert_eq!(all, Duration::from_secs(90), "as documented");
        for (stall, expected) in [(60, Some(all)), (75, Some(all)), (76, None), (3600, None)] {
            let socket = socket2::Socket::new(
                socket2::Domain::IPV4,
                socket2::Type::STREAM,
                Some(socket2::Protocol::TCP),
            );
            let socket = socket.expect("a socket");
            let set = OF_REQUESTS.set_for_unacknowledged(&socket, Duration::from_secs(stall));
            set.expect("the system takes it");
            let within = socket.tcp_user_timeout().expect("a socket");
            assert_eq!(within.filter(|within| !within.is_zero()), expected);
        }
    }
}
