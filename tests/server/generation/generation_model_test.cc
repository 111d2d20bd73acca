// GenerationState beside a naive model: process sets, joins, pairs, requests, under thousands of
// random steps. What it plans and fails, for whom and in which order, must be what the model says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "server/generation/generation_state.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using RankNumbers = std::set<int32_t>;
using Lines = std::vector<std::string>;

// What a rank submits, reduced to what the model looks at.
struct Report {
  std::string name;
  CollectiveKind kind = CollectiveKind::kAllreduce;
  int64_t extent = 1;
  int32_t root = 0;
  int32_t peer = 0;
  bool operator==(const Report&) const = default;
};

// What must happen, written down with the plainest containers. No groups, no stalls.
//   "fail 3/grad 0,2"   tensor grad of set 3 fails, ranks 0 and 2 hear of it
//   "plan 3/grad"       it is planned; "plan 3/grad*" with its spec, for a rank that has joined
//   "plan 0/join 1"     the join ends, rank 1 was the last
//   "set 3 = 0,2"       told to all ranks; "pair 3 = 0,2" to those two; "end 3"; "refused 0,1"
class NaiveGeneration {
 public:
  explicit NaiveGeneration(int32_t size) : size_(size) {
    for (int32_t rank = 0; rank < size; ++rank) sets_[0].members.insert(rank);
  }

  void Submit(int32_t rank, int32_t number, const Report& report, Lines& lines) {
    int32_t id = number;
    if (IsPairwise(report.kind)) {
      if (number != 0 || report.peer == rank || report.peer < 0 || report.peer >= size_) {
        lines.push_back(Failure(number, report.name, {rank}));
        return;
      }
      id = PairOf(rank, report.peer);
    } else if (!sets_.contains(number) || sets_[number].is_pair ||
               !sets_[number].members.contains(rank)) {
      lines.push_back(Failure(number, report.name, {rank}));
      return;
    }
    Set& set = sets_[id];
    if (Owed(set, rank, report.name)) {
      lines.push_back(Failure(number, report.name, {rank}));
      return;
    }
    Tensor* tensor = Find(set, report.name);
    const bool root_is_out = HasRoot(report.kind) && !set.members.contains(report.root);
    if (tensor == nullptr && (joined_.contains(rank) || root_is_out)) {
      lines.push_back(Failure(number, report.name, {rank}));
      RankNumbers owed = set.members;
      owed.erase(rank);
      Owe(set, report.name, owed);
      return;
    }
    if (tensor == nullptr) {
      set.pending.push_back({report, rank, {}});
      tensor = &set.pending.back();
    }
    const bool again = !tensor->in.insert(rank).second;
    if (again || joined_.contains(rank) || root_is_out || !Agree(*tensor, rank, report)) {
      Fail(id, *tensor, lines);
      if (again) lines.push_back(Failure(number, report.name, {rank}));
      return;
    }
    Settle(id, *tensor, lines);
  }

  void Withdraw(int32_t rank, int32_t number, const std::string& name, Lines& lines) {
    if (!sets_.contains(number) || !sets_[number].members.contains(rank)) return;
    if (number == 0 && name == "join" && joined_.contains(rank)) {
      FailJoin(lines);
      return;
    }
    for (auto& [id, set] : sets_) {
      if (id != number && !(number == 0 && set.is_pair)) continue;
      Tensor* tensor = Find(set, name);
      if (tensor != nullptr && tensor->in.contains(rank)) Fail(id, *tensor, lines);
    }
  }

  void Join(int32_t rank, Lines& lines) {
    for (RankNumbers& owed : owed_join_) {
      if (owed.erase(rank) == 0) continue;
      lines.push_back(Failure(0, "join", {rank}));
      return;
    }
    if (joined_.contains(rank)) {
      FailJoin(lines);
      lines.push_back(Failure(0, "join", {rank}));
      return;
    }
    joined_.insert(rank);
    for (auto& [id, set] : sets_) {
      if (!set.members.contains(rank)) continue;
      for (auto& [name, owed] : set.owed) {
        for (RankNumbers& ranks : owed) ranks.erase(rank);
      }
      std::vector<std::string> names;
      for (const Tensor& tensor : set.pending) {
        if (!tensor.in.contains(rank)) names.push_back(tensor.report.name);
      }
      for (const std::string& name : names) Settle(id, *Find(set, name), lines);
    }
    if (static_cast<int32_t>(joined_.size()) < size_) return;
    EndTurn(lines);
    joined_.clear();
    lines.push_back(absl::StrCat("plan 0/join ", rank));
  }

  // As if all ranks asked at once.
  void Add(const RankNumbers& ranks, Lines& lines) {
    if (RefuseForJoined(lines)) return;
    bool exists = ranks.empty();
    for (const auto& [id, set] : sets_) exists = exists || (!set.is_pair && set.members == ranks);
    if (exists) {
      lines.push_back(absl::StrCat("refused ", absl::StrJoin(sets_[0].members, ",")));
      return;
    }
    sets_[++last_id_].members = ranks;
    lines.push_back(absl::StrCat("set ", last_id_, " = ", absl::StrJoin(ranks, ",")));
  }
  void Remove(int32_t id, Lines& lines) {
    if (RefuseForJoined(lines)) return;
    const bool can =
        id != 0 && sets_.contains(id) && !sets_[id].is_pair && sets_[id].pending.empty();
    if (can) {
      lines.insert(lines.end(), sets_[id].ready.begin(), sets_[id].ready.end());
      sets_.erase(id);
    }
    lines.push_back(can ? absl::StrCat("end ", id)
                        : absl::StrCat("refused ", absl::StrJoin(sets_[0].members, ",")));
  }

  const RankNumbers& joined() const { return joined_; }

  // What waited for the end of the turn: plans by set.
  void EndTurn(Lines& lines) {
    for (auto& [id, set] : sets_) {
      if (!set.ready.empty() && set.is_pair && !set.announced) {
        lines.push_back(absl::StrCat("pair ", id, " = ", absl::StrJoin(set.members, ",")));
        set.announced = true;
      }
      lines.insert(lines.end(), set.ready.begin(), set.ready.end());
      set.ready.clear();
    }
  }

  int64_t pending() const {
    int64_t count = 0;
    for (const auto& [id, set] : sets_) count += static_cast<int64_t>(set.pending.size());
    return count;
  }

 private:
  // The first to ask hears of it together with those who have joined, the others one by one.
  bool RefuseForJoined(Lines& lines) const {
    if (joined_.empty()) return false;
    RankNumbers first = joined_;
    for (int32_t rank = 0; rank < size_; ++rank) {
      if (joined_.contains(rank)) continue;
      const bool alone = first.empty();
      first.insert(rank);
      lines.push_back(
          absl::StrCat("refused ", alone ? absl::StrCat(rank) : absl::StrJoin(first, ",")));
      first.clear();
    }
    return true;
  }

  struct Tensor {
    Report report;  // the first rank's
    int32_t first_rank;
    RankNumbers in;
  };
  struct Set {
    RankNumbers members;
    bool is_pair = false;
    bool announced = false;
    std::deque<Tensor> pending;  // oldest first
    std::map<std::string, std::deque<RankNumbers>> owed;
    Lines ready;
  };

  static std::string Failure(int32_t number, const std::string& name, const RankNumbers& ranks) {
    return absl::StrCat("fail ", number, "/", name, " ", absl::StrJoin(ranks, ","));
  }
  static bool Agree(const Tensor& first, int32_t rank, const Report& second) {
    if (!IsPairwise(second.kind) || rank == first.first_rank) return first.report == second;
    return first.report.kind != second.kind && first.report.extent == second.extent;
  }
  static Tensor* Find(Set& set, const std::string& name) {
    for (Tensor& tensor : set.pending) {
      if (tensor.report.name == name) return &tensor;
    }
    return nullptr;
  }
  static void Owe(RankNumbers owed, std::deque<RankNumbers>& to) {
    std::erase_if(to, [](const RankNumbers& ranks) { return ranks.empty(); });
    if (owed.empty()) return;
    if (to.size() == Tombstones::kMaxPerName) to.pop_front();
    to.push_back(std::move(owed));
  }
  void Owe(Set& set, const std::string& name, RankNumbers owed) {
    for (int32_t rank : joined_) owed.erase(rank);
    Owe(std::move(owed), set.owed[name]);
  }
  static bool Owed(Set& set, int32_t rank, const std::string& name) {
    for (RankNumbers& owed : set.owed[name]) {
      if (owed.erase(rank) > 0) return true;
    }
    return false;
  }

  int32_t PairOf(int32_t a, int32_t b) {
    for (const auto& [id, set] : sets_) {
      if (set.is_pair && set.members == RankNumbers{a, b}) return id;
    }
    sets_[++last_id_] = {
        .members = {a, b}, .is_pair = true, .pending = {}, .owed = {}, .ready = {}};
    return last_id_;
  }

  void Settle(int32_t id, Tensor& tensor, Lines& lines) {
    Set& set = sets_[id];
    auto is_gone = [&](int32_t rank) {
      return joined_.contains(rank) && !tensor.in.contains(rank);
    };
    if ((HasRoot(tensor.report.kind) && is_gone(tensor.report.root)) ||
        (IsPairwise(tensor.report.kind) && is_gone(tensor.report.peer))) {
      Fail(id, tensor, lines);
      return;
    }
    for (int32_t rank : set.members) {
      if (!tensor.in.contains(rank) && !joined_.contains(rank)) return;
    }
    set.ready.push_back(
        absl::StrCat("plan ", id, "/", tensor.report.name, tensor.in == set.members ? "" : "*"));
    Erase(set, tensor);
  }

  void Fail(int32_t id, Tensor& tensor, Lines& lines) {
    Set& set = sets_[id];
    lines.push_back(Failure(set.is_pair ? 0 : id, tensor.report.name, tensor.in));
    RankNumbers owed = set.members;
    for (int32_t rank : tensor.in) owed.erase(rank);
    Owe(set, tensor.report.name, owed);
    Erase(set, tensor);
  }

  static void Erase(Set& set, const Tensor& tensor) {
    const std::string name = tensor.report.name;
    std::erase_if(set.pending, [&](const Tensor& other) { return other.report.name == name; });
  }

  // Behind all plans in which somebody counts as joined.
  void FailJoin(Lines& lines) {
    EndTurn(lines);
    lines.push_back(Failure(0, "join", joined_));
    RankNumbers owed = sets_[0].members;
    for (int32_t rank : joined_) owed.erase(rank);
    Owe(std::move(owed), owed_join_);
    joined_.clear();
  }

  const int32_t size_;
  std::map<int32_t, Set> sets_;
  int32_t last_id_ = 0;
  RankNumbers joined_;
  std::deque<RankNumbers> owed_join_;
};

// The real one, with what it sends as the model's lines.
class RealGeneration {
 public:
  explicit RealGeneration(int32_t size) {
    std::vector<SessionId> sessions;
    for (int32_t rank = 0; rank < size; ++rank) sessions.push_back(SessionId{rank});
    options_.max_batch_bytes = 1;  // each tensor alone: the order is seen
    state_ = std::make_unique<GenerationState>(
        GenerationState::Identity{"train", Epoch{1}, Generation{1}}, options_, std::move(sessions));
  }

  void Submit(int32_t rank, int32_t set, const Report& report) {
    TensorSpec spec = Gradient(report.name, {report.extent});
    spec.kind = report.kind;
    if (!Reduces(spec.kind)) spec.op = ReduceOp::kNone;
    spec.process_set = ProcessSetId{set};
    spec.root_rank = report.root;
    spec.peer_rank = report.peer;
    v1::TensorsReady ready;
    ToProto(spec, ready.add_tensors());
    EXPECT_THAT(state_->OnTensorsReady(Rank{rank}, ready, {kStart, effects_}), IsOk());
  }
  void Withdraw(int32_t rank, int32_t set, const std::string& name) {
    v1::TensorsWithdrawn withdrawn;
    withdrawn.add_names(name);
    withdrawn.set_process_set(set);
    state_->OnTensorsWithdrawn(Rank{rank}, withdrawn, {kStart, effects_});
  }
  void Join(int32_t rank) { Submit(rank, 0, {.name = "join", .kind = CollectiveKind::kJoin}); }
  // All ranks ask but those that have joined.
  void Request(int32_t remove, const RankNumbers& ranks, const RankNumbers& joined) {
    v1::ProcessSetRequest request;
    request.set_request(++requests_);
    request.set_remove(remove);
    for (int32_t rank : ranks) request.add_ranks(rank);
    for (int32_t rank = 0; rank < state_->size(); ++rank) {
      if (joined.contains(rank)) continue;
      ASSERT_THAT(state_->OnProcessSetRequest(Rank{rank}, request, {kStart, effects_}), IsOk());
    }
  }

  void EndTurn() { state_->Tick({kStart, effects_}); }
  Lines TakeLines() {
    Lines lines;
    for (const Outgoing& out : effects_.outgoing) {
      const Deliver& deliver = std::get<Deliver>(out);
      RankNumbers to;
      for (SessionId session : deliver.to) to.insert(static_cast<int32_t>(ToInt(session)));
      Describe(*deliver.message, absl::StrJoin(to, ","), lines);
    }
    effects_ = {};
    return lines;
  }

  const GenerationState& state() const { return *state_; }

 private:
  static void Describe(const v1::CoordinatorMessage& message, const std::string& to, Lines& lines) {
    for (const v1::TensorFailure& failure : message.tensor_failures().failures()) {
      lines.push_back(absl::StrCat("fail ", failure.process_set(), "/", failure.name(), " ", to));
    }
    for (const v1::FusedBatch& batch : message.plan().batches()) {
      const bool is_join = batch.tensors(0) == "join";
      lines.push_back(absl::StrCat("plan ", batch.process_set(), "/", batch.tensors(0),
                                   batch.specs().empty() ? "" : "*",
                                   is_join ? absl::StrCat(" ", batch.last_joined_rank()) : ""));
    }
    if (!message.has_process_set_change()) return;
    const v1::ProcessSetChange& change = message.process_set_change();
    const std::string ranks = absl::StrJoin(change.ranks(), ",");
    if (change.code() != 0) {
      lines.push_back(absl::StrCat("refused ", to));
    } else if (ranks.empty()) {
      lines.push_back(absl::StrCat("end ", change.process_set()));
    } else {
      lines.push_back(absl::StrCat(change.request() == 0 ? "pair " : "set ", change.process_set(),
                                   " = ", ranks));
    }
  }

  ServerOptions options_;
  std::unique_ptr<GenerationState> state_;
  Effects effects_;
  int64_t requests_ = 0;
};

class Pairing {
 public:
  explicit Pairing(uint64_t seed)
      : random_(seed),
        size_(1 + static_cast<int32_t>(random_.Below(5))),
        real_(size_),
        naive_(size_) {}

  void Step(Lines& real, Lines& expected) {
    const int32_t rank = Below(size_);
    const int32_t set = Below(2) == 0 ? 0 : Below(7);
    const int32_t what = Below(100);
    if (what < 4) {
      const RankNumbers ranks = Some();
      real_.Request(0, ranks, naive_.joined());
      naive_.Add(ranks, expected);
    } else if (what < 6) {
      const int32_t id = 1 + Below(6);
      real_.Request(id, {}, naive_.joined());
      naive_.Remove(id, expected);
    } else if (what < 12) {
      real_.Join(rank);
      naive_.Join(rank, expected);
    } else if (what < 17) {
      const std::string name = what == 12 ? "join" : NameOf(Below(5));
      real_.Withdraw(rank, set, name);
      naive_.Withdraw(rank, set, name, expected);
    } else {
      const Report report = ReportOf(rank, Below(5));
      const int32_t in = IsPairwise(report.kind) && Below(20) > 0 ? 0 : set;
      real_.Submit(rank, in, report);
      naive_.Submit(rank, in, report, expected);
    }
    // Several things may come in within one turn.
    if (Below(3) > 0) {
      real_.EndTurn();
      naive_.EndTurn(expected);
    }
    real = real_.TakeLines();
  }

  const GenerationState& state() const { return real_.state(); }
  int64_t naive_pending() const { return naive_.pending(); }

 private:
  int32_t Below(int32_t bound) {
    return static_cast<int32_t>(random_.Below(static_cast<uint64_t>(bound)));
  }
  static std::string NameOf(int32_t number) {
    return std::string(1, static_cast<char>('a' + number));
  }
  RankNumbers Some() {
    RankNumbers ranks;
    for (int32_t rank = 0; rank < size_; ++rank) {
      if (Below(2) == 0) ranks.insert(rank);
    }
    return ranks;
  }
  Report ReportOf(int32_t rank, int32_t number) {
    Report report{.name = NameOf(number)};
    if (number == 3) {
      report.kind = CollectiveKind::kBroadcast;
      report.root = size_ / 2;
    } else if (number == 4) {
      report.kind = rank % 2 == 0 ? CollectiveKind::kSend : CollectiveKind::kReceive;
      report.peer = Below(20) == 0 ? Below(6) - 1 : rank ^ 1;
    }
    if (Below(30) == 0) report.extent = 2;
    return report;
  }

  Random random_;
  const int32_t size_;
  RealGeneration real_;
  NaiveGeneration naive_;
};

TEST(GenerationModel, AgreesWithTheNaiveGeneration) {
  std::map<std::string, int64_t> kinds;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Pairing pairing(seed);
    for (int step = 0; step < 600; ++step) {
      Lines real;
      Lines expected;
      pairing.Step(real, expected);
      ASSERT_EQ(real, expected) << "step " << step;
      ASSERT_EQ(pairing.state().pending(), pairing.naive_pending());
      ASSERT_THAT(pairing.state().CheckConsistency(), IsOk());
      for (const std::string& line : real) {
        ++kinds[line.substr(0, line.find(' '))];
        if (line.back() == '*') ++kinds["for joined"];
        if (line.rfind("plan 0/join", 0) == 0) ++kinds["joined"];
        if (line.rfind("plan ", 0) == 0 && line[5] != '0') ++kinds["in sets"];
      }
    }
  }
  // That it got anywhere at all.
  for (const char* kind :
       {"plan", "fail", "set", "pair", "end", "refused", "for joined", "joined", "in sets"}) {
    EXPECT_GT(kinds[kind], 100) << kind;
  }
}

}  // namespace
}  // namespace coordd
