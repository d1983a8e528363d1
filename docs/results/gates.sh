#!/usr/bin/env bash
# One seed of docs/results/gates-sst2.md: gates.sh SEED RUN OUT, where RUN is what classifier.sh left for a model.
# Gates with a target, and Michel et al.'s order at the same number of heads, fine-tuned for as many steps.
set -euo pipefail
SEED=$1 RUN=$2 OUT=$3
DATA=(--task sst2 --data-dir "$HEADPRUNE_DATA" --max-length 64)
TRAIN=(--epochs 0.5 --lr 5e-5 --seed "$SEED")

headprune gates "$RUN/model" "${DATA[@]}" "${TRAIN[@]}" --keep 50% --keep 25% --out "$OUT/gates"
for PRUNE in 50 75; do
    if [ ! -f "$OUT/michel-$PRUNE/finetune.json" ]; then
        headprune prune "$RUN/model" --scores "$RUN/scores/scores.json" --prune "$PRUNE%" --out "$OUT/cut-$PRUNE"
        headprune finetune "$OUT/cut-$PRUNE" "${DATA[@]}" "${TRAIN[@]}" --out "$OUT/michel-$PRUNE"
    fi
done
