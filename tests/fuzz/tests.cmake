# SPDX-License-Identifier: Apache-2.0
# Fuzz targets. Each NAME.c defines LLVMFuzzerTestOneInput. Always: NAME_replay runs it over corpus/NAME (ctest label fuzz). With
# -DHEADRACE_FUZZ=ON under clang: NAME is a libFuzzer program and everything is instrumented but the CPU's kernels, which no target runs and which
# take clang minutes when they are:
#   NAME -max_len=4096 WORKING_CORPUS tests/fuzz/corpus/NAME
if(HEADRACE_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "HEADRACE_FUZZ needs clang")
  endif()
  target_compile_options(headrace_flags INTERFACE
    "$<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,hr_vt_cpu>>:-fsanitize=fuzzer-no-link,address,undefined;-fno-sanitize-recover=all>")
  target_link_options(headrace_flags INTERFACE -fsanitize=address,undefined)
endif()

# headrace_fuzz(NAME libs...)
function(headrace_fuzz name)
  add_executable(${name}_replay ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/${name}.c ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/replay_main.c)
  target_link_libraries(${name}_replay PRIVATE ${ARGN} headrace_flags)
  target_include_directories(${name}_replay PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  add_test(NAME ${name}_replay COMMAND ${name}_replay ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${name})
  set_tests_properties(${name}_replay PROPERTIES LABELS fuzz TIMEOUT 900)
  if(HEADRACE_FUZZ)
    add_executable(${name} ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/${name}.c)
    target_link_libraries(${name} PRIVATE ${ARGN} headrace_flags)
    target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endif()
endfunction()

headrace_fuzz(fuzz_gguf test_load_probe)
headrace_fuzz(fuzz_safetensors test_load_probe test_support)
headrace_fuzz(fuzz_tokenizer hr_text)
