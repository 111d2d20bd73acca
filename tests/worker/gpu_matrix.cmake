# What runs over NCCL, over a stand-in of each version (tests/support/gpu): 2.28.9 is the one of all other tests. In a name here
# 2.21.5 is 22105. Not under sanitizers, which look at our code and not at what a version of NCCL lacks.
if(NOT COORDD_SANITIZE)
  foreach(number ${COORDD_FAKE_NCCL_MATRIX})
    foreach(test gpu_tests nccl_backend_conformance_test device_graphs_test)
      set(name ${test}_nccl_${number})
      add_test(NAME ${name} COMMAND ${test})
      set_tests_properties(${name} PROPERTIES LABELS "nccl_matrix;worker" TIMEOUT 300 COST 60
        ENVIRONMENT "COORDD_TEST_FAKE_NCCL=$<TARGET_FILE:fake_nccl_${number}>")
    endforeach()
  endforeach()
endif()
