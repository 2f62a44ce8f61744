#!/usr/bin/env bash
# Makes a virtual environment ($1) with a real SGLang server that runs on a CPU. Does nothing when it is complete.
set -euo pipefail
venv=${1:?usage: install_cpu.sh VENV_DIR}
here=$(cd "$(dirname "$0")" && pwd)
mark="$venv/.installed"
wanted=$(cat "$here/requirements-cpu.txt" "$here/no-deps-cpu.txt" | sha256sum)
if [ -f "$mark" ] && [ "$(cat "$mark")" = "$wanted" ]; then exit 0; fi
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet -r "$here/requirements-cpu.txt"
"$venv/bin/python" -m pip install --quiet --no-deps -r "$here/no-deps-cpu.txt"
printf '%s\n' "$wanted" >"$mark"
