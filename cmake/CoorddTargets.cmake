# coordd_library(NAME SOURCES ... LIBS ...): a static library, linkable into libcoordd.so.
function(coordd_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/gen)
  target_link_libraries(${name} PUBLIC ${ARG_LIBS} PRIVATE ${ARG_PRIVATE_LIBS})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${name} PRIVATE -Wthread-safety)
  endif()
  coordd_precompiled(${name} library)
endfunction()

# coordd_program(NAME SOURCES ... LIBS ...): into build/bin and the installed bin.
function(coordd_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/gen)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
endfunction()

# coordd_test(NAME SOURCES ... LIBS ... [LABELS ...] [TIMEOUT seconds] [COST seconds]): one program per file of the tree that
# it mirrors; one ctest each. COST, under the address sanitizer, for what should start first.
function(coordd_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;COST" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/gen)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  # What is tested is as users get it; optimising the tests themselves takes a third of their compiler's time.
  target_compile_options(${name} PRIVATE -O0)
  coordd_precompiled(${name} test)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)  # against hangs only
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  # The folder is a label too, and tests_of_FOLDER a target: the thread sanitizer runs server's and worker's.
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(NOT TARGET tests_of_${folder})
    add_custom_target(tests_of_${folder})
  endif()
  add_dependencies(tests_of_${folder} ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS};${folder}")
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
endfunction()
