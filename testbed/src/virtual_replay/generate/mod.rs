//! Generated loads, closed loop: chat, agents, shared prompts, passages, one hot prompt, and prompts that share nothing.
//!
//! Equal seeds make equal loads.

mod passages;

use clap::ValueEnum as _;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::workload::{Draft, Form, Workload};
use crate::replay::{Row, Trace};

/// Tokens of a block.
const BLOCK: u32 = 64;

/// A kind of generated load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Generated {
    /// 60 groups of unequal size with system prompts of 500 to 5,000 tokens; 2 to 11 turns, 6 s apart.
    Chat,
    /// 12 groups with 4,000 to 13,000 tokens of system prompt and tools; 6 to 30 calls, 1.5 s apart.
    Agent,
    /// 150 groups that share 6,000 tokens, a question of 1,200 after them.
    Shared,
    /// 40 % of all requests share 3,000 tokens, the others nothing.
    Hot,
    /// No two requests share anything.
    Unshared,
    /// 100 groups of 1,000 to 6,000 tokens; 10 to 60 short calls, 0.5 s apart.
    ManyAgents,
    /// 400 documents of 8,000 to 40,000 tokens, some more popular; 1 to 4 short questions, 15 s apart.
    Documents,
    /// 5 groups of 200 to 1,000 tokens; 5 to 30 turns with long answers, 20 s apart.
    LongChat,
    /// 20 prompts of 1,000 to 3,000 tokens with a short question and a shorter answer.
    Classify,
    /// Chat, agents, one hot prompt and prompts that share nothing, together.
    Mixed,
    /// Questions about 500 topics, each with four of the topic's eight passages before it, in an order that is never
    /// quite the same; all in one message behind a system prompt of 640 tokens.
    Passages,
    /// The same, each passage a message of its own: where it ends may be a mark.
    PassagesApart,
}

impl Generated {
    /// The loads of the core grid. The rule's parameters were chosen on these, on the traces, and on
    /// [`Self::Documents`] and [`Self::LongChat`].
    pub const CORE: [Self; 5] = [
        Self::Chat,
        Self::Agent,
        Self::Shared,
        Self::Hot,
        Self::Unshared,
    ];
    /// Loads of other parameters. [`Self::Documents`] and [`Self::LongChat`] showed weaknesses and then guided the
    /// rule, so only the others still judge it.
    pub const MORE: [Self; 7] = [
        Self::ManyAgents,
        Self::Documents,
        Self::LongChat,
        Self::Classify,
        Self::Mixed,
        Self::Passages,
        Self::PassagesApart,
    ];
}

struct Shape {
    sessions: usize,
    groups: usize,
    /// Exponent of the groups' sizes: 0 makes them equal.
    skew: f64,
    group_tokens: (u32, u32),
    turns: (usize, usize),
    turn_tokens: (u32, u32),
    answer_tokens: (u32, u32),
    gap_ms: f64,
    /// Mean time between starts of sessions at rate 1.
    start_ms: f64,
    /// Part of the sessions that belong to a group.
    grouped: f64,
}

impl Generated {
    /// Name in tables: that of the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("none is skipped");
        value.get_name().to_owned()
    }

    fn shapes(self) -> Vec<Shape> {
        if self != Self::Mixed {
            return vec![self.shape()];
        }
        // A quarter of the sessions of each, with starts spaced accordingly.
        [Self::Chat, Self::Agent, Self::Hot, Self::Unshared]
            .map(|part| {
                let shape = part.shape();
                Shape {
                    sessions: shape.sessions / 4,
                    start_ms: shape.start_ms * 4.0,
                    ..shape
                }
            })
            .into()
    }

    fn shape(self) -> Shape {
        let chat = Shape {
            sessions: 3_000,
            groups: 60,
            skew: 1.0,
            group_tokens: (500, 5_000),
            turns: (2, 11),
            turn_tokens: (50, 600),
            answer_tokens: (100, 400),
            gap_ms: 6_000.0,
            start_ms: 100.0,
            grouped: 1.0,
        };
        match self {
            Self::Chat => chat,
            Self::Agent => Shape {
                sessions: 500,
                groups: 12,
                group_tokens: (4_000, 13_000),
                turns: (6, 30),
                turn_tokens: (100, 1_500),
                answer_tokens: (30, 200),
                gap_ms: 1_500.0,
                start_ms: 500.0,
                ..chat
            },
            Self::Shared => Shape {
                sessions: 8_000,
                groups: 150,
                skew: 0.0,
                group_tokens: (6_000, 6_000),
                turns: (1, 1),
                turn_tokens: (1_200, 1_200),
                answer_tokens: (100, 300),
                start_ms: 50.0,
                ..chat
            },
            Self::Hot => Shape {
                sessions: 8_000,
                groups: 1,
                group_tokens: (3_000, 3_000),
                turns: (1, 1),
                turn_tokens: (200, 2_000),
                start_ms: 50.0,
                grouped: 0.4,
                ..chat
            },
            Self::Unshared => Shape {
                sessions: 8_000,
                turns: (1, 1),
                turn_tokens: (500, 6_000),
                start_ms: 50.0,
                grouped: 0.0,
                ..chat
            },
            Self::ManyAgents => Shape {
                sessions: 2_000,
                groups: 100,
                skew: 0.5,
                group_tokens: (1_000, 6_000),
                turns: (10, 60),
                turn_tokens: (50, 400),
                answer_tokens: (20, 100),
                gap_ms: 500.0,
                start_ms: 500.0,
                ..chat
            },
            Self::Documents => Shape {
                sessions: 3_000,
                groups: 400,
                skew: 0.8,
                group_tokens: (8_000, 40_000),
                turns: (1, 4),
                turn_tokens: (30, 200),
                answer_tokens: (50, 300),
                gap_ms: 15_000.0,
                ..chat
            },
            Self::LongChat => Shape {
                sessions: 800,
                groups: 5,
                group_tokens: (200, 1_000),
                turns: (5, 30),
                turn_tokens: (100, 3_000),
                answer_tokens: (200, 1_500),
                gap_ms: 20_000.0,
                start_ms: 400.0,
                ..chat
            },
            Self::Classify => Shape {
                sessions: 10_000,
                groups: 20,
                group_tokens: (1_000, 3_000),
                turns: (1, 1),
                turn_tokens: (50, 300),
                answer_tokens: (5, 30),
                start_ms: 30.0,
                ..chat
            },
            Self::Mixed | Self::Passages | Self::PassagesApart => chat,
        }
    }

    /// Makes the load.
    pub fn workload(self, form: Form, seed: u64) -> Workload {
        let mut random = StdRng::seed_from_u64(seed);
        let mut drafts = Vec::new();
        if let Self::Passages | Self::PassagesApart = self {
            passages::draw(self == Self::PassagesApart, &mut random, &mut drafts);
            return Workload::build(&self.name(), BLOCK, drafts, form);
        }
        for (part, shape) in self.shapes().iter().enumerate() {
            shape.draw(part as u64, &mut random, &mut drafts);
        }
        Workload::build(&self.name(), BLOCK, drafts, form)
    }
}

impl Shape {
    /// Adds its requests; ids of different parts differ.
    fn draw(&self, part: u64, random: &mut StdRng, drafts: &mut Vec<Draft>) {
        let shape = self;
        let groups: Vec<u32> = (0..shape.groups)
            .map(|_| random.random_range(shape.group_tokens.0..=shape.group_tokens.1))
            .collect();
        let sizes = Sizes::new(groups.len(), shape.skew);
        let mut start_ms = 0.0;
        for session in (part << 32..).take(shape.sessions) {
            start_ms += shape.start_ms * exponential(random);
            let grouped = random.random_bool(shape.grouped);
            let group = sizes.draw(random);
            // Ids: group and place, then session and place, so that equal ids are equal prefixes.
            let own = |at: usize| (session + 1) << 24 | at as u64;
            let mut tokens = if grouped { groups[group] } else { 0 };
            let shared = (tokens / BLOCK) as usize;
            let mut cuts = vec![shared as u32 * BLOCK];
            for turn in 0..random.random_range(shape.turns.0..=shape.turns.1) {
                tokens += random.random_range(shape.turn_tokens.0..=shape.turn_tokens.1);
                let count = tokens.div_ceil(BLOCK) as usize;
                let blocks = (0..count)
                    .map(|at| {
                        if at < shared {
                            1 << 60 | part << 52 | (group as u64) << 24 | at as u64
                        } else {
                            own(at)
                        }
                    })
                    .collect();
                let answer = random.random_range(shape.answer_tokens.0..=shape.answer_tokens.1);
                let gap_ms = if turn == 0 {
                    0.0
                } else {
                    shape.gap_ms * exponential(random)
                };
                drafts.push(Draft {
                    row: Row {
                        t_ms: start_ms as u64,
                        in_tokens: tokens,
                        out_tokens: answer,
                        blocks,
                        session: Some(session),
                        gap_ms: Some(gap_ms as u64),
                    },
                    cuts: cuts.clone(),
                });
                cuts.push(tokens / BLOCK * BLOCK);
                tokens += answer;
                cuts.push(tokens / BLOCK * BLOCK);
            }
        }
    }
}

/// Sizes of groups, Zipf's: the n-th has the n-th part of the first one's, to the power of the skew.
struct Sizes {
    sizes: Vec<f64>,
    all: f64,
}

impl Sizes {
    fn new(groups: usize, skew: f64) -> Self {
        let sizes: Vec<f64> = (1..=groups).map(|rank| (rank as f64).powf(-skew)).collect();
        let all = sizes.iter().sum();
        Self { sizes, all }
    }

    /// A group, by its size.
    fn draw(&self, random: &mut StdRng) -> usize {
        let mut left: f64 = random.random_range(0.0..self.all);
        let group = self.sizes.iter().position(|size| {
            left -= size;
            left < 0.0
        });
        group.unwrap_or(0)
    }
}

fn exponential(random: &mut StdRng) -> f64 {
    -(1.0 - random.random::<f64>()).ln()
}

/// The sessions of a trace, several times over: what several sessions share stays shared, the rest is each copy's own.
///
/// The thinking time of sessions limits the rate of a closed loop, so a higher rate needs more sessions. Starts are
/// spread over the trace's own length, so that there are `count` times as many sessions at any time. `count` is at
/// least 1.
pub fn copies(trace: &Trace, count: u64) -> Trace {
    let mut owners = std::collections::HashMap::new();
    for row in &trace.rows {
        for &block in &row.blocks {
            let owner = owners.entry(block).or_insert(row.session);
            if *owner != row.session {
                *owner = None;
            }
        }
    }
    let span = trace.rows.iter().map(|row| row.t_ms).max().unwrap_or(0);
    let mut rows = Vec::with_capacity(trace.rows.len() * count as usize);
    for copy in 0..count {
        rows.extend(trace.rows.iter().map(|row| {
            let mut row = row.clone();
            for block in &mut row.blocks {
                if owners[block].is_some() {
                    *block |= copy << 40;
                }
            }
            row.session = row.session.map(|session| session | copy << 40);
            // Each copy starts elsewhere in the trace's time.
            row.t_ms = (row.t_ms + copy * span / count) % (span + 1);
            row
        }));
    }
    Trace {
        rows,
        ..trace.clone()
    }
}
