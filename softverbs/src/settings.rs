//! What the environment sets.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::sync::OnceLock;
use std::{env, io};

/// What the device is to be like. Each is read once, when it is first asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `SOFTVERBS_FLUSH`, `on` or `off`: whether the device has the native FLUSH.
    pub flush: bool,
    /// `SOFTVERBS_ATOMIC_WRITE`, `on` or `off`: whether it has the native ATOMIC WRITE.
    pub atomic_write: bool,
    /// `SOFTVERBS_ODP`, `on` or `off`: whether it can page on demand.
    pub odp: bool,
    /// `SOFTVERBS_TRANSPORT`, `ib` or `iwarp`: what it says its transport is.
    pub iwarp: bool,
    /// `SOFTVERBS_PERSISTENT`, `file` or `any`: what memory may be registered for persistent flush.
    pub any_persistent: bool,
    /// `SOFTVERBS_WARN`, `on` or `off`: whether a line on stderr names causes that no event can name.
    pub warn: bool,
}

/// A variable of the environment, which says one of two things.
pub struct Variable {
    pub name: &'static str,
    /// The words for no and for yes.
    pub words: [&'static str; 2],
    pub default: bool,
    /// What it decides.
    pub about: &'static str,
}

const SWITCH: [&str; 2] = ["off", "on"];

pub const FLUSH: Variable = Variable {
    name: "SOFTVERBS_FLUSH",
    words: SWITCH,
    default: true,
    about: "native FLUSH",
};
pub const ATOMIC_WRITE: Variable = Variable {
    name: "SOFTVERBS_ATOMIC_WRITE",
    words: SWITCH,
    default: true,
    about: "native ATOMIC WRITE",
};
pub const ODP: Variable = Variable {
    name: "SOFTVERBS_ODP",
    words: SWITCH,
    default: true,
    about: "on-demand paging",
};
pub const TRANSPORT: Variable = Variable {
    name: "SOFTVERBS_TRANSPORT",
    words: ["ib", "iwarp"],
    default: false,
    about: "transport that the device claims",
};
pub const PERSISTENT: Variable = Variable {
    name: "SOFTVERBS_PERSISTENT",
    words: ["file", "any"],
    default: false,
    about: "memory that may be flushed to persistence",
};
pub const WARN: Variable = Variable {
    name: "SOFTVERBS_WARN",
    words: SWITCH,
    default: true,
    about: "causes told on stderr, each once",
};

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    Environment,
    /// iWARP has no such operation.
    Transport,
}

/// One variable as it turned out.
pub struct Reading {
    pub variable: &'static Variable,
    pub value: bool,
    pub origin: Origin,
    /// What it says, if that is no value of this variable.
    pub unknown: Option<OsString>,
}

impl Variable {
    fn parse(&self, text: &OsStr) -> Option<bool> {
        const NO: &[&str] = &["off", "0", "no", "false"];
        const YES: &[&str] = &["on", "1", "yes", "true"];
        let is = |word: &&str| text.eq_ignore_ascii_case(word);
        let [no, yes] = &self.words;
        let switch = self.words == SWITCH;
        if is(no) || switch && NO.iter().any(is) {
            Some(false)
        } else if is(yes) || switch && YES.iter().any(is) {
            Some(true)
        } else {
            None
        }
    }

    /// One that is set to nothing is not set.
    fn read(&'static self, text: Option<OsString>) -> Reading {
        let text = text.filter(|text| !text.is_empty());
        let value = text.as_deref().and_then(|text| self.parse(text));
        Reading {
            variable: self,
            value: value.unwrap_or(self.default),
            origin: value.map_or(Origin::Default, |_| Origin::Environment),
            unknown: text.filter(|_| value.is_none()),
        }
    }
}

impl Reading {
    /// The word for the value.
    pub fn word(&self) -> &'static str {
        self.variable.words[usize::from(self.value)]
    }

    /// What is wrong with it, in one line.
    pub fn complaint(&self) -> Option<String> {
        let [no, yes] = self.variable.words;
        let unknown = self.unknown.as_ref()?;
        Some(format!(
            "{} is {unknown:?}, and can only be '{yes}' or '{no}'",
            self.variable.name
        ))
    }
}

/// What `variables` say.
pub fn read(variables: impl Fn(&str) -> Option<OsString>) -> (Settings, [Reading; 6]) {
    let mut readings = [&FLUSH, &ATOMIC_WRITE, &ODP, &TRANSPORT, &PERSISTENT, &WARN]
        .map(|variable| variable.read(variables(variable.name)));
    let [flush, atomic_write, odp, transport, persistent, warn] = &mut readings;
    if transport.value {
        for operation in [&mut *flush, atomic_write] {
            operation.value = false;
            operation.origin = Origin::Transport;
        }
    }
    let settings = Settings {
        flush: flush.value,
        atomic_write: atomic_write.value,
        odp: odp.value,
        iwarp: transport.value,
        any_persistent: persistent.value,
        warn: warn.value,
    };
    (settings, readings)
}

impl Settings {
    pub fn get() -> &'static Settings {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| {
            let (settings, readings) = read(|name| env::var_os(name));
            for complaint in readings.iter().filter_map(Reading::complaint) {
                // Whoever closed stderr does not want to know.
                let _ = writeln!(
                    io::stderr(),
                    "softverbs: {complaint}; going on as if it were not set"
                );
            }
            settings
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let (settings, readings) = read(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, text)| text.into())
        });
        let complaints = readings.iter().filter_map(Reading::complaint);
        (settings, complaints.collect())
    }

    const DEFAULT: Settings = Settings {
        flush: true,
        atomic_write: true,
        odp: true,
        iwarp: false,
        any_persistent: false,
        warn: true,
    };

    #[test]
    fn nothing_set_is_the_default() {
        assert_eq!(reading(&[]), (DEFAULT, vec![]));
        assert_eq!(reading(&[("SOFTVERBS_FLUSH", "")]), (DEFAULT, vec![]));
    }

    #[test]
    fn a_switch_knows_several_words() {
        for (text, odp) in [
            ("off", false),
            ("OFF", false),
            ("0", false),
            ("no", false),
            ("false", false),
            ("on", true),
            ("1", true),
            ("Yes", true),
            ("true", true),
        ] {
            let expected = Settings { odp, ..DEFAULT };
            assert_eq!(
                reading(&[("SOFTVERBS_ODP", text)]),
                (expected, vec![]),
                "{text}"
            );
        }
    }

    #[test]
    fn iwarp_has_neither_flush_nor_atomic_write() {
        let expected = Settings {
            iwarp: true,
            flush: false,
            atomic_write: false,
            ..DEFAULT
        };
        let variables = [("SOFTVERBS_TRANSPORT", "iwarp"), ("SOFTVERBS_FLUSH", "on")];
        assert_eq!(reading(&variables), (expected, vec![]));
    }

    #[test]
    fn what_is_not_understood_is_named_and_left() {
        let variables = [
            ("SOFTVERBS_TRANSPORT", "1"),
            ("SOFTVERBS_PERSISTENT", "any"),
            ("SOFTVERBS_FLUSH", "maybe\n"),
        ];
        let expected = Settings {
            any_persistent: true,
            ..DEFAULT
        };
        let complaints = [
            r#"SOFTVERBS_FLUSH is "maybe\n", and can only be 'on' or 'off'"#,
            r#"SOFTVERBS_TRANSPORT is "1", and can only be 'iwarp' or 'ib'"#,
        ];
        assert_eq!(
            reading(&variables),
            (expected, complaints.map(String::from).to_vec())
        );
    }
}
