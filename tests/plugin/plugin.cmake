# SPDX-License-Identifier: Apache-2.0
# The test backend, whole and with each fault, as plugin/FOLDER/libheadrace-test.so. HEADRACE_TEST_PLUGINS tells tests where.
set(HEADRACE_TEST_PLUGINS ${CMAKE_BINARY_DIR}/plugin)
file(WRITE ${HEADRACE_TEST_PLUGINS}/garbage/libheadrace-test.so "this is no library\n")
add_custom_target(test_plugins)
foreach(fault none refuses interface no_entry type tables rows)
  string(TOUPPER FAULT_${fault} value)
  add_library(test_plugin_${fault} MODULE ${CMAKE_SOURCE_DIR}/tests/plugin/test_backend.c)
  target_link_libraries(test_plugin_${fault} PRIVATE headrace_flags headrace_strict)
  target_include_directories(test_plugin_${fault} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(test_plugin_${fault} PRIVATE TEST_PLUGIN_FAULT=${value})
  set_target_properties(test_plugin_${fault} PROPERTIES OUTPUT_NAME headrace-test LIBRARY_OUTPUT_DIRECTORY ${HEADRACE_TEST_PLUGINS}/${fault})
  add_dependencies(test_plugins test_plugin_${fault})
endforeach()

# headrace_vt_test(NAME label): a test of the core that may load the test backend
function(headrace_vt_test name label)
  headrace_test(${name} ${label} hr_vt)
  target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/plugin/vt_sample.c ${CMAKE_SOURCE_DIR}/tests/plugin/test_manifest.c)
  target_compile_definitions(${name} PRIVATE HEADRACE_TEST_PLUGINS="${HEADRACE_TEST_PLUGINS}")
  target_link_libraries(${name} PRIVATE headrace_strict)
  add_dependencies(${name} test_plugins)
endfunction()
