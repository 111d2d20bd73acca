# Compiler cache, linker, warnings, sanitizers.
find_program(COORDD_CCACHE ccache)
if(COORDD_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${COORDD_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${COORDD_CCACHE})
endif()
find_program(COORDD_MOLD mold)
if(COORDD_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(-Wall -Wextra -Wno-unused-parameter)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc 12 reports maybe-uninitialized inside std::variant and absl::StatusOr under optimisation (gcc bugs 80635, 105562).
  add_compile_options(-Wno-maybe-uninitialized)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 18)
  # Names of templates with a condition, such as absl::Cord's constructors, as gcc 13 has them in the system's libraries.
  add_compile_options(-fclang-abi-compat=17)
endif()
# Line tables are enough for stacks; full debug information triples the size of gRPC objects.
string(REPLACE "-g" "-g1" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")

if(COORDD_SANITIZE)
  add_compile_options(-fsanitize=${COORDD_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${COORDD_SANITIZE})
endif()
