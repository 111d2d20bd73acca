#include "common/net/request_queue.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace coordd {
namespace {

RequestQueue::Asked For(uint64_t id, const std::string& path) {
  RequestQueue::Asked asked;
  asked.id = id;
  asked.request.path = path;
  return asked;
}

TEST(RequestQueue, GivesUrgentOnesFirstAndOthersInTheirOrder) {
  RequestQueue queue({"/healthz"});
  for (uint64_t id : {1, 2}) queue.Add(For(id, "/other"));
  queue.Add(For(3, "/healthz"));
  for (uint64_t id : {3, 1, 2}) EXPECT_EQ(queue.Next(/*urgent_only=*/false)->id, id);
}

TEST(RequestQueue, KeepsOneThreadForUrgentOnes) {
  RequestQueue queue({"/healthz"});
  queue.Add(For(1, "/other"));
  uint64_t got = 0;
  std::thread waits([&] { got = queue.Next(/*urgent_only=*/true)->id; });
  queue.Add(For(2, "/healthz"));
  waits.join();
  EXPECT_EQ(got, 2u);
  EXPECT_EQ(queue.Next(/*urgent_only=*/false)->id, 1u);
}

TEST(RequestQueue, ForgetsThoseThatNobodyWaitsForAnyMore) {
  RequestQueue queue({"/healthz"});
  queue.Add(For(1, "/other"));
  queue.Add(For(2, "/healthz"));
  queue.Add(For(3, "/other"));
  EXPECT_TRUE(queue.Remove(1));
  EXPECT_FALSE(queue.Remove(1));
  EXPECT_TRUE(queue.Remove(2));
  EXPECT_EQ(queue.Next(/*urgent_only=*/false)->id, 3u);
  EXPECT_FALSE(queue.Remove(3));  // it is being answered
}

TEST(RequestQueue, GivesOneOfASetAtATimeAndOthersMeanwhile) {
  RequestQueue queue({"/healthz"}, {{"/jobs", "/events"}, {"/metrics"}});
  uint64_t id = 0;
  for (const char* path : {"/jobs", "/jobs", "/events", "/metrics", "/metrics", "/", "/"})
    queue.Add(For(++id, path));
  for (uint64_t next : {1, 4, 6, 7}) EXPECT_EQ(queue.Next(/*urgent_only=*/false)->id, next);
  queue.Done("/jobs");
  EXPECT_EQ(queue.Next(/*urgent_only=*/false)->id, 2u);
  uint64_t got = 0;
  std::thread waits([&] { got = queue.Next(/*urgent_only=*/false)->id; });
  queue.Done("/metrics");
  waits.join();
  EXPECT_EQ(got, 5u);
  queue.Done("/");
  queue.Add(For(8, "/healthz"));
  EXPECT_EQ(queue.Next(/*urgent_only=*/false)->id, 8u);
  queue.Done("/jobs");
  EXPECT_EQ(queue.Next(/*urgent_only=*/false)->id, 3u);
}

TEST(RequestQueue, LetsGoWhoWaitsAtItsEnd) {
  RequestQueue queue({"/healthz"});
  std::thread ordinary([&] { EXPECT_FALSE(queue.Next(/*urgent_only=*/false).has_value()); });
  std::thread urgent([&] { EXPECT_FALSE(queue.Next(/*urgent_only=*/true).has_value()); });
  queue.Stop();
  ordinary.join();
  urgent.join();
}

}  // namespace
}  // namespace coordd
