#!/bin/sh
# The main job from end to end: verify, catch a broken schedule, compile, train on 4 processes.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build
export OMP_NUM_THREADS=1

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }

say pipedsl verify zb_h1 -D p=4 -D m=8
pipedsl verify zb_h1 -D p=4 -D m=8
say pipedsl show zb_h1 -D p=4 -D m=8
pipedsl show zb_h1 -D p=4 -D m=8

say pipedsl verify examples/broken.sched "  # gloo runs it, NCCL hangs"
status=0
pipedsl verify examples/broken.sched || status=$?
if [ "$status" -ne 1 ]; then
    echo "demo: the broken schedule was not rejected" >&2
    exit 1
fi

say pipedsl compile zb_h1 -D p=4 -D m=8 -o build/zb_h1_pipeline.py
pipedsl compile zb_h1 -D p=4 -D m=8 -o build/zb_h1_pipeline.py
say torchrun --standalone --nproc-per-node 4 examples/train_gpt.py build/zb_h1_pipeline.py
torchrun --standalone --nproc-per-node 4 examples/train_gpt.py build/zb_h1_pipeline.py "$@"
