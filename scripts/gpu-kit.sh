#!/usr/bin/env bash
# Collects the dependencies that a machine without packages and network needs (a bare GPU machine: CUDA, CMake, a
# compiler) into one folder, from the Debian packages installed here. To build there:
#   cmake -S . -B build -DLANCET_KIT=DIR && cmake --build build
#   scripts/gpu-kit.sh DIR
set -euo pipefail
from=$PWD
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage="usage: scripts/gpu-kit.sh DIR"
case "${1:-}" in
  -h | --help)
    echo "$usage"
    exit
    ;;
  "" | -*) die "$usage" ;;
esac
[ $# -eq 1 ] || die "$usage"
kit=$1
[ "${kit#/}" != "$kit" ] || kit=$from/$kit
title="Dependencies of this project, as packaged by Debian:"  # the first line of kit.txt
is_kit() {
  [ "$(head -n 1 "$1/kit.txt" 2>/dev/null)" = "$title" ] &&
    [ -z "$(ls -A "$1" | grep -vxE 'include|lib|cmake|kit\.txt')" ]
}
[ ! -e "$kit" ] || is_kit "$kit" || [ -z "$(ls -A "$kit" 2>/dev/null)" ] ||
  die "expected a new folder or an old kit at $kit, found another folder"

files_of() {  # PACKAGE PATTERN: prints the package's files that match
  dpkg -L "$1" 2>/dev/null | grep -E "$2" || die "expected the Debian package $1; scripts/install_deps.sh installs it"
}
# copy PACKAGE PATTERN BASE TO: copies each matching BASE/x to TO/x of the kit
copy() {
  local file to
  files_of "$1" "$2" | while read -r file; do
    [ -f "$file" ] || continue
    to=$kit/$4/${file#"$3"/}
    mkdir -p "$(dirname "$to")"
    cp -L "$file" "$to"
  done
}

rm -rf "$kit"
mkdir -p "$kit"
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo x86_64-linux-gnu)
copy libfmt-dev '/include/' /usr/include include
copy libspdlog-dev '/include/' /usr/include include
copy nlohmann-json3-dev '/include/' /usr/include include
copy libcli11-dev '/include/' /usr/include include
copy libxxhash-dev '/include/' /usr/include include
copy catch2 '/include/' /usr/include include
copy catch2 '/Catch2/(Catch|ParseAndAddCatchTests|CatchAddTests)\.cmake$' /usr/lib/cmake/Catch2 cmake
copy libpcre2-dev '/include/pcre2\.h$' /usr/include include
copy libpcre2-dev '/libpcre2-8\.a$' "/usr/lib/$multiarch" lib

{
  echo "$title"
  dpkg-query -W -f '${Package} ${Version}\n' libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libxxhash-dev catch2 libpcre2-dev
} >"$kit/kit.txt"
size=$(du -sm "$kit" | cut -f1)
[ "$size" -lt 40 ] || die "expected a kit under 40 MB, found $size MB in $kit"
note "$kit: $size MB"
