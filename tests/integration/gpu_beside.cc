#include "tests/integration/gpu_beside.h"

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "common/base/dynamic_library.h"
#include "worker/gpu/nccl/nccl_api.h"

namespace coordd {
namespace {

constexpr int64_t kCount = 1000;
constexpr double kStoreSeconds = 300;  // against hangs only

DynamicLibrary OpenNccl() {
  const char* const named = getenv("COORDD_NCCL_LIBRARY");
  return DynamicLibrary::Open(named != nullptr ? named : "libnccl.so.2").value();
}

// As torch's ProcessGroupNCCL has it: a blocking communicator, and a stream of its own.
class NcclGroup {
 public:
  // `rank`: this one's place among `size` of a group that has this name, on its members alone.
  NcclGroup(RankOnDevice& r, const std::string& name, int rank, int size)
      : rank_(r),
        nccl_(OpenNccl()),
        place_(rank),
        size_(size),
        stream_(DeviceStream::Create(r.runtime(), r.device()).value()),
        before_(DeviceEvent::Create(r.runtime(), r.device()).value()),
        end_(DeviceEvent::Create(r.runtime(), r.device()).value()) {
    NcclUniqueId id = {};
    const std::string key = "id/" + name;
    size_t bytes = 0;
    if (rank == 0) {
      Check("ncclGetUniqueId", Function<NcclResult(NcclUniqueId*)>("ncclGetUniqueId")(&id));
      RequireOk(coordd_store_set(r.worker(), key.c_str(), id.bytes, sizeof(id), kStoreSeconds),
                "give an id");
    } else {
      RequireOk(
          coordd_store_get(r.worker(), key.c_str(), id.bytes, sizeof(id), &bytes, kStoreSeconds),
          "get an id");
    }
    const DeviceScope scope = DeviceScope::Enter(r.runtime(), r.device()).value();
    NcclConfig config;
    config.blocking = 1;
    const auto init = Function<NcclResult(NcclComm*, int, NcclUniqueId, int, NcclConfig*)>(
        "ncclCommInitRankConfig");
    Check("ncclCommInitRankConfig", init(&comm_, size, id, rank, &config));
  }

  // Behind what the program's stream has now.
  void Allreduce(float* data) {
    const auto call =
        Function<NcclResult(const void*, void*, size_t, NcclType, NcclOp, NcclComm, CudaStream)>(
            "ncclAllReduce");
    Enqueue([&] {
      Check("ncclAllReduce",
            call(data, data, kCount, NcclType::kFloat32, NcclOp::kSum, comm_, stream_.get()));
    });
  }
  void ReduceScatterAndGather(float* data) {
    const size_t part = static_cast<size_t>(kCount / size_);
    float* const own = data + part * static_cast<size_t>(place_);
    const auto scatter =
        Function<NcclResult(const void*, void*, size_t, NcclType, NcclOp, NcclComm, CudaStream)>(
            "ncclReduceScatter");
    const auto gather =
        Function<NcclResult(const void*, void*, size_t, NcclType, NcclComm, CudaStream)>(
            "ncclAllGather");
    Enqueue([&] {
      Check("ncclReduceScatter",
            scatter(data, own, part, NcclType::kFloat32, NcclOp::kSum, comm_, stream_.get()));
      Check("ncclAllGather", gather(own, data, part, NcclType::kFloat32, comm_, stream_.get()));
    });
  }
  // What the program's stream gets from now on is behind the last call.
  void LetWait() {
    Require(end_.LetWait(static_cast<CudaStream>(rank_.stream())).ok(), "wait for a group");
  }
  void End() {
    Check("ncclCommFinalize", Function<NcclResult(NcclComm)>("ncclCommFinalize")(comm_));
    const DeviceScope scope = DeviceScope::Enter(rank_.runtime(), rank_.device()).value();
    Check("ncclCommDestroy", Function<NcclResult(NcclComm)>("ncclCommDestroy")(comm_));
  }
  void Abort() {
    const DeviceScope scope = DeviceScope::Enter(rank_.runtime(), rank_.device()).value();
    Check("ncclCommAbort", Function<NcclResult(NcclComm)>("ncclCommAbort")(comm_));
  }

 private:
  template <typename T>
  T* Function(const char* name) const {
    T* const found = nccl_.Function<T>(name);
    Require(found != nullptr, name);
    return found;
  }
  static void Check(const char* what, NcclResult result) {
    Require(result == NcclResult::kSuccess,
            std::string(what) + ": " + std::to_string(static_cast<int>(result)));
  }
  template <typename Call>
  void Enqueue(const Call& call) {
    const DeviceScope scope = DeviceScope::Enter(rank_.runtime(), rank_.device()).value();
    Require(before_.Record(static_cast<CudaStream>(rank_.stream())).ok() &&
                stream_.Wait(before_.get()).ok(),
            "a group's stream");
    call();
    Require(end_.Record(stream_.get()).ok(), "record");
  }

  RankOnDevice& rank_;
  const DynamicLibrary nccl_;
  const int place_, size_;
  DeviceStream stream_;
  DeviceEvent before_, end_;
  NcclComm comm_ = nullptr;
};

// What a rank has, and what it does at each word.
class Program {
 public:
  Program(RankOnDevice& r, bool one_buffer)
      : rank_(r),
        side_(DeviceStream::Create(r.runtime(), r.device()).value()),
        memory_(std::make_unique<DeviceMemory>(
            DeviceMemory::Allocate(r.runtime(), r.device(), 1).value())) {
    Require(r.size() == 4, "four ranks");
    const int pair = r.rank() / 2, place = r.rank() % 2;
    groups_.emplace('f', std::make_unique<NcclGroup>(r, "f" + std::to_string(place), pair, 2));
    groups_.emplace('t', std::make_unique<NcclGroup>(r, "t" + std::to_string(pair), place, 2));
    float* const shared = one_buffer ? r.Upload(Ones()) : nullptr;
    for (const char call : kCalls) {
      buffers_[call] = one_buffer ? shared : r.Upload(Ones());
      values_[buffers_[call]] = 1.0f;
    }
    // What connects ranks is not what is tried.
    for (const char call : kCalls) {
      Call(call);
      Wait(call);
    }
    r.Synchronize();
  }

  void Do(const std::string& word) {
    const std::string what = word.substr(0, word.find(':'));
    const std::string argument =
        word.substr(what.size() == word.size() ? what.size() : what.size() + 1);
    if (what == "say") return Say(argument);
    if (what == "hear") return Hear(argument);
    if (what == "busy") return Await("fake_cuda_collectives_at_work");
    if (what == "free") return Free();
    if (what == "freed") return freeing_.join();
    if (what == "on") return AwaitOnDevice(LowerOf(argument));
    if (what == "end") return AwaitEnd(LowerOf(argument));
    if (what == "done") return rank_.Synchronize();
    if (what == "own") return EndGroups(/*in_peace=*/false);
    Require(what.size() == 1 && kCalls.find(LowerOf(what)) != kCalls.npos, "a word " + word);
    if (std::isupper(static_cast<unsigned char>(what[0]))) return Wait(LowerOf(what));
    Call(what[0]);
  }
  // All calls have been waited for.
  void Check() {
    for (const auto& [buffer, value] : values_)
      Expect(rank_.Download<float>(buffer, kCount), Filled(kCount, value), "beside NCCL");
  }
  void EndGroups(bool in_peace) {
    for (const auto& [name, group] : groups_) in_peace ? group->End() : group->Abort();
    groups_.clear();
  }
  bool has_groups() const { return !groups_.empty(); }

 private:
  static constexpr std::string_view kCalls = "ceft";

  static std::vector<float> Ones() { return Filled(kCount, 1.0f); }
  static char LowerOf(const std::string& name) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(name.at(0))));
  }
  static bool IsOfCoordd(char call) { return call == 'c' || call == 'e'; }

  void Call(char call) {
    float* const data = buffers_.at(call);
    if (const auto expected = values_.find(data); expected != values_.end())
      expected->second *= IsOfCoordd(call) ? static_cast<float>(rank_.size()) : 2.0f;
    if (call == 'f') return groups_.at(call)->ReduceScatterAndGather(data);
    if (call == 't') return groups_.at(call)->Allreduce(data);
    const int64_t shape[] = {kCount};
    coordd_tensor_t tensor =
        rank_.Tensor(call == 'c' ? "grad/c" : "grad/e", COORDD_FLOAT32, data, data, shape);
    coordd_work_t* work = nullptr;
    RequireOk(coordd_allreduce_async(rank_.worker(), &tensor, COORDD_SUM, nullptr, &work),
              "submit");
    works_[call] = {work, coordd_work_release};
  }
  void Wait(char call) {
    if (!IsOfCoordd(call)) return groups_.at(call)->LetWait();
    RequireOk(coordd_work_wait_on_stream(works_.at(call).get(), rank_.stream(), -1), "wait");
  }
  void AwaitOnDevice(char call) {
    RequireOk(coordd_work_wait_on_stream(works_.at(call).get(), side_.get(), -1), "launch");
  }
  // Until the stand-in's number of this device is not 0.
  void Await(const char* number) {
    const DynamicLibrary driver = DynamicLibrary::Open("libcuda.so.1").value();
    const auto of_device = driver.Function<long(int)>(number);
    Require(of_device != nullptr, "the stand-in of CUDA's driver");
    IdleWait idle(1, 1);
    while (of_device(rank_.device()) == 0) idle.Wait();
  }
  void Free() {
    freeing_ = std::thread([this] { memory_.reset(); });
    Await("fake_cuda_lock_holders_of");
  }
  void AwaitEnd(char call) {
    const coordd_status_t status = coordd_work_wait(works_.at(call).get(), -1);
    std::printf("ended %s %s\n", coordd_status_name(status),
                status == COORDD_OK ? "" : coordd_last_error());
    std::fflush(stdout);
    if (status == COORDD_OK) return;
    values_.erase(buffers_.at(call));
    if (status == COORDD_GENERATION_CHANGED) rank_.EnterNext();
  }
  void Say(const std::string& what) {
    const std::string key = "said/" + what;
    RequireOk(coordd_store_set(rank_.worker(), key.c_str(), "", 0, kStoreSeconds), "say");
  }
  void Hear(const std::string& what) {
    const std::string key = "said/" + what;
    char nothing[1];
    size_t bytes = 0;
    RequireOk(coordd_store_get(rank_.worker(), key.c_str(), nothing, sizeof(nothing), &bytes,
                               kStoreSeconds),
              "hear");
  }

  RankOnDevice& rank_;
  DeviceStream side_;
  std::unique_ptr<DeviceMemory> memory_;  // to be given back
  std::thread freeing_;
  std::map<char, std::unique_ptr<NcclGroup>> groups_;
  std::map<char, float*> buffers_;
  std::map<const float*, float> values_;  // expected
  std::map<char, std::shared_ptr<coordd_work_t>> works_;
};

}  // namespace

void BesideNccl(RankOnDevice& r, int times, bool one_buffer,
                const std::vector<std::string>& words) {
  auto program = std::make_unique<Program>(r, one_buffer);
  for (int i = 0; i < times; ++i) {
    for (const std::string& word : words) {
      if (word != "leave") {
        program->Do(word);
        continue;
      }
      program.release();  // to end its streams is to wait for them
      return;
    }
  }
  program->Check();
  if (program->has_groups()) program->EndGroups(/*in_peace=*/true);
  RequireOk(coordd_barrier(r.worker(), "through", nullptr), "the end");
  std::printf("ok beside %d\n", times);
}

}  // namespace coordd
