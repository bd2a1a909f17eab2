#!/bin/bash
# examples/torchrun.sh DIRECTORY [EPOCHS]          from the root of the checkout; RANKS=8 for as many
#
# A rank that dies takes the others with it, and torchrun starts all of them again, at most so many times; each time the
# run goes on from its last checkpoint.
restarts=3

# Ranks that torchrun has restarted may find the addresses of those before (github.com/pytorch/pytorch/issues/135712).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

torchrun --standalone --nproc-per-node="${RANKS:-2}" --max-restarts="$restarts" \
    examples/accelerate_digits.py "$1" --epochs "${2:-30}" &
torchrun=$!

# SIGTERM to torchrun goes to all ranks, which save, and have 30 s for that. Torchrun itself ends with 1 then; whoever
# supervises this script is told by 143 that it is to be started again.
trap 'asked=yes; kill -TERM "$torchrun" 2>/dev/null' TERM
while wait "$torchrun"; code=$?; kill -0 "$torchrun" 2>/dev/null; do :; done  # a signal ends a wait
if [ "$code" -ne 0 ] && [ -n "$asked" ]; then exit 143; fi
exit "$code"
