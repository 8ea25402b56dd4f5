//! The beginning of an answer, which is what shows that its worker works. A head is not: vLLM sends it before it admits
//! a request. So where nothing else was waited for, as of events that nobody asked for, the relay waits for it.

use crate::proxy::record::Record;
use crate::upstream::InFlight;

/// What the first piece of an answer will show.
#[derive(Debug, Clone, Copy)]
pub struct First {
    /// The worker's engine has computed it for this request.
    pub computed: bool,
    /// It is the first event of a stream.
    pub streams: bool,
}

impl First {
    /// It is there.
    pub fn came(self, in_flight: &mut InFlight, record: &mut Record) {
        in_flight.prefilled();
        if self.computed {
            in_flight.delivered();
        }
        record.first_token(self.streams);
    }
}
