#!/usr/bin/env bash
# SIGTERM to the run on every worker: it finishes its step, saves and says how to resume. stop.sh [--dry-run]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need TPU_NAME ZONE PROJECT
on_workers "kill -TERM -- -\$(cat autoforge/run.pid) && tail -n 3 autoforge/run.log"
