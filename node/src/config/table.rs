//! The `section!` table: one row says a setting's name, type, default, range, flag and documentation.
//!
//! Everything that must agree is made from that row: the struct that parts receive,
//! the reader, the variable of the environment, the flag with its help, and the lines that
//! `--print-config` writes. Nothing about a setting is written twice.

use std::fmt;

use super::error::Problem;
use super::section_values::SectionValues;
use super::setting::Setting;

/// A section of the configuration: a plain struct whose rows are known.
pub(crate) trait Section: Default {
    /// Name in the file, without brackets.
    const NAME: &'static str;
    /// Lines of the section's documentation.
    const ABOUT: &'static [&'static str];
    /// The rows, in the order of the file.
    const ROWS: &'static [Row];

    /// Reads what the layers set. A bad value becomes a problem and leaves the default in place,
    /// so that one run reports every mistake.
    fn read(table: &SectionValues, problems: &mut Vec<Problem>) -> Self;

    /// Every key with its value as TOML; none where it is unset. Secrets are as they are shown: hidden.
    fn shown(&self) -> Vec<(&'static str, Option<String>)>;

    /// Keys of which the other one has another value.
    fn differing(&self, other: &Self) -> Vec<&'static str>;

    /// Takes over the values of the rows that may change while the replica runs. Returns the keys that changed.
    fn follow(&mut self, other: &Self) -> Vec<&'static str>;
}

/// One setting, as the printed file, the command line and the environment see it.
pub(crate) struct Row {
    pub(crate) key: &'static str,
    pub(crate) about: &'static [&'static str],
    /// The default as TOML; none when the setting is unset by default.
    pub(crate) default: fn() -> Option<String>,
    /// The permitted range as text; none when the type alone says it.
    pub(crate) range: Option<fn() -> String>,
    pub(crate) flag: Option<Flag>,
    /// A reload of the configuration brings it into use, without a restart.
    pub(crate) is_live: bool,
}

/// A flag of `serve` that sets one setting.
#[derive(Clone, Copy)]
pub(crate) struct Flag {
    /// Without the leading dashes.
    pub(crate) name: &'static str,
    /// The same setting under the name that another server gives it.
    pub(crate) alias: Option<&'static str>,
    pub(crate) kind: FlagKind,
    /// What stands for its value in help ([`Setting::VALUE_NAME`]).
    pub(crate) value_name: &'static str,
}

/// How a flag's argument becomes the setting's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlagKind {
    /// As written.
    Text,
    /// Several values, by spaces or commas.
    List,
    /// A bare number of milliseconds (vllm-router's `-ms` flags), or a duration with its unit.
    Millis,
    /// A bare number of seconds (vllm-router's `-secs` flags), or a duration with its unit.
    Secs,
    /// No argument: true.
    On,
    /// No argument: false (vllm-router's `--disable-...`).
    Off,
}

/// Text of a range, for messages and for the printed file.
pub(crate) struct Bounds<'a, T>(pub(crate) &'a std::ops::RangeInclusive<T>);

impl<T: Setting + PartialOrd> Bounds<'_, T> {
    /// Nothing, or what is wrong with a value outside.
    pub(crate) fn check(&self, value: &T) -> Result<(), String> {
        if self.0.contains(value) {
            return Ok(());
        }
        let found = value.show().unwrap_or_else(|| "nothing".into());
        Err(format!("must be {self}, found {found}"))
    }
}

impl<T: Setting> fmt::Display for Bounds<'_, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |end: &T| end.show().unwrap_or_else(|| "unset".into());
        write!(out, "{} to {}", show(self.0.start()), show(self.0.end()))
    }
}

/// Declares a section: `[name] Type { key: T = default, in range, flag "name" Kind, live now; ... }`; after the kind a
/// flag may have another name, as `alias "name"`. `live now` says that parts hold it as a [`Live`](crate::live::Live),
/// so that a reload brings it into use.
macro_rules! section {
    (
        $(#[doc = $about:literal])*
        [$name:ident] $Type:ident {
            $(
                $(#[doc = $doc:literal])*
                $key:ident: $T:ty = $default:expr
                    $(, in $range:expr)?
                    $(, flag $flag:literal $kind:ident $(alias $alias:literal)?)?
                    $(, live $live:ident)?;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $Type {
            $($(#[doc = $doc])* pub $key: $T,)*
        }

        impl Default for $Type {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $crate::config::table::Section for $Type {
            const NAME: &'static str = stringify!($name);
            const ABOUT: &'static [&'static str] = &[$($about),*];
            const ROWS: &'static [$crate::config::table::Row] = &[$(
                $crate::config::table::Row {
                    key: stringify!($key),
                    about: &[$($doc),*],
                    default: || {
                        let default: $T = $default;
                        $crate::config::setting::Setting::show(&default)
                    },
                    range: section!(@range $T $(, $range)?),
                    flag: section!(@flag $T $(, $flag $kind $($alias)?)?),
                    is_live: section!(@live $($live)?),
                },
            )*];

            fn shown(&self) -> Vec<(&'static str, Option<String>)> {
                vec![$((stringify!($key), $crate::config::setting::Setting::show(&self.$key)),)*]
            }

            fn differing(&self, other: &Self) -> Vec<&'static str> {
                let pairs = [$((stringify!($key), self.$key != other.$key)),*];
                pairs.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
            }

            fn follow(&mut self, other: &Self) -> Vec<&'static str> {
                let changes: &[(&'static str, fn(&mut Self, &Self) -> bool)] = &[$(
                    (stringify!($key), section!(@follow $key $($live)?)),
                )*];
                let mut changed = Vec::new();
                for (key, follow) in changes {
                    if follow(self, other) {
                        changed.push(*key);
                    }
                }
                changed
            }

            fn read(
                table: &$crate::config::section_values::SectionValues,
                problems: &mut Vec<$crate::config::error::Problem>,
            ) -> Self {
                Self {
                    $($key: table.take(stringify!($key), section!(@check $T $(, $range)?), problems)
                        .unwrap_or_else(|| $default),)*
                }
            }
        }
    };
    (@range $T:ty) => { None };
    (@range $T:ty, $range:expr) => {
        Some(|| {
            let range: std::ops::RangeInclusive<$T> = $range;
            $crate::config::table::Bounds(&range).to_string()
        })
    };
    (@check $T:ty) => { |_| Ok(()) };
    (@check $T:ty, $range:expr) => {
        |value: &$T| $crate::config::table::Bounds(&$range).check(value)
    };
    (@live) => { false };
    (@live now) => { true };
    (@follow $key:ident) => { |_, _| false };
    (@follow $key:ident now) => {
        |own, other| {
            let is_other = own.$key != other.$key;
            own.$key.clone_from(&other.$key);
            is_other
        }
    };
    (@flag $T:ty) => { None };
    (@flag $T:ty, $flag:literal $kind:ident) => { section!(@flag $T, $flag $kind, None) };
    (@flag $T:ty, $flag:literal $kind:ident $alias:literal) => {
        section!(@flag $T, $flag $kind, Some($alias))
    };
    (@flag $T:ty, $flag:literal $kind:ident, $alias:expr) => {
        Some($crate::config::table::Flag {
            name: $flag,
            alias: $alias,
            kind: $crate::config::table::FlagKind::$kind,
            value_name: <$T as $crate::config::setting::Setting>::VALUE_NAME,
        })
    };
}
pub(crate) use section;
