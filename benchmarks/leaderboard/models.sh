#!/usr/bin/env bash
# The fine-tuned models of the board by cost: models.sh DATA REPORT MODELS. DATA has sst2, cola and mrpc, REPORT is what
# report_data.sh made; each model goes to MODELS/MODEL-TASK-SEED. The cheapest come first, one at a time; run again, it
# goes on where it stopped. ONLY="mrpc snli" makes those of these tasks alone, PYTHON is another Python than .venv's.
set -euo pipefail
mkdir -p "$3"
DATA=$(realpath "$1") REPORT=$(realpath "$2") MODELS=$(realpath "$3")
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}
MPNET=${MPNET:-.venv/models/all-mpnet-base-v2}
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
MINILM=$("$PYTHON" -c "import headprune as hp; print(hp.demo_model())")

tune() { # what to start from, the name of the result, seed, options of finetune
    local start=$1 out=$MODELS/$2-$3 began=$SECONDS
    if [ ! -f "$out/finetune.json" ]; then
        nice -n 19 "$PYTHON" -m headprune finetune "$start" --seed "$3" --bf16 --out "$out" "${@:4}"
        echo "$2-$3: $((SECONDS - began)) s"
    fi
}

options() { # of a task, into ASKED
    local here=$REPORT/$1
    case $1 in
        sst2 | cola) ASKED=(--task "$1" --data-dir "$DATA" --max-length 64) ;;
        mrpc) ASKED=(--task mrpc --data-dir "$DATA" --max-length 128) ;;
        snli) ASKED=(--task snli --text sentence1 --pair sentence2 --label label --max-length 64) ;;
        imdb) ASKED=(--task imdb --text text --label label --max-length 128) ;;
        tags) ASKED=(--task tags --max-length 128) ;;
    esac
    case $1 in
        snli | imdb) ASKED+=(--train-file "$here/train.tsv" --dev-file "$here/test.tsv") ;;
        tags) ASKED+=(--train-file "$here/train.conllu" --dev-file "$here/test.conllu") ;;
    esac
}

minilm() { # task, seed
    local rate=(--lr 1e-4 --epochs 3)
    if [ "$1" = tags ]; then rate=(--lr 3e-4 --epochs 5); fi # few sentences
    options "$1"
    tune "${3:-$MINILM}" "${4:-minilm}-$1" "$2" "${ASKED[@]}" "${rate[@]}"
}

mpnet() { # task, seed
    options "$1"
    tune "${3:-$MPNET}" "${4:-mpnet}-$1" "$2" "${ASKED[@]}" --lr 3e-5 --epochs 2
}

first() { # minilm or mpnet, how many layers, task, seed: the first layers, fine-tuned as long
    local whole=$MINILM start=$MODELS/start-$1-first$2
    if [ "$1" = mpnet ]; then whole=$MPNET; fi
    if [ ! -f "$start/tokenizer_config.json" ]; then
        "$PYTHON" -m benchmarks.leaderboard.first_layers "$whole" "$2" "$start"
    fi
    "$1" "$3" "$4" "$start" "$1-first$2"
}

wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $1 "* ]]; }

for seed in 1 2 3; do # development first
    for task in mrpc sst2 cola; do if wanted $task; then minilm $task $seed; fi; done
done
for task in tags snli imdb; do
    for seed in 1 2 3; do if wanted $task; then minilm $task $seed; fi; done
done
for task in mrpc sst2 cola tags snli imdb; do
    for seed in 1 2 3; do
        for count in 1 2; do if wanted $task; then first minilm $count $task $seed; fi; done
    done
done
for task in sst2 snli; do
    for seed in 1 2 3; do if wanted $task; then mpnet $task $seed; fi; done
done
for task in sst2 snli; do
    for seed in 1 2 3; do
        for count in 1 2; do if wanted $task; then first mpnet $count $task $seed; fi; done
    done
done
