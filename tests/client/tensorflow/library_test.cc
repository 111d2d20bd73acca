// libcoordd_tensorflow.so against a stand-in of TensorFlow: in a rank of coordrun.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/c_api/coordd.h"
#include "tests/client/tensorflow/fake_tensorflow.h"

namespace {

using fake_tensorflow::Attributes;
using fake_tensorflow::InferShapes;
using fake_tensorflow::NewTensor;
using fake_tensorflow::Outcome;
using fake_tensorflow::RunNode;
using fake_tensorflow::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

coordd_worker_t* worker = nullptr;
void* library = nullptr;

template <typename Function>
Function Exported(const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

int32_t Size() { return coordd_size(worker); }
int32_t Rank() { return coordd_rank(worker); }

Tensor Floats(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return NewTensor(fake_tensorflow::kFloat, shape, values.data());
}

std::vector<float> FloatsOf(const Tensor& tensor) {
  int64_t count = 1;
  for (int64_t one : tensor.shape) count *= one;
  const auto* values = static_cast<const float*>(fake_tensorflow::DataOf(tensor));
  return {values, values + count};
}

int32_t NumberOf(const Outcome& outcome) {
  return *static_cast<const int32_t*>(fake_tensorflow::DataOf(outcome.outputs.at(0)));
}

Attributes Named(const std::string& name) { return {{"tensor_name", name}, {"process_set", 0}}; }

Attributes Reduction(const std::string& name, int32_t op = COORDD_SUM) {
  Attributes attributes = Named(name);
  attributes["reduce_op"] = op;
  attributes["prescale_factor"] = 1.0F;
  attributes["postscale_factor"] = 1.0F;
  return attributes;
}

class LibraryTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fake_tensorflow::LiveObjects(), 0); }
};

TEST_F(LibraryTest, RegistersEveryOpForTheHostAndByWayOfTheHostForGpus) {
  const std::vector<std::string> ops = fake_tensorflow::RegisteredOps();
  EXPECT_THAT(ops,
              ElementsAre("CoorddAllgather", "CoorddAllreduce", "CoorddAlltoall", "CoorddBarrier",
                          "CoorddBroadcast", "CoorddGroupedAllgather", "CoorddGroupedAllreduce",
                          "CoorddGroupedReducescatter", "CoorddJoin", "CoorddLocalRank",
                          "CoorddLocalSize", "CoorddProcessSetIncluded", "CoorddRank",
                          "CoorddReducescatter", "CoorddSelfCheck", "CoorddSize"));
  EXPECT_EQ(fake_tensorflow::RegisteredKernels().size(), 2 * ops.size());
}

TEST_F(LibraryTest, KnowsAsMuchOfShapesAsThereIs) {
  EXPECT_THAT(InferShapes("CoorddAllreduce", {{4, -1}}).outputs, ElementsAre(ElementsAre(4, -1)));
  EXPECT_THAT(InferShapes("CoorddGroupedAllgather", {{4, 3}, {2}}).outputs,
              ElementsAre(ElementsAre(-1, 3), ElementsAre(-1)));
  EXPECT_THAT(InferShapes("CoorddAlltoall", {{4, 3}, {2}}).outputs,
              ElementsAre(ElementsAre(-1, 3), ElementsAre(-1)));
  EXPECT_THAT(InferShapes("CoorddSize", {}).outputs, ElementsAre(IsEmpty()));
  EXPECT_EQ(InferShapes("CoorddReducescatter", {{}}).code, COORDD_INVALID_ARGUMENT);
}

TEST_F(LibraryTest, LetsTheSelfCheckGoOnOnAnotherThread) {
  int finished = 0;
  std::thread other([&finished] {
    finished = Exported<int (*)(double)>("coordd_tensorflow_finish_self_check")(60.0);
  });
  const Outcome outcome = RunNode("CoorddSelfCheck", {}, {});
  other.join();
  EXPECT_EQ(finished, 1);
  EXPECT_EQ(NumberOf(outcome), 1);
}

TEST_F(LibraryTest, ReducesInTheInputsMemoryWhereNobodyElseNeedsIt) {
  std::vector<Tensor> inputs = {Floats({2}, {1, static_cast<float>(Rank())})};
  const void* memory = fake_tensorflow::DataOf(inputs[0]);
  const Outcome outcome = RunNode("CoorddAllreduce", Reduction("given"), std::move(inputs));
  ASSERT_EQ(outcome.code, COORDD_OK) << outcome.message;
  const auto size = static_cast<float>(Size());
  EXPECT_THAT(FloatsOf(outcome.outputs[0]), ElementsAre(size, size * (size - 1) / 2));
  EXPECT_EQ(fake_tensorflow::DataOf(outcome.outputs[0]), memory);
}

TEST_F(LibraryTest, LeavesAnInputAloneThatSomebodyKeeps) {
  const Tensor kept = Floats({2}, {1, 2});
  const Outcome outcome = RunNode("CoorddAllreduce", Reduction("kept"), {kept});
  ASSERT_EQ(outcome.code, COORDD_OK) << outcome.message;
  EXPECT_THAT(FloatsOf(kept), ElementsAre(1, 2));
  EXPECT_THAT(FloatsOf(outcome.outputs[0]), ElementsAre(Size(), 2 * Size()));
}

TEST_F(LibraryTest, ReducesAGroupOfSeveralTypes) {
  const int64_t numbers[] = {1, 2, 3};
  const Outcome outcome = RunNode(
      "CoorddGroupedAllreduce", Reduction("group"),
      {Floats({1}, {0.5}), NewTensor(fake_tensorflow::kInt64, {3}, numbers), Floats({0, 2}, {})});
  ASSERT_EQ(outcome.code, COORDD_OK) << outcome.message;
  EXPECT_THAT(FloatsOf(outcome.outputs[0]), ElementsAre(0.5F * static_cast<float>(Size())));
  EXPECT_EQ(static_cast<const int64_t*>(fake_tensorflow::DataOf(outcome.outputs[1]))[2],
            3 * Size());
  EXPECT_THAT(outcome.outputs[2].shape, ElementsAre(0, 2));
}

TEST_F(LibraryTest, GathersRowsIntoMemoryOfTheLibrary) {
  const std::vector<float> own(static_cast<size_t>(2 * Rank()), static_cast<float>(Rank()));
  const Outcome outcome = RunNode("CoorddAllgather", Named("rows"), {Floats({Rank(), 2}, own)});
  ASSERT_EQ(outcome.code, COORDD_OK) << outcome.message;
  EXPECT_THAT(outcome.outputs[0].shape, ElementsAre(Size() * (Size() - 1) / 2, 2));
  const Outcome nothing = RunNode("CoorddAllgather", Named("no rows"), {Floats({0, 3}, {})});
  ASSERT_EQ(nothing.code, COORDD_OK) << nothing.message;
  EXPECT_THAT(nothing.outputs[0].shape, ElementsAre(0, 3));
}

TEST_F(LibraryTest, ScattersBroadcastsAndExchanges) {
  const std::vector<float> rows(static_cast<size_t>(Size() + 1), 1.0F);
  const Outcome part =
      RunNode("CoorddReducescatter", Reduction("part"), {Floats({Size() + 1}, rows)});
  ASSERT_EQ(part.code, COORDD_OK) << part.message;
  EXPECT_EQ(FloatsOf(part.outputs[0]).size(), Rank() == 0 ? 2U : 1U);
  Attributes from_last = Named("from the last");
  from_last["root_rank"] = Size() - 1;
  const Outcome rooted =
      RunNode("CoorddBroadcast", from_last, {Floats({}, {static_cast<float>(Rank())})});
  ASSERT_EQ(rooted.code, COORDD_OK) << rooted.message;
  EXPECT_THAT(FloatsOf(rooted.outputs[0]), ElementsAre(Size() - 1));
  const std::vector<int64_t> splits(static_cast<size_t>(Size()), 1);
  const std::vector<float> own(static_cast<size_t>(Size()), static_cast<float>(Rank()));
  const Outcome sent =
      RunNode("CoorddAlltoall", Named("sent"),
              {Floats({Size()}, own), NewTensor(fake_tensorflow::kInt64, {Size()}, splits.data())});
  ASSERT_EQ(sent.code, COORDD_OK) << sent.message;
  EXPECT_EQ(FloatsOf(sent.outputs[0]).back(), static_cast<float>(Size() - 1));
  EXPECT_EQ(static_cast<const int32_t*>(fake_tensorflow::DataOf(sent.outputs[1]))[0], 1);
}

TEST_F(LibraryTest, TellsWhoThisRankIsWhenItIsAsked) {
  const Attributes everybody = {{"process_set", 0}};
  EXPECT_EQ(NumberOf(RunNode("CoorddRank", everybody, {})), Rank());
  EXPECT_EQ(NumberOf(RunNode("CoorddSize", everybody, {})), Size());
  EXPECT_EQ(NumberOf(RunNode("CoorddProcessSetIncluded", everybody, {})), 1);
  const Outcome unknown = RunNode("CoorddSize", {{"process_set", 77}}, {});
  EXPECT_EQ(unknown.code, COORDD_INVALID_ARGUMENT);
}

TEST_F(LibraryTest, SaysWhatIsWrong) {
  const Outcome text = RunNode("CoorddAllreduce", Reduction("text"),
                               {NewTensor(fake_tensorflow::kString, {1}, nullptr)});
  EXPECT_EQ(text.code, COORDD_INVALID_ARGUMENT);
  EXPECT_THAT(text.message, HasSubstr("text: a tensor of string cannot travel"));
  const Outcome complex = RunNode("CoorddAllreduce", Reduction("complex", COORDD_MAX),
                                  {NewTensor(fake_tensorflow::kComplex64, {1}, nullptr)});
  EXPECT_THAT(complex.message, HasSubstr("expected Sum or Average"));
  if (Size() == 1) return;
  const Outcome differs = RunNode("CoorddAllreduce", Reduction("differs"),
                                  {NewTensor(fake_tensorflow::kFloat, {Rank() + 1}, nullptr)});
  EXPECT_EQ(differs.code, COORDD_FAILED_PRECONDITION);
  EXPECT_THAT(differs.message, HasSubstr("tensor differs: rank"));
}

TEST_F(LibraryTest, JoinsAndMeets) {
  const Outcome joined = RunNode("CoorddJoin", {}, {});
  ASSERT_EQ(joined.code, COORDD_OK) << joined.message;
  EXPECT_LT(NumberOf(joined), Size());
  EXPECT_THAT(joined.outputs[0].shape, IsEmpty());
  EXPECT_EQ(RunNode("CoorddBarrier", Named(""), {}).code, COORDD_OK);
}

TEST_F(LibraryTest, RefusesWithoutAWorker) {
  const auto set_worker = Exported<void (*)(coordd_worker_t*)>("coordd_tensorflow_set_worker");
  set_worker(nullptr);
  EXPECT_EQ(RunNode("CoorddRank", {{"process_set", 0}}, {}).code, COORDD_FAILED_PRECONDITION);
  const Outcome outcome = RunNode("CoorddAllreduce", Reduction("nobody"), {Floats({1}, {1})});
  set_worker(worker);
  EXPECT_EQ(outcome.code, COORDD_FAILED_PRECONDITION);
  EXPECT_THAT(outcome.message, HasSubstr("call init() first"));
}

// An empty text; else the program ends.
void Expect(const char* failure) {
  if (failure != nullptr && *failure == '\0') return;
  std::fprintf(stderr, "library_test: %s\n", failure == nullptr ? dlerror() : failure);
  std::exit(1);
}

}  // namespace

// Usage: coordd_tensorflow_test LIBCOORDD_TENSORFLOW
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2 || fake_tensorflow::LiveObjects() != 0) return 2;
  library = dlopen(argv[1], RTLD_NOW);
  if (library == nullptr) Expect(nullptr);
  Expect(Exported<const char* (*)()>("coordd_tensorflow_failure")());
  Expect(Exported<const char* (*)(void*)>("coordd_tensorflow_use")(
      dlopen("libcoordd.so.0", RTLD_NOW | RTLD_NOLOAD)));
  if (coordd_worker_start(nullptr, &worker) != COORDD_OK) Expect(coordd_last_error());
  Exported<void (*)(coordd_worker_t*)>("coordd_tensorflow_set_worker")(worker);
  const int status = RUN_ALL_TESTS();
  Exported<void (*)(coordd_worker_t*)>("coordd_tensorflow_set_worker")(nullptr);
  coordd_worker_destroy(worker);
  return status;
}
