#!/usr/bin/env bash
# Give the TPUs back; what lies on their disks is lost. delete.sh [--dry-run]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need TPU_NAME ZONE PROJECT
run gcloud compute tpus queued-resources delete "$TPU_NAME" --project "$PROJECT" --zone "$ZONE" --force --quiet
