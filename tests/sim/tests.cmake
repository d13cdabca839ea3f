# SPDX-License-Identifier: Apache-2.0
# Random traces: 10^5 events of each kind in every run, 10^6 among the soaks.
headrace_test(sim_engine sim hr_engine hr_base)
set_property(TEST sim_engine PROPERTY LABELS sim)
add_test(NAME sim_engine_long COMMAND sim_engine 1000000)
set_tests_properties(sim_engine_long PROPERTIES LABELS soak TIMEOUT 3600)

# headrace_schedules(NAME MODEL EXPECTED N): N random schedules, every bit compared with each prompt alone.
add_executable(random_schedules ${CMAKE_CURRENT_SOURCE_DIR}/model/random_schedules.c)
target_link_libraries(random_schedules PRIVATE model_support)
function(headrace_schedules name model expected n)
  add_test(NAME ${name} COMMAND random_schedules ${model} ${expected} ${n})
  set_tests_properties(${name} PROPERTIES LABELS model TIMEOUT 1800)
endfunction()
headrace_schedules(schedules_llama_gguf ${HEADRACE_TEST_DATA}/llama_fixture_bf16.gguf ${CMAKE_CURRENT_SOURCE_DIR}/fixtures/llama 2000)
