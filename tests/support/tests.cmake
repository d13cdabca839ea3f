# SPDX-License-Identifier: Apache-2.0
# What several tests use: writers of files, temporary directories.
file(GLOB support_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/support/*.c)
add_library(test_support STATIC ${support_sources})
target_include_directories(test_support PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(test_support PUBLIC hr_base headrace_flags)
