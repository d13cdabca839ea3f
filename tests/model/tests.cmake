# SPDX-License-Identifier: Apache-2.0
# Whole models against answers that are not ours.
add_library(model_support STATIC ${CMAKE_CURRENT_SOURCE_DIR}/model/model_support.c)
target_include_directories(model_support PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(model_support PUBLIC hr_engine PkgConfig::JANSSON PkgConfig::CMOCKA headrace_flags)

add_executable(check_fixture ${CMAKE_CURRENT_SOURCE_DIR}/model/check_fixture.c)
target_link_libraries(check_fixture PRIVATE model_support)

add_executable(check_hidden ${CMAKE_CURRENT_SOURCE_DIR}/model/check_hidden.c) # the model layer alone, layer by layer
target_link_libraries(check_hidden PRIVATE model_support hr_model hr_vt_cpu hr_vt hr_base)
target_compile_definitions(check_hidden PRIVATE HEADRACE_TEST_DATA="${HEADRACE_TEST_DATA}")

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
headrace_fixture(gemma4-moe_wrapped ${fixtures}/gemma4-moe ${fixtures}/gemma4-moe 2e-4 wrapped)
headrace_fixture(qwen3_5-moe_wrapped ${fixtures}/qwen3_5-moe ${fixtures}/qwen3_5-moe 2e-3 wrapped)

# BF16 activations under each type of cache, mixtures with their routing given; a row of BF16 operands alone is 1.3e-2 away, 4.6e-2 with the norms of gemma4.
add_executable(check_bf16 ${CMAKE_CURRENT_SOURCE_DIR}/model/check_bf16.c)
target_link_libraries(check_bf16 PRIVATE model_support hr_engine hr_model hr_vt_cpu hr_vt hr_base)
foreach(name llama mistral qwen2 qwen3 gemma3 gemma4-dense gemma4-ple gemma4-moe gemma4-moe-fp8 qwen3-moe qwen3-moe-fp8-block mixtral olmoe gpt-oss gpt-oss-mxfp4 deepseek-v3 glm4-moe qwen3_5-moe)
  set(tolerance 3e-2)
  if(name MATCHES "^gemma4")
    set(tolerance 8e-2)
  endif()
  add_test(NAME bf16_${name} COMMAND check_bf16 ${fixtures}/${name} ${tolerance})
  set_tests_properties(bf16_${name} PROPERTIES LABELS model TIMEOUT 900)
endforeach()

# The same fixtures rewritten as GGUF (tools/fixture_to_gguf.py).
foreach(name mistral qwen2 qwen3 gemma3 gemma4-dense)
  headrace_fixture(${name}_gguf ${HEADRACE_TEST_DATA}/${name}_fixture_bf16.gguf ${fixtures}/${name} 2e-4)
endforeach()
headrace_fixture(gemma4-ple_gguf ${HEADRACE_TEST_DATA}/gemma4-ple_fixture_bf16.gguf ${fixtures}/gemma4-ple 1e-3)

# Mixtures of experts as GGUF, in F32: the repository keeps the matrices in BF16, which is exact, and the record of llama.cpp the digest of the F32 file.
add_executable(check_llamacpp ${CMAKE_CURRENT_SOURCE_DIR}/model/check_llamacpp.c)
target_link_libraries(check_llamacpp PRIVATE model_support)

# headrace_moe_gguf(NAME FIXTURE TOLERANCE [record] [answers]): against llama.cpp, against the fixture's answers
function(headrace_moe_gguf name fixture tolerance)
  set(f32 ${CMAKE_CURRENT_BINARY_DIR}/${name}_f32.gguf)
  set(record)
  if("record" IN_LIST ARGN)
    set(record ${HEADRACE_TEST_DATA}/${name}_llamacpp.json)
    add_test(NAME llamacpp_${name} COMMAND check_llamacpp ${f32} ${record})
    set_tests_properties(llamacpp_${name} PROPERTIES LABELS model FIXTURES_REQUIRED f32_${name} TIMEOUT 900)
  endif()
  add_test(NAME f32_${name} COMMAND ${HEADRACE_PYTHON3} -B ${CMAKE_CURRENT_SOURCE_DIR}/model/gguf_as_f32.py ${HEADRACE_TEST_DATA}/${name}_fixture_bf16.gguf ${f32} ${record})
  set_tests_properties(f32_${name} PROPERTIES LABELS model FIXTURES_SETUP f32_${name})
  if("answers" IN_LIST ARGN)
    headrace_fixture(${name}_gguf ${f32} ${fixtures}/${fixture} ${tolerance})
    set_tests_properties(fixture_${name}_gguf PROPERTIES FIXTURES_REQUIRED f32_${name})
  endif()
endfunction()

foreach(name mixtral qwen3-moe olmoe glm4-moe deepseek-v3 gemma4-moe)
  headrace_moe_gguf(${name} ${name} 2e-4 record answers)
endforeach()
headrace_moe_gguf(qwen3_5-moe qwen3_5-moe 2e-3 record answers)
headrace_moe_gguf(gpt-oss gpt-oss 2e-4 answers)
headrace_moe_gguf(gpt-oss-whole gpt-oss 0 record)           # a ramp of YaRN that llama.cpp's rounding does not change
headrace_moe_gguf(deepseek-v3-unsplit deepseek-v3 2e-4 record answers)
headrace_moe_gguf(deepseek-v2 deepseek-v3 0 record)         # the second version, with the third's weights

# Experts in blocks, from file to product: against llama.cpp on the same numbers widened to F32 (and, where the blocks are the fixture's own, against its answers).
foreach(pair "gpt-oss-q4_0 gpt-oss_fixture_q4_0" "gpt-oss-q8_0 gpt-oss_fixture_q8_0" "olmoe-k olmoe-k_fixture_q4_k" "deepseek-v3-kv_b-q8_0 deepseek-v3_fixture_kv_b_q8_0")
  separate_arguments(pair)
  list(GET pair 0 name)
  list(GET pair 1 file)
  add_test(NAME llamacpp_${name} COMMAND check_llamacpp ${HEADRACE_TEST_DATA}/${file}.gguf ${HEADRACE_TEST_DATA}/${name}_llamacpp.json)
  set_tests_properties(llamacpp_${name} PROPERTIES LABELS model TIMEOUT 900)
endforeach()
# with BF16 activations, where no router flips
add_test(NAME llamacpp_olmoe-k_bf16 COMMAND check_llamacpp ${HEADRACE_TEST_DATA}/olmoe-k_fixture_q4_k.gguf ${HEADRACE_TEST_DATA}/olmoe-k_llamacpp.json bf16 0.1)
set_tests_properties(llamacpp_olmoe-k_bf16 PROPERTIES LABELS model TIMEOUT 900)
headrace_fixture(gpt-oss-mxfp4_gguf ${HEADRACE_TEST_DATA}/gpt-oss-mxfp4_fixture_bf16.gguf ${fixtures}/gpt-oss-mxfp4 2e-4)

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
foreach(pair "gemma4-moe_fixture_bf16 gemma4-moe" "qwen3_5-moe_fixture_bf16 qwen3_5-moe" "gpt-oss_fixture_q4_0 gpt-oss" "gpt-oss_fixture_q8_0 gpt-oss"
             "gpt-oss-mxfp4_fixture_bf16 gpt-oss-mxfp4" "olmoe-k_fixture_q4_k olmoe")
  separate_arguments(pair)
  list(GET pair 0 name)
  list(GET pair 1 of)
  add_test(NAME experts_${name}_gguf COMMAND check_experts ${HEADRACE_TEST_DATA}/${name}.gguf ${fixtures}/${of})
  set_tests_properties(experts_${name}_gguf PROPERTIES LABELS model TIMEOUT 1800)
endforeach()
foreach(name gemma4-moe gemma4-moe-fp8 qwen3-moe qwen3-moe-fp8-block mixtral olmoe gpt-oss gpt-oss-mxfp4 deepseek-v3 glm4-moe qwen3_5-moe)
  add_test(NAME experts_${name} COMMAND check_experts ${fixtures}/${name})
  set_tests_properties(experts_${name} PROPERTIES LABELS model TIMEOUT 1800)
endforeach()

# Clients on threads of their own over streamed experts.
add_executable(stream_clients ${CMAKE_CURRENT_SOURCE_DIR}/model/stream_clients.c)
target_link_libraries(stream_clients PRIVATE model_support)
foreach(name qwen3-moe gpt-oss-mxfp4)
  add_test(NAME stream_clients_${name} COMMAND stream_clients ${fixtures}/${name})
  set_tests_properties(stream_clients_${name} PROPERTIES LABELS model TIMEOUT 900)
endforeach()

# Whole models on a device whose memory the host cannot touch, against the processor.
add_executable(check_device ${CMAKE_CURRENT_SOURCE_DIR}/model/check_device.c)
target_link_libraries(check_device PRIVATE model_support test_posed hr_engine hr_vt_cpu hr_vt hr_base)
foreach(name gemma4-moe gemma4-moe-fp8 qwen3-moe qwen3-moe-fp8-block mixtral olmoe gpt-oss gpt-oss-mxfp4 deepseek-v3 glm4-moe qwen3_5-moe llama mistral qwen2 qwen3 gemma3 gemma4-dense gemma4-ple)
  add_test(NAME device_${name} COMMAND check_device ${fixtures}/${name} bits)
  set_tests_properties(device_${name} PROPERTIES LABELS model TIMEOUT 1800)
endforeach()
foreach(name gemma4-moe gemma4-moe-fp8 qwen3-moe mixtral gpt-oss-mxfp4 deepseek-v3 qwen3_5-moe llama gemma4-ple)
  add_test(NAME device_rows_${name} COMMAND check_device ${fixtures}/${name} rows)
  set_tests_properties(device_rows_${name} PROPERTIES LABELS model TIMEOUT 900)
endforeach()
add_executable(check_device_table ${CMAKE_CURRENT_SOURCE_DIR}/model/check_device_table.c)
target_link_libraries(check_device_table PRIVATE model_support test_posed hr_engine hr_vt_cpu hr_vt hr_base)
foreach(name gemma4-moe gemma4-moe-fp8 qwen3-moe qwen3-moe-fp8-block mixtral olmoe gpt-oss gpt-oss-mxfp4 deepseek-v3 glm4-moe qwen3_5-moe llama mistral qwen2 qwen3 gemma3 gemma4-dense gemma4-ple)
  add_test(NAME device_table_${name} COMMAND check_device_table ${fixtures}/${name})
  set_tests_properties(device_table_${name} PROPERTIES LABELS model TIMEOUT 900)
endforeach()
foreach(name qwen3-moe mixtral llama)
  add_test(NAME device_faults_${name} COMMAND check_device ${fixtures}/${name} faults)
  set_tests_properties(device_faults_${name} PROPERTIES LABELS model TIMEOUT 1800)
endforeach()
foreach(name gemma4-moe-fp8 gpt-oss-mxfp4 deepseek-v3 qwen3_5-moe gemma4-ple)
  add_test(NAME device_faults_${name} COMMAND check_device ${fixtures}/${name} faults)
  set_tests_properties(device_faults_${name} PROPERTIES LABELS soak TIMEOUT 3600)
endforeach()
add_test(NAME device_two COMMAND check_device ${fixtures}/gemma4-moe-fp8 two ${fixtures}/qwen3-moe)
set_tests_properties(device_two PROPERTIES LABELS model TIMEOUT 900)
