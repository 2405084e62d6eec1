#!/bin/sh
# Installs what is missing on Debian 12 or 13: `tests/setup.sh base|drivers|bench|seeds|regress|deb|rpm`.
# Looks for the tools themselves, so what came from elsewhere is left alone. Run as root, or as a user of sudo.
set -eu

# The oldest Rust that builds pgsluice.
rust_min=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml")

missing=""
need() { # need PACKAGE TEST...: remembers PACKAGE unless TEST succeeds
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
has() { command -v "$1"; }
any() { # any FILE...: whether one of them exists (the shell has expanded a pattern)
    for file in "$@"; do
        [ -e "$file" ] && return 0
    done
    return 1
}

install_missing() {
    [ -n "$missing" ] || return 0
    echo "setup: installing$missing"
    if [ "$(id -u)" = 0 ]; then
        as_root=""
    elif command -v sudo >/dev/null; then
        as_root="sudo"
    else
        echo "setup: not root and no sudo; install these packages first:$missing" >&2
        exit 1
    fi
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    missing=""
}

rust_new_enough() {
    version=$(cargo --version 2>/dev/null | cut -d' ' -f2) || return 1
    [ -n "$version" ] && [ "$(printf '%s\n%s\n' "$rust_min" "$version" | sort -V | head -n1)" = "$rust_min" ]
}

no_rust() { # no_rust WHY
    echo "setup: $1; install Rust $rust_min or newer, with cargo in PATH, and try again" >&2
    exit 1
}

setup_base() {
    need build-essential has cc
    need cmake has cmake
    need curl has curl
    need ca-certificates any /etc/ssl/certs/ca-certificates.crt
    need git has git
    # pg_query's C sources are read by bindgen.
    need libclang-dev any /usr/lib/llvm-*/lib/libclang.so* /usr/lib/x86_64-linux-gnu/libclang*.so* /usr/lib/aarch64-linux-gnu/libclang*.so*
    need clang has clang
    need postgresql any /usr/lib/postgresql/*/bin/initdb
    install_missing
    if ! rust_new_enough; then
        echo "setup: installing the stable Rust toolchain"
        if command -v rustup >/dev/null; then
            rustup toolchain install stable --profile minimal -c rustfmt -c clippy
            rustup default stable
        else
            script=$(curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs) || no_rust "rustup could not be fetched"
            # Whoever has an older one from elsewhere gets this one beside it, before it in the Makefile's PATH.
            printf '%s\n' "$script" | RUSTUP_INIT_SKIP_PATH_CHECK=yes \
                sh -s -- -y -q --profile minimal -c rustfmt -c clippy --default-toolchain stable
        fi
        rust_new_enough || no_rust "cargo is $(cargo --version 2>&1 | head -n1)"
    fi
}

setup_drivers() {
    need python3 has python3
    need python3-venv python3 -c 'import ensurepip, venv'
    need xz-utils has xz
    need default-jdk-headless has javac
    need maven has mvn
    need golang-go has go
    need nodejs has node
    need npm has npm
    install_missing
    for tool in python3 xz javac mvn go node npm; do
        command -v "$tool" >/dev/null || { echo "setup: $tool is still missing" >&2; exit 1; }
    done
}

setup_bench() {
    need pgbouncer any /usr/sbin/pgbouncer
    install_missing
}

setup_seeds() {
    need golang-go has go
    install_missing
}

# What makes a package of the release build, and what names the libraries that it needs.
setup_deb() {
    need dpkg-dev has dpkg-shlibdeps
    install_missing
    has cargo-deb >/dev/null || cargo install --quiet --locked cargo-deb
}

setup_rpm() {
    has cargo-generate-rpm >/dev/null || cargo install --quiet --locked cargo-generate-rpm
}

# PostgreSQL's own regression and isolation suites in the version of the server that is installed here, or that
# PGSLUICE_TEST_PG_BIN names, with what is built of the first: psql, pg_regress and the suite's C functions. Nothing of it
# is installed, and apt's own lists are left alone. The last line says where it is.
setup_regress() {
    need build-essential has cc
    need dpkg-dev has dpkg-source
    need curl has curl
    need bzip2 has bzip2
    need bison has bison
    need flex has flex
    need perl has perl
    install_missing
    bin=${PGSLUICE_TEST_PG_BIN:-$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin | sort -V | tail -n1)}
    version=$("$bin/postgres" --version | cut -d' ' -f3)
    target=${CARGO_TARGET_DIR:-$(cd "$(dirname "$0")/.." && pwd)/target}
    mkdir -p "$target"
    out=$(cd "$target" && pwd)/regress
    if [ ! -f "$out/$version.built" ] || [ ! -d "$out/regress/specs" ]; then
        rm -rf "$out"
        mkdir -p "$out/source" "$out/regress"
        regress_source || {
            echo "setup: no source of PostgreSQL $version to be had from Debian or $archive (see $out/fetch.log)" >&2
            echo "setup: build its src/test/regress by hand and set PGSLUICE_REGRESS: see tests/regress.rs" >&2
            exit 1
        }
        regress_build >"$out/build.log" 2>&1 || { echo "setup: see $out/build.log" >&2; exit 1; }
        rm -rf "$out/source"
        touch "$out/$version.built"
    fi
    echo "$out/regress"
}

archive=https://ftp.postgresql.org/pub/source

# Debian keeps one source of each of its suites: one that a security update has just replaced, or that a mirror has not got
# yet, is not there. PostgreSQL's archive keeps all of them. Another minor release is better than none: what its
# suite expects and this server does not do fails direct, too.
regress_source() {
    apt=$out/apt
    debian_lists >"$out/fetch.log" 2>&1 || true
    known=$(debian showsrc "postgresql-${version%%.*}" 2>/dev/null | sed -n 's/^Version: //p' | sort -Vru)
    same="^$version([^0-9]|$)"
    debian_source "$(echo "$known" | grep -E "$same")" || archive_source ||
        debian_source "$(echo "$known" | grep -Ev "$same")" || return 1
    tar xf "$found" -C "$out/source" --strip-components=1
    rm -rf "$apt"
}

debian_lists() {
    mkdir -p "$apt/parts" "$apt/lists/partial" "$apt/cache/archives/partial"
    cat /etc/apt/sources.list.d/debian*.sources 2>/dev/null | sed 's/^Types:.*/Types: deb-src/' >"$apt/parts/src.sources"
    sed -n 's/^deb /deb-src /p' /etc/apt/sources.list 2>/dev/null >"$apt/parts/src.list" || true
    debian update
}

debian() { # debian COMMAND...: apt with these sources and lists of its own; what is asked is asked of apt-cache
    tool=apt-get
    [ "$1" != showsrc ] || tool=apt-cache
    "$tool" -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/parts" \
        -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User= "$@"
}

debian_source() { # debian_source VERSIONS: the first of them that can be had
    for package in $1; do
        (cd "$apt" && debian source --download-only "postgresql-${version%%.*}=$package") >>"$out/fetch.log" 2>&1 || continue
        case "$package" in
        "$version"[!0-9]*) ;;
        *) echo "setup: the suite is that of $package, the server is $version: some files may fail direct, too" >&2 ;;
        esac
        found=$(find "$apt" -maxdepth 1 -name '*.orig.tar.*' ! -name '*.asc')
        return 0
    done
    return 1
}

archive_source() {
    found=$apt/postgresql-$version.tar.bz2
    for file in "$found" "$found.sha256"; do
        curl --proto '=https' -sSfL --max-time 600 -o "$file" "$archive/v$version/${file##*/}" >>"$out/fetch.log" 2>&1 || return 1
    done
    (cd "$apt" && sha256sum -c "$found.sha256") >>"$out/fetch.log" 2>&1
}

regress_build() (
    set -e
    mkdir "$out/source/build"
    cd "$out/source/build"
    ../configure --without-readline --without-icu --without-zlib
    make -C src/backend generated-headers
    make -j2 -C src/interfaces/libpq
    make -j2 -C src/bin/psql
    make -j2 -C src/test/regress pg_regress regress.so
    make -C contrib/spi refint.so autoinc.so
    cp -a ../src/test/regress/. ../src/test/isolation/specs "$out/regress"
    cp src/bin/psql/psql src/interfaces/libpq/libpq.so.5 src/test/regress/pg_regress "$out/regress"
    cp src/test/regress/regress.so contrib/spi/refint.so contrib/spi/autoinc.so "$out/regress"
)

case "${1:-}" in
base) setup_base ;;
drivers) setup_drivers ;;
bench) setup_bench ;;
seeds) setup_seeds ;;
deb) setup_deb ;;
rpm) setup_rpm ;;
regress) setup_regress ;;
*)
    echo "usage: $0 base|drivers|bench|seeds|regress|deb|rpm" >&2
    exit 2
    ;;
esac
