//! `man/`: that it is what the sources say, and fit to be read.

#[path = "support/mdoc.rs"]
mod mdoc;
mod support;

use mdoc::{Page, Subject, literal, quoted};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{cc, root, run, scratch};

/// Of the release that the pages are of.
const DATE: &str = "November 29, 2026";

/// The files of src/api, as a program meets them.
const FAMILIES: [&str; 14] = [
    "utils", "peer", "peer_cfg", "mr", "conn_cfg", "ep", "conn_req", "conn", "ops", "cq",
    "srq_cfg", "srq", "log", "err",
];

/// A function of the library, as the sources document it and the header declares it.
struct Function {
    name: String,
    family: &'static str,
    doc: String,
    result: String,
    parameters: Vec<String>,
}

/// The documentation of a function by what its paragraphs are about.
struct Parts<'a> {
    /// The first sentence, as far as it fits a line.
    summary: &'a str,
    description: Vec<&'a str>,
    returns: Option<&'a str>,
    threads: &'a str,
    /// What is said of the out-parameter, and the codes with their causes.
    errors: Option<(&'a str, Vec<(&'a str, String)>)>,
    /// The function that fails the same way.
    errors_as: Option<&'a str>,
    example: &'a str,
}

impl Function {
    fn parts(&self) -> Parts<'_> {
        let (doc, example) = self
            .doc
            .split_once("\n\n# Example\n\n")
            .unwrap_or((&self.doc, ""));
        let first = doc.split("\n\n").next().unwrap();
        let ends = [":", ";", ". ", ".\n"].map(|end| first.find(end));
        let end = ends.into_iter().flatten().min().unwrap_or(first.len());
        let mut parts = Parts {
            summary: first[..end].trim_end_matches('.'),
            description: vec![],
            returns: None,
            threads: "",
            errors: None,
            errors_as: None,
            example,
        };
        for paragraph in doc.split("\n\n") {
            if paragraph.starts_with("Returns ") {
                parts.returns = Some(paragraph);
            } else if paragraph.starts_with("Thread-safe")
                || paragraph.starts_with("Not thread-safe")
            {
                parts.threads = paragraph;
            } else if let Some(other) = paragraph.strip_prefix("Errors: as ") {
                parts.errors_as = Some(other);
            } else if let Some(errors) = paragraph.strip_prefix("Errors") {
                let (head, list) = errors.split_once(":\n- ").expect("a list of errors");
                let codes = list.split("\n- ").map(|item| {
                    let (code, cause) = item.split_once(": ").expect("a code and its cause");
                    let mut cause = cause.to_owned();
                    if cause
                        .split([' ', ',', ':', '.'])
                        .next()
                        .unwrap()
                        .chars()
                        .all(char::is_alphabetic)
                    {
                        cause[..1].make_ascii_uppercase();
                    }
                    (code, cause.trim_end_matches('.').to_owned() + ".")
                });
                parts.errors = Some((head, codes.collect()));
            } else {
                parts.description.push(paragraph);
            }
        }
        assert!(
            !parts.threads.is_empty(),
            "{}: nothing of threads",
            self.name
        );
        let fails = parts.errors.is_some() || parts.errors_as.is_some();
        assert!(
            fails != self.doc.contains("Cannot fail."),
            "{}: how it fails",
            self.name
        );
        parts
    }

    /// The page that it is on: what reads a setting is with what sets it, for one.
    fn page(&self, all: &[Function]) -> String {
        let name = &self.name;
        let others = [
            name.replace("_get_", "_set_"),
            name.replace("_with_imm", ""),
            name.replace("_descriptor_size", "_descriptor"),
        ];
        let other = others
            .iter()
            .find(|other| *other != name && all.iter().any(|f| f.name == **other));
        other.unwrap_or(name).clone()
    }
}

/// The lines of a doc comment.
fn doc(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let value = &attribute.meta.require_name_value().ok()?.value;
        match value {
            syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(text),
                ..
            }) => Some(text.value()),
            _ => None,
        }
    });
    let lines: Vec<String> = lines
        .map(|line| line.strip_prefix(' ').unwrap_or(&line).into())
        .collect();
    lines.join("\n")
}

/// What the header declares with parentheses, by name: what stands before it, and between them.
fn prototypes() -> BTreeMap<String, (String, Vec<String>)> {
    let header = fs::read_to_string(root().join("include/librpma.h")).unwrap();
    let code = header
        .lines()
        .filter(|line| !line.trim_start().starts_with(['/', '*', '#']));
    let code = code.collect::<Vec<_>>().join("\n");
    let declared = code.split(';').filter_map(|declaration| {
        let (before, parameters) = declaration.trim().strip_suffix(')')?.split_once('(')?;
        let (result, name) = before.split_at(before.rfind([' ', '*'])? + 1);
        let parameters = parameters
            .split(',')
            .map(|one| one.trim().to_owned())
            .collect();
        Some((name.to_owned(), (result.trim().to_owned(), parameters)))
    });
    declared.collect()
}

/// All that the sources say.
struct Api {
    functions: Vec<Function>,
    /// What a family is about.
    families: BTreeMap<&'static str, String>,
    /// The constants, and the types by their C names: members and what they are.
    constants: Vec<(String, String)>,
    types: BTreeMap<String, Vec<(String, String)>>,
    /// The type of log functions, which is one of its own.
    log_function: (String, String),
}

impl Api {
    fn read() -> Self {
        let mut prototypes = prototypes();
        let (result, parameters) = prototypes.remove("rpma_log_function").unwrap();
        let declared = format!(
            "{result} rpma_log_function({});",
            parameters.join(",\n    ")
        );
        let mut api = Self {
            functions: vec![],
            families: BTreeMap::new(),
            constants: vec![],
            types: BTreeMap::new(),
            log_function: (declared, String::new()),
        };
        for family in FAMILIES {
            let source = fs::read_to_string(root().join(format!("src/api/{family}.rs"))).unwrap();
            let file = syn::parse_file(&source).unwrap();
            let about = doc(&file.attrs);
            let about = about.split('\n').next().unwrap().trim_end_matches('.');
            api.families.insert(family, about.into());
            for item in &file.items {
                match item {
                    syn::Item::Fn(item) if item.sig.ident.to_string().starts_with("rpma_") => {
                        let name = item.sig.ident.to_string();
                        let (result, parameters) = prototypes
                            .remove(&name)
                            .unwrap_or_else(|| panic!("{name} is not in the header"));
                        let doc = doc(&item.attrs);
                        api.functions.push(Function {
                            name,
                            family,
                            doc,
                            result,
                            parameters,
                        });
                    }
                    syn::Item::Const(item) => {
                        api.constants
                            .push((item.ident.to_string(), doc(&item.attrs)));
                    }
                    syn::Item::Enum(item) => {
                        let members = item
                            .variants
                            .iter()
                            .map(|v| (v.ident.to_string(), doc(&v.attrs)));
                        api.types
                            .insert(format!("enum {}", item.ident), members.collect());
                    }
                    syn::Item::Struct(item) => {
                        let named = item
                            .fields
                            .iter()
                            .filter_map(|f| Some((f.ident.as_ref()?.to_string(), doc(&f.attrs))));
                        api.types
                            .insert(format!("struct {}", item.ident), named.collect());
                    }
                    syn::Item::Type(item) if item.ident == "rpma_log_function" => {
                        api.log_function.1 = doc(&item.attrs)
                    }
                    _ => {}
                }
            }
        }
        assert!(
            prototypes.is_empty(),
            "in no file of src/api: {prototypes:?}"
        );
        api
    }

    /// What may be where a text says `RPMA_X_*` or names a type: names with their meaning.
    fn members(&self, paragraph: &str) -> Vec<(&'static str, &str, &str)> {
        for code in paragraph.split('`').skip(1).step_by(2) {
            let (kind, all) = match code.strip_suffix('*') {
                Some(start) if start.starts_with("RPMA_") => {
                    let all = self
                        .constants
                        .iter()
                        .filter(|(name, _)| name.starts_with(start));
                    ("Dv", all.collect::<Vec<_>>())
                }
                _ => match self.types.get(code) {
                    Some(members) if code.starts_with("enum") => ("Dv", members.iter().collect()),
                    Some(members) => ("Va", members.iter().collect()),
                    None => continue,
                },
            };
            assert!(!all.is_empty(), "nothing is {code}");
            return all
                .into_iter()
                .map(|(name, about)| (kind, &**name, &**about))
                .collect();
        }
        vec![]
    }

    /// The functions on each page, by its name.
    fn pages(&self) -> BTreeMap<String, Vec<&Function>> {
        let mut pages: BTreeMap<String, Vec<&Function>> = BTreeMap::new();
        for function in &self.functions {
            pages
                .entry(function.page(&self.functions))
                .or_default()
                .push(function);
        }
        pages
            .values_mut()
            .for_each(|page| page.sort_by_key(|f| f.name != f.page(&self.functions)));
        pages
    }
}

/// The page of these functions, and what it refers to.
fn page(api: &Api, functions: &[&Function], programs: &BTreeMap<String, String>) -> Made {
    let first = functions[0];
    let all: Vec<_> = functions.iter().map(|f| (*f, f.parts())).collect();
    let parameters = functions
        .iter()
        .flat_map(|f| &f.parameters)
        .map(|parameter| {
            let at = parameter.rfind([' ', '*']).unwrap() + 1;
            &parameter[at..]
        });
    let mut page = Page::new(Subject {
        functions: functions.iter().map(|f| &*f.name).collect(),
        parameters: parameters.collect(),
        name: "",
    });

    begin(&mut page, &first.name, 3);
    for (at, function) in functions.iter().enumerate() {
        let comma = if at + 1 < functions.len() { " ," } else { "" };
        page.raw(&format!(".Nm {}{comma}", function.name));
    }
    page.raw(&format!(".Nd {}", imperative(all[0].1.summary)));
    page.section("Library");
    page.raw("Remote Persistent Memory Access (librpma, \\-lrpma)");

    page.section("Synopsis");
    page.raw(".In librpma.h");
    for function in functions {
        page.raw(&format!(
            ".Ft {}\n.Fo {}",
            quoted(&function.result),
            function.name
        ));
        for parameter in &function.parameters {
            page.raw(&format!(".Fa {}", quoted(parameter)));
        }
        page.raw(".Fc");
    }

    page.section("Description");
    for (function, parts) in &all {
        for (at, paragraph) in parts.description.iter().enumerate() {
            match at {
                0 => page.markdown(&said_of(&function.name, paragraph)),
                _ => page.markdown(paragraph),
            }
            let members = api.members(paragraph);
            if !members.is_empty() {
                page.list("-tag -width Ds -offset indent -compact", |page| {
                    for (kind, name, about) in members {
                        page.item(&format!("{kind} {name}"));
                        page.markdown(about);
                    }
                });
            }
            if paragraph.contains("`rpma_log_function`") {
                let (declaration, about) = &api.log_function;
                page.code(declaration);
                page.markdown(about);
            }
        }
    }

    page.section("Thread safety");
    // What holds for all of them is said once.
    let names = functions
        .iter()
        .map(|f| format!("{}()", f.name))
        .collect::<Vec<_>>();
    let same = all
        .iter()
        .all(|(_, parts)| parts.threads == all[0].1.threads);
    let (names, be) = match same && functions.len() > 1 {
        true => (vec![names.join(" and ")], "are"),
        false => (names, "is"),
    };
    for (name, (_, parts)) in names.iter().zip(&all) {
        let text = parts.threads.replace("Cannot fail.", "");
        page.markdown(&match text.strip_prefix("Not ") {
            Some(rest) => format!("{name} {be} not {rest}"),
            None => format!("{name} {be} {}", text.replacen('T', "t", 1)),
        });
    }

    page.section("Return values");
    for (function, parts) in &all {
        let name = &function.name;
        page.markdown(&match (&parts.returns, &parts.errors) {
            (Some(returns), _) => said_of(name, returns),
            (None, Some((out, _))) => {
                format!("{name}() returns 0, or on failure one of the codes below{out}.")
            }
            (None, None) if parts.errors_as.is_some() => {
                format!("{name}() returns 0, or on failure one of the codes below.")
            }
            (None, None) => format!("{name}() returns 0."),
        });
    }

    page.section("Examples");
    let mut shown = false;
    for (function, parts) in &all {
        if !parts.example.is_empty() {
            page.markdown(parts.example);
            shown = true;
        }
        if let Some(programs) = programs.get(&function.name) {
            page.markdown(&format!("{}() is used in {programs}.", function.name));
            shown = true;
        }
    }
    assert!(shown, "{}: no example", first.name);

    page.section("Errors");
    for (function, parts) in &all {
        let name = &function.name;
        match (&parts.errors, parts.errors_as) {
            (Some((_, codes)), _) => {
                page.markdown(&format!("{name}() fails with:"));
                page.list("-tag -width Ds", |page| {
                    for (code, cause) in codes {
                        page.item(&format!("Bq Er {code}"));
                        page.markdown(cause);
                    }
                });
            }
            (None, Some(other)) => page.markdown(&format!("{name}() fails as {other} does.")),
            (None, None) => page.markdown(&format!("{name}() cannot fail.")),
        }
    }
    let provider = all.iter().any(|(_, parts)| {
        parts
            .errors
            .iter()
            .any(|(_, codes)| codes.iter().any(|(code, _)| *code == "RPMA_E_PROVIDER"))
    });
    if provider {
        page.markdown("The log names the call of libibverbs or librdmacm that failed, and why; rpma_log_set_threshold() brings it to stderr.");
    }

    for other in api
        .functions
        .iter()
        .filter(|other| other.family == first.family)
    {
        page.references.insert((3, other.page(&api.functions)));
    }
    page.references.insert((7, "librpma".into()));
    page.references
        .retain(|(_, name)| functions.iter().all(|f| f.name != *name));
    see_also(page)
}

/// A page and what it refers to.
struct Made {
    text: String,
    references: BTreeSet<(u8, String)>,
}

fn begin(page: &mut Page, name: &str, section: u8) {
    let name = name.to_uppercase();
    page.raw(".\\\" SPDX-License-Identifier: BSD-3-Clause");
    page.raw(".\\\" Generated from the sources: a change is made there, then `make man`.");
    page.raw(&format!(".Dd {DATE}\n.Dt {name} {section}"));
    page.raw(&format!(".Os librpma {}", env!("CARGO_PKG_VERSION")));
    page.section("Name");
}

fn see_also(mut page: Page) -> Made {
    page.section("See also");
    let references = page.references.clone();
    for (at, (section, name)) in references.iter().enumerate() {
        let comma = if at + 1 < references.len() { " ," } else { "" };
        page.raw(&format!(".Xr {name} {section}{comma}"));
    }
    Made {
        text: page.finish(),
        references,
    }
}

/// "Sets a threshold", as it is said of a function.
fn said_of(function: &str, paragraph: &str) -> String {
    let (first, rest) = paragraph.split_at(1);
    format!("{function}() {}{rest}", first.to_lowercase())
}

/// "Sets a threshold", as the title of a page.
fn imperative(sentence: &str) -> String {
    let (verb, rest) = sentence.split_once(' ').unwrap();
    let verb = match verb.strip_suffix("shes") {
        Some(stem) => format!("{stem}sh"),
        None => verb.strip_suffix('s').unwrap_or(verb).into(),
    };
    format!(
        "{} {}",
        verb.to_lowercase(),
        literal(&rest.replace('`', "").replace('\n', " "))
    )
}

/// The example programs that call each function, as words.
fn programs(api: &Api) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in fs::read_dir(root().join("examples"))
        .unwrap()
        .map(Result::unwrap)
    {
        let name = file.file_name().into_string().unwrap();
        if !name.ends_with(".c") && !name.ends_with(".h") {
            continue;
        }
        let text = fs::read_to_string(file.path()).unwrap();
        for function in &api.functions {
            let call = format!("{}(", function.name);
            if text
                .match_indices(&call)
                .any(|(at, _)| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
            {
                found
                    .entry(function.name.clone())
                    .or_default()
                    .insert(name.clone());
            }
        }
    }
    let words = |files: BTreeSet<String>| {
        let first: Vec<_> = files
            .iter()
            .take(3)
            .map(|file| format!("`examples/{file}`"))
            .collect();
        match files.len() {
            0..=3 => listed(&first),
            _ => format!("{} and others", first.join(", ")),
        }
    };
    found
        .into_iter()
        .map(|(function, files)| (function, words(files)))
        .collect()
}

/// "a, b and c"
fn listed(all: &[String]) -> String {
    match all {
        [first @ .., before, last] => [first, &[format!("{before} and {last}")]]
            .concat()
            .join(", "),
        _ => all.concat(),
    }
}

/// The page of the library: its document, and the functions and codes that there are.
fn library(api: &Api) -> Made {
    let mut page = document(
        "librpma",
        &fs::read_to_string(root().join("docs/librpma.md")).unwrap(),
    );
    page.section("Functions");
    let pages = api.pages();
    for family in FAMILIES {
        page.raw(&format!(".Ss {}", api.families[family]));
        page.list("-tag -width Ds -compact", |page| {
            for function in api.functions.iter().filter(|f| f.family == family) {
                page.item(&format!("Xr {} 3", function.name));
                page.raw(&imperative(function.parts().summary));
            }
        });
    }
    page.section("Codes");
    page.markdown("A function returns 0 or one of these codes, which rpma_err_2str() puts into words. Its page says what each means for it.");
    page.list("-tag -width Ds", |page| {
        for (code, about) in api
            .constants
            .iter()
            .filter(|(name, _)| name.starts_with("RPMA_E_"))
        {
            page.item(&format!("Bq Er {code}"));
            page.markdown(about);
        }
    });
    page.references
        .retain(|(_, name)| !pages.values().flatten().any(|f| f.name == *name));
    page.references
        .insert((3, "rpma_utils_get_ibv_context".into()));
    page.references.insert((3, "rpma_peer_new".into()));
    see_also(page)
}

/// The page of the software device: its document, as far as it is for its users.
fn device() -> Made {
    let text = fs::read_to_string(root().join("docs/softverbs.md")).unwrap();
    let (text, _) = text.split_once("## How it works").unwrap();
    let mut page = document("softverbs", text);
    page.references
        .extend([(1, "softverbs".into()), (7, "librpma".into())]);
    see_also(page)
}

/// The beginning of a page made of a document.
fn document<'a>(name: &'a str, text: &str) -> Page<'a> {
    let mut page = Page::new(Subject {
        name,
        ..Subject::default()
    });
    begin(&mut page, name, 7);
    let (_, text) = text.split_once("\n\n").unwrap();
    let (first, rest) = text.split_once("\n\n").unwrap();
    let (about, more) = first.split_once('.').unwrap();
    // One sentence alone is the title.
    let text = if more.is_empty() { rest } else { text };
    let (first, rest) = about.split_at(1);
    page.raw(&format!(".Nm {name}\n.Nd {}{rest}", first.to_lowercase()));
    page.section("Description");
    page.markdown(text);
    page
}

/// The page of a program: what it says when it is asked for help, and what its document adds.
fn program(file: &Path, commands: &[&str], more: &str, others: &[(u8, &str)]) -> Made {
    let help = |arguments: &[&str]| run(Command::new(file).args(arguments).arg("--help")).0;
    let name = file.file_name().unwrap().to_str().unwrap();
    let mut page = Page::new(Subject {
        name,
        ..Subject::default()
    });
    begin(&mut page, name, 1);
    let main = Help::read(&help(&[]));
    let (first, rest) = main.about.split_at(1);
    let about = rest.split(['.', '\n']).next().unwrap();
    page.raw(&format!(".Nm {name}\n.Nd {}{about}", first.to_lowercase()));

    let commands: Vec<_> = commands
        .iter()
        .map(|command| (command, Help::read(&help(&[command]))))
        .collect();
    page.section("Synopsis");
    for usage in commands
        .iter()
        .map(|(_, help)| &help.usage)
        .chain([&main.usage])
    {
        let arguments = usage.strip_prefix(name).unwrap().trim();
        let arguments = if arguments == "<COMMAND>" {
            "--help"
        } else {
            arguments
        };
        page.raw(&format!(
            ".Nm\n.{}",
            arguments
                .split(' ')
                .map(token)
                .collect::<Vec<_>>()
                .join(" ")
        ));
    }
    page.section("Description");
    page.markdown(&sentence(&main.about));
    for (command, help) in &commands {
        page.subsection(command);
        page.markdown(&sentence(&help.about));
        help.sections
            .iter()
            .for_each(|(_, entries)| options(&mut page, entries));
    }
    for (title, entries) in &main.sections {
        match &**title {
            "Commands" => continue,
            "Arguments" | "Options" if commands.is_empty() => {}
            "Options" => page.subsection("Options of all commands"),
            _ => page.section(title),
        }
        match &**title {
            "Examples" => page.code(
                &entries
                    .iter()
                    .map(|(line, _)| format!("{line}\n"))
                    .collect::<String>(),
            ),
            _ => options(&mut page, entries),
        }
    }
    page.markdown(more);
    page.references.extend(
        others
            .iter()
            .map(|(section, name)| (*section, (*name).into())),
    );
    see_also(page)
}

/// What a program says of itself.
struct Help {
    about: String,
    usage: String,
    /// By title: entries and what they mean.
    sections: Vec<(String, Vec<(String, String)>)>,
}

impl Help {
    fn read(text: &str) -> Self {
        let (about, rest) = text.split_once("Usage: ").expect("how it is used");
        let (usage, rest) = rest.split_once('\n').unwrap();
        let mut sections: Vec<(String, Vec<(String, String)>)> = vec![];
        for line in rest.lines().filter(|line| !line.is_empty()) {
            if let Some(title) = line.strip_suffix(':').filter(|_| !line.starts_with(' ')) {
                sections.push((title.into(), vec![]));
                continue;
            }
            let (_, entries) = sections
                .last_mut()
                .unwrap_or_else(|| panic!("under no title: {line}"));
            if line.starts_with("          ") {
                let (_, about) = entries.last_mut().unwrap();
                if !about.is_empty() && !about.ends_with('\n') {
                    about.push('\n');
                }
                *about += &format!("{}\n", line.trim());
                continue;
            }
            let (entry, about) = line.trim().split_once("  ").unwrap_or((line.trim(), ""));
            entries.push((entry.into(), about.trim().into()));
        }
        Self {
            about: about.trim().into(),
            usage: usage.into(),
            sections,
        }
    }
}

fn options(page: &mut Page, entries: &[(String, String)]) {
    page.list("-tag -width Ds", |page| {
        for (entry, about) in entries {
            page.item(&entry.split(' ').map(token).collect::<Vec<_>>().join(" "));
            page.markdown(&sentence(about));
        }
    });
}

/// Words of a program as a sentence.
fn sentence(words: &str) -> String {
    let words = words.replace('<', "\\<");
    let (first, rest) = words.trim_end().split_at(1);
    format!("{}{}.", first.to_uppercase(), rest.trim_end_matches('.'))
}

/// A word of a usage line as mdoc has it.
fn token(word: &str) -> String {
    let (word, comma) = word
        .strip_suffix(',')
        .map_or((word, ""), |word| (word, " ,"));
    let (word, dots) = word
        .strip_suffix("...")
        .map_or((word, ""), |word| (word, " ..."));
    let inner = |open, close| word.strip_prefix(open)?.strip_suffix(close);
    let marked = if let Some(optional) = inner("[", "]") {
        format!("Oo {} Oc", token(optional))
    } else if let Some(argument) = inner("<", ">") {
        format!("Ar {}", argument.to_lowercase())
    } else if let Some(option) = word.strip_prefix('-') {
        format!("Fl {}", literal(option))
    } else if word.chars().all(|c| c.is_ascii_uppercase()) {
        format!("Ar {}", word.to_lowercase())
    } else if word.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
        format!("Ev {word}")
    } else {
        format!("Cm {}", literal(word))
    };
    marked + dots + comma
}

/// Every page, by its place in a directory of manual pages.
fn generate() -> BTreeMap<PathBuf, Made> {
    let api = Api::read();
    let programs = programs(&api);
    let mut all = BTreeMap::new();
    for (name, functions) in api.pages() {
        let made = page(&api, &functions, &programs);
        all.insert(format!("man3/{name}.3").into(), made);
    }
    all.insert("man7/librpma.7".into(), library(&api));
    all.insert("man7/softverbs.7".into(), device());
    let softverbs = support::softverbs().with_file_name("softverbs");
    let related = [(7, "softverbs"), (7, "librpma")];
    let made = program(&softverbs, &["run", "info"], "", &related);
    all.insert("man1/softverbs.1".into(), made);
    let info = support::tools().join("rpma-info");
    let text = fs::read_to_string(root().join("docs/rpma-info.md")).unwrap();
    let at = text.find("## Findings").unwrap();
    let related = [(1, "softverbs"), (1, "ibv_devinfo"), (7, "librpma")];
    let made = program(&info, &[], &text[at..], &related);
    all.insert("man1/rpma-info.1".into(), made);
    let perf = support::tools().join("rpma-perf");
    let text = fs::read_to_string(root().join("docs/rpma-perf.md")).unwrap();
    let at = text.find("## What is measured").unwrap();
    let related = [(1, "softverbs"), (1, "rpma-info"), (7, "librpma")];
    let made = program(
        &perf,
        &["server", "client", "compare"],
        &text[at..],
        &related,
    );
    all.insert("man1/rpma-perf.1".into(), made);
    all
}

/// The functions that are on the page of another one, as links to it.
fn links() -> BTreeMap<PathBuf, PathBuf> {
    let functions = Api::read().functions;
    let pages = functions.iter().map(|f| (&f.name, f.page(&functions)));
    let others = pages.filter(|(name, page)| *name != page);
    others
        .map(|(name, page)| (format!("man3/{name}.3").into(), format!("{page}.3").into()))
        .collect()
}

/// The files of man/, and where those lead that are links.
fn kept() -> BTreeMap<PathBuf, Option<PathBuf>> {
    let mut found = BTreeMap::new();
    let sections = fs::read_dir(root().join("man"));
    for section in sections.into_iter().flatten().map(Result::unwrap) {
        for file in fs::read_dir(section.path()).unwrap().map(Result::unwrap) {
            let name = Path::new(&section.file_name()).join(file.file_name());
            found.insert(name, fs::read_link(file.path()).ok());
        }
    }
    found
}

#[test]
fn is_generated_from_the_sources() {
    let man = root().join("man");
    let (pages, links) = (generate(), links());
    if std::env::var_os("RPMA_UPDATE_MAN").is_some() {
        let _ = fs::remove_dir_all(&man);
        for (file, made) in &pages {
            fs::create_dir_all(man.join(file).parent().unwrap()).unwrap();
            fs::write(man.join(file), &made.text).unwrap();
        }
        for (file, page) in &links {
            symlink(page, man.join(file)).unwrap();
        }
    }
    let kept = kept();
    for file in kept.keys().chain(pages.keys()).chain(links.keys()) {
        let link = kept.get(file).cloned().flatten();
        let text = fs::read_to_string(man.join(file)).ok();
        let right = match pages.get(file) {
            Some(made) => link.is_none() && text.as_ref() == Some(&made.text),
            None => link.is_some() && link.as_ref() == links.get(file),
        };
        assert!(right, "man/{} is stale: run `make man`", file.display());
    }
}

/// Pages that others have: those of the packages that the tests take.
fn installed() -> BTreeSet<(u8, String)> {
    let packages = [
        "manpages",
        "manpages-dev",
        "libibverbs-dev",
        "librdmacm-dev",
        "ibverbs-utils",
        "iproute2",
    ];
    let (files, _) = run(Command::new("dpkg").arg("-L").args(packages));
    let pages = files.lines().filter_map(|file| {
        let (_, page) = file.strip_prefix("/usr/share/man/man")?.split_once('/')?;
        let (name, section) = page.strip_suffix(".gz")?.rsplit_once('.')?;
        Some((section.parse().ok()?, name.to_owned()))
    });
    pages.collect()
}

#[test]
fn has_every_function_and_refers_to_what_there_is() {
    let all = generate();
    let functions: BTreeSet<_> = prototypes()
        .into_keys()
        .filter(|name| name != "rpma_log_function")
        .collect();
    let pages: BTreeSet<(u8, String)> = all
        .keys()
        .chain(links().keys())
        .map(|file| {
            let section = file.extension().unwrap().to_str().unwrap();
            let name = file.file_stem().unwrap().to_str().unwrap();
            (section.parse().unwrap(), name.into())
        })
        .collect();
    let documented: BTreeSet<_> = pages
        .iter()
        .filter(|(section, _)| *section == 3)
        .map(|(_, name)| name.clone())
        .collect();
    assert_eq!(functions, documented);
    assert_eq!(functions.len(), 84);

    let installed = installed();
    for (file, made) in &all {
        for reference in &made.references {
            assert!(
                pages.contains(reference) || installed.contains(reference),
                "{} refers to {}({})",
                file.display(),
                reference.1,
                reference.0
            );
        }
    }
}

#[test]
fn is_as_mdoc_wants_it() {
    let output = Command::new("mandoc")
        .args(["-Tlint", "-Wwarning"])
        .args(kept().into_keys())
        .current_dir(root().join("man"))
        .output()
        .expect("mandoc, which scripts/install-deps installs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.is_empty(),
        "mandoc -Tlint: {}\n{said}",
        output.status
    );
}

/// A macro that takes in what follows it leaves a quotation open; mandoc's -Tlint lets it.
#[test]
fn has_no_quotation_within_another() {
    for file in kept().into_keys() {
        let (page, _) = run(Command::new("mandoc")
            .args(["-Tutf8", "-Owidth=1000"])
            .arg(root().join("man").join(&file)));
        // What is bold or underlined is struck twice.
        let mut text: Vec<char> = vec![];
        for c in page.chars() {
            match c {
                '\u{8}' => drop(text.pop()),
                c => text.push(c),
            }
        }
        let text: String = text.into_iter().collect();
        for line in text.lines() {
            let mut open = false;
            for quote in line.chars().filter(|c| "‘’".contains(*c)) {
                // An apostrophe is one of ASCII.
                assert!(
                    open != (quote == '‘'),
                    "man/{}, as `mandoc -Tutf8` shows it: {quote} where a quotation is {}:\n{line}",
                    file.display(),
                    if open { "open" } else { "not open" }
                );
                open = !open;
            }
            assert!(
                !open,
                "man/{}: a quotation is left open:\n{line}",
                file.display()
            );
        }
    }
}

/// The examples compile, each as a function or, if it is one, as it stands; and they fit a page.
#[test]
fn has_examples_that_compile() {
    let mut program = String::from(
        "#define _DEFAULT_SOURCE\n#include <arpa/inet.h>\n#include <fcntl.h>\n#include <inttypes.h>\n\
         #include <librpma.h>\n#include <poll.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/epoll.h>\n\
         extern struct ibv_context *device;\nextern struct rpma_peer *peer;\nextern struct rpma_peer_cfg *pcfg;\n\
         extern struct rpma_mr_local *mr;\nextern struct rpma_mr_remote *remote;\nextern struct rpma_conn_cfg *cfg;\n\
         extern struct rpma_srq *srq;\nextern struct rpma_ep *ep;\nextern struct rpma_conn_req *req;\n\
         extern struct rpma_conn *conn;\nextern struct rpma_cq *cq;\nextern const char *addr, *port;\n\
         extern const void *descriptor;\nextern size_t size;\nextern int epoll;\n",
    );
    let mut count = 0;
    for function in Api::read().functions {
        let name = &function.name;
        for code in function.parts().example.split("```c\n").skip(1) {
            let code = code.split("```").next().unwrap();
            for line in code.lines() {
                assert!(line.len() <= 68, "{name}: too wide: {line}");
            }
            program += &match code.contains("\n{\n") {
                true => format!("#line 1 \"{name}\"\n{code}"),
                false => format!(
                    "int example_{name}(void);\nint example_{name}(void)\n{{\nint ret = 0;\n#line 1 \"{name}\"\n{code}return ret;\n}}\n"
                ),
            };
            count += 1;
        }
    }
    assert!(count >= 40, "{count} examples");
    let file = scratch("manual").join("examples.c");
    fs::write(&file, program).unwrap();
    run(cc()
        .args([
            "-fsyntax-only",
            "-Wno-unused-but-set-variable",
            "-Wno-missing-prototypes",
            "-I",
        ])
        .arg(root().join("include"))
        .arg(file));
}
