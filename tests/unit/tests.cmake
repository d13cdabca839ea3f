# SPDX-License-Identifier: Apache-2.0
# Mirrors src/: one block a layer.
# load
foreach(name gguf gguf_hostile safetensors safetensors_hostile json_doc faults hparams bind)
  headrace_test(test_load_${name} unit hr_load test_support test_load_probe)
endforeach()
headrace_test(test_load_real unit hr_load)
set_tests_properties(test_load_real PROPERTIES LABELS real)
# base
foreach(test test_status test_alloc test_arena test_log test_threads test_os_file test_os_system test_config test_config_sources)
  headrace_test(${test} unit hr_base)
endforeach()
# vt
include(${CMAKE_CURRENT_SOURCE_DIR}/plugin/plugin.cmake)
foreach(test dtype tensor math op_check refusal dispatch plugin runtime)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/unit/test_vt_${test}.c)
    headrace_vt_test(test_vt_${test} unit)
  endif()
endforeach()
# model
headrace_test(test_model_rope unit hr_model hr_vt_cpu hr_vt hr_base)
headrace_test(test_model_open unit hr_model test_support hr_vt_cpu hr_vt hr_base)
# engine
foreach(test requests steps threads answers)
  headrace_test(test_engine_${test} unit hr_engine hr_vt_cpu hr_vt hr_base)
endforeach()
foreach(test plan plan_experts sample adjust stop)
  headrace_test(test_engine_${test} unit hr_engine hr_base)
endforeach()
# text
foreach(name bytes pattern gguf hostile json)
  if(TARGET hr_text AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/unit/test_text_${name}.c)
    headrace_test(test_text_${name} unit hr_text test_support)
  endif()
endforeach()
if(TARGET hr_text AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/unit/test_text_real.c)
  headrace_test(test_text_real unit hr_text test_support)
  set_tests_properties(test_text_real PROPERTIES LABELS real)
endif()
# moe
foreach(name policy store_stream store_device)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/unit/test_moe_${name}.c)
    headrace_test(test_moe_${name} unit hr_moe hr_load hr_vt_cpu hr_vt hr_base test_support)
  endif()
endforeach()
if(TARGET test_moe_store_stream)
  target_link_options(test_moe_store_stream PRIVATE -Wl,--wrap=pthread_create)
endif()
