// A member of a job that need not notice losses (COORDD_ON_FAILURE=continue): steps of many kinds
// of collectives, until a file is there and all ranks know. Every result is checked against the
// ranks that its Work names, and written down, for going_on_test.py to compare with the other
// ranks'.
//
//   going_on_worker ID LOG STOP_FILE [LARGE_ELEMENTS]
//
// ID, 0 to 47, is what it contributes as 1 << ID: a sum is the set of those who took part. Lines:
//   entered GENERATION RANK SIZE
//   STEP NAME GENERATION SIZE SET     of each result; a step has every name once
//   STEP NAME again                   it named a rank of the generation before
//   end STEP CALLBACKS
//   WRONG ...                         and it ends with status 1
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordd/coordd.hpp"

namespace {

constexpr std::chrono::seconds kPatience(60);  // against hangs only

class Program {
 public:
  Program(coordd::Worker worker, int id, std::FILE* log, std::string stop_file, int64_t large)
      : worker_(std::move(worker)),
        own_(int64_t{1} << id),
        log_(log),
        stop_file_(std::move(stop_file)),
        small_(16),
        large_(static_cast<size_t>(large)),
        apart_(5000),
        apart_output_(5000),
        scattered_(13),
        root_(1000),
        summed_(1000) {}

  int Run() {
    Write("entered", worker_.placement());
    worker_.OnGeneration([this](const coordd_placement_t& place) { Write("entered", place); });
    while (!ended_) {
      if (!agreed_ && !Agree()) return 1;
      if (!Step()) return 1;
    }
    // Whoever is answered late, or twice, shows in the count.
    const coordd::Expected<> goodbye = worker_.TryShutdown(kPatience);
    if (!goodbye.ok()) return Wrong("goodbye: " + goodbye.message()), 1;
    Say("end " + std::to_string(step_) + " " + std::to_string(answered_ - submitted_));
    return 0;
  }

 private:
  using Submit = std::function<coordd_status_t(coordd_work_t**)>;

  void Say(const std::string& line) {
    const std::lock_guard<std::mutex> lock(mu_);
    std::fprintf(log_, "%s\n", line.c_str());
    std::fflush(log_);
  }
  void Write(const char* what, const coordd_placement_t& place) {
    Say(std::string(what) + " " + std::to_string(place.generation) + " " +
        std::to_string(place.rank) + " " + std::to_string(place.size));
  }
  bool Wrong(const std::string& what) {
    Say("WRONG step " + std::to_string(step_) + ": " + what);
    return false;
  }

  // Where to go on, whoever comes.
  bool Agree() {
    const coordd::Work work =
        worker_.AllreduceAsync("step", coordd::View<int64_t>(&step_, 1), coordd::Op::kMax);
    const coordd::Expected<> result = work.TryWait();
    agreed_ = result.ok();
    return agreed_ || Wrong(result.message());
  }

  static void Answered(void* self, coordd_status_t, const char*) {
    ++static_cast<Program*>(self)->answered_;
  }

  std::optional<coordd::Work> Start(const char* name, const Submit& submit) {
    coordd_work_t* handle = nullptr;
    const coordd_status_t status = submit(&handle);
    if (status == COORDD_OK && coordd_work_on_complete(handle, Answered, this) == COORDD_OK) {
      ++submitted_;
      return coordd::Work(handle);
    }
    Wrong(std::string(name) + " was refused: " + coordd_last_error());
    return std::nullopt;
  }

  coordd_tensor_t Tensor(const char* name, const void* input, void* output, const int64_t* rows,
                         coordd_dtype_t dtype = COORDD_INT64) {
    coordd_tensor_t tensor = COORDD_TENSOR_INIT;
    tensor.name = name;
    tensor.input = input;
    tensor.output = output;
    tensor.shape = rows;
    tensor.ndim = 1;
    tensor.dtype = dtype;
    return tensor;
  }
  coordd_tensor_t InPlace(const char* name, std::vector<int64_t>& data) {
    std::fill(data.begin(), data.end(), own_);
    sizes_[name] = static_cast<int64_t>(data.size());
    return Tensor(name, data.data(), data.data(), &sizes_[name]);
  }

  // The set of those who took part in each result: once, and the same in a generation.
  bool Note(const char* name, const coordd::Work& work, int64_t set) {
    const coordd_result_t result = work.Result();
    if (__builtin_popcountll(static_cast<uint64_t>(set)) != result.size || (set & own_) == 0)
      return Wrong(std::string(name) + " of " + std::to_string(result.size) + " ranks is of " +
                   std::to_string(set));
    const int64_t known = members_.try_emplace(result.generation, set).first->second;
    if (known != set) return Wrong(std::string(name) + " is of others than the one before");
    Say(std::to_string(step_) + " " + name + " " + std::to_string(result.generation) + " " +
        std::to_string(result.size) + " " + std::to_string(set));
    return true;
  }

  bool NoteAll(const char* name, const coordd::Work& work, const int64_t* data, size_t count) {
    const coordd::Expected<> result = work.TryWait();
    if (!result.ok()) return Wrong(result.message());
    if (!std::all_of(data, data + count, [&](int64_t x) { return x == data[0]; }))
      return Wrong(std::string(name) + " is of different ranks");
    return Note(name, work, data[0]);
  }

  // long: one after the other
  bool Step() {
    coordd_worker_t* const handle = worker_.handle();
    const coordd_tensor_t small = InPlace("small", small_), large = InPlace("large", large_);
    const auto reduce = [&](const coordd_tensor_t& tensor) {
      return Start(tensor.name, [&](coordd_work_t** work) {
        return coordd_allreduce_async(handle, &tensor, COORDD_SUM, nullptr, work);
      });
    };
    coordd_tensor_t apart = InPlace("apart", apart_);
    apart.output = apart_output_.data();
    coordd_tensor_t rows = InPlace("scattered", scattered_), row = InPlace("gathered", row_);
    rows.output = row.output = nullptr;
    const int64_t one = 1;
    double average = static_cast<double>(own_);
    const coordd_tensor_t averaged = Tensor("average", &average, &average, &one, COORDD_FLOAT64);
    // Of two batches, and of one generation.
    double half = static_cast<double>(own_);
    int64_t other_half = own_;
    const coordd_tensor_t group[] = {Tensor("half", &half, &half, &one, COORDD_FLOAT64),
                                     Tensor("other_half", &other_half, &other_half, &one)};
    coordd_work_t* halves[2] = {nullptr, nullptr};
    int32_t flags[2] = {access(stop_file_.c_str(), F_OK) == 0 ? 1 : 0, worker_.newcomers()};
    const int64_t two = 2;
    const coordd_tensor_t flag = Tensor("flags", flags, flags, &two, COORDD_INT32);

    const auto w_small = reduce(small), w_large = reduce(large), w_apart = reduce(apart);
    const auto w_average = Start("average", [&](coordd_work_t** work) {
      return coordd_allreduce_async(handle, &averaged, COORDD_AVERAGE, nullptr, work);
    });
    const auto w_half = Start("group", [&](coordd_work_t** work) {
      const coordd_status_t status =
          coordd_grouped_allreduce_async(handle, "group", group, 2, COORDD_SUM, nullptr, halves);
      *work = halves[0];
      return status;
    });
    const coordd::Work w_other_half(halves[1]);
    const auto w_rows = Start("scattered", [&](coordd_work_t** work) {
      return coordd_reducescatter_async(handle, &rows, COORDD_SUM, nullptr, work);
    });
    const auto w_row = Start("gathered", [&](coordd_work_t** work) {
      return coordd_allgather_async(handle, &row, nullptr, work);
    });
    const auto w_flags = Start("flags", [&](coordd_work_t** work) {
      return coordd_allreduce_async(handle, &flag, COORDD_MAX, nullptr, work);
    });
    if (!w_small || !w_large || !w_apart || !w_average || !w_half || !w_rows || !w_row || !w_flags)
      return false;
    if (!NoteAll("large", *w_large, large_.data(), large_.size()) ||
        !NoteAll("small", *w_small, small_.data(), small_.size()) ||
        !NoteAll("apart", *w_apart, apart_output_.data(), apart_output_.size()))
      return false;
    if (std::any_of(apart_.begin(), apart_.end(), [&](int64_t x) { return x != own_; }))
      return Wrong("the input of apart was written to");
    return NoteAverage(*w_average, average) && NoteGroup(*w_half, w_other_half, half, other_half) &&
           NoteParts(*w_rows, *w_row) && Rooted() && End(*w_flags, flags);
  }

  bool NoteAverage(const coordd::Work& work, const double& average) {
    const coordd::Expected<> result = work.TryWait();
    if (!result.ok()) return Wrong(result.message());
    return Note("average", work, static_cast<int64_t>(average * work.Result().size + 0.5));
  }

  bool NoteGroup(const coordd::Work& first, const coordd::Work& second, const double& half,
                 const int64_t& other_half) {
    const coordd::Expected<> results[] = {first.TryWait(), second.TryWait()};
    for (const coordd::Expected<>& result : results)
      if (!result.ok()) return Wrong(result.message());
    if (first.Result().generation != second.Result().generation)
      return Wrong("a group of two generations");
    return Note("half", first, static_cast<int64_t>(half)) &&
           Note("other_half", second, other_half);
  }

  bool NoteParts(const coordd::Work& scattered, const coordd::Work& gathered) {
    const coordd::Expected<> results[] = {scattered.TryWait(), gathered.TryWait()};
    for (const coordd::Expected<>& result : results)
      if (!result.ok()) return Wrong(result.message());
    const coordd_result_t rows = scattered.Result(), all = gathered.Result();
    const auto* const parts = static_cast<const int64_t*>(all.output);
    int64_t set = 0;
    for (int64_t i = 0; i < all.shape[0]; ++i) set |= parts[i];
    return NoteAll("scattered", scattered, static_cast<const int64_t*>(rows.output),
                   static_cast<size_t>(rows.shape[0])) &&
           Note("gathered", gathered, set);
  }

  // What names a rank is called again when ranks may have become others.
  bool Rooted() {
    coordd_worker_t* const handle = worker_.handle();
    const coordd_tensor_t root = InPlace("root", root_), summed = InPlace("summed", summed_);
    const bool sent = Repeated("root", root_, [&](coordd_work_t** work) {
      return coordd_broadcast_async(handle, &root, 0, nullptr, work);
    });
    if (!sent) return false;
    if (!std::all_of(root_.begin(), root_.end(), [&](int64_t x) { return x == root_[0]; }))
      return Wrong("a broadcast from different ranks");
    return Repeated("summed", summed_, [&](coordd_work_t** work) {
      return coordd_reduce_async(handle, &summed, 0, COORDD_SUM, nullptr, work);
    });
  }

  bool Repeated(const char* name, std::vector<int64_t>& data, const Submit& submit) {
    for (;;) {
      std::fill(data.begin(), data.end(), own_);
      const auto work = Start(name, submit);
      if (!work) return false;
      const coordd::Expected<> result = work->TryWait();
      if (result.ok()) {
        const coordd_result_t told = work->Result();
        // Of a reduction the root alone knows the set.
        const bool is_root = told.output_bytes > 0 && std::strcmp(name, "summed") == 0;
        if (is_root) return NoteAll(name, *work, data.data(), data.size());
        Say(std::to_string(step_) + " " + name + " " + std::to_string(told.generation) + " " +
            std::to_string(told.size) + " -");
        return true;
      }
      if (result.code() != COORDD_GENERATION_CHANGED) return Wrong(result.message());
      Say(std::to_string(step_) + " " + name + " again");
    }
  }

  bool End(const coordd::Work& work, const int32_t* flags) {
    const coordd::Expected<> result = work.TryWait();
    if (!result.ok()) return Wrong(result.message());
    Say(std::to_string(step_) + " flags " + std::to_string(work.Result().generation) + " " +
        std::to_string(work.Result().size) + " -");
    ++step_;
    ended_ = flags[0] > 0;
    if (ended_ || flags[1] == 0) return true;
    const auto place = worker_.TryChangeMembers(kPatience, work.Result().generation);
    if (!place.ok()) return Wrong("no change of members: " + place.message());
    agreed_ = false;
    return true;
  }

  coordd::Worker worker_;
  const int64_t own_;
  std::mutex mu_;
  std::FILE* const log_;
  const std::string stop_file_;
  std::vector<int64_t> small_, large_, apart_, apart_output_, scattered_, root_, summed_;
  std::vector<int64_t> row_ = {0};
  std::map<std::string, int64_t> sizes_;
  std::map<int64_t, int64_t> members_;  // by generation
  int64_t step_ = 0;
  bool agreed_ = false, ended_ = false;
  int64_t submitted_ = 0;
  std::atomic<int64_t> answered_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  std::FILE* const log = std::fopen(argv[2], "w");
  if (log == nullptr) return 2;
  auto worker = coordd::Worker::TryStart();
  if (!worker.ok()) {
    std::fprintf(log, "WRONG start: %s\n", worker.message().c_str());
    return 1;
  }
  Program program(std::move(worker.value()), std::atoi(argv[1]), log, argv[3],
                  argc > 4 ? std::atoll(argv[4]) : 200000);
  return program.Run();
}
