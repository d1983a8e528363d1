# Sourced by the studies; $OUT is where they write. What is finished is not done again, and OUT/seconds.jsonl says how
# long each step took.
NOW="" BEGUN=0
note() { # how long a step took, finished or stopped
    if [ -n "$NOW" ]; then echo "{\"step\": \"$NOW\", \"seconds\": $((SECONDS - BEGUN))}" >>"$OUT/seconds.jsonl"; fi
    NOW=""
}
trap note EXIT

step() { # what it leaves behind, then the command
    if [ -f "$OUT/$1" ]; then return; fi
    NOW=$1 BEGUN=$SECONDS
    "${@:2}"
    note
}
