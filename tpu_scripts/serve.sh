#!/usr/bin/env bash
# SGLang servers on GPU hosts beside a learner (rollout.engine = "sglang"). Weight updates go over a folder that the
# servers and the learner share; sglang-jax on TPUs has no weight-update call today, so on a TPU slice use the
# embedded engine (rollout.engine = "jax") on the mesh itself.
#   serve.sh [--dry-run] start MODEL_FOLDER [OPTION...]   one server per host of HOSTS, in the background there
#   serve.sh [--dry-run] stop
#   serve.sh urls                                          the line for rollout.sglang.urls
# HOSTS="gpu-0 gpu-1" (ssh names), SERVE_PORT (30000), SGLANG_PYTHON (python3) of the hosts.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need HOSTS
port="${SERVE_PORT:-30000}"
read -ra machines <<<"$HOSTS"
action="${1:-}"
[[ $# -eq 0 ]] || shift

case "$action" in
  start)
    if (($# == 0)); then
      echo "error: serve.sh start MODEL_FOLDER [OPTION...]" >&2
      exit 2
    fi
    server=("${SGLANG_PYTHON:-python3}" -m sglang.launch_server --model-path "$@" --host 0.0.0.0 --port "$port")
    for host in "${machines[@]}"; do
      run ssh "$host" "setsid nohup $(printf '%q ' "${server[@]}")> sglang.log 2>&1 & echo \$! > sglang.pid"
    done
    ;;
  stop)
    for host in "${machines[@]}"; do
      run ssh "$host" "kill -TERM -- -\$(cat sglang.pid)"
    done
    ;;
  urls)
    printf 'rollout.sglang.urls=['
    separator=""
    for host in "${machines[@]}"; do
      printf '%s"http://%s:%s"' "$separator" "$host" "$port"
      separator=", "
    done
    printf ']\n'
    ;;
  *)
    echo "error: got '$action', expected start, stop or urls" >&2
    exit 2
    ;;
esac
