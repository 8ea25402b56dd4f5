//! What a session makes of bytes: of a real peer, of two of ours, and of anything.

use bytes::{Bytes, BytesMut};
use grapevine_zmtp::{Limits, Session, SocketType, Violation, encode_message};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    message_bytes: 1000,
    frames: 3,
};

fn router() -> Session {
    Session::new(SocketType::Router, LIMITS)
}

/// What libzmq 4.3.5 sent as a DEALER with the identity `10.0.0.1:21001`, and then one frame; captured.
fn libzmq() -> BytesMut {
    let mut bytes = BytesMut::from(&b"\xff\0\0\0\0\0\0\0\x0f\x7f\x03\x01NULL"[..]);
    bytes.resize(64, 0);
    bytes.extend_from_slice(
        b"\x04\x37\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x0e10.0.0.1:21001",
    );
    bytes.extend_from_slice(b"\0\x05hello");
    bytes
}

#[test]
fn a_dealer_of_libzmq_is_understood_however_its_bytes_arrive() {
    for chunk in [1, 7, 64, 1000] {
        let mut session = router();
        let (mut buffer, mut messages) = (BytesMut::new(), Vec::new());
        for bytes in libzmq().chunks(chunk) {
            buffer.extend_from_slice(bytes);
            messages.extend(session.next(&mut buffer).expect("no violation"));
        }
        assert!(session.is_ready());
        assert_eq!(messages, [[Bytes::from("hello")]]);
        let mut expected = BytesMut::from(&b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL"[..]);
        expected.resize(64, 0);
        expected.extend_from_slice(
            b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0",
        );
        assert_eq!(session.take_output(), expected);
    }
}

/// A router after the handshake.
fn ready() -> Session {
    let mut session = router();
    let message = session.next(&mut libzmq()).expect("no violation");
    assert!(message.is_some());
    session.take_output();
    session
}

#[test]
fn a_heartbeat_gets_its_context_back_also_between_the_frames_of_a_message() {
    let mut session = ready();
    let mut bytes = BytesMut::from(&b"\x01\x01a\x04\x09\x04PING\0\x0axy\0\x01b"[..]);
    let message = session.next(&mut bytes).expect("no violation");
    assert_eq!(message, Some(vec![Bytes::from("a"), Bytes::from("b")]));
    assert_eq!(&session.take_output()[..], b"\x04\x07\x04PONGxy");
}

#[test]
fn what_breaks_the_protocol_or_a_limit_ends_the_connection() {
    let of = |session: Session, bytes: &[u8]| {
        let mut session = session;
        session
            .next(&mut BytesMut::from(bytes))
            .expect_err("a violation")
    };
    // Known by its first byte, without waiting for 64.
    assert_eq!(of(router(), b"GET / HTTP/1.1\r\n"), Violation::Greeting);
    // ZMTP 1 and 2.
    assert_eq!(
        of(router(), b"\xff\0\0\0\0\0\0\0\x01\x7f\x01"),
        Violation::Greeting
    );
    let mut plain = libzmq();
    plain[12..17].copy_from_slice(b"PLAIN");
    assert_eq!(of(router(), &plain), Violation::Mechanism);
    let with_type = |name: &[u8; 6]| {
        let mut bytes = libzmq();
        let at = bytes
            .windows(6)
            .position(|w| w == b"DEALER")
            .expect("its type");
        bytes[at..at + 6].copy_from_slice(name);
        bytes
    };
    assert_eq!(of(router(), &with_type(b"PUSHER")), Violation::SocketType);
    // A message before READY, READY twice, ERROR.
    assert_eq!(
        of(router(), &[&libzmq()[..64], b"\0\x01a"].concat()),
        Violation::TooLarge
    );
    assert_eq!(of(ready(), &libzmq()[64..]), Violation::Command);
    assert_eq!(of(ready(), b"\x04\x0a\x05ERROR\x03bad"), Violation::Command);
    assert_eq!(of(ready(), b"\x08\0"), Violation::Flags);
    assert_eq!(of(ready(), b"\x05\0"), Violation::Flags);
    // By its length alone: of one frame, of several together, of a command, and the number of frames.
    assert_eq!(
        of(ready(), b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"),
        Violation::TooLarge
    );
    assert_eq!(
        of(ready(), b"\x02\0\0\0\0\0\0\x03\xe9"),
        Violation::TooLarge
    );
    let mut two = BytesMut::new();
    encode_message(&[vec![0; 600].into(), vec![0; 401].into()], &mut two);
    assert_eq!(of(ready(), &two), Violation::TooLarge);
    assert_eq!(
        of(ready(), b"\x06\0\0\0\0\0\0\x08\x01"),
        Violation::TooLarge
    );
    assert_eq!(of(ready(), b"\x01\0\x01\0\x01\0\0\0"), Violation::TooLarge);
}

#[test]
fn sockets_that_do_not_talk_are_told_apart() {
    let meet = |one, other| {
        let (mut one, mut other) = (Session::new(one, LIMITS), Session::new(other, LIMITS));
        let mut bytes = one.take_output();
        other.next(&mut bytes)?;
        let mut back = other.take_output();
        one.next(&mut back)?;
        let mut bytes = one.take_output();
        other.next(&mut bytes).map(|_| ())?;
        assert!(one.is_ready() && other.is_ready());
        Ok(())
    };
    let refused = Err(Violation::SocketType);
    assert_eq!(meet(SocketType::Router, SocketType::Dealer), Ok(()));
    assert_eq!(meet(SocketType::Dealer, SocketType::Dealer), Ok(()));
    assert_eq!(meet(SocketType::Sub, SocketType::Sub), refused);
    assert_eq!(meet(SocketType::Sub, SocketType::Router), refused);
}

proptest! {
    #[test]
    fn messages_come_out_as_they_went_in(
        messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..=3), 0..5),
        chunk in 1_usize..400,
    ) {
        let mut wire = BytesMut::new();
        let messages: Vec<Vec<Bytes>> = messages.into_iter()
            .map(|message| message.into_iter().map(Bytes::from).collect()).collect();
        for message in &messages {
            encode_message(message, &mut wire);
        }
        let (mut session, mut buffer, mut came) = (ready(), BytesMut::new(), Vec::new());
        for bytes in wire.chunks(chunk) {
            buffer.extend_from_slice(bytes);
            while let Some(message) = session.next(&mut buffer).expect("within the limits") {
                came.push(message);
            }
        }
        prop_assert_eq!(came, messages);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    fn no_bytes_panic_and_what_is_left_is_bounded(bytes in prop::collection::vec(any::<u8>(), 0..600), is_late: bool) {
        let mut session = if is_late { ready() } else { router() };
        let mut buffer = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = session.next(&mut buffer) {}
        prop_assert!(session.take_output().len() <= 64 + 50 + 23 * 600 / 8);
    }

    #[test]
    fn a_broken_byte_of_a_real_peer_does_not_panic(at in 0_usize..127, byte: u8) {
        let mut bytes = libzmq();
        let at = at.min(bytes.len() - 1);
        bytes[at] = byte;
        let mut session = router();
        while let Ok(Some(_)) = session.next(&mut bytes) {}
    }
}
