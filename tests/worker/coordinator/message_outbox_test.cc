#include "worker/coordinator/message_outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::WorkerMessage Names(const std::string& name, int64_t generation = 1) {
  v1::WorkerMessage message;
  message.set_generation(generation);
  message.mutable_tensors_ready()->add_tensors()->set_name(name);
  return message;
}

v1::WorkerMessage Lives() {
  v1::WorkerMessage message;
  message.set_generation(1);
  message.mutable_heartbeat();
  return message;
}

std::vector<std::string> NextNames(MessageOutbox& outbox) {
  std::vector<std::string> names;
  for (const v1::TensorSpec& tensor : outbox.Begin().tensors_ready().tensors())
    names.push_back(tensor.name());
  outbox.PopFront();
  return names;
}

TEST(MessageOutbox, PutsTensorsTogetherBehindWhatIsBeingWritten) {
  MessageOutbox outbox;
  ASSERT_THAT(outbox.Add(Names("a")), IsOk());
  EXPECT_EQ(outbox.Begin().tensors_ready().tensors(0).name(), "a");
  for (const char* name : {"b", "c", "d"}) ASSERT_THAT(outbox.Add(Names(name)), IsOk());
  EXPECT_EQ(outbox.Begin().tensors_ready().tensors_size(), 1);  // gRPC reads it
  outbox.PopFront();
  EXPECT_THAT(NextNames(outbox), ElementsAre("b", "c", "d"));
  EXPECT_TRUE(outbox.empty());
}

TEST(MessageOutbox, KeepsTheOrderOfWhatElseIsSaid) {
  MessageOutbox outbox;
  ASSERT_THAT(outbox.Add(Names("a")), IsOk());
  ASSERT_THAT(outbox.Add(Lives()), IsOk());
  ASSERT_THAT(outbox.Add(Names("b")), IsOk());
  ASSERT_THAT(outbox.Add(Names("of the next generation", 2)), IsOk());
  v1::WorkerMessage cached = Names("c", 2);
  cached.mutable_tensors_ready()->add_cached()->set_known(3);
  ASSERT_THAT(outbox.Add(cached), IsOk());
  ASSERT_THAT(outbox.Add(Names("d", 2)), IsOk());
  ASSERT_EQ(outbox.size(), 6u);
  EXPECT_THAT(NextNames(outbox), ElementsAre("a"));
  EXPECT_TRUE(outbox.Begin().has_heartbeat());
  outbox.PopFront();
  EXPECT_THAT(NextNames(outbox), ElementsAre("b"));
  EXPECT_THAT(NextNames(outbox), ElementsAre("of the next generation"));
  EXPECT_EQ(outbox.Begin().tensors_ready().cached_size(), 1);
}

TEST(MessageOutbox, MakesNoMessageLargerThanOneMayBe) {
  MessageOutbox outbox;
  const std::string name(500, 'n');
  for (int i = 0; i < 1000; ++i) ASSERT_THAT(outbox.Add(Names(name)), IsOk());
  int tensors = 0;
  while (!outbox.empty()) {
    EXPECT_LE(outbox.Begin().ByteSizeLong(), static_cast<size_t>(MessageOutbox::kTogetherBytes));
    tensors += static_cast<int>(NextNames(outbox).size());
  }
  EXPECT_EQ(tensors, 1000);
}

TEST(MessageOutbox, TakesNoMoreMessagesThanItsBound) {
  MessageOutbox outbox;
  for (size_t i = 0; i < MessageOutbox::kMostMessages; ++i)
    ASSERT_THAT(outbox.Add(Lives()), IsOk());
  EXPECT_THAT(outbox.Add(Lives()).message(), HasSubstr("has not read the last 16384 messages"));
  outbox.Begin();
  outbox.PopFront();
  EXPECT_THAT(outbox.Add(Lives()), IsOk());
}

TEST(MessageOutbox, TakesNoMoreBytesThanItsBound) {
  MessageOutbox outbox;
  const std::string name(MessageOutbox::kTogetherBytes, 'n');
  absl::Status full;
  for (int64_t bytes = 0; full.ok() && bytes <= 2 * MessageOutbox::kMostBytes; bytes += 128 << 10)
    full = outbox.Add(Names(name));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("63 MiB"));
  EXPECT_LT(outbox.size(), 512u);
}

}  // namespace
}  // namespace coordd
