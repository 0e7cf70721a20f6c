#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs what is missing, builds the program, makes the data (a dictionary's
# English, 40 MB), trains configs/quickstart.json on 2 ranks, writes a report page, and says what overlap would gain on
# a slower network. Run again, it skips what is finished and resumes a training that was stopped. Delete runs/quickstart
# to train again.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

config=configs/quickstart.json
data=data/gcide
run=runs/quickstart
metrics="$run/metrics.jsonl"
log="$run.log"
lancet="$BUILD_DIR/lancet"

# A step writes into $part. What is complete is renamed, so that a stopped step leaves nothing that looks finished.
part="$data/part"
mkdir -p "$data"
clean() { rm -rf "$part"; }
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
clean

say "1/6 packages"
scripts/install_deps.sh --no-tests

say "2/6 build (the first time: a few minutes)"
target=lancet
if nvidia-smi -L >/dev/null 2>&1; then target=program; fi  # with a GPU, build the CUDA plugin, too
LANCET_TARGETS=$target scripts/build.sh --no-tests

say "3/6 text"
text="$data/gcide.txt"
if [ -s "$text" ]; then
  note "$text is there"
else
  mkdir -p "$part"
  note "fetching the package dict-gcide (15 MB): the Collaborative International Dictionary of English, GPL-3+"
  fetch() { (cd "$part" && apt-get download -qq -o APT::Sandbox::User=root -o Acquire::Retries=3 dict-gcide >&2); }
  if ! fetch 2>/dev/null; then
    note "refreshing apt's package lists"
    sudo=()
    [ "$(id -u)" -eq 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq >&2
    fetch || die "apt-get could not fetch dict-gcide; any UTF-8 text of some MB at $text works as well"
  fi
  dpkg-deb --fsys-tarfile "$part"/dict-gcide_*.deb | tar -xO ./usr/share/dictd/gcide.dict.dz | gunzip >"$part/raw.txt"
  # -c drops the three bytes that are not UTF-8; iconv still exits with an error code because of them.
  iconv -c -f UTF-8 -t UTF-8 "$part/raw.txt" >"$part/gcide.txt" || true
  bytes=$(wc -c <"$part/gcide.txt")
  [ "$bytes" -gt 30000000 ] || die "expected about 40 MB of text from dict-gcide, found $bytes bytes"
  mv "$part/gcide.txt" "$text"
  note "$text: $((bytes / 1000000)) MB"
fi

say "4/6 tokenizer (byte-level BPE, 8192 tokens, trained on the text)"
if [ -d "$data/tokenizer" ]; then
  note "$data/tokenizer is there"
else
  mkdir -p "$part"
  "$lancet" data train-tokenizer "$text" --vocab-size 8192 --out "$part/tokenizer"
  mv "$part/tokenizer" "$data/tokenizer"
fi

say "5/6 tokens"
if [ -s "$data/train.bin" ] && [ -s "$data/eval.bin" ]; then
  note "$data/train.bin and eval.bin are there"
else
  mkdir -p "$part"
  "$lancet" data tokenize --tokenizer "$data/tokenizer" --out "$part/train.bin" --eval-out "$part/eval.bin" \
    --eval-fraction 0.02 "$text"
  mv "$part/eval.bin" "$part/train.bin" "$data/"
fi

say "6/6 training on 2 ranks: $config"
steps=$(sed -n 's/.*"steps"[ ]*:[ ]*\([0-9]*\).*/\1/p' "$config")
finished() {
  [ -s "$metrics" ] && [ "$metrics" -nt "$config" ] && [ "$metrics" -nt "$data/train.bin" ] && [ -s "$log" ] &&
    tail -n 1 "$metrics" | grep -Eq "\"step\"[ ]*:[ ]*${steps}[^0-9]"
}
train() {  # the ranks handle Ctrl-C: they save, and tee writes their last lines
  scripts/mpirun.sh 2 "$lancet" train "$config" --run-dir "$run" 2>&1 | tee -i "$log.part"
}
if finished; then
  note "$run has all $steps steps; delete it to train again. The end of its log:"
  tail -n 20 "$log"
else
  mkdir -p "$(dirname "$run")"
  rm -f "$log"
  train
  mv "$log.part" "$log"
fi

# Prints the first and the last training loss, and the last one on held-out text.
losses() {
  awk '
    function value(key) {
      if (!match($0, "\"" key "\": [-+0-9.eE]+")) return ""
      return substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4)
    }
    value("loss") != "" {
      last = value("loss")
      step = value("step")
      if (first == "") first = last
    }
    value("held_out_loss") != "" { held_out = value("held_out_loss") }
    END { printf "loss %.2f at step 1, %.2f at step %d, %.2f on held-out text", first, last, step, held_out }' "$metrics"
}

# Reads from the table of `lancet plan` the step's time without overlap and with the chosen policy, which has a star.
overlap_gain() {
  awk '
    { runs = sub(/ \*/, "") }
    $1 == "sequential" { before = $2 }
    runs && after == "" { after = $2 }
    END {
      if (before == "" || after == "") exit 1
      printf "%.0f%% of a step (%s ms become %s, predicted)", 100 * (1 - after / before), before, after
    }'
}

say "done: the model, its log and its report page are in $run"
note "$(losses)"
"$lancet" report "$run" --out "$run/report.html"
plan="plan $config --ranks 8 --on ethernet-10g-cpu --set overlap.policy=auto"
# shellcheck disable=SC2086
gain=$("$lancet" $plan | overlap_gain)
note "on 8 hosts with 10 Gbit/s Ethernet overlap would save $gain: ${lancet#"$ROOT"/} $plan"
note "next: ${lancet#"$ROOT"/} --help, and configs/ for larger models"
