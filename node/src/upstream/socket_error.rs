//! What a connection that failed says, and of whom.

use std::io;

use rustix::io::Errno;

use super::hosts::NoAddress;

/// Whether a connection failed for want of something of this replica's own: a descriptor, memory, a port. To resolve a
/// name takes a socket, too.
pub(crate) fn is_own_lack(error: &io::Error) -> bool {
    let own = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::ADDRNOTAVAIL,
    ];
    let code = system_error(error).raw_os_error();
    code.is_some_and(|code| own.iter().any(|own| own.raw_os_error() == code))
}

fn no_address(error: &io::Error) -> Option<&NoAddress> {
    error.get_ref()?.downcast_ref()
}

/// Whether a connection failed because its host's name has no address.
pub(super) fn is_unresolved(error: &io::Error) -> bool {
    no_address(error).is_some()
}

/// The system's error of a connection that failed: where a name was to be resolved first, the one of that.
fn system_error(error: &io::Error) -> &io::Error {
    no_address(error).map_or(error, NoAddress::system)
}
