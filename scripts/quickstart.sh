#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs what is missing, builds, makes the data (a dictionary's English,
# 40 MB), trains configs/quickstart.json on 2 ranks, prints the loss curve and a generated sample.
# Run again, it skips what is finished; a training that was stopped starts anew. Delete runs/quickstart to train again.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

config=configs/quickstart.json
data=data/gcide
run=runs/quickstart
lancet="$BUILD_DIR/lancet"

# Whatever a step makes lies in $part until it is whole; then it is renamed.
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
scripts/build.sh --no-tests

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
  # -c drops the three bytes that are not UTF-8, and says so by its status.
  iconv -c -f UTF-8 -t UTF-8 "$part/raw.txt" >"$part/gcide.txt" || true
  bytes=$(wc -c <"$part/gcide.txt")
  [ "$bytes" -gt 30000000 ] || die "expected about 40 MB of text from dict-gcide, found $bytes bytes"
  mv "$part/gcide.txt" "$text"
  note "$text: $(($(wc -c <"$text") / 1000000)) MB"
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
metrics="$run/metrics.jsonl"
log="$run.log"
finished() {
  [ -s "$metrics" ] && [ "$metrics" -nt "$config" ] && [ "$metrics" -nt "$data/train.bin" ] && [ -s "$log" ] &&
    tail -n 1 "$metrics" | grep -Eq "\"step\"[ ]*:[ ]*${steps}[^0-9]"
}
if finished; then
  note "$run has all $steps steps; delete it to train anew. The end of its log:"
  tail -n 20 "$log"
else
  mkdir -p "$(dirname "$run")"
  rm -f "$log"
  scripts/mpirun.sh 2 "$lancet" train "$config" --run-dir "$run" 2>&1 | tee "$log.part"
  mv "$log.part" "$log"
fi

say "the loss of $steps steps"
scripts/loss_curve.sh "$metrics"
say "done: $run holds the resolved config and metrics.jsonl, $log what was printed"
note "next: build/lancet --help, and configs/ for larger models"
