#include "worker/node/node_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/owned_fd.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "worker/base/arena_allocator.h"
#include "worker/node/node_arena.h"

namespace coordd {
namespace {

using testing::HasSubstr;

absl::Time Soon() { return Clock::Real().Now() + absl::Minutes(2); }

// A sealed memfd whose bytes are all `value`.
OwnedFd FileOf(int64_t size_bytes, char value, int seals = F_SEAL_SHRINK) {
  OwnedFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::string bytes(static_cast<size_t>(size_bytes), value);
  EXPECT_EQ(write(fd.get(), bytes.data(), bytes.size()), size_bytes);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

char FirstByteOf(const OwnedFd& fd) {
  char value = 0;
  EXPECT_EQ(pread(fd.get(), &value, 1, 0), 1);
  return value;
}

// Ranks of one node, as threads with an arena each.
class NodeFilesTest : public testing::Test {
 protected:
  static constexpr int64_t kPage = ArenaAllocator::kGranularityBytes;
  static constexpr int32_t kRanks = 3;

  NodeFilesTest() {
    for (int32_t r = 0; r < kRanks; ++r)
      arenas_.push_back(std::make_unique<NodeArena>(NodeArenaOptions{NodeArena::kSizeBytesMin}));
    OnAll([this](int32_t r) {
      const GroupLayout layout = GroupLayout::OneNode(Rank{r}, kRanks);
      ASSERT_EQ(arenas_[static_cast<size_t>(r)]->Connect(layout, store_, Soon()), absl::OkStatus());
    });
  }

  static void OnAll(const std::function<void(int32_t)>& call) {
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < kRanks; ++r)
      threads.push_back(StartThread("rank", [&call, r] { call(r); }));
    for (std::thread& thread : threads) thread.join();
  }
  // Each its own: `files` by rank.
  std::vector<absl::StatusOr<absl::Span<std::byte>>> MapAll(const std::vector<FileRange>& files) {
    std::vector<absl::StatusOr<absl::Span<std::byte>>> mapped(kRanks);
    OnAll([&](int32_t r) {
      const size_t index = static_cast<size_t>(r);
      mapped[index] = FilesOf(r).Map(files[index], store_, Soon());
    });
    return mapped;
  }
  std::vector<absl::Status> UnmapAll(
      const std::vector<absl::StatusOr<absl::Span<std::byte>>>& mapped) {
    std::vector<absl::Status> statuses(kRanks);
    OnAll([&](int32_t r) {
      const size_t index = static_cast<size_t>(r);
      statuses[index] = FilesOf(r).Unmap(*mapped[index], store_, Soon());
    });
    return statuses;
  }
  NodeFiles& FilesOf(int32_t rank) { return *arenas_[static_cast<size_t>(rank)]->files(); }
  // What `rank` has mapped of `of`, where that one has `address`.
  std::byte* SeenBy(int32_t rank, int32_t of, const std::byte* address) {
    const auto memory_of = [&](int32_t process) {
      return arenas_[static_cast<size_t>(process)]->memories()[static_cast<size_t>(of)].data();
    };
    return memory_of(rank) + (address - memory_of(of));
  }

  InMemoryStore store_;
  std::vector<std::unique_ptr<NodeArena>> arenas_;
};

TEST_F(NodeFilesTest, AllHaveThemWhereTheOwnersArenaIs) {
  const std::vector<OwnedFd> fds = [] {
    std::vector<OwnedFd> made;
    for (int64_t pages : {1, 5, 300}) made.push_back(FileOf(pages * kPage, 'a'));
    return made;
  }();
  const auto mapped = MapAll({{fds[0].get(), 0, 100},
                              {fds[1].get(), kPage, 4 * kPage},
                              {fds[2].get(), 0, 299 * kPage + 1}});
  for (int32_t of = 0; of < kRanks; ++of) {
    const auto& own = mapped[static_cast<size_t>(of)];
    ASSERT_EQ(own.status(), absl::OkStatus());
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      std::byte* const last = SeenBy(rank, of, &own->back());
      EXPECT_EQ(*last, std::byte{'a'});
      *last = std::byte{'b'};
      EXPECT_EQ(own->back(), std::byte{'b'});
      *last = std::byte{'a'};
    }
  }
  (*mapped[1])[0] = std::byte{'c'};
  char value = 0;
  EXPECT_EQ(pread(fds[1].get(), &value, 1, kPage), 1);
  EXPECT_EQ(value, 'c');
  EXPECT_THAT(UnmapAll(mapped), testing::Each(absl::OkStatus()));
  // The range is the next file's.
  const auto again = MapAll({{fds[0].get(), 0, 1}, {fds[1].get(), 0, 1}, {fds[2].get(), 0, 1}});
  ASSERT_EQ(again[2].status(), absl::OkStatus());
  EXPECT_EQ(again[2]->data(), mapped[2]->data());
  EXPECT_EQ(*SeenBy(0, 2, again[2]->data()), std::byte{'a'});
}

TEST_F(NodeFilesTest, WhatOneCannotShowNobodyHas) {
  const OwnedFd good = FileOf(kPage, 'a');
  const OwnedFd unsealed = FileOf(kPage, 'a', /*seals=*/0);
  const FileRange fine = {good.get(), 0, kPage};
  const auto mapped = MapAll({fine, {unsealed.get(), 0, kPage}, fine});
  EXPECT_TRUE(absl::IsInvalidArgument(mapped[1].status())) << mapped[1].status();
  EXPECT_THAT(std::string(mapped[1].status().message()), HasSubstr("F_SEAL_SHRINK"));
  for (const size_t other : {0, 2}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(mapped[other].status())) << mapped[other].status();
    EXPECT_THAT(std::string(mapped[other].status().message()), testing::StartsWith("rank 1: "));
  }
  for (const auto& after : MapAll({fine, fine, fine})) EXPECT_EQ(after.status(), absl::OkStatus());
}

TEST_F(NodeFilesTest, MoreThanTheArenaHasIsRefusedOnAll) {
  const OwnedFd good = FileOf(kPage, 'a');
  const OwnedFd large(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(large.get(), NodeArena::kSizeBytesMin), 0);
  ASSERT_EQ(fcntl(large.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  const FileRange fine = {good.get(), 0, kPage};
  const auto mapped = MapAll({{large.get(), 0, NodeArena::kSizeBytesMin}, fine, fine});
  EXPECT_TRUE(absl::IsResourceExhausted(mapped[0].status())) << mapped[0].status();
  EXPECT_TRUE(absl::IsFailedPrecondition(mapped[2].status())) << mapped[2].status();
}

TEST_F(NodeFilesTest, WhoDoesNotComeIsNamedAndLaterCallsFail) {
  const OwnedFd good = FileOf(kPage, 'a');
  const FileRange fine = {good.get(), 0, kPage};
  absl::Status statuses[2];
  OnAll([&](int32_t r) {
    if (r == 2) return;
    statuses[r] =
        FilesOf(r).Map(fine, store_, Clock::Real().Now() + absl::Milliseconds(200)).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("2"));
  }
  const absl::Status later = FilesOf(0).Map(fine, store_, Soon()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(later)) << later;
}

TEST_F(NodeFilesTest, UnmappingDifferentOnesIsRefusedAndTheFilesStayWhatTheyAre) {
  const OwnedFd fd = FileOf(kPage, 'a');
  const FileRange fine = {fd.get(), 0, kPage};
  const auto first = MapAll({fine, fine, fine});
  const auto second = MapAll({fine, fine, fine});
  const std::vector<absl::Status> statuses = UnmapAll({first[0], second[1], first[2]});
  for (const absl::Status& status : statuses)
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 1"));
  EXPECT_EQ(FirstByteOf(fd), 'a');
  EXPECT_EQ((*second[0])[0], std::byte{'a'});
}

TEST_F(NodeFilesTest, AbortEndsACallThatWaits) {
  const OwnedFd fd = FileOf(kPage, 'a');
  arenas_[0]->Abort();
  const absl::Status status = FilesOf(0).Map({fd.get(), 0, kPage}, store_, Soon()).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
}

}  // namespace
}  // namespace coordd
