//! Markdown, as it stands in doc comments and in docs/, as mdoc(7), the language of manual pages.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What a page is about, by which its words are told apart.
#[derive(Default)]
pub struct Subject<'a> {
    /// The functions, which need no reference.
    pub functions: Vec<&'a str>,
    /// Their parameters.
    pub parameters: BTreeSet<&'a str>,
    /// The name of a page that is not about functions.
    pub name: &'a str,
}

/// A page as it grows.
pub struct Page<'a> {
    subject: Subject<'a>,
    text: String,
    /// Whether a paragraph that begins here has to say so.
    open: bool,
    /// The pages that are referred to, as section and name.
    pub references: BTreeSet<(u8, String)>,
}

/// A run of text of one look.
#[derive(Clone)]
enum Run {
    Plain(String),
    Code(String),
    /// By a macro.
    Marked(&'static str, String),
}

impl<'a> Page<'a> {
    pub fn new(subject: Subject<'a>) -> Self {
        Self {
            subject,
            text: String::new(),
            open: false,
            references: BTreeSet::new(),
        }
    }

    pub fn finish(self) -> String {
        self.text
    }

    /// A line that is mdoc already.
    pub fn raw(&mut self, line: &str) {
        self.text += line;
        self.text.push('\n');
    }

    pub fn section(&mut self, title: &str) {
        self.raw(&format!(".Sh {}", title.to_uppercase()));
        self.open = false;
    }

    pub fn subsection(&mut self, title: &str) {
        self.raw(&format!(".Ss {title}"));
        self.open = false;
    }

    /// An entry of a list with a tag; what is written next is what it says.
    pub fn item(&mut self, tag: &str) {
        self.raw(format!(".It {tag}").trim_end());
        self.open = false;
    }

    pub fn list(&mut self, kind: &str, entries: impl FnOnce(&mut Self)) {
        self.raw(&format!(".Bl {kind}"));
        entries(self);
        self.raw(".El");
        self.open = true;
    }

    pub fn code(&mut self, code: &str) {
        self.raw(".Bd -literal -offset indent");
        for line in code.lines() {
            let line = literal(line);
            let guard = if line.starts_with('.') { "\\&" } else { "" };
            self.raw(&format!("{guard}{line}"));
        }
        self.raw(".Ed");
        self.open = true;
    }

    /// Text in Markdown. Titles of the first level are left out: the page has one.
    pub fn markdown(&mut self, markdown: &str) {
        let mut runs: Vec<Run> = vec![];
        let mut table = Table::default();
        // Inside of these.
        let (mut marked, mut code, mut title) = (None, None, None);
        for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Paragraph | Tag::TableHead | Tag::TableRow | Tag::TableCell) => {}
                Event::End(TagEnd::Paragraph) => self.paragraph(&runs.split_off(0)),
                Event::Start(Tag::Heading { level, .. }) => title = Some(level),
                Event::End(TagEnd::Heading(level)) => {
                    title = None;
                    let text: String = runs.drain(..).map(|run| run.text().to_owned()).collect();
                    match level {
                        HeadingLevel::H1 => {}
                        HeadingLevel::H2 => self.section(&text),
                        _ => self.subsection(&text),
                    }
                }
                Event::Start(Tag::CodeBlock(_)) => code = Some(String::new()),
                Event::End(TagEnd::CodeBlock) => self.code(&code.take().unwrap()),
                Event::Start(Tag::List(None)) => self.raw(".Bl -bullet"),
                Event::Start(Tag::List(Some(_))) => self.raw(".Bl -enum"),
                Event::End(TagEnd::List(_)) => {
                    self.raw(".El");
                    self.open = true;
                }
                Event::Start(Tag::Item) => self.item(""),
                // A tight list has no paragraphs.
                Event::End(TagEnd::Item) => {
                    if !runs.is_empty() {
                        self.paragraph(&runs.split_off(0));
                    }
                }
                Event::Start(Tag::Table(_)) => table = Table::default(),
                Event::End(TagEnd::TableCell) => table.cells.push(runs.split_off(0)),
                Event::End(TagEnd::TableHead) => table.head = table.cells.split_off(0),
                Event::End(TagEnd::TableRow) => table.rows.push(table.cells.split_off(0)),
                Event::End(TagEnd::Table) => self.table(&table),
                Event::Start(Tag::Strong) => marked = Some("Sy"),
                Event::Start(Tag::Emphasis) => marked = Some("Em"),
                Event::End(TagEnd::Strong | TagEnd::Emphasis) => marked = None,
                // Where a file of the sources is, its name says.
                Event::Start(Tag::Link { .. }) | Event::End(TagEnd::Link) => {}
                Event::Text(text) => match (&mut code, marked) {
                    (Some(code), _) => code.push_str(&text),
                    (None, Some(name)) => runs.push(Run::Marked(name, text.into())),
                    (None, None) => runs.push(Run::Plain(text.into())),
                },
                Event::Code(text) if title.is_none() => runs.push(Run::Code(text.into())),
                Event::Code(text) => runs.push(Run::Plain(text.into())),
                Event::SoftBreak => runs.push(Run::Plain(" ".into())),
                event => panic!("no way to write {event:?} of\n{markdown}"),
            }
        }
        // Within an entry of a list a text may be no paragraph.
        assert!(runs.is_empty(), "left of\n{markdown}");
    }

    fn table(&mut self, table: &Table) {
        self.list("-tag -width Ds", |page| {
            for row in &table.rows {
                let [tag, others @ .., last] = &row[..] else {
                    panic!("a table of one column");
                };
                let tag = page.flow(tag);
                match tag.lines().count() {
                    1 => page.item(tag.trim_end().trim_start_matches('.')),
                    // Each thing keeps its own line: a macro may take in all that follows it.
                    _ => {
                        page.item("Xo");
                        page.text += &tag;
                        page.raw(".Xc");
                    }
                }
                let mut runs = last.clone();
                for (cell, head) in others.iter().zip(&table.head[1..]) {
                    let head: String = head.iter().map(Run::text).collect();
                    runs.push(Run::Plain(format!(" ({head}: ")));
                    runs.extend(cell.iter().cloned());
                    runs.push(Run::Plain(")".into()));
                }
                page.paragraph(&runs);
            }
        });
    }

    fn paragraph(&mut self, runs: &[Run]) {
        if self.open {
            self.raw(".Pp");
        }
        let text = self.flow(runs);
        self.text += &text;
        self.open = true;
    }

    /// Lines of text and macros.
    fn flow(&mut self, runs: &[Run]) -> String {
        let mut lines = String::new();
        let mut line = String::new();
        for word in words(runs) {
            let parts: Vec<_> = word.into_iter().flat_map(|run| self.parts(run)).collect();
            if let [Part::Plain(word)] = &parts[..] {
                let sentence = line.trim_end_matches(['"', ')']).ends_with(['.', '!', '?'])
                    && word.starts_with(|c: char| c.is_uppercase() || c == '"');
                if sentence || line.len() + word.len() > 78 {
                    lines += &(std::mem::take(&mut line) + "\n");
                }
                if !line.is_empty() {
                    line.push(' ');
                } else if word.starts_with(['.', '\'']) {
                    line += "\\&";
                }
                line += &escaped(word);
                continue;
            }
            if !line.is_empty() {
                lines += &(std::mem::take(&mut line) + "\n");
            }
            lines += &macro_line(&parts);
        }
        if !line.is_empty() {
            lines += &(line + "\n");
        }
        lines
    }

    /// What is to be marked up in a word, and what stands before and behind it.
    fn parts(&mut self, run: Run) -> Vec<Part> {
        match run {
            Run::Marked(name, text) => vec![Part::Macro(name, quoted(&text))],
            Run::Code(code) => vec![self.code_part(&code)],
            Run::Plain(word) => {
                let opening = word.len() - word.trim_start_matches(['(', '"']).len();
                let (before, rest) = word.split_at(opening);
                let mut core = rest.trim_end_matches(['.', ',', ';', ':', ')', '?', '!', '"']);
                // The parentheses of a function are its own.
                if core.contains('(') && rest[core.len()..].starts_with(')') {
                    core = &rest[..core.len() + 1];
                }
                let after = &rest[core.len()..];
                match self.word_part(core) {
                    Some(part) => [Part::plain(before), Some(part), Part::plain(after)]
                        .into_iter()
                        .flatten()
                        .collect(),
                    None => vec![Part::Plain(word)],
                }
            }
        }
    }

    /// A word that says itself what it is.
    fn word_part(&mut self, word: &str) -> Option<Part> {
        if let Some((name, section)) = word.strip_suffix(')').and_then(|w| w.split_once('(')) {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
            if name.is_empty() || !name.chars().all(plain) {
                return None;
            }
            if section.is_empty() && self.subject.functions.contains(&name) {
                return Some(Part::Macro("Fn", name.into()));
            }
            let section = if section.is_empty() { "3" } else { section };
            let number = section.parse().ok()?;
            if self.subject.name == name {
                return Some(Part::Macro("Nm", String::new()));
            }
            self.references.insert((number, name.into()));
            return Some(Part::Macro("Xr", format!("{name} {section}")));
        }
        let constant = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "_*".contains(c);
        let known = ["RPMA_", "IBV_", "RLIMIT_", "INT_MAX", "NULL"];
        if !word.chars().all(constant) || !known.iter().any(|start| word.starts_with(start)) {
            return None;
        }
        let error = word.starts_with("RPMA_E_") && !word.ends_with('*');
        Some(Part::Macro(if error { "Er" } else { "Dv" }, word.into()))
    }

    fn code_part(&mut self, code: &str) -> Part {
        let name = code.strip_prefix('*').unwrap_or(code);
        if self.subject.parameters.contains(name) {
            return Part::Macro("Fa", code.into());
        }
        if code == self.subject.name {
            return Part::Macro("Nm", String::new());
        }
        if let Some(part) = self.word_part(code) {
            return part;
        }
        let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let functions = !self.subject.functions.is_empty();
        if code.starts_with("struct ") || code.starts_with("enum ") || code.ends_with("_function") {
            Part::Macro("Vt", quoted(code))
        } else if let Some(option) = code.strip_prefix('-') {
            Part::Macro("Fl", quoted(option))
        } else if code.starts_with("SOFTVERBS_") || code.starts_with("LD_") {
            let (name, value) = code.split_once('=').unwrap_or((code, ""));
            match value {
                "" => Part::Macro("Ev", name.into()),
                _ => Part::Macro("Ql", quoted(code)),
            }
        } else if ["ibv_", "rdma_"]
            .iter()
            .any(|start| code.starts_with(start))
            && code.chars().all(lower)
        {
            Part::Macro("Fn", code.into())
        } else if code.starts_with("IBV_") && code.chars().all(upper) {
            Part::Macro("Dv", code.into())
        } else if code.starts_with('E') && code.len() > 4 && code.chars().all(upper) {
            Part::Macro("Er", code.into())
        } else if code.contains('/') && !code.contains(' ') {
            Part::Macro("Pa", quoted(code))
        } else if functions && code.chars().all(lower) {
            Part::Macro("Va", code.into())
        } else {
            Part::Macro("Ql", quoted(code))
        }
    }
}

#[derive(Default)]
struct Table {
    head: Vec<Vec<Run>>,
    rows: Vec<Vec<Vec<Run>>>,
    cells: Vec<Vec<Run>>,
}

impl Run {
    fn text(&self) -> &str {
        match self {
            Self::Plain(text) | Self::Code(text) | Self::Marked(_, text) => text,
        }
    }
}

enum Part {
    Plain(String),
    Macro(&'static str, String),
}

impl Part {
    fn plain(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self::Plain(text.into()))
    }
}

/// Runs by word: only plain text is divided.
fn words(runs: &[Run]) -> Vec<Vec<Run>> {
    let mut words: Vec<Vec<Run>> = vec![vec![]];
    for run in runs {
        let Run::Plain(text) = run else {
            words.last_mut().unwrap().push(run.clone());
            continue;
        };
        for (count, word) in text.split_whitespace().enumerate() {
            if count > 0 || text.starts_with(char::is_whitespace) {
                words.push(vec![]);
            }
            words.last_mut().unwrap().push(Run::Plain(word.into()));
        }
        if text.ends_with(char::is_whitespace) {
            words.push(vec![]);
        }
    }
    words.retain(|word| !word.is_empty());
    for word in &mut words {
        word.dedup_by(|next, before| match (before, next) {
            (Run::Plain(before), Run::Plain(next)) => {
                before.push_str(next);
                true
            }
            _ => false,
        });
    }
    words
}

/// One line for parts between which there is no space.
fn macro_line(parts: &[Part]) -> String {
    const CLOSING: &str = ".,;:)?!";
    let closes = |part: &Part| matches!(part, Part::Plain(text) if text.chars().all(|c| CLOSING.contains(c)));
    let mut line = String::from(".");
    for (at, part) in parts.iter().enumerate() {
        match part {
            Part::Plain(text) if at > 0 && closes(part) => {
                text.chars().for_each(|c| write!(line, " {c}").unwrap());
                continue;
            }
            _ if at > 0 => line += " Ns ",
            _ => {}
        }
        match part {
            Part::Plain(text) => write!(line, "No \\&{}", escaped(text)).unwrap(),
            // Ql would take in what follows it.
            Part::Macro("Ql", argument) if !parts[at + 1..].iter().all(closes) => {
                write!(line, "So {argument} Sc").unwrap();
            }
            Part::Macro(name, argument) if argument.is_empty() => line += name,
            Part::Macro(name, argument) => write!(line, "{name} {argument}").unwrap(),
        }
    }
    line + "\n"
}

/// Text whose characters are meant as they are.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\\' => escaped += "\\e",
            '^' => escaped += "\\(ha",
            '~' => escaped += "\\(ti",
            c if c.is_ascii() => escaped.push(c),
            c => write!(escaped, "\\[u{:04X}]", u32::from(c)).unwrap(),
        }
    }
    escaped
}

/// Code, which is to be copied from the page as it is.
pub fn literal(code: &str) -> String {
    escaped(code)
        .replace('-', "\\-")
        .replace('\'', "\\(aq")
        .replace('`', "\\(ga")
}

/// An argument of a macro.
pub fn quoted(text: &str) -> String {
    let text = literal(text).replace('"', "\\(dq");
    if text.contains(' ') {
        format!("\"{text}\"")
    } else {
        text
    }
}
