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

say pipedsl verify examples/broken.sched -D p=2 -D m=2 "  # gloo runs it, NCCL hangs"
if pipedsl verify examples/broken.sched -D p=2 -D m=2; then
    echo "demo: the broken schedule was not caught" >&2
    exit 1
fi

say pipedsl compile zb_h1 -D p=4 -D m=8 -o build/zb_h1_pipeline.py
pipedsl compile zb_h1 -D p=4 -D m=8 -o build/zb_h1_pipeline.py
say torchrun --nproc-per-node 4 examples/train_gpt.py build/zb_h1_pipeline.py
torchrun --nproc-per-node 4 --master-port 0 examples/train_gpt.py build/zb_h1_pipeline.py "$@"
