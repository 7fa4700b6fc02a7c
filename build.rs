//! Gives the shared library its SONAME and its symbols their version.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let script = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("librpma.map");
    fs::write(&script, "LIBRPMA_1.0 {\n  global: rpma_*;\n};\n").unwrap();
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librpma.so.0");
    println!(
        "cargo::rustc-cdylib-link-arg=-Wl,--version-script={}",
        script.display()
    );
}
