# SPDX-License-Identifier: Apache-2.0
# cmake --install: the binary, the shared library, its one header, and headrace.pc. The prefix is written into headrace.pc at install time, so that --prefix works.
include(GNUInstallDirs)
install(TARGETS headrace LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET headrace_bin)
  install(TARGETS headrace_bin RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${CMAKE_SOURCE_DIR}/include/headrace/headrace.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headrace)
install(CODE "
  set(PROJECT_VERSION ${PROJECT_VERSION})
  set(HEADRACE_PC_LIBDIR \"\\\${prefix}/${CMAKE_INSTALL_LIBDIR}\")
  set(HEADRACE_PC_INCLUDEDIR \"\\\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}\")
  configure_file(${CMAKE_SOURCE_DIR}/cmake/headrace.pc.in \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig/headrace.pc\" @ONLY)
")
