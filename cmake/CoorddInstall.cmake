# `cmake --install BUILD --prefix P`: a prefix that works wherever it is moved to. Programs find libcoordd.so, and the
# libraries that tools/package puts beside it, relative to themselves.
include(CMakePackageConfigHelpers)

set(lib lib)  # not lib/ARCH: nothing here is meant for /usr

include(${CMAKE_CURRENT_LIST_DIR}/CoorddLooksIn.cmake)

set(programs "")
foreach(program coordd coordd-relay coordd-worker coordrun coordctl)
  if(TARGET ${program})
    list(APPEND programs ${program})
  endif()
endforeach()
if(programs)
  foreach(program ${programs})
    coordd_looks_in(${program} "$ORIGIN/../${lib}")
  endforeach()
  install(TARGETS ${programs} RUNTIME DESTINATION bin)
endif()
if(TARGET digits)
  coordd_looks_in(digits "$ORIGIN/../lib" "$ORIGIN/../../../../${lib}")  # in the build; installed
  install(TARGETS digits RUNTIME DESTINATION share/coordd/examples/digits)
  install(DIRECTORY client/examples/digits DESTINATION share/coordd/examples
          FILES_MATCHING PATTERN "*.cc" PATTERN "*.h" PATTERN "*.md" PATTERN "*.gz")
endif()

if(TARGET glm)
  coordd_looks_in(glm "$ORIGIN/../lib" "$ORIGIN/../../../../${lib}")  # in the build; installed
  install(TARGETS glm RUNTIME DESTINATION share/coordd/examples/glm)
  install(DIRECTORY client/examples/glm DESTINATION share/coordd/examples FILES_MATCHING PATTERN "*.cc" PATTERN "*.h")
endif()

# What the programs name in their help and their log, and what these pages name most.
install(FILES LICENSE docs/ALERTS.md docs/COORDRUN.md docs/METRICS.md docs/RUNBOOK.md docs/SECURITY.md DESTINATION share/coordd)
install(DIRECTORY deploy DESTINATION share/coordd OPTIONAL)
install(FILES client/c_api/coordd.h client/c_api/collectives.h client/c_api/comm.h client/c_api/leaving.h client/c_api/memory.h client/c_api/process_sets.h client/c_api/store.h client/cpp/comm.hpp client/cpp/coordd.hpp client/cpp/process_sets.hpp client/cpp/store.hpp client/cpp/tensors.hpp DESTINATION include/coordd)

if(TARGET coordd_tensorflow)
  coordd_looks_in(coordd_tensorflow "$ORIGIN")
  install(TARGETS coordd_tensorflow LIBRARY DESTINATION ${lib})
endif()

if(TARGET coordd_shared)
  set_target_properties(coordd_shared PROPERTIES EXPORT_NAME coordd)
  coordd_looks_in(coordd_shared "$ORIGIN")
  install(TARGETS coordd_shared EXPORT coorddTargets LIBRARY DESTINATION ${lib})
  install(EXPORT coorddTargets NAMESPACE coordd:: DESTINATION ${lib}/cmake/coordd)
  configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/templates/coorddConfig.cmake.in
                                ${CMAKE_BINARY_DIR}/coorddConfig.cmake INSTALL_DESTINATION ${lib}/cmake/coordd)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/coorddConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/coorddConfig.cmake ${CMAKE_BINARY_DIR}/coorddConfigVersion.cmake
          DESTINATION ${lib}/cmake/coordd)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/templates/coordd.pc.in ${CMAKE_BINARY_DIR}/coordd.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/coordd.pc DESTINATION ${lib}/pkgconfig)
endif()
