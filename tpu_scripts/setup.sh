#!/usr/bin/env bash
# Copy the committed tree to every worker of every slice and install it there. setup.sh [--dry-run]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need TPU_NAME ZONE PROJECT

archive="$(mktemp -d)/autoforge.tar.gz"
trap 'rm -rf "$(dirname "$archive")"' EXIT
run git -C "$HERE/.." archive --format tar.gz -o "$archive" HEAD
for node in $(slices); do
  run gcloud compute tpus tpu-vm scp "$archive" "$node:autoforge.tar.gz" --project "$PROJECT" --zone "$ZONE" --worker all
done
on_workers "mkdir -p autoforge && tar -xzf autoforge.tar.gz -C autoforge && cd autoforge && python3 -m venv .venv && .venv/bin/python -m pip install --quiet -c constraints.txt -e '.[train,tpu]' && .venv/bin/autoforge doctor"
