# shellcheck shell=bash
# Shared by the scripts, to be sourced: the project's folder, messages, the number of jobs.
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
BUILD_DIR="${BUILD_DIR:-$ROOT/build}"
cd "$ROOT" || exit 1

say() { printf '\n== %s\n' "$*" >&2; }
note() { printf '   %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Prints how many compilers or tests run at once: JOBS, or one on each core. Memory that is free now says little on
# machines whose memory grows on demand; where it is short, JOBS is smaller.
job_count() {
  echo "${JOBS:-$(nproc)}"
}

# Counts the skipped tests in ctest's results (JUnit's form) by what was missing; prints nothing if none was skipped:
# "13 skipped: 12 (no GPU), 1 (no chromium here: apt-get install chromium)".
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

# Prints the last lines of every failed test's output from ctest's results (JUnit's form), so that they stand at the end
# of a long log too.
failed_tests() {
  awk '
    /<testcase / {
      failed = /status="fail"/
      name = $0
      sub(/.*<testcase name="/, "", name)
      sub(/" classname=.*/, "", name)
    }
    failed && sub(/.*<system-out>/, "") { inside = 1; lines = 0 }
    inside {
      last = sub(/<\/system-out>.*/, "")
      line[lines++] = $0
      if (!last) next
      print "-- " name
      for (i = lines > 60 ? lines - 60 : 0; i < lines; ++i) print line[i]
      inside = 0
    }' "$1"
}
