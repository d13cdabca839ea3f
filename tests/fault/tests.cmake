# SPDX-License-Identifier: Apache-2.0
# base
headrace_test(fault_base fault hr_base)
# engine
headrace_test(fault_engine fault hr_engine hr_vt_cpu hr_vt hr_base)
# experts that cannot be read
add_executable(fault_experts ${CMAKE_CURRENT_SOURCE_DIR}/fault/fault_experts.c)
target_link_libraries(fault_experts PRIVATE model_support test_posed test_read_faults hr_engine hr_model hr_moe hr_vt_cpu hr_vt hr_base)
foreach(name qwen3-moe gpt-oss-mxfp4 qwen3_5-moe deepseek-v3)
  add_test(NAME fault_experts_${name} COMMAND fault_experts ${CMAKE_CURRENT_SOURCE_DIR}/fixtures/${name})
  set_tests_properties(fault_experts_${name} PROPERTIES LABELS fault TIMEOUT 900)
endforeach()
add_executable(fault_limits ${CMAKE_CURRENT_SOURCE_DIR}/fault/fault_limits.c)
target_link_libraries(fault_limits PRIVATE model_support hr_engine hr_vt_cpu hr_vt hr_base)
foreach(limit eperm enosys descriptors)
  add_test(NAME fault_limits_${limit} COMMAND fault_limits ${CMAKE_CURRENT_SOURCE_DIR}/fixtures/qwen3-moe ${limit})
  set_tests_properties(fault_limits_${limit} PROPERTIES LABELS fault SKIP_RETURN_CODE 77 TIMEOUT 300)
endforeach()
