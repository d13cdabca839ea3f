# SPDX-License-Identifier: Apache-2.0
# The rows of every backend against double arithmetic and, on the processor, against the bits of the scalar rows.
if(EXISTS ${CMAKE_SOURCE_DIR}/src/vt/runtime.c)
  headrace_test(check_kernels kernels hr_vt hr_vt_cpu hr_vt hr_base)
  target_sources(check_kernels PRIVATE kernels/check_case.c kernels/check_values.c kernels/check_blocks.c kernels/check_matmul.c kernels/check_rows.c kernels/check_moe.c kernels/check_grouped.c kernels/check_fused.c kernels/check_argmax.c kernels/check_recurrent.c
    kernels/check_attention.c kernels/check_bench.c)
  target_include_directories(check_kernels PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/kernels)
  add_executable(bench_moe ${CMAKE_CURRENT_SOURCE_DIR}/kernels/bench_moe.c) # times a layer's experts on a device; the test runs its code
  target_link_libraries(bench_moe PRIVATE hr_vt hr_vt_cpu hr_vt hr_base headrace_flags headrace_strict)
  add_test(NAME bench_moe COMMAND bench_moe cpu 16 8 4 2 1 3)
  set_tests_properties(bench_moe PROPERTIES LABELS kernels TIMEOUT 300)
  headrace_test(test_cpu_backend kernels hr_vt hr_vt_cpu hr_vt hr_base)
  headrace_test(test_gguf_blocks kernels hr_vt hr_vt_cpu hr_vt hr_base)
endif()
