# The data plane: transports, schedules, kernels, backends. Owned by the executor thread of the runtime.
set(data_plane_sources
  algorithm_table.cc alltoall_run.cc arena_allocator.cc checking_backend.cc collective_args.cc collective_run.cc collective_schedule.cc copy_bytes.cc doorbell.cc fusion_layout.cc group_layout.cc
  host_backend.cc host_group.cc idle_wait.cc in_process_transport.cc leader_run.cc loopback_backend.cc memory_file.cc message_inbox.cc
  node_arena.cc node_board.cc node_files.cc node_inline.cc node_lane.cc node_mover.cc node_plan.cc node_run.cc pairwise_schedule.cc peer_addresses.cc
  peer_probe.cc peer_status.cc recursive_schedule.cc reduce_kernels.cc result_check.cc result_reference.cc ring_schedule.cc rooted_schedule.cc routed_transport.cc shm_channel.cc
  shm_handover.cc shm_ring.cc shm_segment.cc shm_transport.cc slice_exchange.cc tensor_values.cc transport.cc transport_factory.cc tree_schedule.cc unix_message.cc)
if(COORDD_HAVE_UCX)
  coordd_library(coordd_data_plane BUSY
    SOURCES ${data_plane_sources} network_interface.cc ucx_api.cc ucx_context.cc ucx_factory.cc ucx_log.cc ucx_message.cc ucx_peers.cc ucx_settings.cc ucx_transport.cc ucx_transport_receive.cc
    LIBS coordd_common)
  # Opened at run time (worker/ucx_api.h): only its headers are needed.
  target_include_directories(coordd_data_plane SYSTEM PRIVATE ${UCX_INCLUDE_DIRS})
else()
  coordd_library(coordd_data_plane BUSY SOURCES ${data_plane_sources} ucx_factory_absent.cc LIBS coordd_common)
endif()
# The loops over elements are written to be vectorised.
set_source_files_properties(reduce_kernels.cc PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off" SKIP_PRECOMPILE_HEADERS ON)
