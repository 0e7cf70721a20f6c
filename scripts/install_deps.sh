#!/usr/bin/env bash
# Installs the Debian packages that are missing: as root, or with sudo. third_party/README.md says what each is for.
#   scripts/install_deps.sh [--no-tests]     --no-tests: without packages that only the tests need
#   scripts/install_deps.sh --plots          with matplotlib for `python3 scripts/bench reproduce`
#   scripts/install_deps.sh --quick-tests    with the optional packages of quick tests, which are skipped without them
#   scripts/install_deps.sh --all-tests      with those of the long tests as well
#   LANCET_SKIP_INSTALL=1                    install nothing, if the machine has everything
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=(g++ cmake ninja-build pkg-config
  libopenmpi-dev openmpi-bin
  libdnnl-dev ocl-icd-opencl-dev
  nlohmann-json3-dev libfmt-dev libspdlog-dev libcli11-dev libpcre2-dev libxxhash-dev
  coinor-libcbc-dev)
test_packages=(catch2 python3 iproute2)

case "${1:-}" in
  "") packages+=("${test_packages[@]}") ;;
  --no-tests) ;;
  --plots) packages+=("${test_packages[@]}" python3-matplotlib) ;;
  --quick-tests | --all-tests)
    packages+=("${test_packages[@]}" python3-matplotlib clang-format slurm-wlm)
    [ "$1" = --quick-tests ] || packages+=(clang libclang-rt-14-dev chromium)
    ;;
  *) die "usage: scripts/install_deps.sh [--no-tests | --plots | --quick-tests | --all-tests]" ;;
esac
[ "${LANCET_SKIP_INSTALL:-}" = 1 ] && exit 0

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing=()
if command -v dpkg-query >/dev/null; then
  for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
  done
else
  missing=("${packages[@]}")
fi
if [ ${#missing[@]} -eq 0 ]; then
  note "all ${#packages[@]} packages are there"
  exit 0
fi

system=$(uname -s)
# shellcheck disable=SC1091
[ -r /etc/os-release ] && system=$(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-}")
if [ "$system" != "debian 12" ]; then
  cat >&2 <<MESSAGE
error: this is '$system', and this script installs on Debian 12 only. Needed, under your system's names:
  a C++20 compiler (GCC 12 or later), CMake 3.25 or later, Ninja, pkg-config
  Open MPI (or another MPI 3), oneDNN 2.6 or later (and the OpenCL loader that its package may ask for)
  nlohmann-json 3.11, fmt 9, spdlog 1.10, CLI11 2.1, PCRE2 (8 bit), xxHash; for the tests Catch2 2.13 and Python 3
  CBC 2.10 (optional: lancet place --solver milp)
Missing here, by Debian's names: ${missing[*]}
Once they are installed, run again with LANCET_SKIP_INSTALL=1. Without MPI or oneDNN one rank still trains:
  cmake -S . -B build -DLANCET_MPI=OFF -DLANCET_ONEDNN=OFF
MESSAGE
  exit 1
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "expected root or sudo to install: ${missing[*]}"
  sudo=(sudo)
  [ "${CI:-}" = true ] && sudo+=(-n)  # CI cannot type a password
fi

note "installing ${#missing[@]} packages: ${missing[*]}"
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 "$@"; }
apt update -qq || die "apt-get update failed: is this machine online?"
# The output has hundreds of lines, which matter only after a failure.
output=$(apt install -y -qq --no-install-recommends "${missing[@]}" 2>&1) || {
  printf '%s\n' "$output" >&2
  die "apt-get could not install: ${missing[*]}"
}
