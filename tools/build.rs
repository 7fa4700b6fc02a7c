//! Makes what the programs need of librpma: bindings, and a library for the linker alone.

use bindgen::callbacks::{ItemInfo, ItemKind, ParseCallbacks};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{env, fmt::Write as _, fs};

const HEADER: &str = "../include/librpma.h";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={HEADER}");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let functions = bindings(&out.join("librpma.rs"));
    interface(&out, &functions);

    println!("cargo::rerun-if-changed=src/rpma/log.c");
    cc::Build::new()
        .file("src/rpma/log.c")
        .include("../include")
        .std("c11")
        .warnings_into_errors(true)
        .compile("rpma_tools_log");
}

/// The names of the library's functions; bindgen asks about those of other headers too.
#[derive(Debug, Default)]
struct Functions(Rc<RefCell<BTreeSet<String>>>);

impl ParseCallbacks for Functions {
    fn generated_link_name_override(&self, item: ItemInfo<'_>) -> Option<String> {
        if matches!(item.kind, ItemKind::Function) && item.name.starts_with("rpma_") {
            self.0.borrow_mut().insert(item.name.to_owned());
        }
        None
    }
}

/// Writes the bindings of the header. Those of verbs are in rdma-sys.
fn bindings(file: &Path) -> BTreeSet<String> {
    let names = Functions::default();
    let functions = Rc::clone(&names.0);
    let verbs = pkg_config::Config::new()
        .cargo_metadata(false)
        .probe("libibverbs")
        .unwrap_or_else(|error| panic!("libibverbs-dev: {error}"));
    let includes = verbs.include_paths.iter();
    bindgen::Builder::default()
        .header(HEADER)
        .clang_args(includes.map(|dir| format!("-I{}", dir.display())))
        .allowlist_function("rpma_.*")
        .allowlist_type("rpma_.*")
        .allowlist_var("RPMA_.*")
        .allowlist_recursively(false)
        .prepend_enum_name(false)
        .default_macro_constant_type(bindgen::MacroTypeVariation::Signed)
        .raw_line("use rdma_sys::{ibv_context, ibv_wc};")
        .parse_callbacks(Box::new(names))
        .generate()
        .unwrap_or_else(|error| panic!("{HEADER}: {error}"))
        .write_to_file(file)
        .unwrap();
    functions.take()
}

/// Makes a librpma.so to link with: the names that programs ask for, and nothing behind them. So the
/// programs can be built before the library is, and ask for `librpma.so.0` like any other.
fn interface(out: &Path, functions: &BTreeSet<String>) {
    assert!(functions.len() > 80, "only {functions:?} in {HEADER}");
    let mut source = String::new();
    for name in functions {
        let _ = writeln!(source, "void {name}(void) {{}}");
    }
    let (source_file, script) = (out.join("interface.c"), out.join("interface.map"));
    fs::write(&source_file, source).unwrap();
    fs::write(&script, "LIBRPMA_1.0 {\n  global: rpma_*;\n};\n").unwrap();

    let dir = out.join("interface");
    fs::create_dir_all(&dir).unwrap();
    let mut link = cc::Build::new().get_compiler().to_command();
    link.args(["-shared", "-nostdlib", "-Wl,-soname,librpma.so.0"])
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg(&source_file)
        .arg("-o")
        .arg(dir.join("librpma.so"));
    let status = link.status().expect("a C compiler");
    assert!(
        status.success(),
        "{:?} {:?}: {status}",
        link.get_program(),
        link.get_args()
    );
    println!("cargo::rustc-link-search=native={}", dir.display());
    println!("cargo::rustc-link-lib=dylib=rpma");
}
