# Each target installs what it needs and is missing (Debian 12 or 13; as root, or as a user of sudo).

SHELL := /bin/sh
# Where rustup puts cargo, also before the next login; before Debian's, which is too old.
export PATH := $(HOME)/.cargo/bin:$(PATH)
MAKEFLAGS += --no-print-directory

.PHONY: help setup drivers test regress lint demo bench bench-seeds fuzz deb rpm clean

help:
	@echo 'make demo    an unmodified client, direct and through pgsluice: rows/s, and the tables compared'
	@echo 'make test    all tests, the driver compatibility tests too'
	@echo "make regress PostgreSQL's own regression and isolation suites, direct and through pgsluice"
	@echo 'make lint    formatting, clippy, links in the documentation'
	@echo 'make fuzz    every fuzz target for a minute each (SECS=60, RUNS=10000000, TARGETS="sql startup")'
	@echo 'make bench   direct, PgBouncer and pgsluice interleaved; all of it at full length writes docs/benchmarks.md'
	@echo '             (CELLS="select-simple insert-*", QUICK=1, REPS=5, SECS=4; WRITE=1 writes whatever was run)'
	@echo 'make bench-seeds   INSERT against COPY as the founding documents measured it, direct and through pgsluice'
	@echo '             (CELLS="plans copytest", QUICK=1; WRITE=1 writes docs/benchmarks.md)'
	@echo "make deb     a package for Debian and Ubuntu, as old as this machine's or newer; make rpm: for Fedora, RHEL"

setup:
	@tests/setup.sh base

# Toolchains and libraries of the driver compatibility tests, and a newer PostgreSQL.
drivers: setup
	@tests/setup.sh drivers
	@tests/drivers/prepare.sh all

# Many tests wait for a limit to pass, or for a process: one more than there are cores keeps the cores at work.
test: drivers
	@export RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$(($$(nproc) + 1))}; cargo test --no-fail-fast

regress: setup
	@said=$$(tests/setup.sh regress) || { echo "$$said"; exit 1; }; \
	PGSLUICE_REGRESS=$$(echo "$$said" | tail -n1) cargo test --test regress -- --ignored --nocapture

lint: setup
	cargo fmt --all --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' cargo doc --lib --no-deps --document-private-items --quiet

demo: setup
	cargo build --release --quiet
	@"$${CARGO_TARGET_DIR:-target}/release/pgsluice" quickstart --once

bench: setup
	@tests/setup.sh bench
	@QUICK='$(QUICK)' REPS='$(REPS)' SECS='$(SECS)' cargo bench --quiet --bench e2e -- $(CELLS)

bench-seeds: setup
	@tests/setup.sh seeds
	@QUICK='$(QUICK)' WRITE='$(WRITE)' cargo bench --quiet --bench seeds -- $(CELLS)

# Ends by itself: each target stops after SECS seconds or RUNS executions.
fuzz: setup
	@SECS='$(or $(SECS),60)' RUNS='$(or $(RUNS),10000000)' tests/fuzz/run.sh $(TARGETS)

deb rpm: setup
	@tests/setup.sh $@
	cargo build --release --locked --bin pgsluice
	@if [ $@ = deb ]; then cargo deb --no-build; else cargo generate-rpm; fi

clean:
	cargo clean
