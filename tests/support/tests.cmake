# SPDX-License-Identifier: Apache-2.0
# What several tests use: writers of files, temporary directories. load_probe needs the load layer, posed_device the tensor runtime: libraries of their own.
file(GLOB support_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/support/*.c)
list(FILTER support_sources EXCLUDE REGEX "/(load_probe|posed_device)\\.c$")
add_library(test_support STATIC ${support_sources})
target_include_directories(test_support PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(test_support PUBLIC hr_base headrace_flags)
add_library(test_load_probe STATIC ${CMAKE_CURRENT_SOURCE_DIR}/support/load_probe.c)
target_include_directories(test_load_probe PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(test_load_probe PUBLIC hr_load)
add_library(test_posed STATIC ${CMAKE_CURRENT_SOURCE_DIR}/support/posed_device.c)
target_include_directories(test_posed PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(test_posed PUBLIC hr_vt_cpu hr_vt hr_base headrace_flags)
target_link_options(test_posed INTERFACE -Wl,--wrap=vt_runtime_create)
