#!/usr/bin/env bash
# Copy the committed tree to every worker of every slice and install it there. setup.sh [--dry-run]
# A model folder (model.init_from) does not travel: it must lie under the same path on every worker.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need TPU_NAME ZONE PROJECT

if [[ -n "$(git -C "$HERE/.." status --porcelain)" ]]; then
  echo "note: only the commit goes to the workers; these stay here:" >&2
  git -C "$HERE/.." status --short >&2
fi
archive="$(mktemp -d)/autoforge.tar.gz"
trap 'rm -rf "$(dirname "$archive")"' EXIT
run git -C "$HERE/.." archive --format tar.gz -o "$archive" HEAD
for node in $(slices); do
  run gcloud compute tpus tpu-vm scp "$archive" "$node:autoforge.tar.gz" --project "$PROJECT" --zone "$ZONE" --worker all
done
# The images of Cloud TPU that are based on Ubuntu 22.04 have Python 3.10, which JAX has left behind: where python3 is
# older than 3.11, or has no ensurepip, uv brings another one.
venv='if [ ! -x .venv/bin/python ]; then if python3 -c "import sys, ensurepip; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then python3 -m venv .venv; else python3 -m pip install --quiet --user uv && python3 -m uv venv --quiet --seed --python 3.12 .venv; fi; fi'
on_workers "mkdir -p autoforge && tar -xzf autoforge.tar.gz -C autoforge && cd autoforge && { $venv; } && .venv/bin/python -m pip install --quiet -c constraints.txt -e '.[train,tpu]' && .venv/bin/autoforge doctor"
