# Tests of the data plane: kernels and schedules, then the conformance suites on every implementation.
add_library(coordd_data_plane_testing STATIC support/in_process_transport.cc support/reference.cc)
target_include_directories(coordd_data_plane_testing PUBLIC ${CMAKE_SOURCE_DIR})
# The fusion layout belongs to what packs, which is above the data plane.
target_link_libraries(coordd_data_plane_testing PUBLIC coordd_worker_execute coordd_data_plane)

set(collective_backend_more support/collective_again_conformance.cc support/collective_groups_conformance.cc)
# Compiled once, linked into the test of every implementation, which instantiates the suites.
foreach(suite collective_backend transport)
  add_library(coordd_${suite}_conformance OBJECT support/${suite}_conformance.cc ${${suite}_more})
  target_link_libraries(coordd_${suite}_conformance PUBLIC coordd_data_plane_testing GTest::gmock)
endforeach()
# They compare gigabytes element by element: minutes of CI in an unoptimised build.
set_source_files_properties(support/reference.cc support/collective_again_conformance.cc support/collective_backend_conformance.cc support/collective_groups_conformance.cc support/transport_conformance.cc host/large_tensor_test.cc
  PROPERTIES COMPILE_OPTIONS "-O3" SKIP_PRECOMPILE_HEADERS ON)
# Under a sanitizer these take minutes, one byte at a time, unless their loops are optimised, as what is tested is there (BUSY).
if(COORDD_SANITIZE)
  set_source_files_properties(support/in_process_transport.cc host/between_nodes_test.cc node/node_run_test.cc algorithms/slice_exchange_test.cc
    PROPERTIES COMPILE_OPTIONS "-O1" SKIP_PRECOMPILE_HEADERS ON)
endif()
# Against hangs only: half a minute on a quiet machine, minutes under a sanitizer on a busy one.
set(conformance_timeout 900)
set(both_suites coordd_collective_backend_conformance coordd_transport_conformance coordd_data_plane_testing)

coordd_unit_tests(data_plane_pure_tests LIBS coordd_data_plane_testing PURE FILES execute/data_layout numeric/float8 numeric/half transport/ucx/message_inbox transport/peers/peer_watch numeric/reduce_kernels host/host_choice host/result_reference algorithms/collective_run algorithms/dimension_schedule algorithms/schedule)
coordd_unit_tests(data_plane_tests LIBS coordd_data_plane_testing
  FILES host/between_nodes interfaces/alarm transport/agreed_transport interfaces/doorbell interfaces/edge_report host/host_backend_again host/host_backend_bell host/host_group host/host_lane interfaces/idle_wait node/node_arena node/node_call node/node_files node/node_lane node/node_plan node/node_plan_exchange node/node_run node/node_run_parts transport/peers/peer_probe transport/shm/shm_channel handover/shm_handover algorithms/slice_exchange)

coordd_test(host_backend_in_process_test SOURCES host/host_backend_in_process_test.cc
  LIBS coordd_collective_backend_conformance coordd_data_plane_testing TIMEOUT ${conformance_timeout} COST 90 ALONE)
coordd_test(checking_backend_test SOURCES host/checking_backend_test.cc LIBS coordd_data_plane_testing GTest::gmock)
coordd_test(loopback_backend_test SOURCES host/loopback_backend_test.cc
  LIBS coordd_collective_backend_conformance coordd_data_plane_testing)
coordd_test(in_process_transport_test SOURCES transport/in_process_transport_test.cc
  LIBS coordd_transport_conformance coordd_data_plane_testing TIMEOUT ${conformance_timeout})
coordd_test(shm_transport_test SOURCES transport/shm/shm_transport_test.cc LIBS ${both_suites} TIMEOUT ${conformance_timeout} COST 40 ALONE)
# 4.3 GiB of memory and some seconds: its own label, so that it can be left out.
coordd_test(large_tensor_test SOURCES host/large_tensor_test.cc LIBS coordd_data_plane_testing LABELS large TIMEOUT ${conformance_timeout})
coordd_test(tcp_transport_test SOURCES transport/tcp/tcp_transport_test.cc LIBS ${both_suites} TIMEOUT ${conformance_timeout} COST 120 ALONE)
coordd_unit_tests(tcp_pure_tests LIBS coordd_data_plane_testing PURE FILES transport/tcp/message_link transport/tcp/unspoken_ends)
coordd_unit_tests(tcp_tests LIBS coordd_data_plane_testing OpenSSL::SSL FILES transport/tcp/tls_handshake transport/tcp/tcp_listener transport/tcp/tcp_record transport/tcp/tcp_connections transport/tcp/tcp_rank transport/tcp/tcp_strangers transport/tcp/tcp_traffic)
if(COORDD_HAVE_UCX)
  coordd_test(ucx_transport_test SOURCES transport/ucx/ucx_transport_test.cc LIBS ${both_suites} TIMEOUT ${conformance_timeout} COST 80 ALONE)
  coordd_unit_tests(ucx_pure_tests LIBS coordd_data_plane_testing PURE FILES transport/ucx/ucx_settings)
  coordd_test(ucx_killed_peer_test SOURCES transport/ucx/ucx_killed_peer_test.cc LIBS coordd_data_plane_testing TIMEOUT ${conformance_timeout} COST 30)
endif()
