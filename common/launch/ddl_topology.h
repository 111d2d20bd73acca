// What IBM's DDL calls a topology: workers of a host, hosts of a rack, racks of an aisle, aisles.
// ddlrun has it as flags, and hands it to its processes in DDL_OPTIONS and DDL_HOST_LIST. PURE
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/launch/host_list.h"

namespace coordd {

struct DdlShape {
  // 0: not said.
  int32_t accelerators = 0;  // of a host, each with a worker
  int32_t nodes = 0;         // hosts of a rack
  int32_t racks = 0;         // of an aisle
  int32_t aisles = 0;
  bool said() const { return accelerators > 0 || nodes > 0 || racks > 0 || aisles > 0; }
  friend bool operator==(const DdlShape&, const DdlShape&) = default;
};

// A mode of DDL: "p:6x2x1x1", "b:4x2" (one rack in one aisle), "p" (no shape). The letters name an
// algorithm of DDL's, which is of no meaning here. INVALID_ARGUMENT points at the column.
absl::StatusOr<DdlShape> ParseDdlMode(absl::string_view text);

// The mode in DDL_OPTIONS, "-mode p:6x2x1x1 -dbg_level 2"; empty: there is none.
std::string DdlModeIn(absl::string_view options);

struct DdlHost {
  std::string host;
  std::vector<int32_t> ranks;
  friend bool operator==(const DdlHost&, const DdlHost&) = default;
};

// Reads DDL_HOST_LIST: "h1:0,2,4;h2:1,3,5", hosts in the order of racks. INVALID_ARGUMENT: points
// at the column, or names the rank that is missing or there twice.
absl::StatusOr<std::vector<DdlHost>> ParseDdlHostList(absl::string_view text);

// `shape` for so many hosts: one aisle and one rack where it does not say more, and as many nodes
// as the hosts make. INVALID_ARGUMENT: the hosts do not fill it.
absl::StatusOr<DdlShape> FillDdlShape(DdlShape shape, size_t hosts);

// "6x2x1x1"; with '?' for what is not said.
std::string DdlShapeText(const DdlShape& shape);

// The topology labels of the host at this position: {"aisle1", "rack2"}, numbers from 1 and of one
// width, without a level that has only one. REQUIRES: FillDdlShape has given `shape`.
std::vector<std::string> DdlLabels(const DdlShape& shape, size_t position);

// The labels of the host of `rank`, a process of ddlrun's, by its variables. INVALID_ARGUMENT: they
// do not fit together.
absl::StatusOr<std::vector<std::string>> DdlLabelsOfRank(absl::string_view ddl_options,
                                                         absl::string_view ddl_host_list,
                                                         int32_t rank);

}  // namespace coordd
