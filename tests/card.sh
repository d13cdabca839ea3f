#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the backend of a device with memory of its own on a machine that has the device: tests/card.sh [-d DEVICE] [-j N] [--only PART] [BUILD_FOLDER]
#   kernels     check_kernels over every row of the backend, op by op; ops of many rows in parts
#   f32         every fixture within 2e-3 of its independent answers; GGUFs of some of them
#   bf16        every fixture with BF16 activations: 3e-2, the Gemma 4 family 8e-2 (check_bf16)
#   streamed    mixtures streamed through small and large tiers give the bytes of resident ones; misses and evictions must have been
#   captured    replayed decode steps give the tokens of launched ones
#   sanitizers  compute-sanitizer memcheck and racecheck over a short and a longer prompt of every fixture, and memcheck over streaming
# The folder (build) holds headrace and the device's backend, and the test programs there or below tests/. One line a case; the last line is
# "N passed, N failed, N skipped"; exit status 0 only with none failed and some passed. Nothing is installed; a minute or two on 16 cores.
set -uo pipefail
device=cuda jobs=$(nproc) only='' folder=''
while [ $# -gt 0 ]; do
    case $1 in
        -d | -j | --only) [ $# -gt 1 ] || { echo "card: $1 needs a value" >&2; exit 2; } ;;&
        -d) device=$2; shift ;;
        -j) jobs=$2; shift ;;
        --only) only=$2; shift ;;
        -h | --help) sed -n '3,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) echo "card: unknown option $1 (-d DEVICE, -j N, --only PART)" >&2; exit 2 ;;
        *) folder=$1 ;;
    esac
    shift
done
tests=$(cd "$(dirname "$0")" && pwd) || exit 1
folder=$(cd "${folder:-$tests/../build}" && pwd) || exit 1
headrace=$folder/headrace
fixtures=$tests/fixtures data=$tests/data
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
export device headrace fixtures data out folder

program() { # NAME: where the test program is
    if [ -x "$folder/tests/$1" ]; then echo "$folder/tests/$1"; else echo "$folder/$1"; fi
}

say() { # NAME STATUS LOG [WORDS]: one line; what went wrong is shown
    if [ "$2" = 0 ]; then
        echo "ok $1${4:+: $4}"
    else
        echo "FAILED $1 (exit status $2)${4:+: $4}"
        grep -v -E '^(\[ +(RUN|OK)|\[=)' "$3" | cut -c1-300 | tail -n 25
    fi
}

measured() { # LOG: the greatest difference that a check told
    grep -o -E '(largest|relative|worst)[^,;]*' "$1" | tail -n 1
}

case_kernels() { # OP PART/PARTS
    local log=$out/kernels.$1.${2%/*}
    timeout 900 "$(program check_kernels)" --backend "$device" --op "$1" --part "$2" >"$log" 2>&1
    say "kernels $1, part $2" $? "$log" "$(tail -n 1 "$log")"
}

case_f32() { # MODEL FIXTURE
    local log=$out/f32.${1##*/}
    timeout 300 "$(program check_fixture)" "$1" "$fixtures/$2" 2e-3 "$device" >"$log" 2>&1
    say "f32 ${1##*/}" $? "$log" "$(measured "$log")"
}

case_bf16() { # FIXTURE
    local log=$out/bf16.$1 limit=3e-2
    case $1 in gemma4*) limit=8e-2 ;; esac
    timeout 300 "$(program check_bf16)" "$fixtures/$1" $limit "$device" >"$log" 2>&1
    say "bf16 $1" $? "$log" "$(measured "$log")"
}

ids=2,5,9,14,3,77,21,8,40,41,42,43
export ids

case_streamed() { # FIXTURE
    local log=$out/streamed.$1 m=$fixtures/$1 d h rc=0 moved=0
    timeout 120 "$headrace" logits -m "$m" --device "$device" --experts resident --token-ids $ids -o "$log.resident" >"$log" 2>&1 || rc=1
    for d in min all; do
        for h in min all; do
            timeout 120 "$headrace" logits -m "$m" --device "$device" --experts stream --device-experts $d --host-experts $h --token-ids $ids -o "$log.streamed" >"$log.json" 2>>"$log" || rc=1
            cmp "$log.resident" "$log.streamed" >>"$log" 2>&1 || { rc=1; echo "$d on the device, $h in host memory: the logits differ" >>"$log"; }
            cat "$log.json" >>"$log"
            # at their smallest both tiers must have missed and evicted, or nothing was tried
            [ $d$h != minmin ] || moved=$(grep -o -E '"misses":[1-9][0-9]*,"evictions":[1-9]' "$log.json" | wc -l)
        done
    done
    [ "$moved" = 2 ] || { rc=1; echo "in a tier nothing missed or nothing was evicted" >>"$log"; }
    say "streamed $1" $rc "$log"
}

case_captured() { # FIXTURE
    local log=$out/captured.$1 way rc=0
    for way in auto off; do
        timeout 120 "$headrace" complete -m "$fixtures/$1" --device "$device" --capture $way --token-ids $ids --token-ids 4,8,15,16,23 -n 100 --ignore-eos --json 2>>"$log" |
            grep -o '"ids":\[[0-9,]*\]' >"$log.$way"
    done
    [ -s "$log.auto" ] && cmp "$log.auto" "$log.off" >>"$log" 2>&1 || rc=1
    say "captured $1" $rc "$log"
}

case_sanitizers() { # TOOL FIXTURE RESIDENCE
    local log=$out/$1.$2.$3 rc=0
    timeout 300 compute-sanitizer --tool "$1" --print-limit 5 "$headrace" complete -m "$fixtures/$2" --device "$device" --experts "$3" --token-ids 2,5,9,14 \
        --token-ids "$(seq -s, 3 72)" -n 3 --ignore-eos >"$log" 2>&1 || rc=$?
    grep -q -E '(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)' "$log" || rc=1
    say "$1 $2 $3" $rc "$log" "$(grep -o -E '(ERROR|RACECHECK) SUMMARY.*' "$log" | tail -n 1)"
}
export -f program say measured case_kernels case_f32 case_bf16 case_streamed case_captured case_sanitizers

list() { # the cases, a line each
    local f t n
    wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }
    if wanted kernels; then
        # the processor's own sums are most of the time: an op of many rows is shared out
        for f in $(sed -n 's/^OP([A-Z0-9_]*, "\([a-z0-9_]*\)".*/\1/p' "$tests/../src/vt/op.def"); do
            n=1
            case $f in matmul_bt | matmul_bt_alpha_beta) n=16 ;; matmul_grouped*) n=4 ;; esac
            for ((t = 0; t < n; t++)); do echo "case_kernels $f $t/$n"; done
        done
    fi
    for f in "$fixtures"/*/; do
        f=$(basename "$f")
        ! wanted f32 || echo "case_f32 $fixtures/$f $f"
        ! wanted bf16 || echo "case_bf16 $f"
        ! wanted captured || echo "case_captured $f"
        if grep -q -E '"(num_experts|num_local_experts|n_routed_experts)": *[1-9]' "$fixtures/$f/config.json"; then
            ! wanted streamed || echo "case_streamed $f"
        fi
    done
    for f in llama mistral qwen2 qwen3 gemma3 gemma4-dense gemma4-ple gpt-oss-mxfp4; do
        ! wanted f32 || echo "case_f32 $data/${f}_fixture_bf16.gguf $f"
    done
    if wanted sanitizers; then
        if [ "$device" = cuda ] && command -v compute-sanitizer >/dev/null; then
            for t in memcheck racecheck; do
                for f in "$fixtures"/*/; do echo "case_sanitizers $t $(basename "$f") auto"; done
            done
            for f in gemma4-moe gpt-oss-mxfp4 deepseek-v3; do echo "case_sanitizers memcheck $f stream"; done
        else
            echo "echo SKIPPED sanitizers: compute-sanitizer is not here, or is not for $device"
        fi
    fi
}

list | xargs -P "$jobs" -I{} bash -c '{}' 2>&1 | tee "$out/all"
passed=$(grep -c '^ok ' "$out/all") failed=$(grep -c '^FAILED ' "$out/all") skipped=$(grep -c '^SKIPPED ' "$out/all")
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
