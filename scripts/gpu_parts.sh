#!/usr/bin/env bash
# Runs measurements on machines with GPUs that are lent for minutes: `scripts/gpu_parts.sh OUT PART PART…` in the
# repository, with this package and its tests' packages installed. The first part runs on the first GPU, the second on
# the second, and so on, each with a share of the cores (GPUS="2 3" and CORES=16 choose others). All end within LIMIT_S
# (580) seconds. OUT gets an archive of each part's logs and raw samples. A+B runs A and then B on one GPU.
#
#   skills       tests of the playbook's own kernels         adversarial  the adversarial suite
#   alone        GPU tests that run alone                    beside       GPU tests that run side by side
#   faults       300 evaluations with faults                 clock        parts of the judge's time
#   noise-short  A/A evaluations of 5 and 50 µs              noise-long   A/A evaluations of 1 and 20 ms
#   turn         a turn's time                               throughput:S evaluations a minute (in S seconds; STOP=settled)
#   contexts     how long a process waits for its CUDA context
#   contention   what slows a step of the judge beside others
#   filter:N     the data set's candidates, N at a time; several parts share them
#                (KNOWN: archives of earlier findings; A_PROCESS: tasks in a row in one process, 32;
#                SHARDS: number of shards; SHARD: number of shards before this one)
#   suite:FILE:S a slice of a suite, by default data/suite250.jsonl.gz; with S it is killed after S seconds and resumed
#                (SUITES: archives of earlier slices, NAME.txz.00 …; JOBS: tasks at a time)
#   pocket:N     the pocket preset, seeds and ablations, N at a time, from their last step (POCKET: archive of the table;
#                TRAININGS: which, in this order, as in "0 1 2 no-rft-0"; SET: other settings, as in "ppo.steps=15")
#   agreement:N  the playbook's plans of N of the data set's candidates against float64
#   graphs:N     N drawn graphs on the GPU against eager; graphs:N:cpu: on the cores
#   memory       the device's peak memory by step of a verdict, for the large tasks of the tests
#   examples     all examples
#   attention    attention in half precision beside PyTorch's backends
#   whole        a Llama's hot parts extracted, optimized and applied
#   tests:NAME   one file of tests/gpu
set -uo pipefail
[ $# -ge 2 ] || { sed -n '1d; /^#/!q; p' "$0"; exit 2; }
out=$1 limit=${LIMIT_S:-580}
shift
parts=("$@")
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
begun=$SECONDS
each=${CORES:-$(($(nproc) / $#))}
read -ra gpus <<<"${GPUS:-$(seq -s ' ' 0 $(($# - 1)))}"
left() { echo $(($1 - (SECONDS - begun))); }
say() { echo "== $1 (at $((SECONDS - begun)) s)"; }

tests() { # SECONDS LOG ARGUMENTS…: ended in time, with what is known by then
    local seconds=$1 log=$2
    shift 2
    timeout -s INT -k 15 "$seconds" python3 -m pytest -v -p no:cacheprovider --tb=short --durations=15 "$@" >"$here/$log" 2>&1
    grep -E "^(FAILED|ERROR)|::.* (FAILED|ERROR)|passed|failed|skipped in" "$here/$log" | grep -v "^E " | sort -u | cut -c1-300
}

in_training() { # from here on, where that has an environment of its own
    [ ! -d .venv-train ] || export PATH="$PWD/.venv-train/bin:$PATH"
}
skills() {
    tests "$(left "$limit")" skills.log tests/gpu/test_{playbook,attention,selection,scatter,library_skills}.py -m "not alone" \
        -n $((each - 2)) --dist worksteal
}
adversarial() {
    tests "$(left "$limit")" adversarial.log tests/adversarial -m gpu -n 12 --dist worksteal --timeout 200
}
alone() { tests "$(left "$limit")" alone.log tests/gpu -m alone --timeout 250; }
beside() { tests "$(left "$limit")" beside.log tests/gpu -m "not alone" -n $((each - 2)); }
faults() {
    python3 benchmarks/faults.py --limit-s "$(left $((limit - 15)))" --out "$here/faults.json" 2>"$here/faults.log"
}
clock() {
    (lscpu; cat /sys/kernel/mm/transparent_hugepage/enabled; uname -r; ls /sys/kernel/mm/damon/admin/kdamonds) \
        >"$here/host.txt" 2>&1
    timeout -k 10 "$(left "$limit")" python3 benchmarks/clock.py --out "$here/clock.json" 2>"$here/clock.log"
    timeout -k 10 "$(left "$limit")" python3 benchmarks/clock.py --kernels "5 µs" --count 50 \
        --out "$here/clock-ages.json" 2>>"$here/clock.log"
}
contention() { timeout -k 10 "$(left "$limit")" python3 benchmarks/contention.py --out "$here/contention.json"; }
contexts() { timeout -k 10 "$(left "$limit")" python3 benchmarks/contexts.py --beside 0 20 40 --out "$here/contexts.json"; }
noise() { # THE ONE IN PROCESSES, THE OTHER
    python3 benchmarks/noise.py --kernels "$1" "$2" --apart "$1" --count 100 --out "$here/noise" \
        --limit-s "$(left $((limit - 25)))" 2>"$here/noise.log"
}
noise-short() { noise "5 µs" "50 µs"; }
noise-long() { noise "1 ms" "20 ms"; }
turn() {
    python3 benchmarks/turn.py --count 20 --published 2 --sizes "1, 128" --limit-s "$(left $((limit - 40)))" \
        --out "$here/turn.json" 2>"$here/turn.log"
}
throughput() { # [SECONDS AT THE MOST]
    local seconds
    seconds=$(left "$limit")
    timeout -k 10 $((seconds < ${1:-seconds} ? seconds : ${1:-seconds})) python3 benchmarks/throughput.py --tasks 4 --candidates 5 \
        --stop "${STOP:-decided}" --out "$here/throughput.json" 2>"$here/throughput.log"
}
watch() { # SECONDS: what it waits for, the busy share and the memory of the processors and of the GPU, every so often
    while sleep "$1"; do date +%s && grep '^cpu[0-9]' /proc/stat && grep ^MemAvailable /proc/meminfo; done >"$here/cpus.txt" &
    watching=($!)
    nvidia-smi -i "$CUDA_VISIBLE_DEVICES" -l "$1" --format=csv,noheader \
        --query-gpu=timestamp,utilization.gpu,utilization.memory,memory.used >"$here/gpu.csv" 2>&1 &
    watching+=($!)
}
filter() { # [SO MANY AT A TIME]
    local known=() index=0 count=0 place
    for archive in ${KNOWN:-}; do known+=(--known "$archive"); done
    for place in "${!parts[@]}"; do
        [[ ${parts[$place]} = *filter* ]] || continue
        count=$((count + 1))
        [ "$place" -gt "$lane" ] || index=$count
    done
    watch 10
    python3 scripts/filter_gpus.py "runs/filter$CUDA_VISIBLE_DEVICES" --gpus "$CUDA_VISIBLE_DEVICES" \
        --shard "$((index + ${SHARD:-0}))/${SHARDS:-$count}" \
        --candidates data/candidates.jsonl.gz "${known[@]}" ${1:+--workers "$1"} --tasks-a-process "${A_PROCESS:-32}" --stop-after-s "$(left $((limit - 45)))" \
        --out "$here" >"$here/filter.log" 2>&1
    kill "${watching[@]}"
    tail -12 "$here/filter.log"
}
suite() { # [FILE [SECONDS AFTER WHICH IT IS KILLED]]
    local file=${1:-data/suite250.jsonl.gz} name known
    name=$(basename "$file" .jsonl.gz)
    mkdir -p runs
    known=$(printf '%s\n' ${SUITES:-} | grep "/$name.txz" | sort)
    [ -z "$known" ] || [ -e "runs/$name" ] || cat $known | tar xJ -C runs
    watch 5
    python3 benchmarks/suite.py "$file" --out "runs/$name" --seconds "$(left "$limit")" \
        ${2:+--kill-after "$2"} -- --jobs "${JOBS:-$((each < 10 ? each : 10))}" >"$here/$name.log" 2>&1
    kill "${watching[@]}"
    dmesg 2>&1 | grep -iE "out of memory|killed process|NVRM|not permitted" | tail -20 >"$here/kernel.txt"
    tail -30 "$here/$name.log"
    # In pieces, since what comes back may not be large.
    tar c -C runs --exclude='*.so' --exclude='*.o' "$name" | xz -T "$each" | split -d -b 14m - "$out/$name.txz."
}
pocket() { # [SO MANY AT A TIME]
    local name setting shared=() stack pids=() pid running queue
    in_training
    # Processes side by side fill the cores; threads of one would only wait for each other.
    local -x OMP_NUM_THREADS=2
    mkdir -p runs
    [ -z "${POCKET:-}" ] || [ -e runs/pocket ] || tar xzf "$POCKET" -C runs
    # Verdicts that were brought along count whatever the driver is by now.
    stack=$(head -n 1 runs/pocket/memo/evaluations.jsonl 2>/dev/null | grep -o '"stack":"[0-9a-f]*"' | cut -d '"' -f 4)
    # A state is 160 MB on the disk of all; what a kill loses is a step that was played.
    for setting in ${stack:+environment.stack=$stack} environment.play.threads=12 warmup.save_every=2 ppo.save_every=2 ${SET:-}; do
        shared+=(--set "$setting")
    done
    watch 10
    cuda-agent pocket fill --config pocket --out runs/pocket --limit-s "$(left $((limit / 2)))" "${shared[@]}" >"$here/fill.log" 2>&1
    tail -1 "$here/fill.log"
    # What isn't in the table is no choice (a setting beyond the last, half a command); judging it would stop all
    # others, and time it beside other trainings.
    shared+=(--config pocket --set environment.memo=runs/pocket/memo --set environment.unknown=fail)
    # One base model for all: what the seeds vary is the training.
    timeout -k 5 "$(left $((limit - 60)))" cuda-agent train base --out runs/pocket-base "${shared[@]}" >"$here/train-base.log" 2>&1
    say base
    # Most important first; what was begun goes on first, since it stands before.
    queue="${TRAININGS:-0 1 2 no-loop-0 no-rft-0 no-value-0 speedup-0 mismatch-0 no-loop-1 no-rft-1 no-value-1 speedup-1
        no-loop-2 no-rft-2 no-value-2 speedup-2 mismatch-1 mismatch-2}"
    [ -e runs/pocket-base/held-out/base/scores.jsonl ] || queue=
    for name in $queue; do
        ! pocket_over "$name" || continue
        while :; do
            running=()
            for pid in "${pids[@]}"; do ! kill -0 "$pid" 2>/dev/null || running+=("$pid"); done
            pids=("${running[@]}")
            [ ${#pids[@]} -ge "${1:-6}" ] && [ "$(left $((limit - 60)))" -gt 1 ] || break
            sleep 1
        done
        [ "$(left $((limit - 60)))" -gt 30 ] || break
        pocket_train "$name" &
        pids+=($!)
    done
    [ ${#pids[@]} = 0 ] || wait "${pids[@]}"
    say trainings
    # The full recipe first: the others are held against it.
    (cd runs && ls -d pocket-[0-9]* pocket-*-[0-9]* 2>/dev/null) | sed 's|^|runs/|' >"$work/trainings"
    timeout 40 cuda-agent pocket summary $(cat "$work/trainings") --out "$here" >"$here/summary.txt" 2>&1
    kill "${watching[@]}" 2>/dev/null
    cat "$here/summary.txt" | cut -c1-300
    tail -qn 1 "$here"/train-*.log | cut -c1-250
    # Weights stay behind, since they are large, but for the first training's last policy; and so do episodes that were
    # learnt from.
    tar c -C runs --exclude='*.safetensors' --exclude='*.pt' --exclude='step-*' --exclude=tensorboard \
        --exclude='*/episodes.jsonl' --exclude=transcripts.jsonl $(cd runs && ls -d pocket pocket-*) |
        xz -T "$each" | split -d -b 14m - "$out/pocket.txz."
    for name in pocket-0/ppo pocket-0/rft pocket-base/base; do
        [ -e "runs/$name/policy" ] || continue
        tar czf "$out/policy.tgz" -C runs "$name/policy"
        break
    done
}
pocket_over() { # NAME: has it ended, or was it halted?
    grep -qs '"stage": "ppo"' "runs/pocket-$1/training.json" || ls runs/pocket-"$1"/*/halted.json >/dev/null 2>&1
}
pocket_train() { # NAME: SEED, or RECIPE-SEED, which makes way for the full recipe
    local name=$1 settings=() polite=10
    case $name in
        no-loop-*) settings=(agent_loop=false) ;;
        no-rft-*) settings=(rft=null) ;;
        no-value-*) settings=(value=null) ;;
        speedup-*) settings=(reward=speedup) ;;
        mismatch-*) settings=(model.train_precision=bfloat16 model.sample_precision=float16 ppo.mismatch.below=0.01) ;;
        *) polite=0 ;;
    esac
    mkdir -p "runs/pocket-$name/held-out"
    [ -e "runs/pocket-$name/held-out/base" ] || cp -r runs/pocket-base/held-out/base "runs/pocket-$name/held-out"
    # Once more, since processes that begin together may ask for one port.
    for _ in 1 2; do
        timeout -k 5 "$(left $((limit - 60)))" nice -n "$polite" cuda-agent train all --out "runs/pocket-$name" "${shared[@]}" \
            --set "seed=${name##*-}" --set model.path=runs/pocket-base/base/policy ${settings[@]/#/--set } \
            >>"$here/train-$name.log" 2>&1
        ! pocket_over "$name" && [ "$(left $((limit - 60)))" -gt 30 ] || break
    done
}
agreement() { # [SO MANY]
    timeout -k 10 "$(left "$limit")" python3 benchmarks/agreement.py data/candidates.jsonl.gz --count "${1:-60}" \
        --jobs 4 --limit-s "$(left $((limit - 60)))" --out "$here/agreement.json" 2>"$here/agreement.log"
    tail -20 "$here/agreement.log"
}
graphs() { # [SO MANY [DEVICE]]
    timeout -k 10 "$(left $((limit - 10)))" python3 benchmarks/graphs.py --graphs "${1:-2000}" --batch 40 --jobs $((each - 2)) \
        --device "${2:-cuda}" --out "$here/graphs-${2:-cuda}.jsonl" >"$here/graphs-${2:-cuda}.log" 2>&1
    grep -v "^[0-9]* graphs" "$here/graphs-${2:-cuda}.log" | head -20 | cut -c1-300
    tail -1 "$here/graphs-${2:-cuda}.log"
}
memory() {
    timeout -k 10 "$(left "$limit")" python3 benchmarks/device_memory.py tests/data/large/*.py --out "$here/memory.json" \
        2>"$here/memory.log"
}
examples() {
    timeout -k 10 "$(left "$limit")" python3 benchmarks/examples.py --out "$here/examples" 2>"$here/examples.log"
}
attention() {
    timeout -k 10 "$(left "$limit")" python3 benchmarks/attention.py --out "$here/attention.json" >"$here/attention.log" 2>&1
    grep "^| " "$here/attention.log"
}
whole() {
    local out=runs/whole$CUDA_VISIBLE_DEVICES
    [ "$(left $((limit - 90)))" -gt 60 ] || { say "no time for whole"; return; }
    {
        timeout -k 10 "$(left "$limit")" cuda-agent extract transformers:LlamaForCausalLM --device cuda --out "$out" \
            --init 'config=transformers:LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=4, num_attention_heads=16)' \
            --input 'input_ids=int64[4,1024]:0..32000' --input use_cache=False &&
            timeout -k 10 "$(left $((limit - 90)))" cuda-agent optimize "$out/tasks" --device cuda --out "$out/runs"
        timeout -k 10 "$(left "$limit")" cuda-agent apply "$out" "$out/runs"
    } >"$here/whole.log" 2>&1
    tail -30 "$here/whole.log"
    cp "$out"/*.json "$here"
}

one() { # LANE PARTS: on its GPU and its cores, with a cache of its own
    local lane=$1 part words
    here=$work/$lane
    mkdir -p "$here"
    local gpu=${gpus[$lane]}
    export CUDA_VISIBLE_DEVICES=$gpu CUDA_AGENT_CACHE=${CUDA_AGENT_CACHE:-/tmp/cuda-agent}-$gpu
    taskset -cp "$((gpu * each))-$(((gpu + 1) * each - 1))" "$BASHPID" >/dev/null
    for part in ${2//+/ }; do
        [ "$(left "$limit")" -gt 5 ] || { say "no time for $part"; continue; }
        if [[ $part = tests:* ]]; then
            [[ $part != tests:test_training* ]] || in_training
            tests "$(left "$limit")" "${part#tests:}.log" "tests/gpu/${part#tests:}.py" --timeout 250
        else
            # What follows the colon is its argument.
            IFS=: read -ra words <<<"$part"
            "${words[@]}"
        fi
        say "$part"
        pack "$lane"
    done
}
pack() { # LANE: what it has left by now
    local name=${parts[$1]}
    tar czf "$out/$1-${name//[:+\/]/-}.tgz" -C "$work/$1" . 2>/dev/null
}

set -m
lanes=()
for lane in "${!parts[@]}"; do
    one "$lane" "${parts[$lane]}" >"$work/$lane.txt" 2>&1 &
    lanes+=($!)
done
while [ -n "$(jobs -r)" ] && [ "$(left "$limit")" -gt -10 ]; do sleep 0.5; done
for lane in "${!lanes[@]}"; do
    if kill -0 "${lanes[$lane]}" 2>/dev/null; then
        echo "out of time" >>"$work/$lane.txt"
        kill -KILL -- "-${lanes[$lane]}"
        pack "$lane"
    fi
done
for lane in "${!parts[@]}"; do
    echo "#### ${parts[$lane]}"
    cat "$work/$lane.txt"
done
say done
