#!/usr/bin/env bash
# The study behind docs/results/allattention.md: allattention.sh DATA OUT, one seed.
# DATA holds train.txt, dev.txt and test.txt (books.py makes them from books). What is finished is not done again, and
# every command goes on where it stopped: after an interruption start it again as it was. The variables make it smaller.
set -euo pipefail
DATA=$1 OUT=$2
PARTS=${PARTS:-sweep techniques rivals}
PRESET=${PRESET:-small} SEED=${SEED:-1} BY=${BY:-letters} SEGMENT=${SEGMENT:-64} STREAMS=${STREAMS:-32}
BASE=${BASE:-3000} PRUNE=${PRUNE:-600}   # steps; Shim et al. have 160,000 and 80,000
# The paper's 0.01, 0.015 and 0.02 are for 128 heads; of 36 heads each weighs more, so these are times 128 / 36.
LAMBDAS=${LAMBDAS:-0.036 0.053 0.071} STRONGEST=${STRONGEST:-0.071}
WARMUP=${WARMUP:-0.05} FREEZE=${FREEZE:-0.2}  # shares of the steps of pruning: 4,000 and 16,000 of 80,000 in the paper
LR=${LR:-2e-4} GATE_LR=${GATE_LR:-0.1}   # a tenth of the peak in training, as in the paper; gates scaled to the steps
WIDTHS=${WIDTHS:-192:256 144:192}  # of Transformer-XL, with its feed-forward part (the paper: 512 to 384)
PRECISION=${PRECISION:---bf16}
TASK=(--task stream-lm --data-dir "$DATA" --batch-size "$STREAMS" --max-length "$SEGMENT")
TRAIN=(--updates "$PRUNE" --lr "$LR" --lr-warmup 0.05 --schedule cosine --floor 0.1 --weight-decay 0 --clip 0.5 "$PRECISION" --test test --seed "$SEED")
GATES=(--gate binary-concrete --gate-lr "$GATE_LR")
M="$OUT/base"

source "$(dirname "$0")/steps.sh"  # step, which does nothing twice and notes the time

pruned() { # a name, lambda, and what is done otherwise
    step "$1/gates.json" headprune gates "$M" "${TASK[@]}" "${TRAIN[@]}" "${GATES[@]}" --lambda "$2" "${@:3}" --out "$OUT/$1"
}

# Tables 1 and 2. Lambda 0 is the base trained as much longer, without gates.
sweep() {
    local weight
    step longer/finetune.json headprune finetune "$M" "${TASK[@]}" "${TRAIN[@]}" --out "$OUT/longer"
    for weight in $LAMBDAS; do pruned "sweep-$weight" "$weight" --warmup "$WARMUP" --freeze-after "$FREEZE"; done
}

# Table 3, each without one of the techniques and without all; and gates that are never frozen.
techniques() {
    pruned no-warmup "$STRONGEST" --warmup 0 --freeze-after "$FREEZE"
    pruned no-init "$STRONGEST" --warmup "$WARMUP" --freeze-after "$FREEZE" --init 0
    pruned no-scaling "$STRONGEST" --warmup "$WARMUP" --freeze-after "$FREEZE" --no-scaling
    pruned none "$STRONGEST" --warmup 0 --freeze-after "$FREEZE" --init 0 --no-scaling
    pruned never-frozen "$STRONGEST" --warmup "$WARMUP"
}

# Figure 3: narrower Transformer-XL, trained for as many steps as base and pruning together.
rivals() {
    local pair
    for pair in $WIDTHS; do
        step "rival-${pair%:*}/train-lm.json" headprune train-lm "${TASK[@]}" --by "$BY" --preset "$PRESET" --seed "$SEED" --kind transformer-xl --width "${pair%:*}" --persistent "${pair#*:}" --updates "$((BASE + PRUNE))" "$PRECISION" --test test --out "$OUT/rival-${pair%:*}"
    done
}

mkdir -p "$OUT"
step base/train-lm.json headprune train-lm "${TASK[@]}" --by "$BY" --preset "$PRESET" --seed "$SEED" --updates "$BASE" "$PRECISION" --test test --out "$M"
for PART in $PARTS; do "$PART"; done
