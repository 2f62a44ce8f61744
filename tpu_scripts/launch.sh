#!/usr/bin/env bash
# Start one `autoforge COMMAND CONFIG ...` on every worker, in the background there.
#   launch.sh [--dry-run] COMMAND CONFIG [OPTION...]            every worker of $TPU_NAME (mesh.coordinator = "auto")
#   launch.sh [--dry-run] --local N COMMAND CONFIG [OPTION...]  N processes on this machine, in the foreground
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ "${1:-}" == "--local" ]]; then
  count="$2"
  shift 2
  port="${PORT:-12321}"
  read -ra program <<<"${AUTOFORGE:-autoforge}"
  pids=()
  for ((id = 0; id < count; id++)); do
    line=(env "AUTOFORGE_COORDINATOR=localhost:$port" "AUTOFORGE_PROCESSES=$count" "AUTOFORGE_PROCESS_ID=$id")
    line+=("${program[@]}" "$@")
    if ((DRY_RUN)); then
      run "${line[@]}"
    else
      "${line[@]}" &
      pids+=("$!")
    fi
  done
  status=0
  for pid in "${pids[@]}"; do
    wait "$pid" || status=$?
  done
  exit "$status"
fi

need TPU_NAME ZONE PROJECT
on_workers "cd autoforge && { nohup .venv/bin/autoforge $(printf '%q ' "$@")> run.log 2>&1 & echo \$! > run.pid; }"
