#!/usr/bin/env bash
# The study behind docs/results/multi30k.md: translation.sh DATA OUT, from raw files to the last figure.
# DATA holds train, val and the test set as aligned files (.en and .de, or .gz); if it also holds help.en and help.de
# (see help_pairs.py), ablations are compared on this second domain. What is finished is not done again, and every
# command goes on where it stopped: after an interruption start it again as it was. The variables make it smaller; PARTS
# chooses some of it, and collect.py joins what was done in parts.
set -euo pipefail
DATA=$1 OUT=$2
PARTS=${PARTS:-heads curves gates random patterns scratch}
PRESET=${PRESET:-quick} SEED=${SEED:-1} LANGUAGES=${LANGUAGES:-en-de} TEST=${TEST:-test_2016_flickr}
EPOCHS=${EPOCHS:-1 2 3 5 10}             # whose pruning curves are drawn (Michel et al., Figure 5)
SHARES=${SHARES:-50% 25% 12.5%}          # heads that gates keep
SEEDS=${SEEDS:-1 2 3}                    # of random pruning
RANDOM_CUTS=${RANDOM_CUTS:-18/18/18 12/12/12 6/6/6 one}  # heads kept of each component: 25, 50, 75 %, one a site
LAYER_CUTS=${LAYER_CUTS:-ES=642,ED=246,DS=642 ES=246,ED=642,DS=246}
COMPONENT_CUTS=${COMPONENT_CUTS:-ES=7,ED=15,DS=14 ES=15,ED=7,DS=14 ES=15,ED=14,DS=7}
SOME=${SOME:-300}                        # sentences where all are not needed
STEPS=${STEPS:-10} TUNE_EPOCHS=${TUNE_EPOCHS:-3} GATE_EPOCHS=${GATE_EPOCHS:-2} LR=${LR:-5e-4}
BATCH_TOKENS=${BATCH_TOKENS:-1200} PRECISION=${PRECISION:---bf16}
TASK=(--task translation --data-dir "$DATA" --languages "$LANGUAGES" --batch-size 128)
TRAIN=(--lr "$LR" --lr-warmup 0.05 --batch-tokens "$BATCH_TOKENS" --label-smoothing 0.1 --weight-decay 1e-4 "$PRECISION" --test "$TEST")
M="$OUT/model"

source "$(dirname "$0")/steps.sh"  # step, which does nothing twice and notes the time

# Which heads matter, one at a time and alone (Michel et al., Figures 1a and 2a, Tables 1, 2 and 5).
heads() {
    local second=()
    if [ -f "$DATA/help.en" ]; then second=(--against help); fi
    step ablation/ablation.json headprune ablate "$M" "${TASK[@]}" "${second[@]}" --out "$OUT/ablation"
    step alone/ablation.json headprune ablate "$M" "${TASK[@]}" --all-but-one --split "$TEST" --examples "$SOME" --choose-on dev --choose-examples "$SOME" --out "$OUT/alone"
}

# How far pruning goes: all heads, one component at a time, over training (Figures 3a, 4 and 5). After `heads`.
curves() {
    local orders=(--scores "$OUT/scores/scores.json" --steps "$STEPS" --examples "$SOME") every epoch
    step curve/curve.json headprune curve "$M" "${TASK[@]}" "${orders[@]}" --scores "$OUT/ablation/scores.json" --random 3 --out "$OUT/curve"
    step components/curve.json headprune curve "$M" "${TASK[@]}" "${orders[@]}" --random 0 --components each --out "$OUT/components"
    mkdir -p "$OUT/epochs"
    every=$(find "$M/checkpoints" -name "checkpoint-*" | sed 's/.*-//' | sort -n | head -n 1)
    for epoch in $EPOCHS; do ln -sfn "$(realpath -e "$M/checkpoints/checkpoint-$((every * epoch))")" "$OUT/epochs/epoch-$epoch"; done
    step dynamics/curve.json headprune curve "$M" "${TASK[@]}" --examples "$SOME" --checkpoints "$OUT/epochs" --steps "$STEPS" --out "$OUT/dynamics"
}

# On the encoder with the decoder frozen and on everything (Voita et al., Table 2 and Figures 7, 9, 10).
gates() {
    local ways=(--epochs "$GATE_EPOCHS" --seed "$SEED") share
    for share in $SHARES; do ways+=(--keep "$share"); done
    step gates-encoder/gates.json headprune gates "$M" "${TASK[@]}" "${TRAIN[@]}" "${ways[@]}" --components encoder --train encoder --out "$OUT/gates-encoder"
    step gates-all/gates.json headprune gates "$M" "${TASK[@]}" "${TRAIN[@]}" "${ways[@]}" --out "$OUT/gates-all"
}

# Heads cut, then fine-tuning without them (Budhraja et al.): name, pattern, seed.
tuned() {
    step "$1/cut/tokenizer_config.json" headprune prune "$M" --pattern "$2" --seed "$3" --out "$OUT/$1/cut"
    step "$1/finetune.json" headprune finetune "$OUT/$1/cut" "${TASK[@]}" "${TRAIN[@]}" --epochs "$TUNE_EPOCHS" --seed "$3" --out "$OUT/$1"
}

random() { # Table 1
    local cut seed
    for cut in $RANDOM_CUTS; do for seed in $SEEDS; do tuned "random/${cut//\//-}-seed-$seed" "$cut" "$seed"; done; done
}

patterns() { # Tables 2 and 3
    local cut
    for cut in $LAYER_CUTS; do tuned "layers/$cut" "$cut" "$SEED"; done
    for cut in $COMPONENT_CUTS; do tuned "triples/$cut" "$cut" "$SEED"; done
}

# The heads that the gates kept, trained from random weights (Voita et al., Table 2, last column). After `gates`.
scratch() {
    local mask name
    for mask in "$OUT"/gates-{all,encoder}/keep-*/mask.json; do
        name=scratch/$(basename "$(dirname "$(dirname "$mask")")")-$(basename "$(dirname "$mask")")
        step "$name/train-mt.json" headprune train-mt "${TASK[@]}" --preset "$PRESET" --seed "$SEED" --mask "$mask" --test "$TEST" --out "$OUT/$name"
    done
}

mkdir -p "$OUT"
step model/train-mt.json headprune train-mt "${TASK[@]}" --preset "$PRESET" --seed "$SEED" --keep-checkpoints --test "$TEST" --out "$M"
step scores/scores.json headprune score "$M" "${TASK[@]}" --examples 4000 --out "$OUT/scores"
for PART in $PARTS; do "$PART"; done
