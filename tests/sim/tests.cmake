# SPDX-License-Identifier: Apache-2.0
# Random traces: 10^6 events of each kind (10^5 under sanitizers).
headrace_test(sim_engine sim hr_engine hr_base)
set_property(TEST sim_engine PROPERTY LABELS sim)

# Random schedules over every fixture, every bit compared with each prompt alone: at least 2,000 in all. Mixtures of experts a second time, streamed into as few slots as can be.
add_executable(random_schedules ${CMAKE_CURRENT_SOURCE_DIR}/model/random_schedules.c)
target_link_libraries(random_schedules PRIVATE model_support)
function(headrace_schedules name model expected n)
  add_test(NAME schedules_${name} COMMAND random_schedules ${model} ${expected} ${n} ${ARGN})
  set_tests_properties(schedules_${name} PROPERTIES LABELS model TIMEOUT 1800)
endfunction()
set(schedules 120) # of each of 19
set(schedules_streamed 40) # of each of 11
if(HEADRACE_SANITIZE)
  set(schedules 40)
  set(schedules_streamed 20)
endif()
headrace_schedules(llama_gguf ${HEADRACE_TEST_DATA}/llama_fixture_bf16.gguf ${CMAKE_CURRENT_SOURCE_DIR}/fixtures/llama ${schedules})
file(GLOB fixture_folders ${CMAKE_CURRENT_SOURCE_DIR}/fixtures/*/model.safetensors)
foreach(file ${fixture_folders})
  get_filename_component(folder ${file} DIRECTORY)
  get_filename_component(name ${folder} NAME)
  headrace_schedules(${name} ${folder} ${folder} ${schedules})
  if(EXISTS ${folder}/config.json)
    file(STRINGS ${folder}/config.json experts REGEX "\"(num_experts_per_tok|top_k_experts)\": *[0-9]")
    if(experts)
      headrace_schedules(${name}_streamed ${folder} ${folder} ${schedules_streamed} 11 stream)
    endif()
  endif()
endforeach()
# The eviction policy of experts.
headrace_test(sim_expert_policy sim hr_moe hr_base)
set_property(TEST sim_expert_policy PROPERTY LABELS sim)
add_test(NAME sim_expert_policy_long COMMAND sim_expert_policy 1000000)
set_tests_properties(sim_expert_policy_long PROPERTIES LABELS soak TIMEOUT 3600)
# What a step asks of the experts, expected and taken.
headrace_test(sim_expert_cost sim hr_moe hr_base)
set_property(TEST sim_expert_cost PROPERTY LABELS sim)
