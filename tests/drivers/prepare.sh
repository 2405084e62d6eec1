#!/bin/sh
# Brings the driver compatibility tests' libraries and a newer PostgreSQL under the target directory:
# `tests/drivers/prepare.sh python|go|java|node|postgres-18|all`. What is there already is left alone.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${CARGO_TARGET_DIR:-$root/target}/drivers
mkdir -p "$out"
out=$(cd "$out" && pwd)

pgjdbc=42.7.7
postgres_18=18.4.0

fail() { echo "drivers: $*" >&2; exit 1; }
tool() { command -v "$1" >/dev/null || fail "$1 is missing; run 'make drivers'"; }
stamp() { cat "$@" | cksum | tr -d ' '; }

# once NAME STAMP FUNCTION: runs FUNCTION unless it was done for this STAMP.
once() {
    mark="$out/$1.done"
    [ -f "$mark" ] && [ "$(cat "$mark")" = "$2" ] && return 0
    echo "drivers: preparing $1"
    rm -f "$mark"
    "$3"
    echo "$2" >"$mark"
}

python_env() {
    rm -rf "$out/python"
    python3 -m venv "$out/python"
    "$out/python/bin/pip" install -q --disable-pip-version-check -r "$here/python/requirements.txt"
}

go_program() {
    (cd "$here/go" && go build -buildvcs=false -o "$out/pgx" .)
}

java_program() {
    mkdir -p "$out/java"
    mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy "-Dartifact=org.postgresql:postgresql:$pgjdbc" \
        "-DoutputDirectory=$out/java" -Dmdep.stripVersion=true
    javac -cp "$out/java/postgresql.jar" -d "$out/java" "$here/java/Driver.java"
}

node_modules() {
    mkdir -p "$out/node"
    cp "$here/node/package.json" "$here/node/package-lock.json" "$out/node/"
    (cd "$out/node" && npm ci --silent --no-audit --no-fund)
}

newer_postgres() {
    case "$(uname -m)" in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64v8 ;;
    *) fail "no PostgreSQL 18 package for $(uname -m)" ;;
    esac
    name="embedded-postgres-binaries-linux-$arch"
    rm -rf "$out/postgres-18" "$out/package"
    mkdir -p "$out/postgres-18" "$out/package"
    mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
        "-Dartifact=io.zonky.test.postgres:$name:$postgres_18" "-DoutputDirectory=$out/package" -Dmdep.stripVersion=true
    (cd "$out/package" && python3 -m zipfile -e "$name.jar" .)
    tar xJf "$out"/package/*.txz -C "$out/postgres-18"
    rm -rf "$out/package"
    "$out/postgres-18/bin/postgres" --version >/dev/null || fail "PostgreSQL 18 does not run here"
}

prepare() {
    case "$1" in
    python) tool python3; once python "$(stamp "$here/python/requirements.txt")" python_env ;;
    go) tool go; once go "$(stamp "$here"/go/*)" go_program ;;
    java) tool javac; tool mvn; once java "$pgjdbc-$(stamp "$here"/java/*)" java_program ;;
    node) tool node; tool npm; once node "$(stamp "$here"/node/package*.json)" node_modules ;;
    postgres-18) tool mvn; tool python3; tool xz; once postgres-18 "$postgres_18" newer_postgres ;;
    *) fail "usage: $0 python|go|java|node|postgres-18|all" ;;
    esac
}

if [ "${1:-}" = all ]; then
    for name in python go java node postgres-18; do prepare "$name"; done
else
    prepare "${1:-}"
fi
