#!/usr/bin/env bash
# A walk through ckfs on a checkpoint made on the spot; `./dev demo` builds and runs it. Each command
# is printed before it runs, so that a newcomer can type it for another checkpoint.
#
# CKFS_BIN names the program; PYTHON one with torch and transformers.
set -euo pipefail
cd "$(dirname "$0")/../.."

CKFS=$(realpath "${CKFS_BIN:-build/release/ckfs}")
PYTHON=${PYTHON:-.venv/hf/bin/python}
PATH=$(dirname "$CKFS"):$PATH
work=$(mktemp -d "${TMPDIR:-/tmp}/ckfs-demo-XXXXXX")
source=$work/tiny-deepseek mnt=$work/mnt out=$work/out

cleanup() {
  if mountpoint -q "$mnt"; then ckfs umount "$mnt" || true; fi
  rm -rf "$work"
}
trap cleanup EXIT

step() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
run() {
  printf '$ %s\n' "$*" | sed "s#$work/##g"
  "$@"
}

step "An FP8 checkpoint as DeepSeek-V3 stores it: 128 x 128 blocks, each with a scale"
run python3 tests/tools/make_demo.py "$source"
run ckfs inspect "$source"

step "Mounted, it shows its other forms at once; nothing was converted"
mkdir "$mnt"
run ckfs mount "$source" "$mnt"
run ls "$mnt"
run ls -l "$mnt/bf16-safetensors"

step "An unmodified loader reads the BF16 view"
run "$PYTHON" tests/tools/load_view.py "$mnt/bf16-safetensors"

step "A converted copy, if one is wanted: by any tool ..."
run rsync -a "$mnt/bf16-safetensors/" "$out-rsync/"
run cp -r "$mnt/bf16-safetensors" "$out-cp"

step "... or without a mount, which is faster and can be resumed"
run ckfs export "$source" bf16-safetensors "$out"

step "All copies are the same, byte for byte"
run diff -r "$out" "$out-rsync"
run diff -r "$out" "$out-cp"

step "What that took"
run ckfs stats "$mnt"

step "Away with it"
run ckfs umount "$mnt"
printf '\ndemo: ok\n'
