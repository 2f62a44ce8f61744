#!/usr/bin/env bash
# Makes $1 (.venv-tpu): this package with libtpu, whose compiler needs no TPU. An environment of its own, since JAX looks
# for TPUs wherever libtpu is installed. Exit 3: libtpu cannot be had here.
set -euo pipefail
venv=${1:?usage: install.sh VENV}
cd "$(dirname "$0")/../.."
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
if ! "$venv/bin/python" -m pip install --quiet --no-deps --dry-run -c constraints.txt libtpu; then
  echo "libtpu cannot be installed here: pip finds none for this machine" >&2
  exit 3
fi
"$venv/bin/python" -m pip install --quiet -c constraints.txt -e '.[train,tpu,dev]'
