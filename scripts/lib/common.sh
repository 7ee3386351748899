# What the scripts share; sourced, never run. Each script sets `me` to its own name first.
# shellcheck shell=bash disable=SC2154
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
models=${SELVEDGE_MODELS:-$HOME/.cache/selvedge/models}

say() { printf '%s: %s\n' "$me" "$*" >&2; }
die() { say "$*"; exit 1; }

# have COMMAND HOW: fails with the way out where COMMAND is missing.
have() { command -v "$1" >/dev/null || die "$1 is missing; $2"; }

# apt_need PACKAGE...: installs what is missing where that can be done (root on Debian), else says what to install.
apt_need() {
  local p missing=()
  for p in "$@"; do dpkg -s "$p" >/dev/null 2>&1 || missing+=("$p"); done
  ((${#missing[@]})) || return 0
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then die "install these packages first: ${missing[*]}"; fi
  say "installing ${missing[*]}"
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"; } >&2 </dev/null ||
    die "apt-get could not install ${missing[*]}"
}

# Tools that building and fetching need; pip carries the models.
need_base() {
  have cargo "install Rust 1.95 or newer"
  have cc "install a C compiler (the package gcc): rustc links with it"
  have python3 "install Python 3.9 or newer"
  have git "install git"
  python3 -m pip --version >/dev/null 2>&1 || apt_need python3-pip
}
