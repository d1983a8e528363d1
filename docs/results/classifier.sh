#!/usr/bin/env bash
# One seed of a results page: classifier.sh TASK SEED OUT, with HEADPRUNE_DATA and MODEL (a folder or a hub name) set.
# Every command goes on where it stopped, so an interrupted run is started again as it was.
set -euo pipefail
TASK=$1 SEED=$2 OUT=$3
case $TASK in mrpc) LENGTH=128 ;; *) LENGTH=64 ;; esac
case $TASK in cola) SECOND=(--against dev-out) ;; *) SECOND=() ;; esac
DATA=(--task "$TASK" --data-dir "$HEADPRUNE_DATA" --max-length "$LENGTH")

timed() { # name of the step, then the command; how long it took is part of the result
    local begun=$SECONDS
    "${@:2}"
    echo "{\"step\": \"$1\", \"seconds\": $((SECONDS - begun))}" >>"$OUT/seconds.jsonl"
}

mkdir -p "$OUT"
if [ ! -f "$OUT/model/finetune.json" ]; then
    timed finetune headprune finetune "$MODEL" "${DATA[@]}" --lr 1e-4 --epochs 3 --seed "$SEED" --keep-checkpoints --out "$OUT/model"
fi
timed score headprune score "$OUT/model" "${DATA[@]}" --out "$OUT/scores"
timed ablate headprune ablate "$OUT/model" "${DATA[@]}" "${SECOND[@]}" --out "$OUT/ablation"
timed curve headprune curve "$OUT/model" "${DATA[@]}" --scores "$OUT/scores/scores.json" \
    --scores "$OUT/ablation/scores.json" --random 3 --rescore --steps 12 --seed "$SEED" --out "$OUT/curve"
timed prune headprune prune "$OUT/model" "${DATA[@]}" --scores "$OUT/scores/scores.json" --max-drop 1.0 --seed "$SEED" \
    --json --out "$OUT/small" >"$OUT/prune.json"
