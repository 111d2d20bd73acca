// The handlers of XLA's typed FFI against a stand-in of XLA: in a rank of coordrun. On a GPU where
// CUDA's driver, or its stand-in, is found.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/c_api/coordd.h"
#include "client/tensorflow/xla_ffi.h"

// What XLA has behind these names.
struct coordd::tensorflow::FfiError {
  std::string message;
  int code = 0;
};
struct coordd::tensorflow::FfiFuture {
  std::promise<std::unique_ptr<FfiError>> done;
};

namespace coordd::tensorflow {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kFloat32 = 11, kInt32Scalar = 4, kFloat64Scalar = 12;  // XLA's PrimitiveType
constexpr int kAllreduce = 0, kAllgather = 1, kAlltoall = 3;

coordd_worker_t* worker = nullptr;
using Handler = FfiError* (*)(FfiCall*);
Handler on_host = nullptr, on_gpu = nullptr;

FfiError* CreateError(FfiErrorCreate* arguments) {
  return new FfiError{arguments->message, arguments->code};
}
FfiError* CreateFuture(FfiFutureCreate* arguments) {
  arguments->future = new FfiFuture;
  return nullptr;
}
FfiError* SetAvailable(FfiFutureSetAvailable* arguments) {
  arguments->future->done.set_value(nullptr);
  return nullptr;
}
FfiError* SetError(FfiFutureSetError* arguments) {
  arguments->future->done.set_value(std::unique_ptr<FfiError>(arguments->error));
  return nullptr;
}
struct Context {
  void* stream = nullptr;
  int32_t ordinal = 0;
};
FfiError* GetStream(FfiStreamGet* arguments) {
  arguments->stream = static_cast<Context*>(arguments->context)->stream;
  return nullptr;
}
FfiError* GetOrdinal(FfiDeviceOrdinalGet* arguments) {
  arguments->device_ordinal = static_cast<Context*>(arguments->context)->ordinal;
  return nullptr;
}

FfiDeviceApi Api() {
  FfiDeviceApi api = {};
  api.host.struct_size = sizeof(FfiDeviceApi);
  api.host.version = {sizeof(FfiVersion), nullptr, 0, 3};
  api.host.error_create = CreateError;
  api.host.stream_get = GetStream;
  api.host.future_create = CreateFuture;
  api.host.future_set_available = SetAvailable;
  api.host.future_set_error = SetError;
  api.device_ordinal_get = GetOrdinal;
  return api;
}

// One call with one tensor of float32.
class Call {
 public:
  Call(std::string name, int32_t kind, void* input, void* output, int64_t count)
      : Call(std::move(name), kind, input, output, count, count) {}
  Call(std::string name, int32_t kind, void* input, void* output, int64_t count, int64_t results)
      : name_(std::move(name)), kind_(kind), dims_{count, results} {
    buffers_[0] = {sizeof(FfiBuffer), nullptr, kFloat32, input, 1, &dims_[0]};
    buffers_[1] = {sizeof(FfiBuffer), nullptr, kFloat32, output, 1, &dims_[1]};
    AddNumber("kind", kInt32Scalar, &kind_);
    AddNumber("reduce_op", kInt32Scalar, &op_);
    AddNumber("root_rank", kInt32Scalar, &zero_);
    AddNumber("process_set", kInt32Scalar, &zero_);
    AddNumber("prescale_factor", kFloat64Scalar, &one_);
    AddNumber("postscale_factor", kFloat64Scalar, &one_);
    text_ = {name_.data(), name_.size()};
    Add("name", &text_);
  }

  // nullptr, or what XLA would raise. `on_return`: called when the handler has returned.
  std::unique_ptr<FfiError> Run(
      Handler handler, Context context = {}, const std::function<void()>& on_return = [] {}) {
    FfiCall call = {};
    call.struct_size = sizeof(FfiCall);
    call.api = &api.host;
    call.context = &context;
    call.stage = 3;  // execute
    call.arguments = {sizeof(FfiBuffers), nullptr, 1, nullptr, &pointers_[0]};
    call.results = {sizeof(FfiBuffers), nullptr, 1, nullptr, &pointers_[1]};
    call.attributes = {
        sizeof(FfiAttributes), nullptr,       static_cast<int64_t>(names_.size()), nullptr,
        name_pointers_.data(), values_.data()};
    std::unique_ptr<FfiError> error(handler(&call));
    on_return();
    if (error != nullptr || call.future == nullptr) return error;
    const std::unique_ptr<FfiFuture> future(call.future);
    return future->done.get_future().get();
  }

  FfiDeviceApi api = Api();

 private:
  void AddNumber(const char* name, int dtype, void* value) {
    scalars_.push_back(std::make_unique<FfiScalar>(FfiScalar{dtype, value}));
    Add(name, scalars_.back().get());
  }
  void Add(const char* name, void* value) {
    names_.push_back(std::make_unique<FfiBytes>(FfiBytes{name, std::strlen(name)}));
    name_pointers_.push_back(names_.back().get());
    values_.push_back(value);
  }

  const std::string name_;
  int32_t kind_, op_ = COORDD_SUM, zero_ = 0;
  double one_ = 1;
  int64_t dims_[2];
  FfiBuffer buffers_[2] = {};
  FfiBuffer* pointers_[2] = {&buffers_[0], &buffers_[1]};
  FfiBytes text_ = {};
  std::vector<std::unique_ptr<FfiScalar>> scalars_;
  std::vector<std::unique_ptr<FfiBytes>> names_;
  std::vector<FfiBytes*> name_pointers_;
  std::vector<void*> values_;
};

float SumOfRanks() {
  const auto size = static_cast<float>(coordd_size(worker));
  return size * (size + 1) / 2;
}

TEST(Ffi, AnswersWithTheRuntimesOwnVersion) {
  for (Handler handler : {on_host, on_gpu}) {
    FfiDeviceApi api = Api();
    FfiMetadata metadata = {sizeof(FfiMetadata), {}, 0};
    FfiMetadataExtension extension = {{sizeof(FfiMetadataExtension), 1, nullptr}, &metadata};
    FfiCall call = {};
    call.extension = &extension.base;
    call.api = &api.host;
    EXPECT_EQ(handler(&call), nullptr);
    EXPECT_EQ(metadata.api_version.minor_version, 3);
  }
}

TEST(Ffi, ReducesOnTheHostWithoutAThreadOfXlas) {
  std::vector<float> input(3, static_cast<float>(coordd_rank(worker) + 1)), output(3);
  Call call("host", kAllreduce, input.data(), output.data(), 3);
  const auto error = call.Run(on_host);
  ASSERT_EQ(error, nullptr) << error->message;
  EXPECT_THAT(output, ElementsAre(SumOfRanks(), SumOfRanks(), SumOfRanks()));
}

TEST(Ffi, DoesNotKeepXlasThreadForARankThatIsLate) {
  const double patience_s = 30;
  float value = static_cast<float>(coordd_rank(worker) + 1), sum = 0;
  if (coordd_rank(worker) == 0) {  // comes when all others have got their thread back
    for (int rank = 1; rank < coordd_size(worker); ++rank) {
      const std::string key = "returned." + std::to_string(rank);
      size_t size = 0;
      char buffer[1];
      ASSERT_EQ(coordd_store_get(worker, key.c_str(), buffer, 1, &size, patience_s), COORDD_OK);
    }
  }
  Call call("late", kAllreduce, &value, &sum, 1);
  const auto error = call.Run(on_host, {}, [] {
    const std::string key = "returned." + std::to_string(coordd_rank(worker));
    EXPECT_EQ(coordd_store_set(worker, key.c_str(), "1", 1, 30), COORDD_OK);
  });
  ASSERT_EQ(error, nullptr) << error->message;
  EXPECT_EQ(sum, SumOfRanks());
}

TEST(Ffi, WaitsInTheCallWhereTheRuntimeHasNoFutures) {
  std::vector<float> input(20000, static_cast<float>(coordd_rank(worker) + 1)), output(20000);
  Call call("waits", kAllreduce, input.data(), output.data(), 20000);
  call.api.host.version.minor_version = 1;
  call.api.host.future_create = nullptr;
  const auto error =
      call.Run(on_host, {}, [&] { EXPECT_EQ(output, std::vector<float>(20000, SumOfRanks())); });
  ASSERT_EQ(error, nullptr) << error->message;
}

// Of a program that was compiled when there was a rank more.
TEST(Ffi, SaysThatAResultIsSmallerThanXlasBuffer) {
  const int64_t size = coordd_size(worker);
  for (const bool has_futures : {true, false}) {
    float value = 1;
    std::vector<float> output(static_cast<size_t>(size) + 1);
    Call exact("exact", kAllgather, &value, output.data(), 1, size);
    Call more("more", kAllgather, &value, output.data(), 1, size + 1);
    for (Call* call : {&exact, &more}) call->api.host.version.minor_version = has_futures ? 3 : 1;
    const auto none = exact.Run(on_host);
    ASSERT_EQ(none, nullptr) << none->message;
    const auto error = more.Run(on_host);
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->code, COORDD_INVALID_ARGUMENT);
    EXPECT_THAT(error->message, HasSubstr("tensor more: the result has " +
                                          std::to_string(4 * size) + " bytes, but"));
  }
}

// On rank 0 more comes than its part has, on the others less.
TEST(Ffi, PartsThatDifferBetweenRanksAreNamed) {
  const int size = coordd_size(worker), count = coordd_rank(worker) == 0 ? size : 2 * size;
  if (size == 1) return;  // one rank has one shape
  const std::string shape = "this rank's is [" + std::to_string(count) + "]";
  std::vector<float> input(static_cast<size_t>(count)), output(static_cast<size_t>(count));
  for (const bool has_futures : {true, false}) {
    Call call("parts", kAlltoall, input.data(), output.data(), count);
    if (!has_futures) call.api.host.version.minor_version = 1;
    const auto error = call.Run(on_host);
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->code, COORDD_INVALID_ARGUMENT);
    EXPECT_THAT(error->message, AllOf(HasSubstr("tensor parts: the result has "),
                                      HasSubstr("have to have the same shape"), HasSubstr(shape)));
  }
}

TEST(Ffi, RefusesARuntimeThatIsTooOldForGpus) {
  float value = 0;
  Call call("old", kAllreduce, &value, &value, 1);
  call.api.host.struct_size = sizeof(FfiApi);
  const auto error = call.Run(on_gpu);
  EXPECT_EQ(error->code, COORDD_UNIMPLEMENTED);
  EXPECT_THAT(error->message, HasSubstr("which device"));
}

TEST(Ffi, TheSelfCheckLooksAtStreamDeviceAndBuffers) {
  float value = 0, other = 0;
  Context context = {&value, 0};
  EXPECT_EQ(Call("", kFfiSelfCheck, &value, &value, 1).Run(on_gpu, context), nullptr);
  EXPECT_THAT(Call("", kFfiSelfCheck, &value, &other, 1).Run(on_gpu, context)->message,
              HasSubstr("other buffers"));
  context.stream = nullptr;
  EXPECT_NE(Call("", kFfiSelfCheck, &value, &value, 1).Run(on_gpu, context), nullptr);
  context = {&value, -1};
  EXPECT_NE(Call("", kFfiSelfCheck, &value, &value, 1).Run(on_gpu, context), nullptr);
}

// As much of CUDA's driver as a program with a tensor needs.
class Driver {
 public:
  bool Open(int ordinal) {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr || Find<int (*)(unsigned)>("cuInit")(0) != 0) return false;
    void* context = nullptr;
    return Find<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context, ordinal) == 0 &&
           Find<int (*)(void*)>("cuCtxPushCurrent_v2")(context) == 0 &&
           Find<int (*)(void**, unsigned, int)>("cuStreamCreateWithPriority")(&stream, 1, 0) == 0 &&
           Find<int (*)(void**, unsigned)>("cuEventCreate")(&event_, 0) == 0;
  }
  void* Upload(const std::vector<float>& values) {
    uint64_t memory = 0;
    EXPECT_EQ(Find<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2")(&memory, Bytes(values)), 0);
    Copy(reinterpret_cast<void*>(memory), values.data(), Bytes(values));
    return reinterpret_cast<void*>(memory);
  }
  std::vector<float> Download(const void* memory, size_t count) {
    std::vector<float> values(count);
    Copy(values.data(), memory, Bytes(values));
    return values;
  }

  void* stream = nullptr;

 private:
  template <typename Function>
  Function Find(const char* name) {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }
  static size_t Bytes(const std::vector<float>& values) { return values.size() * sizeof(float); }
  // Behind what is on the stream, and waits for it.
  void Copy(void* to, const void* from, size_t size) {
    const auto copy = Find<int (*)(uint64_t, uint64_t, size_t, void*)>("cuMemcpyAsync");
    EXPECT_EQ(copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), size, stream),
              0);
    EXPECT_EQ((Find<int (*)(void*, void*)>("cuEventRecord")(event_, stream)), 0);
    const auto query = Find<int (*)(void*)>("cuEventQuery");
    while (query(event_) == kNotReady) std::this_thread::yield();
  }

  static constexpr int kNotReady = 600;
  void* library_ = nullptr;
  void* event_ = nullptr;
};

TEST(Ffi, ReducesInTheMemoryOfADeviceOnXlasStream) {
  Driver driver;
  const int32_t ordinal = coordd_local_rank(worker);
  if (!driver.Open(ordinal)) GTEST_SKIP() << "no driver of CUDA here, nor its stand-in";
  const std::vector<float> own(1000, static_cast<float>(coordd_rank(worker) + 1));
  void* const input = driver.Upload(own);
  void* const output = driver.Upload(std::vector<float>(1000));
  for (int step = 0; step < 5; ++step) {
    Call call("gpu", kAllreduce, input, output, 1000);
    const auto error = call.Run(on_gpu, {driver.stream, ordinal});
    ASSERT_EQ(error, nullptr) << error->message;
    EXPECT_EQ(driver.Download(output, 1000), std::vector<float>(1000, SumOfRanks()));
  }
  EXPECT_EQ(driver.Download(input, 1000), own);
  const int size = coordd_size(worker), count = coordd_rank(worker) == 0 ? size : 2 * size;
  if (size == 1) return;
  const auto error =
      Call("gpu", kAlltoall, input, output, count).Run(on_gpu, {driver.stream, ordinal});
  ASSERT_NE(error, nullptr);
  EXPECT_THAT(error->message, HasSubstr("have to have the same shape in JAX"));
}

}  // namespace
}  // namespace coordd::tensorflow

// Usage: coordd_ffi_test LIBCOORDD_TENSORFLOW
int main(int argc, char** argv) {
  using namespace coordd::tensorflow;  // NOLINT(google-build-using-namespace)
  testing::InitGoogleTest(&argc, argv);
  void* const library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : nullptr;
  if (library == nullptr) return 2;
  const auto use =
      reinterpret_cast<const char* (*)(void*)>(dlsym(library, "coordd_tensorflow_use"));
  const std::string failure = use(dlopen("libcoordd.so.0", RTLD_NOW | RTLD_NOLOAD));
  if (!failure.empty() || coordd_worker_start(nullptr, &worker) != COORDD_OK) {
    std::fprintf(stderr, "ffi_test: %s%s\n", failure.c_str(), coordd_last_error());
    return 1;
  }
  const auto set_worker =
      reinterpret_cast<void (*)(coordd_worker_t*)>(dlsym(library, "coordd_tensorflow_set_worker"));
  set_worker(worker);
  on_host = reinterpret_cast<Handler>(dlsym(library, "coordd_tensorflow_ffi"));
  on_gpu = reinterpret_cast<Handler>(dlsym(library, "coordd_tensorflow_ffi_gpu"));
  const int status = RUN_ALL_TESTS();
  set_worker(nullptr);
  coordd_worker_destroy(worker);
  return status;
}
