#!/usr/bin/env bash
# What must be shown on a GPU, in parts that end within ten minutes: for machines that are lent for minutes, with two
# GPUs, each with half of the cores. `scripts/gpu_parts.sh PART OUT`, in the repository, with this
# package and its tests' packages installed; OUT gets logs and raw samples.
#
#   judge     the adversarial suite, then GPU tests that run alone | 300 evaluations with faults
#   noise     A/A evaluations                                      | a turn's cost, throughput
#   filter    the data set's candidates on both GPUs (KNOWN: archives of what is known already)
#   suite     a suite of 250 tasks, a slice (SUITE_KILL=200: killed once on the way) | the same part of the filter
#   pocket    the pocket preset, from where it stands (POCKET: archive of the run) | examples
#   examples  all examples | tests/gpu side by side
set -uo pipefail
part=${1:?a part} out=${2:?a folder} limit=${LIMIT_S:-580}
mkdir -p "$out"
out=$(cd "$out" && pwd)
begun=$SECONDS
cores=$(nproc)
half=$((cores / 2))
left() { echo $(($1 - (SECONDS - begun))); }
say() { echo "== $1 (at $((SECONDS - begun)) s)"; }

# on GPU COMMAND…: on one GPU and its half of the cores, with a cache of its own.
on() {
    local gpu=$1 first=$(($1 * half))
    shift
    CUDA_VISIBLE_DEVICES=$gpu CUDA_AGENT_CACHE="${CUDA_AGENT_CACHE:-/tmp/cuda-agent}-$gpu" \
        taskset -c "$first-$((first + half - 1))" "$@"
}
tests() { # GPU SECONDS LOG ARGUMENTS…: ended in time, with what is known by then
    local gpu=$1 seconds=$2 log=$3
    shift 3
    on "$gpu" timeout -s INT -k 15 "$seconds" python3 -m pytest -v -p no:cacheprovider --tb=short "$@" >"$out/$log" 2>&1
    grep -E "^(FAILED|ERROR)|::.* (FAILED|ERROR)|passed|failed" "$out/$log" | grep -v "^E " | sort -u | cut -c1-300
}
archive() { (cd "$1" && tar czf "$out/$2" "${@:3}"); }

judge0() {
    tests 0 "$(left 380)" adversarial.log tests/adversarial -m gpu -n 12 --dist worksteal --timeout 200
    say adversarial
    tests 0 "$(left "$limit")" alone.log tests/gpu -m alone --timeout 250
    say alone
}
judge1() { on 1 python3 benchmarks/faults.py --limit-s "$(left $((limit - 15)))" --out "$out/faults.json" 2>"$out/faults.log"; }
noise0() {
    on 0 python3 benchmarks/noise.py --out "$out/noise" --limit-s "$(left $((limit - 25)))" 2>"$out/noise.log"
    archive "$out" noise.tgz noise && rm -r "$out/noise"
}
noise1() {
    on 1 timeout "$(left $((limit - 150)))" python3 benchmarks/turn.py --count 20 --published 2 --sizes "1, 128" \
        --out "$out/turn.json" 2>"$out/turn.log"
    say turn
    on 1 timeout "$(left "$limit")" python3 benchmarks/throughput.py --out "$out/throughput.json" 2>"$out/throughput.log"
}
filter_on() { # GPU
    local known=()
    for archive in ${KNOWN:-}; do known+=(--known "$archive"); done
    on "$1" python3 scripts/filter_gpus.py "runs/filter$1" --gpus "$1" --shard "$(($1 + 1))/2" \
        --candidates data/candidates.jsonl.gz "${known[@]}" \
        --stop-after-s "$(left $((limit - 60)))" --out "$out/filter$1" >"$out/filter$1.log" 2>&1
    tail -20 "$out/filter$1.log"
}
suite0() {
    on 0 python3 benchmarks/suite.py data/suite250.jsonl.gz --out runs/suite250 --seconds "$(left "$limit")" \
        ${SUITE_KILL:+--kill-after "$SUITE_KILL"} >"$out/suite.log" 2>&1
    tail -30 "$out/suite.log"
    archive runs suite250.tgz --exclude='*.so' suite250
}
pocket0() {
    [ -z "${POCKET:-}" ] || { mkdir -p runs && tar xzf "$POCKET" -C runs; }
    on 0 cuda-agent pocket fill --config pocket --out runs/pocket --limit-s "$(left $((limit / 2)))" 2>&1 | tail -5
    say fill
    on 0 timeout "$(left $((limit - 40)))" cuda-agent train all --config pocket --out runs/pocket >"$out/train.log" 2>&1
    tail -30 "$out/train.log"
    on 0 timeout 30 cuda-agent pocket compare --config pocket --out runs/pocket
    archive runs pocket.tgz pocket
}
examples_on() { # GPU
    on "$1" timeout "$(left "$limit")" python3 benchmarks/examples.py --out "runs/examples$1" 2>"$out/examples.log"
    archive "runs/examples$1" examples.tgz .
}

run() { # two halves beside each other, told one after the other
    "$1" "${3:-}" >"$out/half0.log" 2>&1 &
    local first=$!
    "$2" "${4:-}" >"$out/half1.log" 2>&1 &
    wait $first $!
    cat "$out/half0.log" "$out/half1.log"
    rm "$out/half0.log" "$out/half1.log"
}
beside() { tests 1 "$(left "$limit")" gpu.log tests/gpu -m "not alone" -n 14; }

case $part in
judge) run judge0 judge1 ;;
noise) run noise0 noise1 ;;
filter) run filter_on filter_on 0 1 ;;
suite) run suite0 filter_on "" 1 ;;
pocket) run pocket0 examples_on "" 1 ;;
examples) run examples_on beside 0 ;;
*) sed -n '2,15p' "$0"; exit 2 ;;
esac
say done
