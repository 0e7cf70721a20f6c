#!/usr/bin/env bash
# The loss of a run as a chart of characters: scripts/loss_curve.sh runs/NAME/metrics.jsonl [WIDTH HEIGHT]
set -euo pipefail

file=${1:?usage: scripts/loss_curve.sh FILE.jsonl [WIDTH HEIGHT]}
[ -s "$file" ] || { echo "error: expected a metrics file with steps, found none at $file" >&2; exit 1; }

awk -v width="${2:-60}" -v height="${3:-14}" '
  function value(key,    rest) {  # the number after "key":, or "" where it is null or missing
    if (!match($0, "\"" key "\"[ ]*:[ ]*[-+0-9.eE]+")) return ""
    rest = substr($0, RSTART, RLENGTH)
    sub(/^[^:]*:[ ]*/, "", rest)
    return rest + 0
  }
  {
    loss = value("loss"); step = value("step")
    if (loss == "" || step == "") next
    steps[++n] = step; losses[n] = loss
  }
  END {
    if (n == 0) { print "no steps with a loss in this file"; exit 1 }
    if (n < width) width = n
    low = 1e30; high = -1e30
    for (c = 0; c < width; ++c) {  # a column is the mean of its steps
      from = int(c * n / width) + 1; to = int((c + 1) * n / width)
      sum = 0
      for (i = from; i <= to; ++i) sum += losses[i]
      mean[c] = sum / (to - from + 1)
      if (mean[c] < low) low = mean[c]
      if (mean[c] > high) high = mean[c]
    }
    span = high > low ? high - low : 1
    for (c = 0; c < width; ++c) row[c] = int((high - mean[c]) / span * (height - 1) + 0.5)
    print "  loss"
    for (r = 0; r < height; ++r) {
      line = sprintf("%7.3f |", high - span * r / (height - 1))
      for (c = 0; c < width; ++c) line = line (row[c] == r ? "*" : " ")
      print line
    }
    line = "        +"
    for (c = 0; c < width; ++c) line = line "-"
    print line
    line = sprintf("%8s %d", "step", steps[1])
    while (length(line) < 9 + width - length(steps[n] "")) line = line " "
    print line (n > 1 ? " " steps[n] : "")
    tail = n < 10 ? n : 10
    for (i = n - tail + 1; i <= n; ++i) last += losses[i] / tail
    printf "  loss %.3f at step %d, %.3f over the last %d steps: down by %.3f\n", losses[1], steps[1], last, tail, losses[1] - last
  }' "$file"
