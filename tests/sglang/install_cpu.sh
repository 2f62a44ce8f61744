#!/usr/bin/env bash
# Makes a virtual environment with a real SGLang server that runs on a CPU, and the link $1 to it (.venv-sglang).
# It is built once per requirements and Python, in ${XDG_CACHE_HOME:-~/.cache}/autoforge, shared by all checkouts, and
# never changed afterwards: later calls only set the link. 3.3 GB. Exit 3: it cannot be had here, the last lines say why.
set -euo pipefail
link=${1:?usage: install_cpu.sh LINK}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
key=$({ cat "$here/requirements-cpu.txt" "$here/no-deps-cpu.txt"; echo "$version"; uname -m; } | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-${HOME:-$PWD}/.cache}/autoforge
venv=$cache/sglang-cpu-$key

impossible() {
  printf '\n%s\n' "A real SGLang server cannot be installed here: $1" >&2
  exit 3
}

if [ -e "$link" ] && [ ! -L "$link" ]; then
  echo "$link is there and is no link; remove it, it is made as a link to $venv" >&2
  exit 1
fi
mkdir -p "$cache"
exec 9>"$venv.lock" && flock 9 # two checkouts may want it at the same time
if [ ! -f "$venv/.complete" ]; then
  free_mb=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
  [ "$free_mb" -ge 5000 ] || impossible "$cache has $free_mb MB free, 5000 are needed (XDG_CACHE_HOME says where else)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  while read -r wanted; do
    "$venv/bin/python" -m pip install --quiet --no-deps --dry-run "$wanted" ||
      impossible "pip finds no $wanted for Python $version on this machine"
  done < <(grep '^[a-z]' "$here/no-deps-cpu.txt")
  SECONDS=0
  "$venv/bin/python" -m pip install --quiet -r "$here/requirements-cpu.txt"
  "$venv/bin/python" -m pip install --quiet --no-deps -r "$here/no-deps-cpu.txt"
  touch "$venv/.complete"
  echo "made $venv in $SECONDS s"
fi
ln -sfn "$venv" "$link"
