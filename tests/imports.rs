//! The direction of imports: no file imports from a layer above its own, and no files import each other
//! in a circle. What a file imports is what its paths name, in `use`, code and macros' arguments, behind
//! re-exports. What only tests import, and what only documentation links to, does not count.
//!
//!     cargo test --test imports

mod support;

use proc_macro2::{Span, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use support::{root, scratch};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

// ---- what has to be so ----

/// A package, and its layers, the highest first: a file may import from its own and lower ones. A layer
/// is the files whose path below `sources` begins with one of the words; the longest that fits counts.
struct Package {
    sources: &'static str,
    /// What its programs call its library.
    library: &'static str,
    layers: &'static [(&'static str, &'static [&'static str])],
}

const PACKAGES: [Package; 3] = [
    Package {
        sources: "src",
        library: "rpma",
        layers: &[
            ("api", &["lib.rs", "api/"]),
            ("core", &["core/"]),
            ("verbs", &["verbs/"]),
            ("ground floor", &["log.rs", "note.rs"]),
        ],
    },
    Package {
        sources: "tools/src",
        library: "librpma_tools",
        layers: &[
            ("programs", &["bin/", "lib.rs"]),
            ("perf", &["perf/"]),
            ("info", &["info/"]),
            ("librpma", &["loaded.rs", "rpma/"]),
            ("ground floor", &["cli.rs"]),
        ],
    },
    Package {
        sources: "softverbs/src",
        library: "softverbs",
        layers: &[
            ("programs", &["main.rs", "lib.rs", "program.rs"]),
            ("exports", &["exports/"]),
            ("objects", &["objects/"]),
            ("driver", &["driver/"]),
            ("memory, diagnostic", &["memory/", "diagnostic.rs"]),
            ("proto, link, reactor", &["proto/", "link/", "reactor.rs"]),
            (
                "ground floor",
                &[
                    "errno.rs",
                    "limits.rs",
                    "process.rs",
                    "settings.rs",
                    "sync.rs",
                    "valgrind.rs",
                ],
            ),
        ],
    },
];

#[test]
fn imports_go_one_way() {
    let found: Vec<_> = PACKAGES
        .iter()
        .flat_map(|package| problems(root(), package))
        .collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

// ---- the check ----

/// What is wrong with a package's imports, one thing each.
fn problems(root: &Path, package: &Package) -> Vec<String> {
    let sources = Sources::read(root, package);
    let arrows = sources.arrows();
    assert!(!arrows.is_empty(), "{} imports nothing", package.sources);
    let mut problems = vec![];
    for file in sources.files() {
        if package.layer(&file).is_none() {
            problems.push(format!("{}/{file} is in no layer", package.sources));
        }
    }
    for (arrow, places) in &arrows {
        let [Some(from), Some(to)] = [&arrow.from, &arrow.to].map(|file| package.layer(file))
        else {
            continue;
        };
        if to < from {
            let [from, to] = [from, to].map(|layer| package.layers[layer].0);
            problems.push(format!(
                "{from} imports from {to}, which is above it:\n{}",
                package.shown(arrow, places)
            ));
        }
    }
    for circle in circles(&arrows) {
        let mut text = format!("{} files import each other in a circle:\n", circle.len());
        for (arrow, places) in &arrows {
            if circle.contains(&arrow.from) && circle.contains(&arrow.to) {
                text += &package.shown(arrow, places);
            }
        }
        problems.push(text);
    }
    problems
}

impl Package {
    /// The layer of a file, counted from the highest.
    fn layer(&self, file: &str) -> Option<usize> {
        let fits = |words: &[&str]| {
            let words = words.iter().filter(|word| file.starts_with(**word));
            words.map(|word| word.len()).max()
        };
        let layers = self.layers.iter().enumerate();
        let fitting = layers.filter_map(|(n, (_, words))| Some((fits(words)?, n)));
        fitting.max().map(|(_, layer)| layer)
    }

    fn shown(&self, arrow: &Arrow, places: &BTreeSet<Place>) -> String {
        let mut text = String::new();
        for Place { line, path } in places {
            let (sources, Arrow { from, to }) = (self.sources, arrow);
            writeln!(text, "  {sources}/{from}:{line}: {path}, which is in {to}").unwrap();
        }
        text
    }
}

/// That one file imports from another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Arrow {
    from: String,
    to: String,
}

/// Where it does so, and by what path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    line: usize,
    path: String,
}

type Arrows = BTreeMap<Arrow, BTreeSet<Place>>;

/// Sets of files of which each leads to each of the others.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Arrow { from, .. } in arrows.keys() {
        let mut all = BTreeSet::new();
        let mut next = vec![from.as_str()];
        while let Some(file) = next.pop() {
            let of_file = arrows.keys().filter(|arrow| arrow.from == file);
            next.extend(
                of_file
                    .map(|arrow| arrow.to.as_str())
                    .filter(|to| all.insert(*to)),
            );
        }
        reached.insert(from, all);
    }
    let leads = |from: &str, to: &str| reached.get(from).is_some_and(|all| all.contains(to));
    let mut circles: Vec<BTreeSet<String>> = vec![];
    for file in reached.keys().filter(|file| leads(file, file)) {
        if circles.iter().any(|circle| circle.contains(*file)) {
            continue;
        }
        let with = reached
            .keys()
            .filter(|other| leads(file, other) && leads(other, file));
        circles.push(with.map(ToString::to_string).collect());
    }
    circles
}

// ---- the sources ----

/// The path of a module: the crate's root file first, as there may be a library and programs.
type ModulePath = Vec<String>;

struct Sources {
    /// The root of the library, and what programs call it.
    library: (String, &'static str),
    modules: HashMap<ModulePath, Module>,
}

#[derive(Default)]
struct Module {
    file: String,
    /// The modules declared in it, and what else its items define.
    children: BTreeSet<String>,
    defined: BTreeSet<String>,
    /// What `use` makes known, with the path as it stands there; `*` stands for all that is there.
    imported: Vec<(String, Vec<String>)>,
    /// The paths that it names.
    named: Vec<(Vec<String>, usize)>,
}

impl Sources {
    fn read(root: &Path, package: &Package) -> Self {
        let dir = root.join(package.sources);
        let mut sources = Sources {
            library: ("lib.rs".into(), package.library),
            modules: HashMap::new(),
        };
        let mut roots = vec![dir.join("lib.rs"), dir.join("main.rs")];
        if let Ok(programs) = fs::read_dir(dir.join("bin")) {
            roots.extend(programs.map(|program| program.unwrap().path()));
        }
        for file in roots.into_iter().filter(|file| file.exists()) {
            let name = file.strip_prefix(&dir).unwrap().to_str().unwrap();
            sources.add_file(&dir, &file, vec![name.to_string()]);
        }
        sources
    }

    fn add_file(&mut self, dir: &Path, file: &Path, path: ModulePath) {
        let text = fs::read_to_string(file).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let stem = file.file_stem().unwrap();
        // The root of a crate has its modules beside it, as has a file of that name.
        let beside = path.len() == 1 || stem == "mod";
        let below = match beside {
            true => file.parent().unwrap().to_path_buf(),
            false => file.with_extension(""),
        };
        let name = file.strip_prefix(dir).unwrap().to_str().unwrap();
        self.add_items(dir, name, &below, path, &parsed.items);
    }

    fn add_items(
        &mut self,
        dir: &Path,
        file: &str,
        below: &Path,
        path: ModulePath,
        items: &[Item],
    ) {
        let mut module = Module {
            file: file.to_string(),
            ..Module::default()
        };
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            match item {
                Item::Mod(inner) => {
                    let name = inner.ident.to_string();
                    let of_child = [path.clone(), vec![name.clone()]].concat();
                    match &inner.content {
                        Some((_, items)) => {
                            self.add_items(dir, file, &below.join(&name), of_child, items);
                        }
                        None => {
                            let files = [format!("{name}.rs"), format!("{name}/mod.rs")];
                            let files: [PathBuf; 2] = files.map(|file| below.join(file));
                            let there = files.iter().find(|file| file.exists());
                            let there = there.unwrap_or_else(|| panic!("{file}: mod {name}"));
                            self.add_file(dir, there, of_child);
                        }
                    }
                    module.children.insert(name);
                }
                item => {
                    module.defined.extend(name_of(item));
                    module.visit_item(item);
                }
            }
        }
        self.modules.insert(path, module);
    }

    fn files(&self) -> BTreeSet<String> {
        self.modules
            .values()
            .map(|module| module.file.clone())
            .collect()
    }

    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (at, module) in &self.modules {
            for (path, line) in &module.named {
                let Some(to) = self.find(at, path, 0) else {
                    continue;
                };
                // An imported module counts where something of it is named.
                if to == *at || self.is_module(at, path) {
                    continue;
                }
                let (from, to) = (&module.file, &self.modules[&to].file);
                if from != to {
                    let (from, to) = (from.clone(), to.clone());
                    let path = path.join("::");
                    let place = Place { line: *line, path };
                    arrows.entry(Arrow { from, to }).or_default().insert(place);
                }
            }
        }
        arrows
    }

    /// The module that defines what a path names, seen from a module; none if it is of another crate.
    fn find(&self, at: &ModulePath, path: &[String], depth: usize) -> Option<ModulePath> {
        let (start, rest) = self.start(at, path, depth)?;
        self.follow(start, rest, depth)
    }

    fn is_module(&self, at: &ModulePath, path: &[String]) -> bool {
        let Some((mut module, rest)) = self.start(at, path, 0) else {
            return false;
        };
        module.extend_from_slice(rest);
        self.modules.contains_key(&module)
    }

    /// Where a path begins, and what follows.
    fn start<'a>(
        &self,
        at: &ModulePath,
        path: &'a [String],
        depth: usize,
    ) -> Option<(ModulePath, &'a [String])> {
        let first = path.first()?;
        let mut module = at.clone();
        let mut rest = path;
        match first.as_str() {
            "crate" => return Some((vec![at[0].clone()], &path[1..])),
            name if name == self.library.1 && !self.modules[at].knows(name) => {
                return Some((vec![self.library.0.clone()], &path[1..]));
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    module.pop();
                    rest = &rest[1..];
                }
            }
            name => {
                let module = &self.modules[at];
                let glob = |name: &str| self.by_glob(at, name, depth).is_some();
                if !module.knows(name) && !glob(name) {
                    return None;
                }
            }
        }
        self.modules.contains_key(&module).then_some((module, rest))
    }

    /// Goes on from a module; re-exports lead on.
    fn follow(&self, at: ModulePath, path: &[String], depth: usize) -> Option<ModulePath> {
        // Two that re-export each other's names lead nowhere.
        if depth > 16 {
            return None;
        }
        let Some(name) = path.first() else {
            return Some(at);
        };
        let module = &self.modules[&at];
        if module.children.contains(name) {
            let child = [at, vec![name.clone()]].concat();
            return self.follow(child, &path[1..], depth);
        }
        if module.defined.contains(name) {
            return Some(at);
        }
        if let Some((_, from)) = module.imported.iter().find(|(known, _)| known == name) {
            let whole = [from, &path[1..]].concat();
            return match from.first() == Some(name) && from.len() == 1 {
                true => None,
                false => self.find(&at, &whole, depth + 1),
            };
        }
        // What a macro defines is not seen: it is taken to be here.
        Some(self.by_glob(&at, name, depth).unwrap_or(at))
    }

    /// The module that has the name, of those all of whose names are imported.
    fn by_glob(&self, at: &ModulePath, name: &str, depth: usize) -> Option<ModulePath> {
        if depth > 16 {
            return None;
        }
        let globs = self.modules[at]
            .imported
            .iter()
            .filter(|(known, _)| known == "*");
        let mut from = globs.filter_map(|(_, path)| {
            let module = match path.first()?.as_str() {
                "crate" | "self" | "super" => self.find(at, path, depth + 1)?,
                child if self.modules[at].children.contains(child) => {
                    self.find(at, path, depth + 1)?
                }
                _ => return None,
            };
            let known = module != *at && self.modules[&module].knows(name);
            known.then(|| self.follow(module, &[name.to_string()], depth + 1))?
        });
        from.next()
    }
}

impl Module {
    fn knows(&self, name: &str) -> bool {
        self.children.contains(name)
            || self.defined.contains(name)
            || self.imported.iter().any(|(known, _)| known == name)
    }

    fn name_path(&mut self, path: Vec<String>, span: Span) {
        self.named.push((path, span.start().line));
    }

    fn add_use(&mut self, tree: &UseTree, before: &[String], exported: bool) {
        let longer = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_use(&path.tree, &longer(&path.ident), exported),
            UseTree::Group(group) => {
                let trees = group.items.iter();
                trees.for_each(|tree| self.add_use(tree, before, exported));
            }
            UseTree::Name(name) if name.ident == "self" => {
                self.import(
                    before.last().cloned(),
                    before.to_vec(),
                    name.ident.span(),
                    exported,
                );
            }
            UseTree::Name(name) => {
                let (known, span) = (name.ident.to_string(), name.ident.span());
                self.import(Some(known), longer(&name.ident), span, exported);
            }
            UseTree::Rename(rename) => {
                let (known, span) = (rename.rename.to_string(), rename.ident.span());
                let path = match rename.ident == "self" {
                    true => before.to_vec(),
                    false => longer(&rename.ident),
                };
                self.import(Some(known), path, span, exported);
            }
            UseTree::Glob(glob) => {
                let span = glob.star_token.spans[0];
                self.import(Some("*".into()), before.to_vec(), span, exported);
            }
        }
    }

    fn import(&mut self, known: Option<String>, path: Vec<String>, span: Span, exported: bool) {
        self.imported
            .extend(known.map(|known| (known, path.clone())));
        // A module may show what its children have; who uses that imports it from them.
        let from_child = path
            .first()
            .is_some_and(|first| self.children.contains(first));
        if !(exported && from_child) {
            self.name_path(path, span);
        }
    }

    /// The paths in what a macro is given, or made of.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = vec![];
        let mut start = Span::call_site();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if path.is_empty() || colons != 2 {
                        self.end_path(&mut path, start);
                        start = ident.span();
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut path, start);
                    self.scan(group.stream());
                }
                _ => self.end_path(&mut path, start),
            }
        }
        self.end_path(&mut path, start);
    }

    fn end_path(&mut self, path: &mut Vec<String>, start: Span) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.name_path(path, start);
        }
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let exported = !matches!(item.vis, Visibility::Inherited);
        if item.leading_colon.is_none() {
            self.add_use(&item.tree, &[], exported);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<_> = path
            .segments
            .iter()
            .map(|one| one.ident.to_string())
            .collect();
        if path.leading_colon.is_none() && words.len() > 1 {
            self.name_path(words, path.segments[0].ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.visit_path(&called.path);
        self.scan(called.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

/// Whether it is there for tests alone.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let test = |path: &syn::Path| path.is_ident("test");
        attribute.path().is_ident("cfg") && attribute.parse_args().is_ok_and(|path| test(&path))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

// ---- that the check sees what is wrong ----

const MADE_UP: Package = Package {
    sources: "src",
    library: "made_up",
    layers: &[
        ("programs", &["main.rs", "lib.rs"]),
        ("top", &["top/"]),
        ("bottom", &["bottom.rs", "bottom/"]),
    ],
};

/// The problems of a package that consists of these files beside those that have nothing wrong.
fn problems_of(name: &str, files: &[(&str, &str)]) -> Vec<String> {
    let dir = scratch(&format!("imports-{name}"));
    let good = [
        ("lib.rs", "pub mod top; pub mod bottom;"),
        (
            "main.rs",
            "use made_up::top::Thing; fn main() { Thing::new(); }",
        ),
        // The first shows what others have; the module of the second is named in code.
        (
            "top/mod.rs",
            "mod one; mod two; pub use one::Thing; pub(crate) use two::helper;",
        ),
        (
            "top/one.rs",
            "use super::helper; pub struct Thing; fn f() { helper(); }",
        ),
        (
            "top/two.rs",
            "use crate::bottom; pub fn helper() { bottom::deep::it(); }",
        ),
        ("bottom.rs", "pub mod deep; pub struct Low;"),
        (
            "bottom/deep.rs",
            "use super::Low; pub fn it() -> Low { Low }",
        ),
    ];
    let mut all: BTreeMap<_, _> = good.into_iter().collect();
    all.extend(files.iter().copied());
    for (file, text) in all {
        let file = dir.join("src").join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    problems(&dir, &MADE_UP)
}

#[test]
fn what_is_right_is_not_complained_of() {
    assert_eq!(problems_of("good", &[]), [""; 0]);
    let text = "use super::Low; pub fn it() -> Low { Low } /// As [`crate::top::Thing`].\nfn f() {}
         #[cfg(test)] mod tests { use crate::top::Thing; }
         #[cfg(test)] fn g(_: crate::top::Thing) {}";
    assert_eq!(problems_of("tests", &[("bottom/deep.rs", text)]), [""; 0]);
}

#[test]
fn what_is_wrong_is_told_by_file_and_line() {
    for (n, (file, text, line, path)) in [
        (
            "bottom/deep.rs",
            "\nuse crate::top::Thing; pub fn it() {}",
            2,
            "crate::top::Thing",
        ),
        (
            "bottom/deep.rs",
            "\n\npub fn it() { crate::top::helper(); }",
            3,
            "crate::top::helper",
        ),
        (
            "bottom/deep.rs",
            "pub fn it() { print!(\"{}\", crate::top::Thing::N) }",
            1,
            "crate::top::Thing::N",
        ),
        (
            "bottom/deep.rs",
            "pub fn it() {\n use super::super::top::{helper as h, Thing}; }",
            2,
            "super::super::top::Thing",
        ),
        (
            "bottom/deep.rs",
            "use crate::top; pub fn it(_: top::Thing) {}",
            1,
            "top::Thing",
        ),
        (
            "bottom.rs",
            "pub mod deep; pub struct Low; pub use crate::top::Thing;",
            1,
            "crate::top::Thing",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let found = problems_of(&format!("up-{n}"), &[(file, text)]).join("\n");
        let place = format!("  src/{file}:{line}: {path}, which is in top/");
        let above = "bottom imports from top, which is above it:";
        assert!(
            found.contains(above) && found.contains(&place),
            "{text}: {found}"
        );
    }
}

#[test]
fn circles_are_found_behind_re_exports() {
    let two = "use super::Thing; pub fn helper() -> Thing { Thing }";
    let found = problems_of("circle", &[("top/two.rs", two)]);
    let expected = "2 files import each other in a circle:
  src/top/one.rs:1: super::helper, which is in top/two.rs
  src/top/two.rs:1: super::Thing, which is in top/one.rs
";
    assert_eq!(found, [expected]);
    // A module that uses what its child has, which uses what it has.
    let deep = "use super::Low; pub fn it() -> Low { Low }";
    let low = "pub mod deep; pub struct Low; fn f() { deep::it(); }";
    let found = problems_of("parent", &[("bottom.rs", low), ("bottom/deep.rs", deep)]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("src/bottom.rs:1: deep::it, which is in bottom/deep.rs"),
        "{found:?}"
    );
}

#[test]
fn a_file_in_no_layer_is_told_of() {
    let lib = "pub mod top; pub mod bottom; mod other;";
    let found = problems_of("layer", &[("lib.rs", lib), ("other.rs", "")]);
    assert_eq!(found, ["src/other.rs is in no layer"]);
}
