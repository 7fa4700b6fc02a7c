//! Gives the shared library its name, and keeps it loaded: its thread runs to the end of the process.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsoftverbs.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
