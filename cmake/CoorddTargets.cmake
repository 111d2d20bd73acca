# coordd_library(NAME SOURCES ... LIBS ... [BUSY] [PURE] [COLD]): a static library, linkable into libcoordd.so. BUSY: tests spend
# their time in it, so that under a sanitizer, where nothing else is optimised, it is (-O1 keeps every check and every frame of a
# stack). PURE: without threads, so that under the thread sanitizer nothing is gained by that. COLD: runs once, or seldom, and is
# optimised for size, which takes a quarter less of the compiler's time.
function(coordd_library name)
  cmake_parse_arguments(ARG "BUSY;PURE;COLD" "" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/tests/")
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)  # whoever links it builds it
  endif()
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/gen)
  target_link_libraries(${name} PUBLIC ${ARG_LIBS} PRIVATE ${ARG_PRIVATE_LIBS})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${name} PRIVATE -Wthread-safety)
  endif()
  if(ARG_COLD AND CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo" AND NOT CMAKE_CXX_FLAGS_RELWITHDEBINFO MATCHES "-O0")
    target_compile_options(${name} PRIVATE -Os)
    coordd_precompiled(${name} cold)
  elseif(ARG_BUSY AND (COORDD_SANITIZE MATCHES "address" OR (COORDD_SANITIZE AND NOT ARG_PURE)))
    target_compile_options(${name} PRIVATE -O1)
    coordd_precompiled(${name} busy)
  else()
    coordd_precompiled(${name} library)
  endif()
endfunction()

# coordd_program(NAME SOURCES ... LIBS ...): into build/bin and the installed bin.
function(coordd_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/gen)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
endfunction()

# The folder of a test is a label, too, and tests_of_FOLDER a target, without the pure ones: the thread sanitizer runs server's and
# worker's.
function(coordd_test_labels_ out program pure)
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(NOT TARGET tests_of_${folder})
    add_custom_target(tests_of_${folder})
  endif()
  set(labels ${ARGN} ${folder})
  if(pure)
    list(APPEND labels pure)
  else()
    add_dependencies(tests_of_${folder} ${program})
  endif()
  set(${out} ${labels} PARENT_SCOPE)
endfunction()

set(COORDD_TESTS_NOT_BUILT "" CACHE STRING "Names of test programs, and of folders of them, that `all` leaves out: a regular expression")

# For those whose tests somebody's ctest leaves out as well. What only they link is not built either (coordd_library).
function(coordd_leave_out_of_all_ name)
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(COORDD_TESTS_NOT_BUILT AND "${name};${folder}" MATCHES "(^|;)(${COORDD_TESTS_NOT_BUILT})(;|$)")
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# Against hangs only, in seconds: what takes seconds takes half a minute under a sanitizer on a quiet machine, minutes on a busy one.
set(coordd_hang_limit 120)
if(COORDD_SANITIZE)
  set(coordd_hang_limit 600)
endif()

function(coordd_test_program_ name)
  add_executable(${name} ${ARGN})
  coordd_leave_out_of_all_(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/gen)
  if(NOT COORDD_SANITIZE)
    target_compile_options(${name} PRIVATE -g0)
  endif()
  # What is tested is as users get it; optimising the tests themselves takes a third of their compiler's time. Lines matter where a
  # sanitizer prints stacks.
  target_compile_options(${name} PRIVATE -O0)
  coordd_precompiled(${name} test)
endfunction()

# coordd_test(NAME SOURCES ... LIBS ... [LABELS ...] [TIMEOUT seconds] [COST seconds] [PURE] [ALONE]): a program that is one test.
# COST: what takes long starts early, so that others run beside it. PURE: of code without threads, in which the thread sanitizer
# has nothing to find. ALONE: its threads spin for each other; beside other programs it takes several times as long, and so do they.
function(coordd_test name)
  cmake_parse_arguments(ARG "PURE;ALONE" "TIMEOUT;COST" "SOURCES;LIBS;LABELS" ${ARGN})
  coordd_test_program_(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT ${coordd_hang_limit})
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  coordd_test_labels_(labels ${name} "${ARG_PURE}" ${ARG_LABELS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${labels}")
  if(ARG_ALONE)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
endfunction()

# coordd_unit_tests(PROGRAM FILES [FOLDER/]NAME... LIBS ... [PREFIX p_] [PURE]): FOLDER/NAME_test.cc each, a file of the tree that it
# mirrors, are one program and a test of ctest each, p_NAME_test.
function(coordd_unit_tests program)
  cmake_parse_arguments(ARG "PURE" "PREFIX" "FILES;LIBS" ${ARGN})
  list(TRANSFORM ARG_FILES APPEND _test.cc OUTPUT_VARIABLE sources)
  coordd_test_program_(${program} ${sources} ${CMAKE_SOURCE_DIR}/tests/support/test_main.cc)
  target_link_libraries(${program} PRIVATE ${ARG_LIBS} GTest::gmock absl::strings)
  coordd_test_labels_(labels ${program} "${ARG_PURE}" unit)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    if(ARG_PREFIX AND NOT name MATCHES "^${ARG_PREFIX}")
      string(PREPEND name ${ARG_PREFIX})
    endif()
    add_test(NAME ${name} COMMAND ${program} --from=${source})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${coordd_hang_limit} LABELS "${labels}")
  endforeach()
endfunction()
