# SPDX-License-Identifier: Apache-2.0
# What several tests use: writers of files, temporary directories. load_probe needs the load layer and is a library of its own.
file(GLOB support_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/support/*.c)
list(FILTER support_sources EXCLUDE REGEX "/load_probe\\.c$")
add_library(test_support STATIC ${support_sources})
target_include_directories(test_support PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(test_support PUBLIC hr_base headrace_flags)
add_library(test_load_probe STATIC ${CMAKE_CURRENT_SOURCE_DIR}/support/load_probe.c)
target_include_directories(test_load_probe PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(test_load_probe PUBLIC hr_load)
