# SPDX-License-Identifier: Apache-2.0
# The command line: the binary from outside. test_cli.py runs it over a stand-in for the engine, test_cli_model.py over the engine and a tiny model.

function(headrace_cli_test name binary)
  add_test(NAME ${name} COMMAND ${HEADRACE_PYTHON3} -B ${CMAKE_CURRENT_SOURCE_DIR}/cli/${name}.py $<TARGET_FILE:${binary}>)
  set_tests_properties(${name} PROPERTIES LABELS cli SKIP_RETURN_CODE 77 TIMEOUT 900)
endfunction()

if(cli_sources)
  add_executable(headrace_fake ${cli_sources} ${CMAKE_CURRENT_SOURCE_DIR}/cli/fake_engine.c)
  target_link_libraries(headrace_fake PRIVATE hr_load hr_base headrace_flags PkgConfig::JANSSON)
  headrace_cli_test(test_cli headrace_fake)
  headrace_test(test_speed_meter cli hr_base)
  target_sources(test_speed_meter PRIVATE ${CMAKE_SOURCE_DIR}/src/cli/speed_meter.c)
endif()
if(TARGET headrace_bin AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_cli_model.py)
  headrace_cli_test(test_cli_model headrace_bin)
  headrace_cli_test(test_cli_moe headrace_bin)
  foreach(limit memlock cgroup)
    add_test(NAME test_limits_${limit} COMMAND ${HEADRACE_PYTHON3} -B ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_limits.py $<TARGET_FILE:headrace_bin> ${limit})
    set_tests_properties(test_limits_${limit} PROPERTIES LABELS cli SKIP_RETURN_CODE 77 TIMEOUT 300)
  endforeach()
endif()
