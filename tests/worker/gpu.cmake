# Collectives on GPU memory, without a GPU: the fake libraries of tests/support/gpu are loaded instead of the vendors'.
coordd_test(nccl_backend_conformance_test SOURCES gpu/nccl/nccl_backend_conformance_test.cc
  LIBS coordd_collective_backend_conformance coordd_data_plane_testing coordd_fake_gpu TIMEOUT ${conformance_timeout} COST 100 ALONE)
if(COORDD_SANITIZE)
  target_compile_definitions(nccl_backend_conformance_test PRIVATE COORDD_SANITIZED_TEST=1)
endif()
coordd_unit_tests(gpu_tests LIBS coordd_worker_runtime coordd_data_plane_testing coordd_fake_gpu
  FILES gpu/cuda/device_runtime gpu/plane/device_plane_parts gpu/plane/device_progress gpu/plane/device_tensors gpu/nccl/captured_calls gpu/plane/nccl_tensors gpu/cuda/nvtx gpu/cuda/result_memory gpu/nccl/communicator_maker gpu/nccl/communicator_name gpu/nccl/communicator_direct gpu/nccl/communicator_shrink gpu/nccl/device_claim gpu/plane/device_use gpu/nccl/hierarchical_allreduce gpu/nccl/hierarchical_plan gpu/nccl/nccl_api gpu/nccl/nccl_backend gpu/nccl/nccl_backend_parts gpu/nccl/nccl_operator gpu/nccl/nccl_route gpu/nccl/nccl_watchdog gpu/nccl/nccl_wishes gpu/nccl/program_allocations gpu/nccl/program_memory gpu/nccl/program_windows gpu/plane/window_claim gpu/plane/device_registrations gpu/plane/memory_meetings gpu/plane/device_memory gpu/nvml/gpu_watch)
coordd_test(device_kernels_test SOURCES gpu/cuda/device_kernels_test.cc LIBS coordd_data_plane_testing coordd_fake_gpu)
# Of its own: what graphs may refer to stays to the end of the process, and others count what is left.
# Not under the thread sanitizer, which takes threads that stay inside of NCCL for leaks, and a look at what is held for a race.
if(NOT COORDD_SANITIZE MATCHES "thread")
  coordd_test(device_graphs_test SOURCES gpu/plane/device_graphs_test.cc
    LIBS coordd_worker_runtime coordd_data_plane_testing coordd_fake_gpu)
endif()
include(gpu_matrix.cmake)
add_test(NAME kernels_ptx_is_of_its_source COMMAND ${CMAKE_SOURCE_DIR}/tools/make-kernels --check-digest)
set_tests_properties(kernels_ptx_is_of_its_source PROPERTIES LABELS "unit;worker" TIMEOUT 60)

# Our declarations beside the vendors', where they are: what compiles has passed.
if(CUDA_INCLUDE_DIR)
  coordd_test(cuda_abi_test SOURCES gpu/cuda/cuda_abi_test.cc LIBS coordd_gpu)
  target_include_directories(cuda_abi_test SYSTEM PRIVATE ${CUDA_INCLUDE_DIR})
endif()
# CUDA's own conversions, which run on the host too; the headers of CUDA 11 had no float8.
if(CUDA_INCLUDE_DIR AND EXISTS ${CUDA_INCLUDE_DIR}/cuda_fp8.h)
  coordd_test(float8_cuda_test SOURCES gpu/cuda/float8_cuda_test.cc LIBS coordd_gpu)
  target_include_directories(float8_cuda_test SYSTEM PRIVATE ${CUDA_INCLUDE_DIR})
endif()
if(CUDA_INCLUDE_DIR AND EXISTS ${CUDA_INCLUDE_DIR}/nvtx3/nvToolsExt.h)
  coordd_test(nvtx_abi_test SOURCES gpu/cuda/nvtx_abi_test.cc LIBS coordd_gpu)
  target_include_directories(nvtx_abi_test SYSTEM PRIVATE ${CUDA_INCLUDE_DIR})
endif()
if(CUDA_INCLUDE_DIR AND NCCL_INCLUDE_DIR)
  coordd_test(nccl_abi_test SOURCES gpu/nccl/nccl_abi_test.cc LIBS coordd_gpu)
  target_include_directories(nccl_abi_test SYSTEM PRIVATE ${CUDA_INCLUDE_DIR} ${NCCL_INCLUDE_DIR})
endif()
# In CUDA's headers, or of a package of its own (NVML_INCLUDE_DIR).
find_path(NVML_INCLUDE_DIR nvml.h HINTS ${CUDA_INCLUDE_DIR})
mark_as_advanced(NVML_INCLUDE_DIR)
if(NVML_INCLUDE_DIR)
  coordd_test(nvml_abi_test SOURCES gpu/nvml/nvml_abi_test.cc LIBS coordd_gpu)
  target_include_directories(nvml_abi_test SYSTEM PRIVATE ${NVML_INCLUDE_DIR})
endif()
