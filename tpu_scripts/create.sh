#!/usr/bin/env bash
# Ask for TPUs through a queued resource; it waits until there are any. create.sh [--dry-run]
# ACCELERATOR_TYPE, e.g. v5litepod-16; RUNTIME_VERSION, e.g. v2-alpha-tpuv5-lite.
# SLICES=N asks for several slices (multi-slice), SPOT=1 for preemptible ones.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need TPU_NAME ZONE PROJECT ACCELERATOR_TYPE RUNTIME_VERSION

nodes=(--node-id "$TPU_NAME")
if ((${SLICES:-1} > 1)); then
  nodes=(--node-count "$SLICES" --node-prefix "$TPU_NAME")
fi
spot=()
if ((${SPOT:-0})); then
  spot=(--spot)
fi
run gcloud compute tpus queued-resources create "$TPU_NAME" --project "$PROJECT" --zone "$ZONE" \
  --accelerator-type "$ACCELERATOR_TYPE" --runtime-version "$RUNTIME_VERSION" "${nodes[@]}" "${spot[@]}"
run gcloud compute tpus queued-resources describe "$TPU_NAME" --project "$PROJECT" --zone "$ZONE"
