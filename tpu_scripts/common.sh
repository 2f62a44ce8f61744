# shellcheck shell=bash
# Sourced by the other scripts: options, and `run`, which prints instead of running with --dry-run.
set -euo pipefail

# shellcheck disable=SC2034  # of those that source this
HERE="$(dirname "${BASH_SOURCE[0]}")"
if [[ "${1:-}" == "--help" || "${1:-}" == "-h" ]]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" # the script's own head
  exit 0
fi
if [[ ! "${SLICES:-1}" =~ ^[1-9][0-9]*$ ]]; then
  echo "error: SLICES is '$SLICES', expected a number from 1 on" >&2
  exit 2
fi
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

# need_command WORD...: what is left of the arguments must begin with a command of autoforge.
need_command() {
  if [[ ! "${1:-}" =~ ^[a-z] ]]; then
    echo "error: got '${1:-}', expected a command of autoforge, e.g. $(basename "$0") run CONFIG; --help says more" >&2
    exit 2
  fi
}

run() {
  if ((DRY_RUN)); then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# slices: the names of the TPU nodes, one a line: TPU_NAME, or TPU_NAME-0 ... with SLICES=N.
slices() {
  local index
  if ((${SLICES:-1} == 1)); then
    echo "$TPU_NAME"
    return
  fi
  for ((index = 0; index < SLICES; index++)); do
    echo "$TPU_NAME-$index"
  done
}

# on_workers COMMAND: the same shell line on every worker of every slice, or on WORKER (a number) of each.
on_workers() {
  local node
  for node in $(slices); do
    run gcloud compute tpus tpu-vm ssh "$node" --project "$PROJECT" --zone "$ZONE" \
      --worker "${WORKER:-all}" --command "$1"
  done
}

# again COMMAND...: a shell line that runs the command, and up to RESTARTS times again when it fails. A run that
# SIGTERM stopped has saved and ends with 0: it is not started again.
again() {
  if ((${RESTARTS:-0} == 0)); then
    printf '%q ' "$@"
    return
  fi
  # shellcheck disable=SC2016  # the arithmetic is for the shell that runs the line
  printf 'n=0; until %sdo [ $((n+=1)) -gt %d ] && exit 1; sleep %d; done' \
    "$(printf '%q ' "$@"); " "$RESTARTS" "${RESTART_WAIT_S:-10}"
}
