# SPDX-License-Identifier: Apache-2.0
# What the CUDA backend says without a driver and with one that is too old. A real driver is not looked at: the posed one is found first.
if(NOT TARGET headrace_cuda)
  return()
endif()
foreach(version 0 12020)
  add_library(posed_driver_${version} SHARED ${CMAKE_CURRENT_SOURCE_DIR}/driver/posed_driver.c)
  target_link_libraries(posed_driver_${version} PRIVATE headrace_flags)
  target_compile_definitions(posed_driver_${version} PRIVATE DRIVER_VERSION=${version})
  set_target_properties(posed_driver_${version} PROPERTIES OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/driver_${version})
endforeach()

# headrace_driver_test(NAME version SAYS command...): what it prints says it
function(headrace_driver_test name version says)
  add_test(NAME driver_${name} COMMAND ${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/tests/driver_${version} $<TARGET_FILE:headrace_bin> ${ARGN})
  set_tests_properties(driver_${name} PROPERTIES LABELS driver TIMEOUT 60 PASS_REGULAR_EXPRESSION "${says}")
endfunction()
set(too_old "the driver is too old: it serves CUDA 12\\.2, this library needs [0-9]+\\.[0-9] or later")
set(two_tokens complete -m ${CMAKE_CURRENT_SOURCE_DIR}/fixtures/llama --token-ids 3,4 -n 2)
headrace_driver_test(none_doctor 0 "cuda: [^\n]*libheadrace-cuda\\.so\; no device: cuda: no NVIDIA driver" doctor)
headrace_driver_test(none_asked_for 0 "headrace: vt: no device cuda:0: cuda: no NVIDIA driver" ${two_tokens} --device cuda)
headrace_driver_test(none_auto 0 "decode 1 tokens" ${two_tokens})
set_tests_properties(driver_none_auto PROPERTIES FAIL_REGULAR_EXPRESSION "(cuda|warning)") # silence
headrace_driver_test(old_doctor 12020 "cuda: [^\n]*libheadrace-cuda\\.so\; no device: cuda: ${too_old}" doctor)
headrace_driver_test(old_asked_for 12020 "headrace: vt: no device cuda:0: cuda: ${too_old}" ${two_tokens} --device cuda)
headrace_driver_test(old_auto 12020 "cuda is passed over: vt: no device cuda:0: cuda: ${too_old}[^\n]*\n.*decode 1 tokens" ${two_tokens})
