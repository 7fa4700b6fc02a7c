# The front door. The work is done by cargo and by scripts/.
#
#   make               build the library: target/release/librpma.so and librpma.a; softverbs; the tools
#   make test          install what the tests need and run all of them
#   make demo          install what it needs and show the library at work
#   make install       install library, softverbs, tools, header, manual, pkg-config and CMake files
#   make uninstall     remove them
#   make deb           build Debian packages of them for this distribution: target/deb/*.deb
#   make rpm           build RPM packages of them: target/rpm/*.rpm
#   make header        generate include/librpma.h from the sources
#   make man           generate the manual pages in man/ from the sources
#   make copyright     generate debian/copyright from what is linked in
#   make bench         measure what an operation costs and how fast softverbs is, and write
#                      docs/cost.md and docs/speed.md
#   make mutants       put faults into the library and show that the tests find them
#   make mutants-proto the same by cargo-mutants, into the protocol and the memory of softverbs;
#                      ARGUMENTS='--shard 0/8' or ARGUMENTS='-F frames' tries some of them
#   make schedules     try a million random schedules of both ends of a connection
#   make proof         show what softverbs can do and write docs/proof.md
#   make debian13      build and test on Debian 13, in a root of its own
#   make clean

PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR    ?= $(PREFIX)/share
MANDIR     ?= $(PREFIX)/share/man
DESTDIR    ?=

CARGO_TARGET_DIR ?= target
BUILT   := $(CARGO_TARGET_DIR)/release
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)
CMAKE   := $(LIBDIR)/cmake/librpma

.PHONY: build test demo install uninstall deb rpm header man copyright bench mutants mutants-proto schedules proof debian13 clean
.DELETE_ON_ERROR:

build:
	scripts/install-deps build
	cargo build --release --locked --package librpma --package softverbs --package librpma-tools

test:
	scripts/install-deps
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --workspace --document-private-items
	scripts/debian13
	cargo test --locked --no-fail-fast --package softverbs
	cargo test --locked --no-fail-fast --package librpma-tools
	cargo test --locked --no-fail-fast

demo:
	scripts/demo

deb:
	scripts/deb

rpm:
	scripts/rpm

header:
	RPMA_UPDATE_HEADER=1 cargo test --locked --test header is_generated

man:
	scripts/install-deps build check
	RPMA_UPDATE_MAN=1 cargo test --locked --test manual is_generated

copyright:
	RPMA_UPDATE_COPYRIGHT=1 cargo test --locked --test packages copyright_is_generated

bench:
	scripts/bench
	scripts/speed

mutants:
	scripts/install-deps build check
	scripts/mutants

MUTANTS_VERSION := 27.1.0
mutants-proto:
	scripts/install-deps build
	cargo mutants --version || cargo install cargo-mutants --locked --version $(MUTANTS_VERSION)
	SOFTVERBS_SCHEDULES=2000 cargo mutants --package softverbs --output "$(CARGO_TARGET_DIR)" $(ARGUMENTS)

schedules:
	SOFTVERBS_SCHEDULES=1000000 cargo test --locked --package softverbs --profile soak --test schedules -- --nocapture

proof:
	scripts/proof

debian13:
	scripts/debian13 all

clean:
	cargo clean

# What is built already, of these sources, is installed as it is: that takes neither cargo nor a
# network.
SHARED  := verbs-ext/src/lib.rs
SOURCES := build.rs $(wildcard src/*.rs src/*/*.rs) $(SHARED)
DEVICE  := softverbs/build.rs $(SHARED) $(shell find softverbs/src -name '*.rs')
TOOLS   := tools/build.rs $(SHARED) include/librpma.h $(shell find tools/src -type f)
.PHONY: built
built:
	@newer() { file=$$1; shift; for source; do [ "$(BUILT)/$$file" -nt "$$source" ] || return 1; done; }; \
	newer librpma.so $(SOURCES) && newer librpma.a $(SOURCES) && newer libsoftverbs.so $(DEVICE) && \
	    newer softverbs $(DEVICE) && newer rpma-info $(TOOLS) && newer rpma-perf $(TOOLS) || $(MAKE) build

# Paths end up in files for other tools, so they are absolute and of plain characters.
PLAIN = $(foreach path,PREFIX BINDIR LIBDIR INCLUDEDIR DATADIR MANDIR,$(if $(filter-out /%,$($(path)))$(word 2,$($(path)))$(shell \
    printf %s '$(subst ','\'',$($(path)))' | tr -d 'A-Za-z0-9/._+~@:-'),$(error $(path) must be an absolute path \
    of letters, digits and /._+~@:- alone: '$($(path))')))

# Pages of the functions that share one are links to it.
SECTIONS := $(notdir $(wildcard man/*))

install: built
	$(PLAIN)
	install -d $(addprefix "$(DESTDIR)",$(BINDIR) $(LIBDIR)/pkgconfig $(CMAKE) $(INCLUDEDIR) $(DATADIR)/softverbs $(addprefix $(MANDIR)/,$(SECTIONS)))
	install -m 644 "$(BUILT)/librpma.so" "$(DESTDIR)$(LIBDIR)/librpma.so.0"
	ln -sf librpma.so.0 "$(DESTDIR)$(LIBDIR)/librpma.so"
	install -m 644 "$(BUILT)/librpma.a" "$(DESTDIR)$(LIBDIR)/librpma.a"
	install -m 644 "$(BUILT)/libsoftverbs.so" "$(DESTDIR)$(LIBDIR)/libsoftverbs.so"
	install -m 644 softverbs/softverbs.supp "$(DESTDIR)$(DATADIR)/softverbs/softverbs.supp"
	install -m 755 "$(BUILT)/softverbs" "$(BUILT)/rpma-info" "$(BUILT)/rpma-perf" "$(DESTDIR)$(BINDIR)"
	install -m 644 include/librpma.h "$(DESTDIR)$(INCLUDEDIR)/librpma.h"
	cd man && for page in */*; do to="$(DESTDIR)$(MANDIR)/$$page"; \
	    if [ -h "$$page" ]; then cp -Pf "$$page" "$$to"; else install -m 644 "$$page" "$$to"; fi || exit; done
	sed -e 's,@PREFIX@,$(PREFIX),' -e 's,@LIBDIR@,$(LIBDIR),' -e 's,@INCLUDEDIR@,$(INCLUDEDIR),' \
	    -e 's,@VERSION@,$(VERSION),' pkgconfig/librpma.pc.in >"$(DESTDIR)$(LIBDIR)/pkgconfig/librpma.pc"
	sed -e "s,@INCLUDEDIR@,$$(realpath -ms --relative-to '$(CMAKE)' '$(INCLUDEDIR)')," \
	    pkgconfig/librpma-config.cmake.in >"$(DESTDIR)$(CMAKE)/librpma-config.cmake"
	sed -e 's,@VERSION@,$(VERSION),' \
	    pkgconfig/librpma-config-version.cmake.in >"$(DESTDIR)$(CMAKE)/librpma-config-version.cmake"
	[ -n "$(DESTDIR)" ] || ldconfig || true

uninstall:
	$(PLAIN)
	rm -f "$(DESTDIR)$(LIBDIR)/librpma.so.0" "$(DESTDIR)$(LIBDIR)/librpma.so" "$(DESTDIR)$(LIBDIR)/librpma.a"
	rm -f "$(DESTDIR)$(LIBDIR)/libsoftverbs.so"
	rm -rf "$(DESTDIR)$(DATADIR)/softverbs"
	rm -f $(addprefix "$(DESTDIR)$(BINDIR)"/,softverbs rpma-info rpma-perf)
	rm -f "$(DESTDIR)$(INCLUDEDIR)/librpma.h" "$(DESTDIR)$(LIBDIR)/pkgconfig/librpma.pc"
	rm -rf "$(DESTDIR)$(CMAKE)"
	cd man && for page in */*; do rm -f "$(DESTDIR)$(MANDIR)/$$page"; done
	rmdir "$(DESTDIR)$(LIBDIR)/cmake" "$(DESTDIR)$(LIBDIR)/pkgconfig" 2>/dev/null || true
	[ -n "$(DESTDIR)" ] || ldconfig || true
