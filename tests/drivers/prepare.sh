#!/bin/sh
# Brings the driver compatibility tests' libraries and other PostgreSQLs under the target directory:
# `tests/drivers/prepare.sh python|go|java|node|postgres-14|postgres-16|postgres-17|postgres-18|all`.
# What is there already is left alone. `all` is what the tests need: of the servers, version 18.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${CARGO_TARGET_DIR:-$root/target}/drivers
mkdir -p "$out"
out=$(cd "$out" && pwd)

pgjdbc=42.7.7

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
    javac -cp "$out/java/postgresql.jar" -d "$out/java" "$here"/java/*.java
}

node_modules() {
    mkdir -p "$out/node"
    cp "$here/node/package.json" "$here/node/package-lock.json" "$out/node/"
    (cd "$out/node" && npm ci --silent --no-audit --no-fund)
}

# The release of each major version that is packaged for Maven.
release() {
    case "$1" in
    postgres-14) echo 14.23.0 ;;
    postgres-16) echo 16.14.0 ;;
    postgres-17) echo 17.10.0 ;;
    postgres-18) echo 18.4.0 ;;
    *) fail "no release of $1 is known" ;;
    esac
}

# Unpacks the server $server.
postgres() {
    case "$(uname -m)" in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64v8 ;;
    *) fail "no $server package for $(uname -m)" ;;
    esac
    name="embedded-postgres-binaries-linux-$arch"
    rm -rf "${out:?}/$server" "$out/package"
    mkdir -p "$out/$server" "$out/package"
    mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
        "-Dartifact=io.zonky.test.postgres:$name:$(release "$server")" "-DoutputDirectory=$out/package" \
        -Dmdep.stripVersion=true
    (cd "$out/package" && python3 -m zipfile -e "$name.jar" .)
    tar xJf "$out"/package/*.txz -C "$out/$server"
    rm -rf "$out/package"
    "$out/$server/bin/postgres" --version >/dev/null || fail "$server does not run here"
}

prepare() {
    case "$1" in
    python) tool python3; once python "$(stamp "$here/python/requirements.txt")" python_env ;;
    go) tool go; once go "$(stamp "$here"/go/*)" go_program ;;
    java) tool javac; tool mvn; once java "$pgjdbc-$(stamp "$here"/java/*)" java_program ;;
    node) tool node; tool npm; once node "$(stamp "$here"/node/package*.json)" node_modules ;;
    postgres-*)
        tool mvn; tool python3; tool xz
        server=$1
        once "$server" "$(release "$server")" postgres
        ;;
    *) fail "usage: $0 python|go|java|node|postgres-14|postgres-16|postgres-17|postgres-18|all" ;;
    esac
}

if [ "${1:-}" = all ]; then
    for name in python go java node postgres-18; do prepare "$name"; done
else
    prepare "${1:-}"
fi
