// What members of a node have to do with other nodes: the rules of node_plan.h beyond one node.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "worker/node/node_plan.h"

namespace coordd {
namespace {

constexpr int64_t kExchangedSizes[] = {0, 8, 64, 72, 1000, 8192, 40008};

// What a member shows at a time, in its buffer.
void CheckShownApart(StagedRanges ranges, int64_t buffer_bytes) {
  std::sort(ranges.begin(), ranges.end(),
            [](const StagedRange& a, const StagedRange& b) { return a.to_bytes < b.to_bytes; });
  int64_t end = 0;
  for (const StagedRange& range : ranges) {
    EXPECT_GE(range.to_bytes, end);
    end = range.to_bytes + range.size_bytes;
  }
  EXPECT_LE(end, buffer_bytes);
}

// Of an exchanged allgather or reducescatter: each part of a column's blocks is exchanged once, by
// the member whose column it is; what comes back is given to the node once, what is shown in
// staging lies apart, and a piece ends before the next one begins that has the same tag.
TEST(NodePlanExchange, EachPartOfAColumnIsExchangedOnce) {
  for (const CollectiveKind kind : {CollectiveKind::kAllgather, CollectiveKind::kReducescatter}) {
    const bool gathers = kind == CollectiveKind::kAllgather;
    for (int32_t members = 2; members <= 4; ++members) {
      for (int32_t nodes = 2; nodes <= 3; ++nodes) {
        for (const int64_t size : kExchangedSizes) {
          std::vector<int64_t> blocks;
          for (int32_t r = 0; r < nodes * members; ++r)
            blocks.push_back(r % 4 == 3 ? 0 : size + 8 * r);
          for (int32_t self = 0; self < members; ++self) {
            NodeCollective c{kind, members, self, 0, 0, {}, {}, {}, nodes, nodes - 1, 0};
            (gathers ? c.output_blocks : c.input_blocks) = blocks;
            for (const bool shared : {true, false}) {
              NodeMode mode = ExchangedMode(c, {4096, 128, 4096});
              mode.shared = shared;
              std::set<int64_t> begun, ended;
              int64_t given = 0, combined = 0, fetched = 0;
              for (int64_t step = 0; step < NodeSteps(c, mode); ++step) {
                for (const NodeOperation& op : OperationsOf(c, mode, step)) {
                  EXPECT_LE(op.size_bytes, mode.piece_bytes);
                  if (op.exchange == NodeExchange::kBegins) {
                    EXPECT_TRUE(begun.insert(op.piece).second);
                    EXPECT_TRUE(op.piece < kExchangeAhead ||
                                !begun.contains(op.piece - kExchangeAhead) ||
                                ended.contains(op.piece - kExchangeAhead));
                  } else if (op.exchange == NodeExchange::kEnds) {
                    EXPECT_TRUE(begun.contains(op.piece));
                    ended.insert(op.piece);
                    given += op.size_bytes;
                  } else if (op.combines) {
                    combined += op.size_bytes;
                  } else {
                    EXPECT_TRUE(op.from_result && op.from != self);
                    EXPECT_LE(op.staged_bytes + op.size_bytes, mode.buffer_bytes);
                    fetched += op.size_bytes;
                  }
                }
                CheckShownApart(StagedRangesOf(c, mode, step), mode.buffer_bytes);
              }
              EXPECT_EQ(begun, ended);
              int64_t all = 0, column = 0;
              for (int32_t r = 0; r < nodes * members; ++r) {
                all += blocks[static_cast<size_t>(r)];
                if (r % members == self) column += blocks[static_cast<size_t>(r)];
              }
              const int64_t own = blocks[static_cast<size_t>((nodes - 1) * members + self)];
              EXPECT_EQ(given, gathers ? column : own);
              EXPECT_EQ(combined, gathers ? 0 : column);
              EXPECT_EQ(fetched, gathers && !shared ? all - column : 0);
            }
          }
        }
      }
    }
  }
}

// Who has the same number on another node, which has more members, exchanges the same slices; those
// who carry nothing exchange none.
TEST(NodePlanExchange, CarriersOfDifferentNodesExchangeTheSameSlices) {
  for (const CollectiveKind kind : {CollectiveKind::kAllreduce, CollectiveKind::kBroadcast}) {
    for (int32_t carriers = 1; carriers <= 3; ++carriers) {
      for (const int64_t size : kExchangedSizes) {
        auto slices = [&](int32_t members, int32_t self) {
          NodeCollective c{kind, members, self, NodeCollective::kElsewhere, size, {}, {}, {}};
          c.carriers = carriers;
          const NodeMode mode = ExchangedMode(c, {4096, 128, 4096});
          std::vector<std::tuple<int64_t, int64_t, int64_t>> exchanged;
          for (int64_t step = 0; step < NodeSteps(c, mode); ++step) {
            for (const NodeOperation& op : OperationsOf(c, mode, step)) {
              if (op.exchange == NodeExchange::kBegins)
                exchanged.emplace_back(op.piece, op.from_bytes, op.size_bytes);
            }
          }
          return exchanged;
        };
        for (int32_t members = carriers; members <= 5; ++members) {
          for (int32_t self = 0; self < carriers; ++self)
            EXPECT_EQ(slices(members, self), slices(carriers, self));
          for (int32_t self = carriers; self < members; ++self)
            EXPECT_TRUE(slices(members, self).empty());
        }
      }
    }
  }
}

}  // namespace
}  // namespace coordd
