# Collectives on GPU memory. Always built: CUDA's driver and NCCL are opened at run time, and what is called of them is
# declared here. The kernels come as PTX, which the driver compiles.
# coordd_kernels_ptx(VARIABLE): a file of the caller's folder that has them.
function(coordd_kernels_ptx variable)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/device/kernels_ptx.cc)
  set(device ${CMAKE_SOURCE_DIR}/worker/device)
  add_custom_command(
    OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DIN=${device}/kernels.ptx -DOUT=${out} -P ${device}/embed_ptx.cmake
    DEPENDS ${device}/kernels.ptx ${device}/embed_ptx.cmake VERBATIM)
  set(${variable} ${out} PARENT_SCOPE)
endfunction()
coordd_kernels_ptx(kernels_ptx_cc)

coordd_library(coordd_gpu
  SOURCES device/cuda_api.cc device/device_handles.cc device/device_kernels.cc device/device_runtime.cc device/nvtx.cc device/pinned_pool.cc device/result_memory.cc ${kernels_ptx_cc}
          nccl/communicator_maker.cc nccl/device_agreement.cc nccl/device_claim.cc nccl/device_use.cc nccl/gpu_access.cc nccl/hierarchical_allreduce.cc nccl/hierarchical_plan.cc nccl/host_waits.cc nccl/kept_communicator.cc nccl/nccl_api.cc nccl/nccl_backend.cc nccl/nccl_calls.cc nccl/nccl_communicator.cc
          nccl/nccl_errors.cc nccl/nccl_gate.cc nccl/nccl_memory.cc nccl/nccl_runtime.cc nccl/nccl_watchdog.cc nccl/stream_calls.cc nccl/stream_memory.cc
  LIBS coordd_common coordd_common_io coordd_data_plane)
