// A rank of `coordd-bench recovery`: reduces in a loop and checks each result, goes on in the next
// generation when another rank has died or, if the bench says so, one waits, and writes on the
// board what it sees. With on_failure "continue" it learns of a loss from its results. Beside the
// loop, one at a time, it reduces a number under a name that is new, which needs coordd. Arguments:
// the board's file, the number of its slot.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/recovery/board.h"
#include "coordd/coordd.hpp"

namespace coordd::bench {
namespace {

int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

class Rank {
 public:
  Rank(RecoveryBoard& board, RecoverySlot& slot, Worker& worker)
      : board_(board), slot_(slot), worker_(worker), data_(static_cast<size_t>(board.elements)) {
    Enter(worker.placement());
  }

  // Until the bench says so. False: it cannot go on.
  bool Run() {
    while (!ended_) {
      const Expected<> result = agreed_ ? Step() : Agree();
      if (result.ok()) continue;
      std::strncpy(slot_.reason, result.message().c_str(), kMaxReasonChars - 1);
      ++slot_.failed;
      if (result.code() != COORDD_GENERATION_CHANGED) {
        std::fprintf(stderr, "recovery_rank: %s\n", result.message().c_str());
        return false;
      }
      auto place = worker_.TryAwaitGeneration(std::chrono::duration<double>(60));
      if (!place.ok()) {
        std::fprintf(stderr, "recovery_rank: %s\n", place.message().c_str());
        return false;
      }
      Enter(place.value());
    }
    return true;
  }

 private:
  void Enter(const coordd_placement_t& place) {
    agreed_ = place.generation == 1;
    fresh_.reset();  // it has failed, if it was under way
    NoteChange(place);
  }

  void NoteChange(const coordd_placement_t& place) {
    before_ns_ = last_ns_;
    last_ns_ = 0;
    generation_ = place.generation;
    size_ = place.size;
    rank_ = place.rank;
    slot_.rank = place.rank;
    slot_.began_ns = 0;
    slot_.generation = place.generation;
  }

  // Where to go on: at the step of whoever is furthest. (The state, which it would send, is that
  // number.)
  Expected<> Agree() {
    int64_t step = step_;
    Expected<> result = Reduce("step", View<int64_t>(&step, 1), Op::kMax);
    if (!result.ok()) return result;
    slot_.steps_lost += std::max<int64_t>(0, step_ - step);
    step_ = step;
    slot_.steps = step_;
    agreed_ = true;
    return result;
  }

  Expected<> Step() {
    // Where nobody is told of a loss, ranks become others in the midst of it.
    const bool goes_on = board_.goes_on != 0;
    std::fill(data_.begin(), data_.end(), goes_on ? 1.0f : static_cast<float>(rank_ + 1));
    Expected<> result = Reduce("gradient", View<float>(data_), Op::kSum);
    if (!result.ok()) return result;
    const float expected = static_cast<float>(goes_on ? size_ : size_ * (size_ + 1) / 2);
    if (!std::all_of(data_.begin(), data_.end(), [&](float x) { return x == expected; }))
      ++slot_.wrong;
    NoteResult();
    result = TakeFresh();
    if (!result.ok()) return result;
    // Whether to stop, whether anybody waits for the new name still, and whether to be a member.
    int32_t any[3] = {board_.stop, fresh_.has_value(),
                      board_.takes_newcomers != 0 ? worker_.newcomers() : 0};
    result = Reduce("any", View<int32_t>(any, 3), Op::kMax);
    if (!result.ok()) return result;
    slot_.steps = ++step_;
    if (any[1] != 0) return result;
    ended_ = any[0] != 0;
    if (ended_) return result;
    return any[2] != 0 ? LetIn() : SubmitFresh();
  }

  // All members come here after the same step.
  Expected<> LetIn() {
    auto place = worker_.TryChangeMembers(std::chrono::duration<double>(60), generation_);
    if (!place.ok()) return Expected<>(place.code(), place.message());
    Enter(place.value());
    return Nothing{};
  }

  // All ranks come here after the same step.
  Expected<> SubmitFresh() {
    fresh_value_ = 1;
    auto work = worker_.TryAllreduceAsync(
        "fresh." + std::to_string(generation_) + "." + std::to_string(step_),
        View<float>(&fresh_value_, 1), Op::kSum);
    if (!work.ok()) return Expected<>(work.code(), work.message());
    fresh_ = std::move(work.value());
    return Nothing{};
  }

  Expected<> TakeFresh() {
    if (!fresh_.has_value() || !fresh_->done()) return Nothing{};
    const Expected<> result = fresh_->TryWait();
    if (!result.ok()) {
      fresh_.reset();
      return result;
    }
    if (fresh_value_ != static_cast<float>(fresh_->Result().size)) ++slot_.wrong;
    fresh_.reset();
    slot_.fresh_ns = NowNs();
    return result;
  }

  void NoteResult() {
    const int64_t now = NowNs();
    if (last_ns_ != 0)
      slot_.longest_gap_ns = std::max<int64_t>(slot_.longest_gap_ns, now - last_ns_);
    last_ns_ = now;
    if (slot_.began_ns == 0) slot_.began_ns = now;
    if (before_ns_ != 0)
      slot_.change_ns = std::max<int64_t>(slot_.change_ns, now - std::exchange(before_ns_, 0));
  }

  template <typename T>
  Expected<> Reduce(const std::string& name, View<T> tensor, Op op) {
    auto work = worker_.TryAllreduceAsync(name, std::move(tensor), op);
    if (!work.ok()) return Expected<>(work.code(), work.message());
    Expected<> result = work.value().TryWait();
    if (!result.ok() || board_.goes_on == 0) return result;
    const coordd_result_t of = work.value().Result();
    if (of.generation == generation_) return result;
    coordd_placement_t place = worker_.placement();  // or of one that has followed already
    place.generation = of.generation;
    place.size = of.size;
    NoteChange(place);
    return result;
  }

  RecoveryBoard& board_;
  RecoverySlot& slot_;
  Worker& worker_;
  std::vector<float> data_;
  float fresh_value_ = 0;
  std::optional<Work> fresh_;  // behind what it refers to
  int32_t size_ = 0, rank_ = 0;
  int64_t generation_ = 0;
  int64_t step_ = 0;
  int64_t last_ns_ = 0;
  int64_t before_ns_ = 0;  // the last result in the generation before; 0: noted already
  bool agreed_ = true;
  bool ended_ = false;
};

int Main(int argc, char** argv) {
  const int file = argc == 3 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
  void* const memory =
      file < 0 ? MAP_FAILED
               : mmap(nullptr, sizeof(RecoveryBoard), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "recovery_rank: started by coordd-bench recovery only\n");
    return 2;
  }
  auto& board = *static_cast<RecoveryBoard*>(memory);
  auto started = Worker::TryStart();
  if (!started.ok()) {
    std::fprintf(stderr, "recovery_rank: %s\n", started.message().c_str());
    return 1;
  }
  Worker worker = std::move(started.value());
  if (!Rank(board, board.slots[std::atoi(argv[2])], worker).Run()) return 1;
  (void)worker.TryShutdown(std::chrono::duration<double>(10));
  return 0;
}

}  // namespace
}  // namespace coordd::bench

int main(int argc, char** argv) { return coordd::bench::Main(argc, argv); }
