# SPDX-License-Identifier: Apache-2.0
# Whole models against answers that are not ours.
add_library(model_support STATIC ${CMAKE_CURRENT_SOURCE_DIR}/model/model_support.c)
target_include_directories(model_support PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(model_support PUBLIC hr_engine PkgConfig::JANSSON PkgConfig::CMOCKA headrace_flags)

add_executable(check_fixture ${CMAKE_CURRENT_SOURCE_DIR}/model/check_fixture.c)
target_link_libraries(check_fixture PRIVATE model_support)

# headrace_fixture(NAME MODEL EXPECTED TOLERANCE)
function(headrace_fixture name model expected tolerance)
  add_test(NAME ${name} COMMAND check_fixture ${model} ${expected} ${tolerance})
  set_tests_properties(${name} PROPERTIES LABELS model TIMEOUT 900)
endfunction()

set(fixtures ${CMAKE_CURRENT_SOURCE_DIR}/fixtures)
headrace_fixture(fixture_llama_gguf ${HEADRACE_TEST_DATA}/llama_fixture_bf16.gguf ${fixtures}/llama 2e-4)

add_executable(check_smollm2 ${CMAKE_CURRENT_SOURCE_DIR}/model/check_smollm2.c)
target_link_libraries(check_smollm2 PRIVATE model_support)
target_compile_definitions(check_smollm2 PRIVATE HEADRACE_TEST_DATA="${HEADRACE_TEST_DATA}")
add_test(NAME check_smollm2 COMMAND check_smollm2)
set_tests_properties(check_smollm2 PROPERTIES LABELS "model;real" SKIP_RETURN_CODE 77 TIMEOUT 1800)
