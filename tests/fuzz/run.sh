#!/bin/sh
# Runs fuzz targets one after the other, each until RUNS executions or SECS seconds, and prints what each did.
# usage: tests/fuzz/run.sh [TARGET ...]; in the environment: SECS (60), RUNS (10000000).
set -eu
cd "$(dirname "$0")/../.."
host=$(rustc -vV | sed -n 's/^host: //p')
dir=${CARGO_TARGET_DIR:-tests/fuzz/target}
# Coverage comes from LLVM's own pass; the names of its options are stable Rust's to pass on.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1" \
  cargo build --quiet --release --manifest-path tests/fuzz/Cargo.toml --target "$host" --target-dir "$dir"
[ $# -gt 0 ] || set -- $(sed -n 's/^name = "\(.*\)"$/\1/p' tests/fuzz/Cargo.toml | grep -v '^pgsluice')
failed=0
echo '| target | executions | seconds | finding |'
echo '|---|---|---|---|'
for target in "$@"; do
  found=tests/fuzz/found/$target artifacts=tests/fuzz/artifacts/$target
  mkdir -p "$found" "$artifacts"
  log=$artifacts/log.txt
  begin=$(date +%s)
  # Longest input: what a parser may be given in a few messages.
  if "$dir/$host/release/$target" -max_total_time="${SECS:-60}" -runs="${RUNS:-10000000}" -max_len=4096 -timeout=10 \
    -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$artifacts/" "$found" "tests/fuzz/corpus/$target" >"$log" 2>&1
  then finding=none; else finding="see $log" failed=1; fi
  done=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "| \`$target\` | ${done:-?} | $(($(date +%s) - begin)) | $finding |"
done
exit $failed
