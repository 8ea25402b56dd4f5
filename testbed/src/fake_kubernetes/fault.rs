//! What goes wrong on command: rules for requests, and the state of the network.
//!
//! Pure. The first rule that fits a request is used, as often as its `times` says.

use serde::{Deserialize, Serialize};

/// Rules at most.
pub const RULES_MAX: usize = 64;

/// Which requests a rule is for; what is absent fits all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: Option<String>,
    /// The namespace of the path.
    pub namespace: Option<String>,
    /// Lists: pages after the first, which carry a continue token.
    pub continued: Option<bool>,
}

/// What a request meets instead of its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// HTTP 410 with a Status.
    Gone,
    /// A watch: 200, then an ERROR event with the Status of 410, then the end.
    GoneEvent,
    /// HTTP 429 with `Retry-After` in seconds.
    TooManyRequests(u64),
    /// HTTP 401, whatever the token.
    Unauthorized,
    /// HTTP 500.
    InternalError,
    /// HTTP 503.
    Unavailable,
    /// No answer and no end; a watch sends its head and nothing more.
    Stall,
    /// The connection ends without an answer.
    HangUp,
    /// A watch that sends half a line and ends.
    CutLine,
}

/// A fault, when, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which requests.
    #[serde(default)]
    pub when: When,
    /// None: until the rules are cleared.
    #[serde(default)]
    pub times: Option<u32>,
    /// What they meet.
    pub fault: Fault,
}

/// How connections fare.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// As they should.
    #[default]
    Open,
    /// Open ones are cut, new ones end before a byte.
    Refusing,
    /// Neither open nor new ones get a byte, and none ends.
    Silent,
}

/// The rules in force.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

impl Rules {
    /// Fails above [`RULES_MAX`].
    pub(super) fn add(&mut self, rule: Rule) -> Result<(), String> {
        if self.0.len() >= RULES_MAX {
            return Err(format!("at most {RULES_MAX} rules; clear them first"));
        }
        self.0.push(rule);
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn list(&self) -> &[Rule] {
        &self.0
    }

    /// The fault for this request, which uses up one of its times.
    pub(super) fn take(
        &mut self,
        verb: &str,
        namespace: Option<&str>,
        continued: bool,
    ) -> Option<Fault> {
        let fits = |rule: &Rule| {
            let When {
                verb: on,
                namespace: within,
                continued: page,
            } = &rule.when;
            on.as_deref().is_none_or(|on| on == verb)
                && within
                    .as_deref()
                    .is_none_or(|within| Some(within) == namespace)
                && page.is_none_or(|page| page == continued)
        };
        let index = self.0.iter().position(fits)?;
        let rule = &mut self.0[index];
        let fault = rule.fault.clone();
        if let Some(times) = &mut rule.times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.0.remove(index);
            }
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_is_used_as_often_as_it_says() {
        let mut rules = Rules::default();
        let read = |text: &str| serde_json::from_str::<Rule>(text).expect("a rule");
        let first = r#"{"when":{"verb":"list","continued":true},"times":1,"fault":"gone"}"#;
        rules.add(read(first)).expect("room");
        rules
            .add(read(r#"{"fault":{"too_many_requests":3}}"#))
            .expect("room");
        assert_eq!(rules.take("list", None, true), Some(Fault::Gone));
        assert_eq!(
            rules.take("list", None, true),
            Some(Fault::TooManyRequests(3))
        );
        assert_eq!(
            rules.take("watch", Some("a"), false),
            Some(Fault::TooManyRequests(3))
        );
        rules.clear();
        assert_eq!(rules.take("list", None, true), None);
    }

    #[test]
    fn rules_have_an_end() {
        let mut rules = Rules::default();
        let rule = Rule {
            when: When::default(),
            times: None,
            fault: Fault::Stall,
        };
        for _ in 0..RULES_MAX {
            rules.add(rule.clone()).expect("room");
        }
        assert!(rules.add(rule).is_err());
    }
}
