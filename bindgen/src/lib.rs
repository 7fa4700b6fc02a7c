//! The part of bindgen 0.59's interface that rdma-sys' build script uses, on a current bindgen.
//!
//! bindgen 0.59 panics on the names that clang 16 and newer give to anonymous types, and
//! rdma-sys 0.3 asks for exactly that bindgen. `[patch.crates-io]` puts this crate in its place.
//! Where a default of bindgen has changed since, the old meaning or the safer one is chosen here.

use current::callbacks::{DeriveInfo, ParseCallbacks, TypeKind};
use current::{Formatter, RustEdition};
use std::{io, path::Path};

/// See bindgen's `Builder`.
#[derive(Debug)]
pub struct Builder(current::Builder);

impl Default for Builder {
    fn default() -> Self {
        Self(
            current::Builder::default()
                // The bindings are included into rdma-sys, which is of this edition.
                .rust_edition(RustEdition::Edition2021)
                // Sizes and offsets as clang sees them, asserted where the bindings are compiled.
                .layout_tests(true)
                // rdma-sys itself does not ask cargo to build it anew when rdma-core is updated.
                .parse_callbacks(Box::new(current::CargoCallbacks::new()))
                .parse_callbacks(Box::new(EnumsAreDebug)),
        )
    }
}

/// bindgen 0.59 makes every enum `Debug`, whatever `derive_debug` says.
#[derive(Debug)]
struct EnumsAreDebug;

impl ParseCallbacks for EnumsAreDebug {
    fn add_derives(&self, info: &DeriveInfo<'_>) -> Vec<String> {
        match info.kind {
            TypeKind::Enum => vec!["Debug".into()],
            _ => vec![],
        }
    }
}

/// Methods that mean the same in both versions.
macro_rules! forward {
    ($($name:ident($($arg:ident: $type:ty)?);)*) => {$(
        /// See the method of the same name in bindgen's `Builder`.
        #[must_use]
        pub fn $name(self, $($arg: $type)?) -> Self {
            Self(self.0.$name($($arg)?))
        }
    )*};
}

impl Builder {
    forward! {
        header(path: impl Into<String>);
        allowlist_function(pattern: impl AsRef<str>);
        allowlist_type(pattern: impl AsRef<str>);
        blocklist_type(pattern: impl AsRef<str>);
        opaque_type(pattern: impl AsRef<str>);
        bitfield_enum(pattern: impl AsRef<str>);
        constified_enum_module(pattern: impl AsRef<str>);
        rustified_enum(pattern: impl AsRef<str>);
        derive_copy(yes: bool);
        derive_debug(yes: bool);
        derive_default(yes: bool);
        generate_comments(yes: bool);
        prepend_enum_name(yes: bool);
        size_t_is_usize(yes: bool);
        disable_untagged_union();
    }

    /// Arguments for clang.
    #[must_use]
    pub fn clang_args<I: IntoIterator<Item: AsRef<str>>>(self, args: I) -> Self {
        Self(self.0.clang_args(args))
    }

    /// Readable bindings, laid out by a library: rustfmt need not be installed.
    #[must_use]
    pub fn rustfmt_bindings(self, yes: bool) -> Self {
        Self(self.0.formatter(match yes {
            true => Formatter::Prettyplease,
            false => Formatter::None,
        }))
    }

    /// Makes the bindings.
    pub fn generate(self) -> Result<Bindings, current::BindgenError> {
        self.0.generate().map(Bindings)
    }
}

/// See bindgen's `Bindings`.
#[derive(Debug)]
pub struct Bindings(current::Bindings);

impl Bindings {
    /// Writes the bindings as Rust source text.
    pub fn write_to_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.0.write_to_file(path)
    }
}
