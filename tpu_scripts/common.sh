# shellcheck shell=bash
# Sourced by the other scripts: options, and `run`, which prints instead of running with --dry-run.
set -euo pipefail

DRY_RUN=0
if [[ "${1:-}" == "--dry-run" ]]; then
  DRY_RUN=1
  shift
fi

# need VARIABLE...: every named environment variable must be set.
need() {
  local name
  for name in "$@"; do
    if [[ -z "${!name:-}" ]]; then
      echo "error: set $name (TPU_NAME, ZONE and PROJECT name the machines; see tpu_scripts/README.md)" >&2
      exit 2
    fi
  done
}

run() {
  if ((DRY_RUN)); then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# on_workers COMMAND: the same shell line on every worker, or on WORKER (a number).
on_workers() {
  run gcloud compute tpus tpu-vm ssh "$TPU_NAME" --project "$PROJECT" --zone "$ZONE" \
    --worker "${WORKER:-all}" --command "$1"
}
