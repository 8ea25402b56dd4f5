//! Keep-alive of TCP (RFC 9293, section 3.8.4): a host that vanished without a word is noticed, though nothing is ever sent
//! to it; and boxes on the way that forget a connection which says nothing for some minutes are reminded of it, so that an
//! answer which takes that long still arrives.

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

/// Of requests and answers: below the least time after which usual balancers forget a connection (4 min of Azure's), and
/// within one and a half minutes of a host's end.
pub const OF_REQUESTS: KeepAlive = KeepAlive {
    after: Duration::from_secs(60),
    every: Duration::from_secs(10),
    times: 3,
};

impl KeepAlive {
    /// Sets it. The connections that a listening socket accepts have what it has.
    ///
    /// # Errors
    /// The system's.
    pub fn set(self, socket: &impl AsFd) -> io::Result<()> {
        let settings = socket2::TcpKeepalive::new()
            .with_time(self.after)
            .with_interval(self.every)
            .with_retries(self.times);
        socket2::SockRef::from(socket).set_tcp_keepalive(&settings)
    }
}
