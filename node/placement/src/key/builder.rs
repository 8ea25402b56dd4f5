//! The one pass from text to [`Key`].

use super::{Key, KeySettings, Link, marks::Marks};

/// Bytes of text under one link.
const CHUNK: usize = 256;

/// Links kept per key, enough for 4 MiB of text. What lies beyond is hashed and counted, its links are not kept:
/// a body of a million empty messages must not become a million links.
const LINKS_MAX: usize = 16_384;

/// Kinds of fields: distinct, so that no text reads as another field. Part of the golden vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Kind {
    Model = 1,
    Tenant = 2,
    Role = 3,
    Chunk = 4,
    ToolsEnd = 5,
    MessageEnd = 6,
    TextEnd = 7,
    TokensEnd = 8,
    Session = 9,
    User = 10,
}

/// The speaker of a section, as far as anchors care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaker {
    System,
    User,
    Other,
}

/// Builds a [`Key`] from borrowed text, in one pass and without copying whole chunks.
///
/// Call in canonical order: `tools`, then the messages or the text. Calls never fail: any order gives a
/// well-defined key, only the same order gives the same key.
///
/// ```
/// use grapevine_placement::{KeyBuilder, KeySettings};
///
/// let mut builder = KeyBuilder::new(&KeySettings::default(), "llama", b"tenant");
/// builder.begin_message("user");
/// builder.text("What is a ");
/// builder.text("grapevine?");
/// builder.end_message();
/// let key = builder.finish();
/// assert_eq!(key.prompt_tokens(), 20 / 4);
/// ```
#[derive(Debug)]
pub struct KeyBuilder {
    settings: KeySettings,
    /// Chain after model and tenant: the root of session and user keys, too.
    root: u64,
    model: u64,
    chain: u64,
    links: Vec<Link>,
    marks: Marks,
    open: Option<Section>,
    buffer: [u8; CHUNK],
    buffered: usize,
    /// Under links so far: bytes of text, and ids of prompts given as ids.
    text_bytes: u64,
    token_ids: u64,
    anchors: Anchors,
    session: Option<u64>,
    user: Option<u64>,
    leaves_nothing: bool,
}

/// Bytes of a first message by which policy `consistent_hash` distinguishes conversations: a template comes first, and
/// the question that it asks at its end.
const OPENING_BYTES: u64 = 1_024;

/// The part of the request that is being fed.
#[derive(Debug)]
struct Section {
    /// Kind of the link that ends it.
    end: Kind,
    speaker: Speaker,
    /// Bytes under links.
    bytes: u64,
}

/// Links that a key may be named by, as far as they were passed.
#[derive(Debug, Default)]
struct Anchors {
    /// End of tools and leading system messages.
    group: Option<Link>,
    /// A message of another role has begun: system messages from here on belong to the conversation.
    group_closed: bool,
    first_user: Option<Link>,
    /// End of the first message that is not a system message, for conversations without a user message.
    first_other: Option<Link>,
    /// The last whole chunk of the first user message, or of a text, within [`OPENING_BYTES`].
    opening: Option<Link>,
    /// Where the text key ends, or the end of a shorter text.
    text: Option<Link>,
    /// Ends of the last two messages.
    last: Option<Link>,
    before_last: Option<Link>,
}

impl KeyBuilder {
    /// Starts the key of a request to `model` (or adapter) by a tenant; `tenant_salt` may be empty.
    ///
    /// Different models and tenants share no key and no link.
    pub fn new(settings: &KeySettings, model: &str, tenant_salt: &[u8]) -> Self {
        Self::reusing(Vec::new(), settings, model, tenant_salt)
    }

    /// As [`KeyBuilder::new`], in the memory of an earlier key ([`Key::into_links`]).
    pub fn reusing(
        mut links: Vec<Link>,
        settings: &KeySettings,
        model: &str,
        tenant_salt: &[u8],
    ) -> Self {
        links.clear();
        let mut builder = Self {
            settings: *settings,
            root: 0,
            model: 0,
            marks: Marks::default(),
            chain: settings.hash.hash(settings.seed, b"grapevine chain 1"),
            links,
            open: None,
            buffer: [0; CHUNK],
            buffered: 0,
            text_bytes: 0,
            token_ids: 0,
            anchors: Anchors::default(),
            session: None,
            user: None,
            leaves_nothing: false,
        };
        builder.chain = builder.field(builder.chain, Kind::Model, model.as_bytes());
        builder.model = builder.chain;
        builder.chain = builder.field(builder.chain, Kind::Tenant, tenant_salt);
        builder.root = builder.chain;
        builder
    }

    /// The session that the client names (header or body field): it replaces the session anchor.
    pub fn session(&mut self, value: impl AsRef<[u8]>) {
        self.session = Some(self.field(self.root, Kind::Session, value.as_ref()));
    }

    /// The user that the client names: only policy `consistent_hash` looks at it, since one user may hold
    /// many conversations.
    pub fn user(&mut self, value: impl AsRef<[u8]>) {
        self.user = Some(self.field(self.root, Kind::User, value.as_ref()));
    }

    /// The text becomes nothing that a worker's cache could hold: equal ones have one home, and that is all.
    pub fn leaves_nothing(&mut self) {
        self.leaves_nothing = true;
    }

    /// The tools as the request spells them, before the first message. No bytes: no tools.
    pub fn tools(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.open(Kind::ToolsEnd, Speaker::System);
        self.append(bytes);
        self.close();
    }

    /// Opens a message. One still open is ended first.
    pub fn begin_message(&mut self, role: &str) {
        self.close();
        let speaker = match role {
            "system" | "developer" => Speaker::System,
            "user" => Speaker::User,
            _ => Speaker::Other,
        };
        self.anchors.group_closed |= speaker != Speaker::System;
        self.chain = self.field(self.chain, Kind::Role, role.as_bytes());
        self.open(Kind::MessageEnd, speaker);
    }

    /// Appends to the open message; outside of a message, to a text without structure (a completion's prompt).
    ///
    /// Any number of calls: only the bytes together count.
    pub fn text(&mut self, text: impl AsRef<[u8]>) {
        if self
            .open
            .as_ref()
            .is_none_or(|section| section.end == Kind::TokensEnd)
        {
            self.open(Kind::TextEnd, Speaker::Other);
        }
        self.append(text.as_ref());
    }

    /// Appends a prompt given as token ids: exact in tokens, and keyed by its first ids as text is.
    pub fn token_ids(&mut self, ids: &[u32]) {
        if self
            .open
            .as_ref()
            .is_none_or(|section| section.end != Kind::TokensEnd)
        {
            self.open(Kind::TokensEnd, Speaker::Other);
        }
        for ids in ids.chunks(CHUNK / size_of::<u32>()) {
            let mut bytes = [0; CHUNK];
            for (place, id) in bytes.chunks_exact_mut(size_of::<u32>()).zip(ids) {
                place.copy_from_slice(&id.to_le_bytes());
            }
            self.append(&bytes[..size_of_val(ids)]);
        }
    }

    /// Ends the open message; without one, does nothing.
    pub fn end_message(&mut self) {
        self.close();
    }

    /// Ends what is open and names the key.
    #[must_use]
    pub fn finish(mut self) -> Key {
        self.close();
        let Anchors {
            group,
            first_user,
            first_other,
            opening,
            text,
            last,
            before_last,
            ..
        } = self.anchors;
        let named = first_user.or(first_other).or(text).or(group);
        let prompt_tokens = self.tokens();
        // What an earlier request of this conversation left: all but the newest message. A text shows no history;
        // a session that is named vouches for all of it.
        let stable_tokens = match (named, last) {
            (Some(_), Some(_)) => before_last.or(group).map_or(0, |link| link.tokens),
            (Some(_), None) if self.session.is_some() => prompt_tokens,
            (Some(anchor), None) => anchor.tokens,
            (None, _) => 0,
        };
        Key {
            home: self
                .session
                .or(named.map(|link| link.hash))
                .unwrap_or(self.root),
            links: self.links,
            marks: match self.leaves_nothing {
                true => Vec::new(),
                false => self.marks.into_vec(),
            },
            leaves_nothing: self.leaves_nothing,
            model: self.model,
            group,
            session: self.session,
            user: self.user.or(opening.map(|link| link.hash)),
            stable_tokens,
            prompt_tokens,
        }
    }

    fn open(&mut self, end: Kind, speaker: Speaker) {
        self.close();
        self.open = Some(Section {
            end,
            speaker,
            bytes: 0,
        });
    }

    /// Feeds bytes of the open section; every full chunk becomes a link at once.
    fn append(&mut self, mut bytes: &[u8]) {
        if self.buffered > 0 {
            let taken = bytes.len().min(CHUNK - self.buffered);
            self.buffer[self.buffered..self.buffered + taken].copy_from_slice(&bytes[..taken]);
            self.buffered += taken;
            bytes = &bytes[taken..];
            if self.buffered < CHUNK {
                return;
            }
            let chunk = self.buffer;
            self.chunk(&chunk);
        }
        let mut chunks = bytes.chunks_exact(CHUNK);
        for chunk in &mut chunks {
            self.chunk(chunk);
        }
        let rest = chunks.remainder();
        self.buffer[..rest.len()].copy_from_slice(rest);
        self.buffered = rest.len();
    }

    fn chunk(&mut self, chunk: &[u8]) {
        let mut section = self
            .open
            .take()
            .expect("text is appended to an open section");
        let link = self.link(&mut section, Kind::Chunk, chunk);
        let key_bytes =
            u64::from(self.settings.text_key_bytes.get()).next_multiple_of(CHUNK as u64);
        let opens = section.is_text() || section.speaker == Speaker::User;
        if opens && self.anchors.first_user.is_none() && section.bytes <= OPENING_BYTES {
            self.anchors.opening = Some(link);
        }
        if section.is_text() && section.bytes == key_bytes {
            self.anchors.text.get_or_insert(link);
        }
        self.open = Some(section);
    }

    fn close(&mut self) {
        let Some(mut section) = self.open.take() else {
            return;
        };
        let (end, rest) = (section.end, self.buffer);
        let link = self.link(&mut section, end, &rest[..self.buffered]);
        self.buffered = 0;
        self.anchors.pass_end(&section, link);
    }

    /// Adds a link over `bytes` of `section`.
    fn link(&mut self, section: &mut Section, kind: Kind, bytes: &[u8]) -> Link {
        self.chain = self.field(self.chain, kind, bytes);
        section.bytes += bytes.len() as u64;
        if section.end == Kind::TokensEnd {
            self.token_ids += (bytes.len() / size_of::<u32>()) as u64;
        } else {
            self.text_bytes += bytes.len() as u64;
        }
        let link = Link {
            hash: self.chain,
            tokens: self.tokens(),
        };
        if self.links.len() < LINKS_MAX {
            self.links.push(link);
        }
        self.marks.pass(link, kind != Kind::Chunk);
        link
    }

    /// Estimated tokens under links so far.
    fn tokens(&self) -> u32 {
        let estimate =
            self.text_bytes / u64::from(self.settings.bytes_per_token.get()) + self.token_ids;
        u32::try_from(estimate).unwrap_or(u32::MAX)
    }

    /// The chain after a field: hash over chain, hash of the bytes, kind and length.
    ///
    /// The bytes are hashed apart from the chain, so that the processor works on several links at a time.
    #[inline]
    fn field(&self, chain: u64, kind: Kind, bytes: &[u8]) -> u64 {
        let hash = self.settings.hash;
        let mut fields = [0; 32];
        for (place, field) in fields.chunks_exact_mut(8).zip([
            chain,
            hash.hash(0, bytes),
            kind as u64,
            bytes.len() as u64,
        ]) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        hash.hash(0, &fields)
    }
}

impl Section {
    fn is_text(&self) -> bool {
        matches!(self.end, Kind::TextEnd | Kind::TokensEnd)
    }
}

impl Anchors {
    /// Notes the end of a section where it is the first, or the last, of its sort.
    fn pass_end(&mut self, section: &Section, end: Link) {
        if section.is_text() {
            self.text.get_or_insert(end);
            return;
        }
        if section.speaker == Speaker::System {
            if !self.group_closed {
                self.group = Some(end);
            }
        } else {
            self.first_other.get_or_insert(end);
            if section.speaker == Speaker::User {
                self.first_user.get_or_insert(end);
            }
        }
        if section.end == Kind::MessageEnd {
            self.before_last = self.last.replace(end);
        }
    }
}
