// Whether a worker fits those that will be in its generation.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/topology.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// An index over the workers of one job that are in, or will be in, one generation. Not thread-safe.
// Every check costs O(log n).
class Admission {
 public:
  // ALREADY_EXISTS: the worker id is in. FAILED_PRECONDITION, naming both workers and both values:
  // topology (see CheckTopology), a GPU that another worker has, another NCCL version among workers
  // that have GPUs, a rank that the launchers of two nodes have given. Versions of coordd may
  // differ: the protocol's is what must agree.
  absl::Status Check(const v1::Join& join) const;

  void Add(const v1::Join& join);     // REQUIRES: its worker id is not in
  void Remove(const v1::Join& join);  // nothing if its worker id is not in
  void Clear() { *this = Admission(); }
  bool Contains(const std::string& worker_id) const { return workers_.contains(worker_id); }
  size_t size() const { return workers_.size(); }

 private:
  struct Node {
    std::vector<std::string> labels;
    std::set<std::string> workers;
  };
  absl::Status CheckTopologyOf(const v1::Join& join) const;
  absl::Status CheckDevices(const v1::Join& join) const;
  absl::Status CheckRank(const v1::Join& join) const;

  std::set<std::string> workers_;
  // Who has a rank that a launcher has counted out, and may not share it with another node.
  struct Seat {
    std::string worker_id, node_id, hostname;
    int32_t local_size = 0;
  };
  std::map<int32_t, Seat> seats_;
  std::map<std::string, Node> nodes_;                          // by node id
  std::map<std::string, std::string> worker_of_device_;        // by UUID
  std::map<std::string, std::set<std::string>> nccl_workers_;  // by version: workers with GPUs
};

TopologyMember ToTopologyMember(const v1::Join& join);

}  // namespace coordd
