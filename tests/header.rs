//! `include/librpma.h`: that it is what the sources say, and what Debian's header says.

mod support;

use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{cc, root, run, scratch};
use syn::visit_mut::{self, VisitMut};

fn header() -> PathBuf {
    root().join("include/librpma.h")
}

/// Debian's header, of the original library.
fn original() -> PathBuf {
    PathBuf::from("/usr/include/librpma.h")
}

/// The one place of a text where `from` stands, replaced.
fn replace_once(text: &str, from: &str, to: &str) -> String {
    assert_eq!(
        text.matches(from).count(),
        1,
        "places with {from:?} in\n{text}"
    );
    text.replace(from, to)
}

/// A source as cbindgen can read it: the exported functions are marked as such, the types behind
/// the handles are unknown, and an enum from C, which may be any number, is the enum. Examples are
/// left to the manual pages.
fn prepared(source: &str) -> String {
    let mut text = String::new();
    let mut example = false;
    for line in source.lines() {
        example = line.starts_with("///") && (example || line == "/// # Example");
        if example {
            continue;
        }
        let line = match line.trim_start().starts_with("///") {
            true => &line.replace('`', ""),
            false => line,
        };
        if line.starts_with("pub unsafe extern \"C\" fn rpma_") {
            text += "#[unsafe(no_mangle)]\n";
        }
        match line.split_once(" = crate::core::") {
            Some((alias, _)) => {
                text += &format!("{} {{ hidden: u8 }}", alias.replace("type", "struct"))
            }
            None => text += line,
        }
        text.push('\n');
    }
    let text = text.replace("Option<rpma_log_function>", "rpma_log_function");
    let mut parts = text.split("CEnum<");
    let first = parts.next().unwrap().to_string();
    let text = parts.fold(first, |text, part| text + &part.replacen('>', "", 1));
    // What stood between documentation and example.
    text.replace("///\n#", "#").replace("///\npub", "pub")
}

/// The files of src/api, as a program meets them.
const FAMILIES: [&str; 14] = [
    "err", "log", "utils", "peer_cfg", "peer", "mr", "conn_cfg", "srq_cfg", "srq", "ep",
    "conn_req", "conn", "ops", "cq",
];

fn generate() -> String {
    let api = root().join("src/api");
    let dir = scratch("header-sources");
    let mut builder = cbindgen::Builder::new()
        .with_config(cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap());
    for family in FAMILIES {
        let file = format!("{family}.rs");
        let source = fs::read_to_string(api.join(&file)).unwrap();
        fs::write(dir.join(&file), prepared(&source)).unwrap();
        builder = builder.with_src(dir.join(file));
    }
    let mut text = vec![];
    builder.generate().unwrap().write(&mut text);
    let overview = overview(&fs::read_to_string(api.join("mod.rs")).unwrap());
    overview + &finished(&String::from_utf8(text).unwrap())
}

/// The head of the header: the last paragraph of the documentation of src/api, which is about all
/// functions.
fn overview(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let text: Vec<_> = lines.map(str::trim).collect();
    let paragraph = text.rsplit(|line| line.is_empty()).next().unwrap();
    let mut head = String::from(
        "/* SPDX-License-Identifier: BSD-3-Clause */\n\
         /* Generated from the Rust sources: a change is made there, then `make header`. */\n\n\
         /*\n * Remote Persistent Memory Access: the functions of librpma.\n *\n",
    );
    for line in paragraph {
        writeln!(head, " * {line}").unwrap();
    }
    head + " */\n\n"
}

/// What cbindgen can't say.
fn finished(text: &str) -> String {
    // A log function is declared by its type, so that is no pointer.
    let (before, rest) = text
        .split_once("typedef void (*rpma_log_function)(")
        .unwrap();
    let (parameters, after) = rest.split_once(");").unwrap();
    let parameters = parameters.replace("\n   ", "\n");
    let text = format!("{before}typedef void rpma_log_function({parameters});{after}");
    let text = replace_once(
        &text,
        "(rpma_log_function log_function)",
        "(rpma_log_function *log_function)",
    );
    // Older standards want no comma at the end of an enum.
    let text = text.replace(",\n};", "\n};");
    // A negative number stands in parentheses wherever a macro is used.
    let lines = text.lines().map(|line| {
        let define = line.strip_prefix("#define ");
        match define.and_then(|define| define.split_once(" -")) {
            Some((name, number)) => format!("#define {name} (-{number})\n"),
            None => format!("{line}\n"),
        }
    });
    lines.collect()
}

#[test]
fn is_generated_from_the_sources() {
    let text = generate();
    if std::env::var_os("RPMA_UPDATE_HEADER").is_some() {
        fs::write(header(), &text).unwrap();
    }
    let file = fs::read_to_string(header()).unwrap_or_default();
    assert!(
        file == text,
        "include/librpma.h is stale: run `make header`"
    );
}

#[test]
fn compiles_as_c_and_as_cpp() {
    let include = root().join("include");
    for (compiler, standard) in [
        ("cc", "gnu89"),
        ("cc", "c99"),
        ("cc", "c11"),
        ("c++", "c++98"),
        ("c++", "c++17"),
    ] {
        let language = if compiler == "cc" { "c" } else { "c++" };
        run(Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
            .args([&format!("-std={standard}"), "-x", language, "-I"])
            .arg(&include)
            .arg(root().join("c-tests/header.c")));
    }
}

/// What a header declares, by kind and name.
type Items = BTreeMap<String, String>;

/// The types, enumerators and prototypes of a header, read by libclang and written as Rust without
/// the names of parameters.
fn declarations(header: &Path) -> Items {
    struct Unnamed;
    impl VisitMut for Unnamed {
        fn visit_pat_type_mut(&mut self, parameter: &mut syn::PatType) {
            *parameter.pat = syn::parse_quote!(_);
            visit_mut::visit_pat_type_mut(self, parameter);
        }
        fn visit_bare_fn_arg_mut(&mut self, parameter: &mut syn::BareFnArg) {
            parameter.name = None;
            visit_mut::visit_bare_fn_arg_mut(self, parameter);
        }
    }

    let bindings = bindgen::builder()
        .header(header.to_str().unwrap())
        .allowlist_file(header.to_str().unwrap())
        .allowlist_recursively(false)
        .generate_comments(false)
        .generate()
        .unwrap();
    let mut file = syn::parse_file(&bindings.to_string()).unwrap();
    Unnamed.visit_file_mut(&mut file);

    let mut items = Items::new();
    let mut layouts = String::new();
    let mut add = |kind: &str, name: &syn::Ident, item: &dyn ToTokens| {
        let text = item.to_token_stream().to_string();
        let other = items.insert(format!("{kind} {name}"), text);
        assert!(other.is_none(), "{kind} {name} twice");
    };
    for item in &file.items {
        match item {
            syn::Item::ForeignMod(block) => {
                for item in &block.items {
                    match item {
                        syn::ForeignItem::Fn(item) => add("function", &item.sig.ident, item),
                        _ => panic!("not a function: {}", item.to_token_stream()),
                    }
                }
            }
            syn::Item::Struct(item) => add("struct", &item.ident, item),
            syn::Item::Type(item) => add("type", &item.ident, item),
            // Sizes and offsets are asserted in constants without a name.
            syn::Item::Const(item) if item.ident == "_" => {
                layouts += &item.to_token_stream().to_string();
            }
            syn::Item::Const(item) => add("constant", &item.ident, item),
            item => panic!("unexpected: {}", item.to_token_stream()),
        }
    }
    items.insert("sizes and offsets".into(), layouts);
    items
}

/// The macros of a header with type and value, as a C program sees them.
fn macros(header: &Path, dir: &Path) -> Items {
    let text = fs::read_to_string(header).unwrap();
    let names = text
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_whitespace().next());
    let mut program = String::from(
        "#include <stdio.h>\n\
         #define SHOW(macro) printf(\"%s %s %lld\\n\", #macro, \\\n\
         _Generic((macro), int: \"int\", void *: \"void *\", default: \"?\"), (long long)(macro));\n\
         int main(void) {\n",
    );
    for name in names {
        writeln!(program, "SHOW({name})").unwrap();
    }
    let source = dir.join("macros.c");
    fs::write(&source, program + "}\n").unwrap();
    let binary = dir.join("macros");
    run(cc()
        .arg("-include")
        .arg(header)
        .arg(source)
        .arg("-o")
        .arg(&binary));
    let (stdout, _) = run(&mut Command::new(binary));
    let lines = stdout.lines().map(|line| line.split_once(' ').unwrap());
    lines
        .map(|(name, value)| (format!("macro {name}"), value.into()))
        .collect()
}

#[test]
fn declares_what_the_original_does_and_nothing_else() {
    let dir = scratch("header-macros");
    let all = |header: &Path| {
        let mut items = declarations(header);
        items.append(&mut macros(header, &dir));
        items
    };
    let (ours, theirs) = (all(&header()), all(&original()));

    let mut differences = String::new();
    for name in ours.keys().chain(theirs.keys()).collect::<BTreeSet<_>>() {
        let (ours, theirs) = (ours.get(name), theirs.get(name));
        if ours != theirs {
            writeln!(
                differences,
                "{name}\n  Debian's: {theirs:?}\n  ours:     {ours:?}"
            )
            .unwrap();
        }
    }
    assert!(differences.is_empty(), "{differences}");

    // What was compared.
    let count = |kind: &str| theirs.keys().filter(|name| name.starts_with(kind)).count();
    let counts = ["function", "struct", "macro", "type"].map(|kind| (kind, count(kind)));
    assert_eq!(
        counts,
        [("function", 84), ("struct", 12), ("macro", 25), ("type", 6)]
    );
}
