//! What the programs print on the kernel's own RDMA device, rxe, over the original library: recorded
//! in the virtual machine, and what every other software device is compared with.
//!
//! A file has the transcript of each side of each case under a heading `== CASE SIDE`. That of the
//! device without native flush has those alone that are not the same as with it.

use crate::transcript::{Line, Place, Transcript, around};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The transcripts by case and side.
#[derive(Default)]
pub struct Recording(BTreeMap<(String, String), Vec<String>>);

impl Recording {
    pub fn parse(text: &str) -> Self {
        let mut all = BTreeMap::new();
        let mut of = None;
        for line in text.lines() {
            if let Some((case, side)) = line.strip_prefix("== ").and_then(|l| l.split_once(' ')) {
                of = Some((case.to_string(), side.to_string()));
            } else if let Some(of) = &of {
                let lines: &mut Vec<String> = all.entry(of.clone()).or_default();
                lines.push(line.to_string());
            }
        }
        Self(all)
    }

    /// What was recorded on a device of that kind.
    pub fn of(place: Place) -> Self {
        let mut all = Self::parse(include_str!("rxe-native.transcripts"));
        if place == Place::Raw {
            all.0
                .extend(Self::parse(include_str!("rxe-raw.transcripts")).0);
        }
        all
    }

    /// What is not the same in another one.
    pub fn without(mut self, other: &Self) -> Self {
        self.0.retain(|of, lines| other.0.get(of) != Some(lines));
        self
    }

    pub fn add(&mut self, case: &str, transcript: &Transcript) {
        let of = (case.to_string(), side(transcript).to_string());
        self.0.insert(of, transcript.lines.clone());
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for ((case, side), lines) in &self.0 {
            writeln!(text, "== {case} {side}\n{}", lines.join("\n")).unwrap();
        }
        text
    }

    /// Compares a transcript with what was recorded. Where another device is known to differ, it has
    /// to, and that is noted in `seen`.
    pub fn compare(
        &self,
        case: &str,
        transcript: &Transcript,
        known: &[Deviation],
        seen: &mut Seen,
    ) -> Result<(), String> {
        let side = side(transcript);
        let none = vec![];
        let of = (case.to_string(), side.to_string());
        let recorded = self.0.get(&of).unwrap_or(&none);
        for i in 0..recorded.len().max(transcript.lines.len()) {
            let (expected, line) = (recorded.get(i), transcript.lines.get(i));
            let due = expected.map(|expected| {
                let mut due = expected.clone();
                for (row, known) in known.iter().enumerate() {
                    if let Some(other) = known.apply(case, &due) {
                        due = other;
                        *seen.rows.entry(row).or_default() += 1;
                    }
                }
                due
            });
            if due.as_ref() == line {
                if due.as_ref() == expected {
                    seen.same += 1;
                } else {
                    seen.others += 1;
                }
                continue;
            }
            let due = due.filter(|due| Some(due) != expected);
            let due = due.map_or(String::new(), |due| {
                format!("  where this is due:\n  {due}\n")
            });
            return Err(format!(
                "{side} over the original library: on rxe it was\n{}{due}  and this is\n{}",
                around(recorded, i),
                around(&transcript.lines, i),
            ));
        }
        Ok(())
    }
}

fn side(transcript: &Transcript) -> &str {
    if transcript.side.is_empty() {
        "alone"
    } else {
        transcript.side
    }
}

/// What showed in a comparison.
#[derive(Default)]
pub struct Seen {
    /// The lines that are the same, and those that are others as they have to be.
    pub same: usize,
    pub others: usize,
    /// How often each row of the table was applied.
    pub rows: BTreeMap<usize, usize>,
}

/// What is another in a value over softverbs than on rxe: a row of `softverbs.table`.
pub struct Deviation {
    /// What the table says of it.
    why: String,
    case: &'static str,
    key: &'static str,
    rxe: &'static str,
    softverbs: &'static str,
}

/// The table's rows for devices of that kind.
pub fn deviations(place: Place) -> Vec<Deviation> {
    let paragraphs = include_str!("softverbs.table").split("\n\n");
    let rows = paragraphs.flat_map(|paragraph| {
        let (why, rows): (Vec<_>, Vec<_>) = paragraph.lines().partition(|l| l.starts_with('#'));
        let why = why.iter().map(|line| line.trim_start_matches('#').trim());
        let why = why.collect::<Vec<_>>().join(" ");
        rows.into_iter().map(move |row| (row, why.clone()))
    });
    rows.filter_map(|(row, why)| {
        let parts: Vec<_> = row.split(" | ").map(str::trim).collect();
        let [case, of, key, rxe, softverbs] = parts[..] else {
            panic!("not a row of softverbs.table: {row}");
        };
        let here = match of {
            "any" => true,
            "native" => place == Place::Native,
            "raw" => place == Place::Raw,
            _ => panic!("no such place: {row}"),
        };
        here.then_some(Deviation {
            why,
            case,
            key,
            rxe,
            softverbs,
        })
    })
    .collect()
}

/// Whether a pattern, which may end with `*`, is that of a text.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => text == pattern,
    }
}

impl Deviation {
    pub fn is_of(&self, case: &str) -> bool {
        fits(self.case, case)
    }

    /// The line that is due where that one was recorded, if it is another.
    fn apply(&self, case: &str, recorded: &str) -> Option<String> {
        let Line { key, value, .. } = Line::parse(recorded);
        let due = value.replace(self.rxe, self.softverbs);
        if !self.is_of(case) || !fits(self.key, key) || due == value {
            return None;
        }
        let before = recorded.len() - value.len();
        Some(format!("{}{due}", &recorded[..before]))
    }

    /// As a row of a table for people, with how often it showed.
    pub fn told(&self, count: usize) -> String {
        let Self {
            why,
            case,
            key,
            rxe,
            softverbs,
        } = self;
        format!("| `{case}` | `{key}` | {count} | `{rxe}` | `{softverbs}` | {why} |")
    }

    pub fn unseen(&self) -> String {
        let Self {
            case,
            key,
            rxe,
            softverbs,
            ..
        } = self;
        format!("no `{rxe}` that would be `{softverbs}` in {key} of {case}")
    }
}
