#!/usr/bin/env bash
# Follow the log of one worker (WORKER, 0 unless set). logs.sh [--dry-run]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need TPU_NAME ZONE PROJECT
WORKER="${WORKER:-0}"
on_workers "tail -n 50 -F autoforge/run.log"
