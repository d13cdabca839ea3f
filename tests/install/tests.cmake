# SPDX-License-Identifier: Apache-2.0
# The installed library as a stranger finds it. A sanitizer's runtime cannot come in by pkg-config.
if(NOT HEADRACE_SANITIZE AND TARGET headrace_bin)
  add_test(NAME test_install COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/install/test_install.sh ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR} ${HEADRACE_TEST_DATA}/llama_fixture_bf16.gguf)
  set_tests_properties(test_install PROPERTIES LABELS cli TIMEOUT 300)
endif()
