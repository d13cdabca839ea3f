# SPDX-License-Identifier: Apache-2.0
# Checks of the tree itself. Each is one entry of check_tree.py; those that read the build's objects run in builds without sanitizers.
set(meta_checks layers headers sizes calls device_words spdx names hygiene flags)
if(NOT HEADRACE_SANITIZE)
  list(APPEND meta_checks symbols isa binary)
endif()
foreach(check ${meta_checks})
  add_test(NAME meta_${check} COMMAND ${HEADRACE_PYTHON3} ${CMAKE_CURRENT_SOURCE_DIR}/meta/check_tree.py ${check} --source ${CMAKE_SOURCE_DIR} --build ${CMAKE_BINARY_DIR})
  set_tests_properties(meta_${check} PROPERTIES LABELS meta SKIP_RETURN_CODE 77 TIMEOUT 300)
endforeach()

# docs/OWED.md, written from the tables of kernel rows
add_executable(owed_list ${CMAKE_CURRENT_SOURCE_DIR}/meta/owed.c)
target_link_libraries(owed_list PRIVATE hr_vt headrace_flags headrace_strict)
add_custom_target(owed COMMAND owed_list ${CMAKE_SOURCE_DIR}/docs/OWED.md)
add_test(NAME meta_owed COMMAND owed_list --check ${CMAKE_SOURCE_DIR}/docs/OWED.md)
set_tests_properties(meta_owed PROPERTIES LABELS meta TIMEOUT 60)
