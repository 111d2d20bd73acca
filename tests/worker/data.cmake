# Tests of the data plane: kernels and schedules, then the conformance suites on every implementation.
add_library(coordd_data_plane_testing STATIC reference.cc)
target_include_directories(coordd_data_plane_testing PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(coordd_data_plane_testing PUBLIC coordd_data_plane)

# coordd_conformance_test(NAME SUITES collective_backend|transport ... SOURCES ...): the suites' own tests are compiled once.
add_library(coordd_collective_conformance OBJECT collective_backend_conformance.cc)
target_link_libraries(coordd_collective_conformance PUBLIC coordd_data_plane_testing GTest::gmock)

coordd_test(host_backend_in_process_test SOURCES host_backend_in_process_test.cc
  LIBS coordd_collective_conformance coordd_data_plane_testing)
coordd_test(loopback_backend_test SOURCES loopback_backend_test.cc
  LIBS coordd_collective_conformance coordd_data_plane_testing)
