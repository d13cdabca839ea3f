#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need, builds and runs them: ./check.sh [--fast | --full] [-j N]
#   --fast   release build and its tests (minutes); where there is a CUDA device also tests/card.sh
#   default  and sanitizers, clang, the kernels as HIP, fuzz corpora, the quick mutations, the real model (some 45 minutes on 2 cores)
#   --full   and every mutation, the soaks, and this script in a fresh Debian (tests/chroot.sh)
# A phase that fails does not stop the next one, except the first build. The last line is "N passed, N failed, N skipped" over all
# test runs and mutations; exit status 0 only with none failed and some passed. Logs and results are in build/check.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
exec </dev/null

mode=default jobs=$(nproc)
while [ $# -gt 0 ]; do
    case $1 in
        --fast) mode=fast ;;
        --full) mode=full ;;
        -j) [ $# -gt 1 ] || { echo "check: -j needs a number" >&2; exit 2; }; jobs=$2; shift ;;
        -j*) jobs=${1#-j} ;;
        -h | --help) sed -n '3,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "check: unknown option $1 (--fast, --full, -j N)" >&2; exit 2 ;;
    esac
    shift
done
case $jobs in '' | *[!0-9]* | 0) echo "check: -j needs a number, got '$jobs'" >&2; exit 2 ;; esac

groups=(build tests)
[ $mode = fast ] || groups+=(clang model)
tools/install_deps.sh "${groups[@]}" || exit 1

out=build/check
rm -rf $out && mkdir -p $out
passed=0 failed=0 skipped=0
summary=()

add() { # passed failed skipped
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# A phase is a function; what it returns counts as one failure more where its tests counted none.
phase() {
    local name=$1 start=$SECONDS before=$failed rc=0
    shift
    echo
    echo "== $name"
    "$@" || rc=$?
    if [ $rc != 0 ] && [ $failed = $before ]; then
        failed=$((failed + 1))
        echo "FAILED: $name (exit status $rc)"
    fi
    local word=ok
    [ $failed = $before ] || word=FAILED
    summary+=("$(printf '%-44s %5d s  %s' "$name" $((SECONDS - start)) $word)")
    return $rc
}

logged() { # NAME COMMAND...: output to a log, its end shown on failure
    local log=$out/$1.log rc=0
    shift
    "$@" >"$log" 2>&1 || rc=$?
    case $rc in
        0 | 77) ;;
        *) tail -n 60 "$log"; echo "(all of it: $log)" ;;
    esac
    return $rc
}

build() { # PRESET
    local launcher=()
    ! command -v ccache >/dev/null || launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
    logged "configure-$1" cmake --preset "$1" -DHEADRACE_TESTS=ON "${cuda_archs[@]}" "${launcher[@]}" && logged "build-$1" cmake --build --preset "$1" -j "$jobs"
}

# Sanitizers want a layout of addresses that strong randomisation can deny.
plain_addresses=()
! setarch "$(uname -m)" -R true 2>/dev/null || plain_addresses=(setarch "$(uname -m)" -R)

run_tests() { # NAME FOLDER CTEST-ARGS...: adds the counts of the run; a run of no test fails
    local name=$1 folder=$2 rc=0 counts
    shift 2
    "${plain_addresses[@]}" ctest --test-dir "$folder" -j "$jobs" --no-tests=error --output-on-failure --output-junit "$PWD/$out/$name.xml" "$@" || rc=$?
    counts=$(python3 tests/meta/count_junit.py "$out/$name.xml") || return 1
    # shellcheck disable=SC2086
    add $counts
    return $rc
}

mutations() {
    local rc=0 line
    tests/mutations/run.sh -j "$jobs" "$@" 2>&1 | tee $out/mutations.log || rc=$?
    line=$(sed -n 's/^mutations: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' $out/mutations.log | tail -n 1)
    [ -n "$line" ] || return 1
    # shellcheck disable=SC2086
    add $line
    return $rc
}

# The tests on real files read their place from a variable, and skip themselves without it.
get() { # SCRIPT VARIABLE: the last line that tools/SCRIPT.sh prints is the place
    local rc=0 place
    "tools/$1.sh" >"$out/$1.log" 2>&1 || rc=$?
    if [ $rc = 0 ]; then
        place=$(tail -n 1 "$out/$1.log")
        export "$2=$place"
        echo "$1: $place"
        [ -e "$place" ]
    else
        tail -n 20 "$out/$1.log"
        echo "SKIPPED: what reads $2 (it could not be had; the reason is above)"
    fi
}

card() { # the backend of a GPU that this machine has
    local rc=0 line
    tests/card.sh -j "$jobs" build >$out/card.log 2>&1 || rc=$?
    grep -v '^ok ' $out/card.log
    line=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' $out/card.log | tail -n 1)
    [ -n "$line" ] || return 1
    # shellcheck disable=SC2086
    add $line
    return $rc
}

hip() { # the kernels without matrix instructions, for one AMD target or all
    local rc=0 line all=()
    [ "$mode" != full ] || all=(--all)
    tools/install_deps.sh hip >$out/hip.log 2>&1 || echo "note: what compiles HIP could not be installed: $(tail -n 1 $out/hip.log)"
    tests/hip_compile.sh -j "$jobs" "${all[@]}" >$out/hip.log 2>&1 || rc=$?
    grep -v '^ok .*\.cu ' $out/hip.log
    line=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' $out/hip.log | tail -n 1)
    [ -n "$line" ] || return 1
    # shellcheck disable=SC2086
    add $line
    [ $rc = 77 ] || return $rc
}

in_chroot() { # NAME COMMAND...: one test
    local name=$1 rc=0
    shift
    logged "chroot-$name" tests/chroot.sh "$@" || rc=$?
    case $rc in
        0) add 1 0 0 ;;
        77) add 0 0 1; echo "SKIPPED: $* in a fresh Debian: $(tail -n 1 "$out/chroot-$name.log")" ;;
        *) add 0 1 0; return $rc ;;
    esac
}

not_now='^(real|soak)$'
cuda_archs=()
if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "note: the CUDA backend is not built: there is no nvcc"
elif [ $mode = full ]; then
    cuda_archs=(-DHEADRACE_CUDA_ARCHS="80;86;89;90a;100;103;120;121")
fi
case $(uname -m) in x86_64) ;; *) echo "note: rows for x86 are not built on $(uname -m)" ;; esac

export ASAN_OPTIONS=allocator_may_return_null=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

if phase "release: build" build release; then
    phase "release: tests" run_tests release build -LE "$not_now"
    # shellcheck disable=SC2143  # with pipefail, -q would end doctor early and count as a failure
    if [ -n "$(build/headrace doctor | grep '^  cuda:0')" ]; then
        phase "cuda: tests on the card" card
    else
        echo "note: nothing is run on a CUDA device: there is none"
    fi
else
    mode="$mode, ended early" # nothing that follows would build either
fi
if [ "$mode" = default ] || [ "$mode" = full ]; then
    if phase "asan, ubsan: build" build asan; then
        phase "asan, ubsan: tests" run_tests asan build/asan -LE '^(real|soak|meta)$'
    fi
    if phase "tsan: build" build tsan; then
        # Everything that starts threads; what only computes is slow here and says nothing (--full runs the kernels too).
        without='^(test_cli|test_limits_.*|fault_experts_(g|d|qwen3_).*|test_engine_sample|test_vt_math|test_vt_dispatch|test_text_.*|check_kernels|hidden_.*|fixture_.*_published|fixture_.*_wrapped|.*_gguf|f32_.*|llamacpp_.*|embedding_[^l].*|device_faults_[^l].*|schedules_[^l].*|schedules_llama|bf16_.*|device_table_.*|(experts|device|fixture)_(gpt-oss|gemma4-moe|gemma4-moe-fp8|qwen3-moe-fp8-block))$'
        [ "$mode" != full ] || without='^(test_cli|test_limits_.*|test_engine_sample|test_vt_math|test_text_.*)$'
        phase "tsan: tests" run_tests tsan build/tsan -LE '^(real|soak|meta|fuzz)$' -E "$without"
    fi
    if phase "clang: build" build clang; then
        phase "clang: tests" run_tests clang build/clang -L '^(unit|kernels|fuzz)$' -LE "$not_now"
    fi
    phase "hip: compile" hip
    phase "real vocabularies: get" get get_vocabularies HEADRACE_TEST_VOCABULARIES
    if phase "real model: get" get get_model HEADRACE_TEST_SMOLLM2; then
        phase "real model: tests" run_tests real build -L '^real$'
    fi
    case $mode in
        default) phase "mutations: quick" mutations ;;
        full)
            phase "mutations: all" mutations --all
            phase "soaks" run_tests soak build -L '^soak$'
            phase "chroot: check.sh" in_chroot check ./check.sh
            phase "chroot: demo.sh" in_chroot demo ./demo.sh
            ;;
    esac
fi

echo
echo "== time by phase"
printf '%s\n' "${summary[@]}"
printf '%-44s %5d s  (%s, %s jobs)\n' "all" $SECONDS "$mode" "$jobs"
[ $passed != 0 ] || echo "no test passed"
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $passed != 0 ]
