//! Paths that an operator opens beyond those that are served: one method, and a path or all below one.
//!
//! A worker's own switches stay shut behind a prefix: an operator who wants clients to reach one names it in full, and
//! is warned at the start.

use std::fmt;

use http::Method;

/// Methods that may be opened: neither a tunnel nor an echo.
const METHODS: [Method; 6] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];

/// Switches of vLLM's and SGLang's engines, and what reports about them rather than answers a client.
const ENGINE_CONTROL: &[&str] = &[
    "/abort_request",
    "/abort_requests",
    "/adapters",
    "/clear_hicache_storage_backend",
    "/collective_rpc",
    "/configure_logging",
    "/continue_generation",
    "/fault_tolerance/apply",
    "/fault_tolerance/status",
    "/finish_weight_update",
    "/flush_cache",
    "/freeze_gc",
    "/get_server_info",
    "/get_weights_by_name",
    "/get_world_size",
    "/inference/v1/abort_requests",
    "/init_weight_transfer_engine",
    "/init_weights_send_group_for_remote_instance",
    "/init_weights_update_group",
    "/is_paused",
    "/is_scaling_elastic_ep",
    "/is_sleeping",
    "/kv_event_sources",
    "/load_lora_adapter",
    "/metrics",
    "/pause",
    "/pause_generation",
    "/release_kv_cache_memory",
    "/release_memory_occupation",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/resume_memory_occupation",
    "/scale_elastic_ep",
    "/server_info",
    "/set_internal_state",
    "/shutdown_weight_transfer_engine",
    "/sleep",
    "/slow_down",
    "/start_draft_weight_update",
    "/start_profile",
    "/start_weight_update",
    "/stop_profile",
    "/unload_lora_adapter",
    "/update_weight_version",
    "/update_weights",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_tensor",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/wake_up",
    "/weight_checker",
    "/weight_info",
];

/// Does this path steer a worker's engine?
pub(super) fn is_engine_control(path: &str) -> bool {
    // Some servers take a path with a slash behind it for the same.
    let path = path.strip_suffix('/').unwrap_or(path);
    // Behind it stands the name of an adapter, which may be any.
    path.starts_with("/adapters/") || ENGINE_CONTROL.binary_search(&path).is_ok()
}

/// A method and a path that workers may be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenPath {
    method: Method,
    /// Without the star.
    path: String,
    /// Everything below the path, which ends in a slash then.
    below: bool,
}

impl OpenPath {
    /// Reads `GET /path` or `POST /below/*`. None for anything else, and for a path that is not plain.
    pub fn new(text: &str) -> Option<Self> {
        let (method, path) = text.trim().split_once(' ')?;
        let method = METHODS.into_iter().find(|known| known.as_str() == method)?;
        let path = path.trim_start();
        let (path, below) = match path.strip_suffix('*') {
            Some(above) => (above, true),
            None => (path, false),
        };
        // All paths at once are no list.
        let has_name = path.len() > 1 && (!below || path.ends_with('/'));
        (has_name && is_plain(path)).then(|| Self {
            method,
            path: path.to_owned(),
            below,
        })
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Is this path opened by it, for its method?
    pub fn is_at(&self, path: &str) -> bool {
        if !self.below {
            return self.path == path;
        }
        let rest = path.strip_prefix(&self.path);
        rest.is_some_and(|rest| !rest.is_empty()) && is_plain(path) && !is_engine_control(path)
    }

    /// Does it open a switch of the engine?
    pub fn opens_engine_control(&self) -> bool {
        !self.below && is_engine_control(&self.path)
    }
}

impl fmt::Display for OpenPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.below { "*" } else { "" };
        write!(f, "{} {}{star}", self.method, self.path)
    }
}

/// One way to write it only: no escapes, no empty or dot segments, nothing that a server may read as a slash.
fn is_plain(path: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~:@/".contains(&byte);
    let Some(inside) = path.strip_prefix('/') else {
        return false;
    };
    let inside = inside.strip_suffix('/').unwrap_or(inside);
    path.bytes().all(good)
        && inside
            .split('/')
            .all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_can_be_opened() {
        for (text, expected) in [
            ("GET /version", Some("GET /version")),
            (" POST  /v1/x/* ", Some("POST /v1/x/*")),
            ("POST /sleep", Some("POST /sleep")),
            ("POST *", None),
            ("POST /*", None),
            ("POST /", None),
            ("POST /x*", None),
            ("POST x", None),
            ("/version", None),
            ("post /x", None),
            ("CONNECT /x", None),
            ("OPTIONS /x", None),
            ("GET /a/../b", None),
            ("GET /a//b", None),
            ("GET /%61", None),
            ("GET /a?b", None),
        ] {
            let found = OpenPath::new(text).map(|open| open.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_prefix_opens_what_is_plainly_below_it_and_no_switch() {
        let open = OpenPath::new("POST /v1/*").expect("a prefix");
        for (path, expected) in [
            ("/v1/anything", true),
            ("/v1/a/b.c", true),
            ("/v1/", false),
            ("/v1", false),
            ("/v1x", false),
            ("/v1/../sleep", false),
            ("/v1/..%2fsleep", false),
            ("/v1//sleep", false),
            ("/v1/a\\b", false),
            ("/v1/load_lora_adapter", false),
            ("/v1/load_lora_adapter/", false),
        ] {
            assert_eq!(open.is_at(path), expected, "{path}");
        }
        for (prefix, path) in [
            ("POST /fault_tolerance/*", "/fault_tolerance/apply"),
            ("GET /fault_tolerance/*", "/fault_tolerance/status"),
            ("DELETE /adapters/*", "/adapters/mine"),
        ] {
            assert!(
                !OpenPath::new(prefix).expect("a prefix").is_at(path),
                "{path}"
            );
        }
        for switch in ["POST /adapters", "DELETE /adapters/mine"] {
            assert!(
                OpenPath::new(switch)
                    .expect("a path")
                    .opens_engine_control()
            );
        }
        let named = OpenPath::new("POST /v1/load_lora_adapter").expect("a path");
        assert!(named.is_at("/v1/load_lora_adapter") && named.opens_engine_control());
        assert!(!open.opens_engine_control());
    }

    #[test]
    fn the_list_of_switches_is_sorted() {
        assert!(ENGINE_CONTROL.is_sorted());
    }
}
