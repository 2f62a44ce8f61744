#!/usr/bin/env bash
# Follow the log of one worker (WORKER, 0 unless set; of the first slice). logs.sh [--dry-run]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need TPU_NAME ZONE PROJECT
TPU_NAME="$(slices | head -n 1)"
SLICES=1
WORKER="${WORKER:-0}"
on_workers "tail -n 50 -F autoforge/run.log"
