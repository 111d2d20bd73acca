// Over what a rank reaches the others of its generation, for coordd and for people.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"
#include "coordd/v1/types.pb.h"

namespace coordd {

// What people are told; the words of COORDD_TRANSPORT.
inline constexpr absl::string_view kOverMapped = "mapped";
inline constexpr absl::string_view kOverShm = "shm";
// Over TCP with several connections " x4" is behind it.
inline constexpr absl::string_view kOverTcp = "tcp";
inline constexpr absl::string_view kOverTcpEncrypted = "tcp encrypted";
inline constexpr absl::string_view kOverUcx = "ucx";
inline constexpr absl::string_view kOverUcxRdma = "ucx rdma";

// Thread-safe; of one generation.
class EdgeReport {
 public:
  // The ranks of this rank's node are reached over this.
  void NoteNode(absl::string_view over);
  // A rank of another node is; once for each.
  void NoteRank(Rank rank, absl::string_view over);

  // What coordd is to be told, within the bounds of the protocol, unless that is what `told` stands
  // for; then it stands for this. 0: nothing. nullopt: nothing new.
  std::optional<v1::HostEdges> EdgesBeyond(int64_t* told);

 private:
  struct Group {
    int32_t ranks = 0;
    std::set<int32_t> first_ranks;  // at most kMaxEdgeRanks
  };

  // Guarded by mu_.
  Mutex mu_;
  std::string within_node_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Group> between_nodes_ ABSL_GUARDED_BY(mu_);
  int64_t version_ ABSL_GUARDED_BY(mu_) = 0;  // grows with each change
};

}  // namespace coordd
