// The rules at the top of node_plan.h, for all members of every collective at once.
#include "worker/node/node_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

struct Access {
  int64_t begin, end;
  int32_t by;  // an operation's number; accesses of one operation may be the same memory
};

// Memory of a member. With `in_place`, input and output are one.
enum class Memory { kInput, kOutput, kResult };
using Place = std::pair<int32_t, Memory>;

// One collective, as all of its members see it.
struct World {
  CollectiveKind kind;
  int32_t members;
  int32_t root = 0;
  bool in_place = false;
  std::vector<int64_t> sizes;                // by member: input of gather and allgather
  std::vector<std::vector<int64_t>> blocks;  // alltoall: from, to
  std::vector<int64_t> offsets, columns;     // of the member asked for last
  int32_t carriers = 0;                      // of what is exchanged; 0: all
  NodeCollective Of(int32_t self) {
    NodeCollective c{kind, members, self, root, 0, {}, {}, {}};
    c.carriers = carriers;
    switch (kind) {
      case CollectiveKind::kAllreduce:
      case CollectiveKind::kReduce:
      case CollectiveKind::kBroadcast:
        c.size_bytes = sizes[0];
        break;
      case CollectiveKind::kReducescatter:
        c.input_blocks = sizes;
        break;
      case CollectiveKind::kGather:
        c.size_bytes = sizes[static_cast<size_t>(self)];
        if (self == root) c.output_blocks = sizes;
        break;
      case CollectiveKind::kAllgather:
        c.output_blocks = sizes;
        break;
      default:
        offsets.clear();
        columns.clear();
        for (const std::vector<int64_t>& row : blocks) {
          offsets.push_back(std::accumulate(row.begin(), row.begin() + self, int64_t{0}));
          columns.push_back(row[static_cast<size_t>(self)]);
        }
        c.input_blocks = blocks[static_cast<size_t>(self)];
        c.output_blocks = columns;
        c.block_offsets = offsets;
    }
    return c;
  }
  int64_t OutputBytes(int32_t member) const {
    const size_t m = static_cast<size_t>(member);
    switch (kind) {
      case CollectiveKind::kReduce:
        return member == root ? sizes[0] : 0;
      case CollectiveKind::kBroadcast:
        return member == root ? 0 : sizes[0];  // it has its own already
      case CollectiveKind::kReducescatter:
        return sizes[m];
      case CollectiveKind::kAllgather:
        return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
      case CollectiveKind::kGather:
        return member == root ? std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) : 0;
      case CollectiveKind::kAlltoall: {
        int64_t sum = 0;
        for (const std::vector<int64_t>& row : blocks) sum += row[m];
        return sum;
      }
      default:
        return sizes[0];
    }
  }
  // Where in the memory of its input, in place, a member's output begins.
  int64_t OutputOrigin(int32_t member) const {
    if (kind != CollectiveKind::kReducescatter) return 0;
    return std::accumulate(sizes.begin(), sizes.begin() + member, int64_t{0});
  }
  int64_t InputOrigin(int32_t member) const {
    if (kind != CollectiveKind::kAllgather && kind != CollectiveKind::kGather) return 0;
    return std::accumulate(sizes.begin(), sizes.begin() + member, int64_t{0});
  }
  std::string Describe() const {
    return absl::StrCat(Name(kind), " members ", members, " root ", root, " in place ", in_place,
                        " bytes ", sizes.empty() ? 0 : sizes[0]);
  }
};

class Checker {
 public:
  Checker(World& world, NodeMode mode) : world_(world), mode_(mode) {}

  void Run() {
    int64_t steps = 0;
    for (int32_t m = 0; m < world_.members; ++m) {
      const int64_t own = NodeSteps(world_.Of(m), mode_);
      if (m > 0) {
        EXPECT_EQ(own, steps);  // members count steps alike
      }
      steps = own;
    }
    for (int64_t step = 0; step < steps; ++step) RunStep(step);
    if (IsFree()) CheckApart(reads_, writes_);
    if (mode_.exchanged) {
      EXPECT_EQ(begun_, ended_) << world_.Describe();
    }
    for (int32_t m = 0; m < world_.members; ++m) CheckCovered(m);
  }

 private:
  using Accesses = std::map<Place, std::vector<Access>>;
  using Slice = std::tuple<int32_t, int64_t, int64_t, int64_t>;  // member, piece, begin, size

  // Members do not wait for each other between steps: whatever they do must be apart.
  bool IsFree() const { return mode_.shared && mode_.exchanged; }
  // What a member has first it has from another node.
  bool ComesFromElsewhere() const {
    return world_.kind == CollectiveKind::kBroadcast && world_.root == NodeCollective::kElsewhere;
  }

  void NoteExchange(const NodeOperation& op, int64_t step, int32_t self) {
    if (op.exchange == NodeExchange::kNone) return;
    const Slice slice{self, op.piece, op.from_bytes, op.size_bytes};
    EXPECT_LE(op.size_bytes, LargestSliceBytes(world_.Of(self), mode_));
    EXPECT_EQ(op.from_bytes, op.to_bytes);
    if (op.exchange == NodeExchange::kBegins) {
      EXPECT_EQ(op.piece, step);
      begun_.push_back(slice);
    } else if (op.exchange == NodeExchange::kEnds) {
      // Before the next piece begins that has the same tag.
      EXPECT_EQ(op.piece, step + 1 - kExchangeAhead);
      ended_.push_back(slice);
    }
    std::sort(begun_.begin(), begun_.end());
    std::sort(ended_.begin(), ended_.end());
  }

  void Note(Accesses& accesses, int32_t member, Memory memory, int64_t begin, int64_t size) {
    if (world_.in_place && memory != Memory::kResult) {
      const bool input = memory == Memory::kInput;
      begin += input ? world_.InputOrigin(member) : world_.OutputOrigin(member);
      memory = Memory::kOutput;
    }
    accesses[{member, memory}].push_back({begin, begin + size, number_});
  }

  void RunStep(int64_t step) {
    Accesses reads, writes;
    std::map<std::pair<int32_t, int64_t>, int64_t> made;  // (member, staged) -> size
    for (int32_t m = 0; m < world_.members; ++m) {
      for (const NodeOperation& op : OperationsOf(world_.Of(m), mode_, step)) {
        number_ = IsFree() ? m : number_ + 1;
        EXPECT_GT(op.size_bytes, 0);
        NoteExchange(op, step, m);
        const bool is_back = op.exchange == NodeExchange::kEnds;
        for (int32_t from = 0; from < world_.members; ++from) {
          const bool reads_it = !is_back && op.target != NodeTarget::kNowhere;
          if (reads_it && (op.combines || from == op.from)) NoteRead(op, step, m, from, reads);
        }
        for (int32_t to = 0; to < world_.members; ++to) {
          if (is_back && to == m && ComesFromElsewhere())
            written_[to].push_back({op.to_bytes, op.to_bytes + op.size_bytes, number_});
          if (!Writes(op, m, to) || (is_back && to == m)) continue;  // there it is
          // A block that is in its place already is not copied.
          const bool copy_of_self = world_.in_place && !op.combines && to == m && op.from == m &&
                                    !op.from_result && world_.kind != CollectiveKind::kBroadcast;
          if (!copy_of_self) Note(writes, to, Memory::kOutput, op.to_bytes, op.size_bytes);
          written_[to].push_back({op.to_bytes, op.to_bytes + op.size_bytes, number_});
        }
        if (op.target == NodeTarget::kOwnResult) made[{m, op.from_bytes}] = op.size_bytes;
      }
    }
    made_ = made;
    if (!IsFree()) return CheckApart(reads, writes);
    for (auto& [place, ranges] : reads)
      reads_[place].insert(reads_[place].end(), ranges.begin(), ranges.end());
    for (auto& [place, ranges] : writes)
      writes_[place].insert(writes_[place].end(), ranges.begin(), ranges.end());
  }

  void NoteRead(const NodeOperation& op, int64_t step, int32_t self, int32_t from,
                Accesses& reads) {
    if (op.from_result) {
      const auto slice = made_.find({from, op.from_bytes});
      ASSERT_TRUE(slice != made_.end()) << "reads what nobody has made in the step before";
      EXPECT_EQ(slice->second, op.size_bytes);
      // Where the member has an output, it may lie there.
      Note(reads, from, Memory::kOutput, op.from_bytes, op.size_bytes);
      return;
    }
    EXPECT_LT(step, mode_.pieces);
    Note(reads, from, Memory::kInput, op.from_bytes, op.size_bytes);
    if (mode_.shared || from == self) return;
    bool shown = false;
    for (const StagedRange& range : StagedRangesOf(world_.Of(from), mode_, step)) {
      shown |= range.from_bytes <= op.from_bytes &&
               op.from_bytes + op.size_bytes <= range.from_bytes + range.size_bytes &&
               op.from_bytes - range.from_bytes == op.staged_bytes - range.to_bytes;
    }
    EXPECT_TRUE(shown) << world_.Describe() << ": reads what member " << from
                       << " does not show in step " << step;
  }

  bool Writes(const NodeOperation& op, int32_t self, int32_t to) const {
    switch (op.target) {
      case NodeTarget::kOwnOutput:
        return to == self;
      case NodeTarget::kOwnResult:
        return to == self && world_.OutputBytes(self) > 0;
      case NodeTarget::kRootOutput:
        return to == world_.root;
      case NodeTarget::kEveryOutput:
        return true;
      case NodeTarget::kOthersOutput:
        return to != world_.root;
      case NodeTarget::kPartial:
      case NodeTarget::kSlice:
      case NodeTarget::kNowhere:
        return false;
    }
    return false;
  }

  void CheckApart(const Accesses& reads, const Accesses& writes) {
    for (const auto& [place, ranges] : writes) {
      for (const Access& write : ranges) {
        for (const Accesses* others : {&reads, &writes}) {
          const auto found = others->find(place);
          if (found == others->end()) continue;
          for (const Access& other : found->second) {
            if (other.by == write.by) continue;
            EXPECT_TRUE(other.end <= write.begin || write.end <= other.begin)
                << world_.Describe() << ": operations " << write.by << " and " << other.by
                << " meet in member " << place.first << " at " << other.begin;
          }
        }
      }
    }
  }

  void CheckCovered(int32_t member) {
    std::vector<Access>& ranges = written_[member];
    std::sort(ranges.begin(), ranges.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
    int64_t at = 0;
    for (const Access& range : ranges) {
      EXPECT_EQ(range.begin, at) << world_.Describe() << " member " << member;
      at = range.end;
    }
    EXPECT_EQ(at, world_.OutputBytes(member)) << world_.Describe() << " member " << member;
  }

  World& world_;
  const NodeMode mode_;
  int32_t number_ = 0;
  std::map<std::pair<int32_t, int64_t>, int64_t> made_;
  std::map<int32_t, std::vector<Access>> written_;
  std::vector<Slice> begun_, ended_;
  Accesses reads_, writes_;  // of all steps, where members are free
};

void CheckEveryMode(World world) {
  std::vector<bool> places = {false};
  if (world.kind != CollectiveKind::kAlltoall && world.kind != CollectiveKind::kBroadcast)
    places.push_back(true);
  for (const bool in_place : places) {
    world.in_place = in_place;
    Checker(world, NodeMode{}).Run();
    for (const int64_t buffer_bytes : {512, 4096}) {
      NodeMode staged = StagedMode(world.Of(0), {buffer_bytes, 128, 0});
      for (int32_t m = 0; m < world.members; ++m) {
        const int64_t largest = LargestBlockBytes(world.Of(m));
        staged.pieces =
            std::max(staged.pieces, (largest + staged.piece_bytes - 1) / staged.piece_bytes);
      }
      Checker(world, staged).Run();
      // Of all steps at once: many would take long.
      const bool broadcast = world.kind == CollectiveKind::kBroadcast;
      const bool rooted = broadcast || world.kind == CollectiveKind::kReduce;
      const bool exchanges = rooted || world.kind == CollectiveKind::kAllreduce;
      if (!exchanges || world.sizes[0] > 16 * buffer_bytes) continue;
      World elsewhere = world;
      elsewhere.root = NodeCollective::kElsewhere;
      const NodeStaging staging{buffer_bytes, 128, buffer_bytes};
      World some = world;
      for (some.carriers = 0; some.carriers < world.members; ++some.carriers) {
        NodeMode exchanged = ExchangedMode(some.Of(0), staging);
        if (some.carriers == 1) {
          EXPECT_EQ(exchanged.piece_bytes, ExchangedPieceBytes(world.sizes[0], staging));
        }
        elsewhere.carriers = some.carriers;
        for (const bool shared : {true, false}) {
          exchanged.shared = shared;
          Checker(some, exchanged).Run();
          if (rooted) Checker(elsewhere, exchanged).Run();
        }
      }
    }
  }
}

constexpr int64_t kSizes[] = {0, 8, 64, 72, 1000, 8192, 40008};

TEST(NodePlan, WholeBuffersKeepTheRules) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllreduce, CollectiveKind::kReduce, CollectiveKind::kBroadcast}) {
    for (int32_t members = 2; members <= 5; ++members) {
      for (const int64_t size : kSizes)
        CheckEveryMode({kind, members, members - 1, false, {size}, {}, {}, {}});
    }
  }
}

TEST(NodePlan, RaggedBlocksKeepTheRules) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllgather, CollectiveKind::kGather, CollectiveKind::kReducescatter}) {
    for (int32_t members = 2; members <= 5; ++members) {
      for (const int64_t size : kSizes) {
        std::vector<int64_t> sizes;
        for (int32_t m = 0; m < members; ++m) sizes.push_back(m % 3 == 1 ? 0 : size + 8 * m);
        CheckEveryMode({kind, members, members / 2, false, sizes, {}, {}, {}});
      }
    }
  }
}

TEST(NodePlan, BlocksForEachOtherKeepTheRules) {
  for (int32_t members = 2; members <= 5; ++members) {
    for (const int64_t size : kSizes) {
      World world{CollectiveKind::kAlltoall, members, 0, false, {}, {}, {}, {}};
      for (int32_t from = 0; from < members; ++from) {
        world.blocks.emplace_back();
        for (int32_t to = 0; to < members; ++to)
          world.blocks.back().push_back((from + to) % 4 == 3 ? 0 : size + 8 * from + 16 * to);
      }
      CheckEveryMode(world);
    }
  }
}

// Members of a staged broadcast, each as far as its waits let it come, in a random order.
TEST(NodePlan, ABroadcastShowsNoPieceWhereOneIsStillToBeRead) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int32_t members = 2 + round % 4;
    const int64_t size = static_cast<int64_t>(random() % 20000);
    World world{CollectiveKind::kBroadcast, members, round % members, false, {size}, {}, {}, {}};
    NodeMode mode = StagedMode(world.Of(0), {1024, 128, 0});
    EXPECT_GT(mode.shown, 2);
    mode.pieces = std::max<int64_t>(1, (size + mode.piece_bytes - 1) / mode.piece_bytes);
    std::vector<int64_t> shown(static_cast<size_t>(mode.shown), 0);  // by buffer: which piece
    std::vector<int64_t> reached(static_cast<size_t>(members), 0);
    int32_t ended = 0;
    for (int64_t turns = 0; ended < members; ++turns) {
      ASSERT_LT(turns, 100000) << "they wait for each other";
      const int32_t self = static_cast<int32_t>(random() % static_cast<uint32_t>(members));
      int64_t& step = reached[static_cast<size_t>(self)];
      if (step > mode.pieces) continue;
      const NodeWait wait = WaitBefore(world.Of(self), mode, step);
      bool waits = false;
      for (int32_t m = 0; m < members; ++m) {
        const bool awaited = wait.member == NodeWait::kAll || wait.member == m;
        waits |= awaited && reached[static_cast<size_t>(m)] < wait.reached;
      }
      if (waits) continue;
      if (step == mode.pieces) {
        ++ended;
      } else if (self != world.root) {
        EXPECT_EQ(shown[static_cast<size_t>(step % mode.shown)], step) << world.Describe();
      } else if (step + 1 < mode.pieces) {
        shown[static_cast<size_t>((step + 1) % mode.shown)] = step + 1;
      }
      ++step;
    }
  }
}

TEST(NodePlan, SlicesAreWholeCacheLinesThatDifferByOne) {
  for (int32_t members = 1; members <= 7; ++members) {
    int64_t at = 128;
    for (int32_t m = 0; m < members; ++m) {
      const ByteRange slice = NodeSliceOf(128, 128 + 64 * 100 + 24, m, members);
      EXPECT_EQ(slice.offset_bytes, at);
      EXPECT_EQ(slice.offset_bytes % 64, 0);
      EXPECT_GE(slice.size_bytes, 100 / members * 64);
      EXPECT_LE(slice.size_bytes, (100 / members + 1) * 64 + 24);
      at += slice.size_bytes;
    }
    EXPECT_EQ(at, 128 + 64 * 100 + 24);
  }
}

}  // namespace
}  // namespace coordd
