//! A finding: a problem, and ways out.

use serde::Serialize;

/// Something that a user should know.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    pub level: Level,
    /// What it is, in a word for programs, which stays the same.
    pub code: &'static str,
    /// The device, address, library or file that it is about.
    pub subject: Option<String>,
    pub problem: String,
    /// Ways out, the nearest first.
    pub remedies: Vec<Remedy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// What was asked about will fail.
    Error,
    /// Something may fail.
    Warning,
    /// It works otherwise than one might think.
    Note,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remedy {
    pub how: String,
    pub commands: Vec<String>,
}

impl Finding {
    pub(super) fn new(level: Level, code: &'static str, problem: impl Into<String>) -> Self {
        Self {
            level,
            code,
            subject: None,
            problem: problem.into(),
            remedies: vec![],
        }
    }

    pub(super) fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// All of it but the subject.
    pub(super) fn says(&self) -> (Level, &str, &[Remedy]) {
        (self.level, &self.problem, &self.remedies)
    }

    pub(super) fn mend(mut self, how: impl Into<String>, commands: &[&str]) -> Self {
        let commands = commands.iter().map(|&command| command.into()).collect();
        let how = how.into();
        self.remedies.push(Remedy { how, commands });
        self
    }

    /// Another way out than those before, or, where there is none before, the one.
    pub(super) fn or(self, how: &str, commands: &[&str]) -> Self {
        match self.remedies.is_empty() {
            true => self.mend(how, commands),
            false => self.mend(format!("Or: {}", lower(how)), commands),
        }
    }
}

/// For a sentence that goes on.
fn lower(sentence: &str) -> String {
    let (first, rest) = sentence.split_at(1);
    format!("{}{rest}", first.to_lowercase())
}
