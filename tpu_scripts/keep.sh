#!/usr/bin/env bash
# Keep a run going on machines that may be taken away: look every POLL_S (60) seconds; when the queued resource is
# gone, ask for another, set it up and launch the same command, which goes on from the newest checkpoint. Ends when
# the run has written its report. run.out_dir must outlive the machines (a mounted bucket or file store).
#   keep.sh [--dry-run] COMMAND CONFIG [OPTION...]      --dry-run: one replacement, without looking or waiting
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need TPU_NAME ZONE PROJECT ACCELERATOR_TYPE RUNTIME_VERSION
need_command "$@"
dry=()
((DRY_RUN)) && dry=(--dry-run)

state() {
  gcloud compute tpus queued-resources describe "$TPU_NAME" --project "$PROJECT" --zone "$ZONE" \
    --format 'value(state.state)' 2>/dev/null || echo NONE
}

replace() {
  [[ "$1" == NONE ]] || "$HERE/delete.sh" "${dry[@]}"
  "$HERE/create.sh" "${dry[@]}"
  if ((!DRY_RUN)); then
    until [[ "$(state)" == ACTIVE ]]; do sleep "${POLL_S:-60}"; done
  fi
  "$HERE/setup.sh" "${dry[@]}"
  RESTARTS="${RESTARTS:-20}" "$HERE/launch.sh" "${dry[@]}" "${command[@]}"
}

command=("$@")
if ((DRY_RUN)); then
  replace SUSPENDED
  exit 0
fi
while :; do
  now="$(state)"
  case "$now" in
    ACTIVE)
      # the last phase of a run prints its line when everything is written
      if WORKER=0 on_workers "grep -q '^report  ' autoforge/run.log" 2>/dev/null; then
        exit 0
      fi
      if ! WORKER=0 on_workers "kill -0 \$(cat autoforge/run.pid)" 2>/dev/null; then
        RESTARTS="${RESTARTS:-20}" "$HERE/launch.sh" "${command[@]}"
      fi
      ;;
    NONE | SUSPENDED | FAILED) replace "$now" ;;
    *) ;; # ACCEPTED, PROVISIONING, CREATING, SUSPENDING, DELETING: on its way
  esac
  sleep "${POLL_S:-60}"
done
