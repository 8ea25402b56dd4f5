//! `/v1/realtime` as far as a router sees it: the worker sends `session.created`, as vLLM does, and then
//! echoes every message.
//!
//! On the message `leave` the worker drops the connection without a close frame; on `sleep` it stops reading.

use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::connection::{Connection, Request};
use super::ledger::Open;
use super::reply::Ended;

pub(super) const PATH: &str = "/v1/realtime";

/// Is this a handshake?
pub(super) fn is_handshake(request: &Request) -> bool {
    let asks = |name, token: &str| {
        let value = request.header(name).unwrap_or_default();
        let mut tokens = value.split(',').map(str::trim);
        tokens.any(|found| found.eq_ignore_ascii_case(token))
    };
    request.path() == PATH && asks("connection", "upgrade") && asks("upgrade", "websocket")
}

/// Accepts, and echoes until either side closes. The connection carries nothing else afterwards.
pub(super) async fn serve(
    connection: &mut Connection,
    request: &Request,
    entry: &Open,
) -> Result<(), Ended> {
    let key = request.header("sec-websocket-key").unwrap_or_default();
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-accept: {}\r\n\r\n",
        derive_accept_key(key.as_bytes())
    );
    if connection.write(head.as_bytes()).await.is_err() {
        entry.client_gone();
        return Err(Ended);
    }
    entry.update(|entry| entry.status = Some(101));
    entry.first_byte();
    let (stream, early) = connection.raw();
    let mut socket = WebSocketStream::from_partially_read(stream, early, Role::Server, None).await;
    let created = json!({ "type": "session.created", "id": "sess-fake" }).to_string();
    if socket.send(Message::text(created)).await.is_err() {
        entry.client_gone();
        return Err(Ended);
    }
    while let Some(Ok(message)) = socket.next().await {
        let echoed = match message {
            Message::Text(text) if text == "leave" => return Err(Ended),
            Message::Text(text) if text == "sleep" => {
                drop(socket);
                connection.gone().await;
                entry.client_gone();
                return Err(Ended);
            }
            Message::Text(_) | Message::Binary(_) => socket.send(message).await,
            // The library answers these while it reads on.
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(()),
            Message::Close(_) => {
                let _ = socket.flush().await;
                entry.complete();
                return Err(Ended);
            }
        };
        if echoed.is_err() {
            break;
        }
    }
    entry.client_gone();
    Err(Ended)
}
