# Headers that nearly every file includes, parsed once, which tools/test switches on. What users build stays without, as does what
# `tools/check` builds: there a file that forgets an include is an error. Here tools/tidy finds it: a header that is added below
# belongs into its list. The presets' CMAKE_UNITY_BUILD saves more: eight files of a target are compiled as one, so
# that names without linkage have to differ within a target.
option(COORDD_PRECOMPILE "Precompiled headers of libraries and tests" OFF)
if(NOT COORDD_PRECOMPILE)
  function(coordd_precompiled)
  endfunction()
  return()
endif()

# Equal for all that share them. Without a time inside, ccache can tell that they are the same.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(coordd_precompiled_options -pthread "SHELL:-Xclang -fno-pch-timestamp")
else()
  set(coordd_precompiled_options -pthread -fpch-preprocess)
endif()

set(headers
  <algorithm> <chrono> <functional> <map> <memory> <optional> <set> <string> <utility> <variant> <vector>
  <absl/container/flat_hash_map.h> <absl/functional/any_invocable.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
  <absl/strings/str_join.h> <absl/time/time.h> <absl/types/span.h>
  <google/protobuf/arena.h> <google/protobuf/generated_enum_reflection.h> <google/protobuf/generated_message_util.h>
  <google/protobuf/map.h> <google/protobuf/message.h> <google/protobuf/repeated_field.h>
  <google/protobuf/unknown_field_set.h>)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled/empty.cc CONTENT "int main() { return 0; }\n")

foreach(kind library busy cold)
  add_library(coordd_precompiled_${kind} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled/empty.cc)
  target_compile_options(coordd_precompiled_${kind} PRIVATE
    ${coordd_precompiled_options} $<$<STREQUAL:${kind},busy>:-O1> $<$<STREQUAL:${kind},cold>:-Os>)
  target_precompile_headers(coordd_precompiled_${kind} PRIVATE ${headers})
endforeach()

if(COORDD_BUILD_TESTS)
  add_executable(coordd_precompiled_test ${CMAKE_BINARY_DIR}/precompiled/empty.cc)
  target_link_libraries(coordd_precompiled_test PRIVATE GTest::gmock)
  target_compile_options(coordd_precompiled_test PRIVATE -O0 ${coordd_precompiled_options})
  if(NOT COORDD_SANITIZE)
    target_compile_options(coordd_precompiled_test PRIVATE -g0)
  endif()
  target_precompile_headers(coordd_precompiled_test PRIVATE ${headers} <gmock/gmock.h> <gtest/gtest.h>)
endif()

# coordd_precompiled(TARGET KIND): TARGET uses those of KIND: library, busy or cold (with -O1 or -Os, see coordd_library), or test.
set_property(GLOBAL PROPERTY coordd_precompiled_options "${coordd_precompiled_options}")
function(coordd_precompiled target kind)
  if(TARGET coordd_precompiled_${kind})
    get_property(options GLOBAL PROPERTY coordd_precompiled_options)
    target_compile_options(${target} PRIVATE ${options})
    target_precompile_headers(${target} REUSE_FROM coordd_precompiled_${kind})
  endif()
endfunction()
