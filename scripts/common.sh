# shellcheck shell=bash
# Shared by the scripts: where the project lies, how they speak, how many jobs fit. Sourced, not run.
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
BUILD_DIR="${BUILD_DIR:-$ROOT/build}"
cd "$ROOT" || exit 1

say() { printf '\n== %s\n' "$*" >&2; }
note() { printf '   %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# One compiler a core, but no more than memory holds (about 1.5 GB each with the sanitizers).
jobs_that_fit() {
  local cores gigabytes
  cores=$(nproc)
  gigabytes=$(awk '/MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)
  echo $((gigabytes < 1 ? 1 : gigabytes < cores ? gigabytes : cores))
}

# Of ctest's results in JUnit's form: "13 skipped: 12 (no GPU), 1 (no chromium here: apt-get install chromium)"; nothing where none was.
skipped_tests() {
  awk '
    /<testcase / { counted = 0 }
    !counted && match($0, /SKIPPED: /) {
      counted = 1
      ++all
      why = substr($0, RSTART + RLENGTH, 120)
      if (!(why in times)) whys[++different] = why
      ++times[why]
    }
    END {
      for (i = 1; i <= different; ++i)
        text = text (i > 1 ? ", " : "") times[whys[i]] " (" whys[i] ")"
      if (all) print all " skipped: " text
    }' "$1"
}
