// A member of a job that does what its standard input says, one command a line, and answers each on
// one line of its standard output. For the tests beside this file; options come from COORDD_*.
//
//   submit NAME DTYPE COUNT VALUE [OP [TIMEOUT_S [SET]]]   an allreduce of COUNT times VALUE
//   wait NAME                                        -> "ok FIRST LAST" of the result
//   barrier | status | leave
//   addset RANK... -> "ok NUMBER"     removeset NUMBER
//   sets           -> "ok 1:0,2 3:1": the process sets that there are, with their ranks
//   large NAME BYTES       an allreduce of uint8 in place, of rank + 1, every element checked
//   train NAME COUNT STEPS [change]
//                          allreduces of COUNT times 1, each result checked: "step 5" after the
//                          fifth and, with COORDD_ON_FAILURE=raise, a line "changed ..." for each
//                          change of generation, after which all go back to the step that all have
//                          made; change: goes on until there is one, then STEPS more;
//                          -> "ok STEPS GENERATION SIZE"
//   comm NAME              makes a comm of all ranks
//   call NAME              an allreduce in it of the ranks' numbers, from 1 -> "ok SUM"
//   receive NAME RANK | send NAME RANK      a message of it
//   next                   waits for the next generation -> "ok GENERATION RANK SIZE"
//   steps FILE [unique|same [MS]]    steps of five tensors, every result checked, until FILE is
//   there and all
//                          ranks know -> "ok STEPS"; unique: of names that never come again
//   meet COUNT MS          so often a barrier and an allreduce, whose result is checked, MS apart
//                          -> "ok P50 P99 LONGEST" of how long both took together, in microseconds
//   commits FILE           steps, behind each of which all agree whether the members change, until
//                          FILE is there: "step 5" after the fifth
//                          -> "ok STEPS SIZE FAILED", or "left STEPS SIZE FAILED" of one that was
//                          asked to leave and has; FAILED: how often a collective did
//   ask-to-leave SECONDS | drain-seconds
//   count KEY FILE         adds 1 to KEY in the store until FILE is there: "counting" after the
//   first
//                          -> "ok COUNTED UNKNOWN [WHY]": adds that were answered, and that failed,
//                          with the last one's error; each sum is larger than the one before
//   put KEY VALUE | append KEY VALUE | drop KEY      in the store; drop deletes it
//   look KEY               -> "ok VALUE", or "ok" of one that is not there
//   fork                   a child tries to use the worker -> "ok" or the error that it got
//   exit | die             ends the process at once, without a goodbye; die: by SIGKILL
//
// An argument is its worker id. Answers start with "ok" or with the name of a status, "ABORTED
// generation 1 ended: ...". The first line, without a command, tells whether the worker could
// start.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordd/coordd.hpp"

namespace {

constexpr std::chrono::seconds kPatience(60);  // against hangs only

std::string Answer(const coordd::Expected<>& result, const std::string& details = "") {
  if (result.ok()) return details.empty() ? "ok" : "ok " + details;
  return std::string(coordd_status_name(result.code())) + " " + result.message();
}

// A pending allreduce with its buffer. The buffer is allocated once: its address must not change.
struct Pending {
  std::vector<std::byte> bytes;
  coordd::Work work;
  std::function<std::string()> summary;
};

coordd::Op OpFromName(const std::string& name) {
  static const std::map<std::string, coordd::Op> ops = {{"sum", coordd::Op::kSum},
                                                        {"average", coordd::Op::kAverage},
                                                        {"min", coordd::Op::kMin},
                                                        {"max", coordd::Op::kMax},
                                                        {"product", coordd::Op::kProduct}};
  return ops.at(name);
}

class Script {
 public:
  explicit Script(coordd::Worker worker) : worker_(std::move(worker)) {}

  std::string Carry(const std::string& line) {
    std::istringstream in(line);
    std::string command, name;
    in >> command >> name;
    if (command == "submit") return Submit(name, in);
    if (command == "wait") return Wait(name);
    if (command == "barrier") return Answer(worker_.TryBarrier());
    if (command == "status") return Answer(worker_.status());
    if (command == "leave") return Answer(worker_.TryShutdown(std::chrono::seconds(10)));
    if (command == "addset") return AddSet(name, in);
    if (command == "removeset")
      return Answer(worker_.TryRemoveProcessSet(std::stoi(name), kPatience));
    if (command == "sets") return Sets();
    if (command == "large") return Large(name, in);
    if (command == "train") return Train(name, in);
    if (command == "comm") return MakeComm(name);
    if (command == "call") return Call(comms_.at(name));
    if (command == "receive" || command == "send") return Message(command, comms_.at(name), in);
    if (command == "next") return Next();
    if (command == "steps") return Steps(name, in);
    if (command == "meet") return Meet(std::stoul(name), in);
    if (command == "commits") return Commits(name);
    if (command == "ask-to-leave")
      return Answer(worker_.TryAskToLeave(std::chrono::duration<double>(std::stod(name)), "test"));
    if (command == "drain-seconds") return "ok " + std::to_string(worker_.drain_seconds());
    if (command == "count") return Count(name, in);
    if (command == "put" || command == "append" || command == "drop")
      return Write(command, name, in);
    if (command == "look") return Look(name);
    if (command == "fork") return Fork();
    if (command == "exit") _exit(0);
    if (command == "die") raise(SIGKILL);
    return "UNKNOWN command " + command;
  }

 private:
  std::string Submit(const std::string& name, std::istringstream& in) {
    std::string dtype, op = "sum";
    int64_t count = 0;
    double value = 0, timeout = 0;
    int set = 0;
    in >> dtype >> count >> value >> op >> timeout >> set;
    if (op.empty()) op = "sum";
    coordd::CallOptions options;
    options.timeout = std::chrono::duration<double>(timeout);
    options.process_set = set;
    if (dtype == "float32") return SubmitAs<float>(name, count, value, op, options);
    if (dtype == "float64") return SubmitAs<double>(name, count, value, op, options);
    if (dtype == "int32") return SubmitAs<int32_t>(name, count, value, op, options);
    if (dtype == "uint8") return SubmitAs<uint8_t>(name, count, value, op, options);
    return "UNKNOWN dtype " + dtype;
  }

  template <typename T>
  std::string SubmitAs(const std::string& name, int64_t count, double value, const std::string& op,
                       const coordd::CallOptions& options) {
    Pending& pending = pending_[name];
    pending = Pending();
    pending.bytes.resize(static_cast<size_t>(count) * sizeof(T));
    T* const data = reinterpret_cast<T*>(pending.bytes.data());
    std::fill(data, data + count, static_cast<T>(value));
    pending.summary = [data, count] {
      std::ostringstream out;
      if (count > 0) out << +data[0] << " " << +data[count - 1];
      return out.str();
    };
    auto work =
        worker_.TryAllreduceAsync(name, coordd::View<T>(data, count), OpFromName(op), options);
    if (!work.ok()) return std::string(coordd_status_name(work.code())) + " " + work.message();
    pending.work = std::move(work.value());
    return "ok";
  }

  std::string AddSet(const std::string& first, std::istringstream& in) {
    std::vector<int32_t> ranks = {std::stoi(first)};
    for (int32_t rank = 0; in >> rank;) ranks.push_back(rank);
    coordd::Expected<int> added = worker_.TryAddProcessSet(ranks, kPatience);
    if (added.ok()) return "ok " + std::to_string(added.value());
    return std::string(coordd_status_name(added.code())) + " " + added.message();
  }

  std::string Sets() {
    int32_t numbers[64];
    size_t count = 0;
    if (coordd_process_set_list(worker_.handle(), numbers, 64, &count, nullptr) != COORDD_OK)
      return coordd_last_error();
    std::string text = "ok";
    for (size_t i = 0; i < count; ++i) {
      text += " " + std::to_string(numbers[i]);
      char separator = ':';
      for (int32_t rank : worker_.ProcessSetRanks(numbers[i])) {
        text += separator + std::to_string(rank);
        separator = ',';
      }
    }
    return text;
  }

  std::string Wait(const std::string& name) {
    const auto it = pending_.find(name);
    if (it == pending_.end()) return "UNKNOWN tensor " + name;
    const coordd::Expected<> result = it->second.work.TryWait();
    return Answer(result, result.ok() ? it->second.summary() : "");
  }

  std::string Large(const std::string& name, std::istringstream& in) {
    int64_t size = 0;
    in >> size;
    const int rank = worker_.rank(), ranks = worker_.size();
    std::vector<uint8_t> data(static_cast<size_t>(size), static_cast<uint8_t>(rank + 1));
    auto work = worker_.TryAllreduceAsync(name, coordd::View<uint8_t>(data), coordd::Op::kSum);
    if (!work.ok()) return std::string(coordd_status_name(work.code())) + " " + work.message();
    const coordd::Expected<> result = work.value().TryWait();
    if (!result.ok()) return Answer(result);
    const auto expected = static_cast<uint8_t>(ranks * (ranks + 1) / 2);
    for (size_t i = 0; i < data.size(); ++i) {
      if (data[i] != expected)
        return "WRONG element " + std::to_string(i) + " is " + std::to_string(data[i]);
    }
    return "ok " + std::to_string(expected);
  }

  std::string Next() {
    auto next = worker_.TryAwaitGeneration(kPatience);
    if (!next.ok()) return std::string(coordd_status_name(next.code())) + " " + next.message();
    const coordd_placement_t place = next.value();
    std::ostringstream out;
    out << "ok " << place.generation << " " << place.rank << " " << place.size;
    return out.str();
  }

  std::string Train(const std::string& name, std::istringstream& in) {
    int64_t count = 0, steps = 0, step = 0;
    std::string until;
    in >> count >> steps >> until;
    int64_t end = until == "change" ? std::numeric_limits<int64_t>::max() : steps;
    std::vector<float> data(static_cast<size_t>(count));
    // All begin with where to begin: others may have come further, and lost a member since.
    bool agreed = false, changed = false;
    while (step < end) {
      std::fill(data.begin(), data.end(), 1.0f);
      const coordd::Expected<> result =
          agreed ? Reduce(name, coordd::View<float>(data), coordd::Op::kSum)
                 : Reduce("step", coordd::View<int64_t>(&step, 1), coordd::Op::kMin);
      if (result.ok() && agreed) {
        const float size = static_cast<float>(worker_.size());
        if (!std::all_of(data.begin(), data.end(), [&](float x) { return x == size; }))
          return "WRONG result " + std::to_string(data.front());
        if (++step == 5) std::cout << "step 5" << std::endl;
      }
      // All have agreed on where to go on.
      if (result.ok() && !agreed && changed && until == "change") end = step + steps;
      agreed = result.ok();
      if (agreed) continue;
      if (result.code() != COORDD_GENERATION_CHANGED) return Answer(result);
      changed = true;
      std::cout << "changed " << result.message() << std::endl;
      const auto place = worker_.TryAwaitGeneration(kPatience);
      if (!place.ok()) return std::string(coordd_status_name(place.code())) + " " + place.message();
    }
    std::ostringstream out;
    out << "ok " << step << " " << worker_.placement().generation << " " << worker_.size();
    return out.str();
  }

  template <typename T>
  coordd::Expected<> Reduce(const std::string& name, coordd::View<T> tensor, coordd::Op op) {
    auto work = worker_.TryAllreduceAsync(name, std::move(tensor), op);
    if (!work.ok()) return coordd::Expected<>(work.code(), work.message());
    return work.value().TryWait();
  }

  std::string Steps(const std::string& stop_file, std::istringstream& in) {
    constexpr int kTensors = 5, kElements = 1000;
    std::string names;
    int rest_ms = 0;  // as a program has something to compute in a step
    in >> names >> rest_ms;
    const int rank = worker_.rank(), ranks = worker_.size();
    std::vector<std::vector<double>> data(kTensors, std::vector<double>(kElements));
    for (int64_t step = 0;; ++step) {
      const std::string prefix = names == "unique" ? "u" + std::to_string(step) + "." : "t";
      std::vector<coordd::Work> works;
      for (int i = 0; i < kTensors; ++i) {
        std::fill(data[i].begin(), data[i].end(), static_cast<double>(step * 8 + i + rank));
        auto work = worker_.TryAllreduceAsync(prefix + std::to_string(i),
                                              coordd::View<double>(data[i].data(), kElements),
                                              coordd::Op::kSum, coordd::CallOptions());
        if (!work.ok()) return std::string(coordd_status_name(work.code())) + " " + work.message();
        works.push_back(std::move(work.value()));
      }
      double stop = access(stop_file.c_str(), F_OK) == 0 ? 1 : 0;
      auto all = worker_.TryAllreduceAsync(prefix + "stop", coordd::View<double>(&stop, 1),
                                           coordd::Op::kMax, coordd::CallOptions());
      if (!all.ok()) return std::string(coordd_status_name(all.code())) + " " + all.message();
      works.push_back(std::move(all.value()));
      for (coordd::Work& work : works) {
        const coordd::Expected<> result = work.TryWait();
        if (!result.ok()) return Answer(result);
      }
      for (int i = 0; i < kTensors; ++i) {
        const double expected = static_cast<double>(ranks) * static_cast<double>(step * 8 + i) +
                                static_cast<double>(ranks * (ranks - 1) / 2);
        for (double value : data[i])
          if (value != expected) return "WRONG value in step " + std::to_string(step);
      }
      if (stop > 0) return "ok " + std::to_string(step + 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(rest_ms));
    }
  }

  std::string Meet(size_t count, std::istringstream& in) {
    int pause_ms = 0;
    in >> pause_ms;
    std::vector<int64_t> took_us;
    for (size_t step = 0; step < count; ++step) {
      const auto begun = std::chrono::steady_clock::now();
      double sum = static_cast<double>(step);
      coordd::Expected<> result = worker_.TryBarrier();
      if (result.ok()) result = Reduce("meet", coordd::View<double>(&sum, 1), coordd::Op::kSum);
      if (!result.ok()) return Answer(result);
      if (sum != static_cast<double>(step) * worker_.size()) return "UNKNOWN wrong sum";
      took_us.push_back(std::chrono::duration_cast<std::chrono::microseconds>(
                            std::chrono::steady_clock::now() - begun)
                            .count());
      std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    }
    std::sort(took_us.begin(), took_us.end());
    if (took_us.empty()) return "ok 0 0 0";
    std::ostringstream out;
    out << "ok " << took_us[count / 2] << " " << took_us[count * 99 / 100] << " " << took_us.back();
    return out.str();
  }

  std::string Commits(const std::string& stop_file) {
    int64_t steps = 0, failed = 0;
    std::vector<float> data(1000);
    const auto ended = [&](const char* how) {
      std::ostringstream out;
      out << how << " " << steps << " " << worker_.size() << " " << failed;
      return out.str();
    };
    for (;;) {
      std::fill(data.begin(), data.end(), 1.0f);
      coordd::Expected<> result = Reduce("grad", coordd::View<float>(data), coordd::Op::kSum);
      const float size = static_cast<float>(worker_.size());
      std::vector<int32_t> news = {
          access(stop_file.c_str(), F_OK) == 0 ? 1 : 0,
          worker_.newcomers() + static_cast<int32_t>(worker_.drain_seconds() >= 0)};
      if (result.ok()) result = Reduce("commit", coordd::View<int32_t>(news), coordd::Op::kMax);
      if (!result.ok()) {
        if (result.code() != COORDD_GENERATION_CHANGED) return Answer(result);
        ++failed;
        const auto place = worker_.TryAwaitGeneration(kPatience);
        if (!place.ok())
          return std::string(coordd_status_name(place.code())) + " " + place.message();
        continue;
      }
      if (data.front() != size || data.back() != size)
        return "WRONG result " + std::to_string(data.front());
      if (++steps == 5) std::cout << "step 5" << std::endl;
      if (news[0] > 0) return ended("ok");
      if (news[1] == 0) continue;
      if (worker_.drain_seconds() >= 0) {
        const std::string how = ended("left");
        const coordd::Expected<> goodbye = worker_.TryShutdown(std::chrono::seconds(10));
        return goodbye.ok() ? how : Answer(goodbye);
      }
      const auto place = worker_.TryChangeMembers(kPatience);
      if (!place.ok()) return std::string(coordd_status_name(place.code())) + " " + place.message();
    }
  }

  std::string Count(const std::string& key, std::istringstream& in) {
    std::string stop_file;
    in >> stop_file;
    int64_t counted = 0, unknown = 0, last = 0;
    std::string why;
    while (access(stop_file.c_str(), F_OK) != 0) {
      int64_t sum = 0;
      if (coordd_store_add(worker_.handle(), key.c_str(), 1, &sum, kPatience.count()) !=
          COORDD_OK) {
        ++unknown;
        why = std::string(" ") + coordd_last_error();
        continue;
      }
      if (sum <= last)
        return "WRONG sum " + std::to_string(sum) + " behind " + std::to_string(last);
      last = sum;
      if (++counted == 1) std::cout << "counting" << std::endl;
    }
    return "ok " + std::to_string(counted) + " " + std::to_string(unknown) + why;
  }

  static std::string AnswerOf(coordd_status_t status, const std::string& details = "") {
    if (status != COORDD_OK)
      return std::string(coordd_status_name(status)) + " " + coordd_last_error();
    return details.empty() ? "ok" : "ok " + details;
  }

  std::string Write(const std::string& how, const std::string& key, std::istringstream& in) {
    std::string value;
    in >> value;
    coordd_worker_t* const handle = worker_.handle();
    const double seconds = kPatience.count();
    if (how == "drop") return AnswerOf(coordd_store_delete(handle, key.c_str(), nullptr, seconds));
    const auto write =
        how == "put" ? coordd_store_set(handle, key.c_str(), value.data(), value.size(), seconds)
                     : coordd_store_append(handle, key.c_str(), value.data(), value.size(), nullptr,
                                           seconds);
    return AnswerOf(write);
  }

  std::string Look(const std::string& key) {
    const char* const keys[] = {key.c_str()};
    const double seconds = kPatience.count();
    int32_t there = 0;
    const coordd_status_t checked = coordd_store_check(worker_.handle(), keys, 1, &there, seconds);
    if (checked != COORDD_OK || there == 0) return AnswerOf(checked);
    std::string value(1 << 16, '\0');
    size_t size = 0;
    const coordd_status_t status =
        coordd_store_get(worker_.handle(), key.c_str(), value.data(), value.size(), &size, seconds);
    return AnswerOf(status, value.substr(0, size));
  }

  std::string MakeComm(const std::string& name) {
    coordd::Expected<coordd::Comm> comm = worker_.TryMakeComm(name);
    if (!comm.ok()) return std::string(coordd_status_name(comm.code())) + " " + comm.message();
    comms_.insert_or_assign(name, std::move(comm.value()));
    return "ok";
  }

  std::string Call(coordd::Comm& comm) {
    int32_t sum = worker_.rank() + 1;
    const coordd::Expected<> called = comm.TryAllreduce(&sum, &sum, 1, coordd::Op::kSum);
    return called.ok() ? "ok " + std::to_string(sum) : Answer(called);
  }

  std::string Message(const std::string& command, coordd::Comm& comm, std::istringstream& in) {
    int other = 0;
    std::vector<int32_t> large(100000);
    in >> other;
    coordd::Expected<coordd::Work> work = command == "send"
                                              ? comm.TrySendAsync(large.data(), 100000, other)
                                              : comm.TryReceiveAsync(large.data(), 100000, other);
    if (!work.ok()) return std::string(coordd_status_name(work.code())) + " " + work.message();
    return Answer(work.value().TryWait());
  }

  std::string Fork() {
    int ends[2];
    if (pipe(ends) != 0) return "UNKNOWN pipe failed";
    const pid_t child = fork();
    if (child == 0) {
      float value = 0;
      auto work =
          worker_.TryAllreduceAsync("child", coordd::View<float>(&value, 1), coordd::Op::kSum);
      const std::string answer =
          work.ok() ? "ok" : std::string(coordd_status_name(work.code())) + " " + work.message();
      [[maybe_unused]] const ssize_t written = write(ends[1], answer.data(), answer.size());
      // Destructors run as they would in a program that simply ends: they must do nothing here.
      worker_ = coordd::Worker();
      _exit(0);
    }
    close(ends[1]);
    std::string answer;
    char buffer[4096];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;)
      answer.append(buffer, static_cast<size_t>(n));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return status == 0 ? answer : "UNKNOWN child ended with " + std::to_string(status);
  }

  coordd::Worker worker_;
  std::map<std::string, Pending> pending_;
  std::map<std::string, coordd::Comm> comms_;  // end before their worker
};

std::string Place(const coordd::Worker& worker) {
  const coordd_placement_t place = worker.placement();
  std::ostringstream out;
  out << "rank=" << place.rank << " size=" << place.size << " local_rank=" << place.local_rank
      << " local_size=" << place.local_size << " cross_rank=" << place.cross_rank
      << " cross_size=" << place.cross_size << " generation=" << place.generation
      << " metrics=" << worker.metrics_address() << " host_address=" << worker.host_address();
  return out.str();
}

}  // namespace

int main(int argc, char** argv) {
  coordd_options_t options = COORDD_OPTIONS_INIT;
  if (argc > 1) options.worker_id = argv[1];
  auto worker = coordd::Worker::TryStart(&options);
  if (!worker.ok()) {
    std::cout << coordd_status_name(worker.code()) << " " << worker.message() << std::endl;
    return 3;
  }
  std::cout << "ok " << Place(worker.value()) << std::endl;
  Script script(std::move(worker.value()));
  for (std::string line; std::getline(std::cin, line);)
    std::cout << script.Carry(line) << std::endl;
  return 0;
}
