# Turns the kernels' PTX into a C++ string: cmake -DIN=kernels.ptx -DOUT=kernels_ptx.cc -P embed_ptx.cmake
file(READ ${IN} ptx)
string(FIND "${ptx}" ")coordd_ptx\"" clash)
if(NOT clash EQUAL -1)
  message(FATAL_ERROR "${IN} holds the delimiter of its own literal")
endif()
file(WRITE ${OUT} "#include \"worker/gpu/cuda/device_kernels.h\"\n\nnamespace coordd {\nconst char kDeviceKernelsPtx[] = R\"coordd_ptx(${ptx})coordd_ptx\";\n}\n")
