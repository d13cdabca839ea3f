# SPDX-License-Identifier: Apache-2.0
# Whole models against answers that are not ours.
add_library(model_support STATIC ${CMAKE_CURRENT_SOURCE_DIR}/model/model_support.c)
target_include_directories(model_support PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(model_support PUBLIC hr_engine PkgConfig::JANSSON PkgConfig::CMOCKA headrace_flags)

add_executable(check_fixture ${CMAKE_CURRENT_SOURCE_DIR}/model/check_fixture.c)
target_link_libraries(check_fixture PRIVATE model_support)

add_executable(check_hidden ${CMAKE_CURRENT_SOURCE_DIR}/model/check_hidden.c) # the model layer alone, layer by layer
target_link_libraries(check_hidden PRIVATE model_support hr_model hr_vt_cpu hr_vt hr_base)

add_executable(check_embedding ${CMAKE_CURRENT_SOURCE_DIR}/model/check_embedding.c)
target_link_libraries(check_embedding PRIVATE model_support hr_engine hr_vt_cpu hr_vt hr_base)

# headrace_fixture(NAME MODEL EXPECTED TOLERANCE [published|wrapped])
function(headrace_fixture name model expected tolerance)
  add_test(NAME fixture_${name} COMMAND check_fixture ${model} ${expected} ${tolerance} ${ARGN})
  set_tests_properties(fixture_${name} PROPERTIES LABELS model TIMEOUT 900)
endfunction()

# A folder as published, in both spellings of its configuration.
function(headrace_fixture_folder name tolerance)
  headrace_fixture(${name} ${fixtures}/${name} ${fixtures}/${name} ${tolerance})
  headrace_fixture(${name}_published ${fixtures}/${name} ${fixtures}/${name} ${tolerance} published)
  add_test(NAME hidden_${name} COMMAND check_hidden ${fixtures}/${name} ${tolerance})
  add_test(NAME embedding_${name} COMMAND check_embedding ${fixtures}/${name} ${tolerance})
  set_tests_properties(hidden_${name} embedding_${name} PROPERTIES LABELS model TIMEOUT 900)
endfunction()

set(fixtures ${CMAKE_CURRENT_SOURCE_DIR}/fixtures)
headrace_fixture(llama_gguf ${HEADRACE_TEST_DATA}/llama_fixture_bf16.gguf ${fixtures}/llama 2e-4)
foreach(name llama mistral qwen2 qwen3 gemma3 gemma4-dense)
  headrace_fixture_folder(${name} 2e-4)
endforeach()
headrace_fixture_folder(gemma4-ple 1e-3)
foreach(name gemma4-moe gemma4-moe-fp8 qwen3-moe qwen3-moe-fp8-block mixtral olmoe gpt-oss gpt-oss-mxfp4 deepseek-v3 glm4-moe)
  headrace_fixture_folder(${name} 2e-4)
endforeach()
headrace_fixture_folder(qwen3_5-moe 2e-3)
headrace_fixture(gemma3_wrapped ${fixtures}/gemma3 ${fixtures}/gemma3 2e-4 wrapped)

# The same fixtures rewritten as GGUF (tools/fixture_to_gguf.py).
foreach(name mistral qwen2 qwen3 gemma3 gemma4-dense)
  headrace_fixture(${name}_gguf ${HEADRACE_TEST_DATA}/${name}_fixture_bf16.gguf ${fixtures}/${name} 2e-4)
endforeach()
headrace_fixture(gemma4-ple_gguf ${HEADRACE_TEST_DATA}/gemma4-ple_fixture_bf16.gguf ${fixtures}/gemma4-ple 1e-3)

# Real models, whose files an environment variable names.
foreach(name smollm2 gemma3)
  add_executable(check_${name} ${CMAKE_CURRENT_SOURCE_DIR}/model/check_${name}.c ${CMAKE_CURRENT_SOURCE_DIR}/model/recorded.c)
  target_link_libraries(check_${name} PRIVATE model_support)
  target_compile_definitions(check_${name} PRIVATE HEADRACE_TEST_DATA="${HEADRACE_TEST_DATA}")
  add_test(NAME check_${name} COMMAND check_${name})
  set_tests_properties(check_${name} PROPERTIES LABELS "model;real" SKIP_RETURN_CODE 77 TIMEOUT 1800)
endforeach()

# Streamed experts against resident ones.
add_executable(check_experts ${CMAKE_CURRENT_SOURCE_DIR}/model/check_experts.c)
target_link_libraries(check_experts PRIVATE model_support hr_engine hr_vt_cpu hr_vt hr_base)
foreach(name gemma4-moe gemma4-moe-fp8 qwen3-moe qwen3-moe-fp8-block mixtral olmoe gpt-oss gpt-oss-mxfp4 deepseek-v3 glm4-moe qwen3_5-moe)
  add_test(NAME experts_${name} COMMAND check_experts ${fixtures}/${name})
  set_tests_properties(experts_${name} PROPERTIES LABELS model TIMEOUT 1800)
endforeach()

# Whole models on a device whose memory the host cannot touch, against the processor.
add_executable(check_device ${CMAKE_CURRENT_SOURCE_DIR}/model/check_device.c)
target_link_libraries(check_device PRIVATE model_support test_posed hr_engine hr_vt_cpu hr_vt hr_base)
foreach(name gemma4-moe gemma4-moe-fp8 qwen3-moe qwen3-moe-fp8-block mixtral olmoe gpt-oss gpt-oss-mxfp4 deepseek-v3 glm4-moe qwen3_5-moe llama mistral qwen2 qwen3 gemma3 gemma4-dense gemma4-ple)
  add_test(NAME device_${name} COMMAND check_device ${fixtures}/${name} bits)
  set_tests_properties(device_${name} PROPERTIES LABELS model TIMEOUT 1800)
endforeach()
