// Schedules of all ranks, simulated without a transport.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/algorithms/collective_schedule.h"

namespace coordd {

// An element of a simulated buffer is the formula of how it was made, e.g. "(a+b)": combining in
// another order or twice shows. One element is one byte here.
using Cells = std::vector<std::string>;

struct Buffers {
  Cells input, output, scratch;
  bool in_place = false;

  Cells& Of(BufferRole role) {
    if (role == BufferRole::kScratch) return scratch;
    return role == BufferRole::kInput && !in_place ? input : output;
  }
  Cells Read(const BufferRange& slice) {
    Cells& cells = Of(slice.buffer);
    EXPECT_GE(slice.offset_bytes, 0);
    EXPECT_LE(slice.offset_bytes + slice.size_bytes, static_cast<int64_t>(cells.size()));
    return Cells(cells.begin() + slice.offset_bytes,
                 cells.begin() + slice.offset_bytes + slice.size_bytes);
  }
  void Write(const BufferRange& slice, const Cells& values) {
    EXPECT_NE(slice.buffer, BufferRole::kInput);
    ASSERT_EQ(slice.size_bytes, static_cast<int64_t>(values.size()));
    Cells& cells = Of(slice.buffer);
    ASSERT_LE(slice.offset_bytes + slice.size_bytes, static_cast<int64_t>(cells.size()));
    std::copy(values.begin(), values.end(), cells.begin() + slice.offset_bytes);
  }
};

inline Cells Combined(const Cells& a, const Cells& b) {
  Cells result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back(absl::StrCat("(", a[i], "+", b[i], ")"));
  return result;
}

inline bool Overlap(const BufferRange& a, const BufferRange& b) {
  auto place = [](const BufferRange& s) {  // input and output may be the same memory
    return s.buffer == BufferRole::kScratch ? 1 : 0;
  };
  return place(a) == place(b) && a.offset_bytes < b.offset_bytes + b.size_bytes &&
         b.offset_bytes < a.offset_bytes + a.size_bytes;
}

// How many messages there are between two ranks in a step.
enum class InStep { kOne, kSeveral };

// `shared`: input and output are laid out alike, so that in place they coincide.
inline void CheckRules(const TransferSchedule& schedule, Rank self, bool shared,
                       InStep messages = InStep::kOne) {
  auto last_is = [](const auto& ops, size_t count, auto rank) {
    return count > 0 && rank(ops[count - 1]) == rank(ops[count]);
  };
  auto to = [](const SendOp& send) { return send.to; };
  auto from = [](const ReceiveOp& receive) { return receive.from; };
  for (const AlgorithmStep& step : schedule.steps) {
    std::map<Rank, int> sends, receives;
    std::optional<Rank> combined;
    for (size_t i = 0; i < step.sends.size(); ++i) {
      const SendOp& send = step.sends[i];
      EXPECT_NE(send.to, self);
      // Another one stands behind the one before.
      if (++sends[send.to] > 1) {
        EXPECT_TRUE(messages == InStep::kSeveral && last_is(step.sends, i, to));
      }
      for (const ReceiveOp& receive : step.receives) {
        const bool comparable = shared || send.from.buffer == receive.to.buffer;
        EXPECT_FALSE(comparable && Overlap(send.from, receive.to));
      }
    }
    for (size_t i = 0; i < step.receives.size(); ++i) {
      const ReceiveOp& receive = step.receives[i];
      EXPECT_NE(receive.from, self);
      if (++receives[receive.from] > 1) {
        EXPECT_TRUE(messages == InStep::kSeveral && last_is(step.receives, i, from));
      }
      EXPECT_NE(receive.to.buffer, BufferRole::kInput);
      for (size_t other = 0; other < i; ++other)
        EXPECT_FALSE(Overlap(step.receives[other].to, receive.to));
      if (!receive.operand) continue;
      EXPECT_TRUE(!combined || (messages == InStep::kSeveral && *combined == receive.from));
      combined = receive.from;
      EXPECT_EQ(receive.operand->size_bytes, receive.to.size_bytes);
    }
  }
}

// Runs all ranks, each at its own pace, until nobody can go on.
class Simulation {
 public:
  Simulation(std::vector<TransferSchedule> schedules, std::vector<Buffers> buffers)
      : schedules_(std::move(schedules)),
        buffers_(std::move(buffers)),
        step_(schedules_.size()),
        sent_(schedules_.size()) {
    for (size_t r = 0; r < schedules_.size(); ++r)
      buffers_[r].scratch.resize(static_cast<size_t>(schedules_[r].scratch_bytes), "garbage");
  }

  void Run() {
    bool moved = true;
    while (moved) {
      moved = false;
      // Backwards: a schedule must not depend on lower ranks being first.
      for (size_t r = schedules_.size(); r-- > 0;) moved |= Advance(r);
    }
    for (size_t r = 0; r < schedules_.size(); ++r)
      EXPECT_EQ(step_[r], schedules_[r].steps.size()) << "rank " << r << " is stuck";
    for (const auto& [pair, messages] : wire_) EXPECT_TRUE(messages.empty()) << "unreceived";
  }
  Buffers& buffers(size_t rank) { return buffers_[rank]; }

 private:
  bool Advance(size_t r) {
    if (step_[r] == schedules_[r].steps.size()) return false;
    const AlgorithmStep& step = schedules_[r].steps[step_[r]];
    const int32_t self = static_cast<int32_t>(r);
    bool moved = false;
    if (!sent_[r]) {
      for (const SendOp& send : step.sends)
        wire_[{self, ToInt(send.to)}].push_back(buffers_[r].Read(send.from));
      sent_[r] = moved = true;
    }
    for (const ReceiveOp& receive : step.receives) {
      if (wire_[{ToInt(receive.from), self}].empty()) return moved;
    }
    for (const ReceiveOp& receive : step.receives) {
      auto& queue = wire_[{ToInt(receive.from), self}];
      Cells message = queue.front();
      queue.pop_front();
      EXPECT_EQ(static_cast<int64_t>(message.size()), receive.to.size_bytes);
      if (receive.operand) message = Combined(message, buffers_[r].Read(*receive.operand));
      buffers_[r].Write(receive.to, message);
    }
    for (const LocalOp& local : step.locals) {
      Cells value = buffers_[r].Read(local.first);
      if (local.second) value = Combined(value, buffers_[r].Read(*local.second));
      buffers_[r].Write(local.to, value);
    }
    ++step_[r];
    sent_[r] = false;
    return true;
  }

  std::vector<TransferSchedule> schedules_;
  std::vector<Buffers> buffers_;
  std::vector<size_t> step_;
  std::vector<bool> sent_;
  std::map<std::pair<int32_t, int32_t>, std::deque<Cells>> wire_;
};

// "r3:7" is element 7 of rank 3's input.
inline Cells InputOf(int32_t rank, int64_t size) {
  Cells cells;
  for (int64_t i = 0; i < size; ++i) cells.push_back(absl::StrCat("r", rank, ":", i, ";"));
  return cells;
}

// Each rank's element `index` is in `formula` exactly once, and nothing else.
inline void ExpectAllOnce(const std::string& formula, int32_t world_size, int64_t index) {
  for (int32_t r = 0; r < world_size; ++r) {
    const std::string part = absl::StrCat("r", r, ":", index, ";");
    const size_t at = formula.find(part);
    ASSERT_NE(at, std::string::npos) << part << " is missing in " << formula;
    EXPECT_EQ(formula.find(part, at + 1), std::string::npos) << part << " twice in " << formula;
  }
  EXPECT_EQ(std::count(formula.begin(), formula.end(), ':'), world_size) << formula;
}

// Of an allreduce of 0 to 37 elements among `size` ranks: all once, in one order on all ranks.
// `make`: the schedule of a rank, for so many bytes.
template <typename Make>
void CheckAllreduceOf(int32_t size, const Make& make) {
  for (int64_t elements : {0, 1, 5, 16, 37}) {
    for (bool in_place : {false, true}) {
      std::vector<TransferSchedule> schedules;
      std::vector<Buffers> buffers;
      for (int32_t r = 0; r < size; ++r) {
        schedules.push_back(make(Rank{r}, elements));
        CheckRules(schedules.back(), Rank{r}, /*shared=*/true);
        const Cells garbage(static_cast<size_t>(elements), "garbage");
        const Cells input = InputOf(r, elements);
        buffers.push_back({input, in_place ? input : garbage, {}, in_place});
      }
      Simulation simulation(schedules, buffers);
      simulation.Run();
      const Cells& result = simulation.buffers(0).output;
      for (int64_t i = 0; i < elements; ++i) ExpectAllOnce(result[static_cast<size_t>(i)], size, i);
      for (int32_t r = 0; r < size; ++r) {
        Buffers& own = simulation.buffers(static_cast<size_t>(r));
        EXPECT_EQ(own.output, result) << "the same order of summation on rank " << r;
        EXPECT_EQ(own.input, InputOf(r, elements)) << "the input is never written";
      }
    }
  }
}

// Of an allgather of these blocks: all have all of them. `make`: the schedule of a rank.
template <typename Make>
void CheckAllgatherOf(const std::vector<ByteRange>& blocks, InStep messages, const Make& make) {
  const int32_t size = static_cast<int32_t>(blocks.size());
  std::vector<TransferSchedule> schedules;
  std::vector<Buffers> buffers;
  Cells expected;
  for (int32_t r = 0; r < size; ++r) {
    schedules.push_back(make(Rank{r}));
    CheckRules(schedules.back(), Rank{r}, /*shared=*/false, messages);
    const Cells input = InputOf(r, BlockOf(blocks, Rank{r}).size_bytes);
    buffers.push_back({input, Cells(static_cast<size_t>(Hull(blocks).size_bytes), "garbage"), {}});
    expected.insert(expected.end(), input.begin(), input.end());
  }
  Simulation simulation(schedules, buffers);
  simulation.Run();
  for (int32_t r = 0; r < size; ++r)
    EXPECT_EQ(simulation.buffers(static_cast<size_t>(r)).output, expected);
}

// Of a reducescatter of these blocks: each rank has its own, of all once. -> by rank, the formulas
template <typename Make>
std::vector<Cells> CheckReducescatterOf(const std::vector<ByteRange>& blocks, InStep messages,
                                        const Make& make) {
  const int32_t size = static_cast<int32_t>(blocks.size());
  const int64_t total = Hull(blocks).size_bytes;
  std::vector<TransferSchedule> schedules;
  std::vector<Buffers> buffers;
  for (int32_t r = 0; r < size; ++r) {
    schedules.push_back(make(Rank{r}));
    CheckRules(schedules.back(), Rank{r}, /*shared=*/false, messages);
    const size_t own = static_cast<size_t>(BlockOf(blocks, Rank{r}).size_bytes);
    buffers.push_back({InputOf(r, total), Cells(own, "garbage"), {}});
  }
  Simulation simulation(schedules, buffers);
  simulation.Run();
  std::vector<Cells> results;
  for (int32_t r = 0; r < size; ++r) {
    Buffers& of = simulation.buffers(static_cast<size_t>(r));
    const ByteRange own = BlockOf(blocks, Rank{r});
    for (int64_t i = 0; i < own.size_bytes; ++i)
      ExpectAllOnce(of.output[static_cast<size_t>(i)], size, own.offset_bytes + i);
    EXPECT_EQ(of.input, InputOf(r, total)) << "the input is never written";
    results.push_back(of.output);
  }
  return results;
}

}  // namespace coordd
