#!/usr/bin/env bash
# Start one `autoforge COMMAND CONFIG ...` on every worker, in the background there.
#   launch.sh [--dry-run] COMMAND CONFIG [OPTION...]            every worker of $TPU_NAME (mesh.coordinator = "auto")
#   launch.sh [--dry-run] --local N COMMAND CONFIG [OPTION...]  N processes on this machine, in the foreground
# RESTARTS=N: when the processes end with an error (one host lost is all lost), start them again up to N times; they
# go on from the newest checkpoint. SLICES=N: on every slice, joined over the data-centre network.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ "${1:-}" == "--local" ]]; then
  count="${2:-}"
  if [[ ! "$count" =~ ^[1-9][0-9]*$ ]]; then
    echo "error: --local got '$count', expected the number of processes" >&2
    exit 2
  fi
  shift 2
  need_command "$@"
  port="${PORT:-12321}"
  read -ra program <<<"${AUTOFORGE:-autoforge}"
  pids=()
  # a signal to the script is meant for its processes; it then waits for them to save
  trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' TERM INT
  for ((id = 0; id < count; id++)); do
    line=(env "AUTOFORGE_COORDINATOR=localhost:$port" "AUTOFORGE_PROCESSES=$count" "AUTOFORGE_PROCESS_ID=$id")
    line+=("${program[@]}" "$@")
    if ((DRY_RUN)); then
      run "${line[@]}"
    elif ((${RESTARTS:-0})); then
      bash -c "$(again "${line[@]}")" &
      pids+=("$!")
    else
      "${line[@]}" &
      pids+=("$!")
    fi
  done
  status=0
  for pid in "${pids[@]}"; do
    code=0
    wait "$pid" || code=$?
    while ((code > 128)) && kill -0 "$pid" 2>/dev/null; do # a signal ended the wait, not the process
      code=0
      wait "$pid" || code=$?
    done
    ((code == 0)) || status=$code
  done
  exit "$status"
fi

need TPU_NAME ZONE PROJECT
need_command "$@"
started="$(again .venv/bin/autoforge "$@")"
if ((${RESTARTS:-0})); then
  started="bash -c $(printf '%q' "$started") "
fi
on_workers "cd autoforge && { setsid nohup $started> run.log 2>&1 & echo \$! > run.pid; }"
