#include "tests/worker/support/transport_conformance.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "tests/worker/support/reference.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

// Around the bounds where transports change their ways (inline, eager, pieces, rendezvous).
constexpr int64_t kSizes[] = {0, 1, 7, 64, 1000, 8191, 8192, 8193, 65536, 100003, 1 << 20};

Bytes Message(int32_t from, int32_t to, int64_t size, int32_t salt = 0) {
  return TestInput(DataType::kUint8, from * 16 + to, size, salt);
}

Tag OnLane(int32_t lane, int64_t sequence) { return {LaneId{lane}, sequence}; }

// Operations of one rank, and how they ended.
class Operations {
 public:
  explicit Operations(TransportContext& context) : context_(context) {}

  void Send(int32_t to, Tag tag, const Bytes& bytes) {
    context_.object.Send(Rank{to}, tag, bytes, Record());
  }
  void Receive(int32_t from, Tag tag, Bytes& bytes) {
    context_.object.Receive(Rank{from}, tag, absl::MakeSpan(bytes), Record());
  }
  bool done(size_t index) const { return ended_[index].has_value(); }
  absl::Status status(size_t index) const { return *ended_[index]; }
  bool AwaitAll() {
    return context_.DriveUntil([this] {
      return std::all_of(ended_.begin(), ended_.end(), [](const auto& e) { return e.has_value(); });
    });
  }
  void ExpectAllOk() {
    ASSERT_TRUE(AwaitAll());
    for (const auto& status : ended_) EXPECT_EQ(*status, absl::OkStatus());
  }

 private:
  Transport::Done Record() {
    const size_t index = ended_.size();
    ended_.emplace_back();
    return [this, index](absl::Status status) {
      EXPECT_FALSE(ended_[index].has_value()) << "done was called twice";
      ended_[index] = std::move(status);
    };
  }

  TransportContext& context_;
  std::deque<std::optional<absl::Status>> ended_;
};

}  // namespace

TEST_P(TransportConformance, DeliversEverySizeBetweenAllPairs) {
  for (int32_t size = 2; size <= GetParam().max_world_size; ++size) {
    RunRanks<Transport>(GetParam(), size, [&](TransportContext& context) {
      const int32_t self = ToInt(context.rank);
      for (int64_t bytes : kSizes) {
        Operations operations(context);
        std::deque<Bytes> sent;
        std::deque<Bytes> received;
        for (int32_t peer = 0; peer < size; ++peer) {
          if (peer == self) continue;
          sent.push_back(Message(self, peer, bytes));
          operations.Send(peer, OnLane(0, bytes), sent.back());
          received.emplace_back(static_cast<size_t>(bytes));
          operations.Receive(peer, OnLane(0, bytes), received.back());
        }
        operations.ExpectAllOk();
        for (int32_t peer = 0, i = 0; peer < size; ++peer) {
          if (peer == self) continue;
          EXPECT_TRUE(SameBytes(received[static_cast<size_t>(i++)], Message(peer, self, bytes)))
              << bytes << " bytes from rank " << peer << " to rank " << self;
        }
      }
    });
  }
}

// Wherever they are: both ways of receiving, early and late, one behind the other.
TEST_P(TransportConformance, ReceivesInPlaceWhatReceiveWouldHaveCopied) {
  RunRanks<Transport>(GetParam(), 2, [&](TransportContext& context) {
    const int32_t self = ToInt(context.rank), peer = 1 - self;
    for (const bool late : {false, true}) {
      for (int64_t size : kSizes) {
        // Three messages, of which the second one is copied.
        constexpr int32_t kMessages = 3;
        Operations operations(context);
        std::deque<Bytes> sent, landings;
        std::vector<Bytes> taken(kMessages);  // which are not told of in their order
        int32_t ended = 0;
        absl::Status failed;
        size_t misaligned = 0;
        auto receive = [&](int32_t i) {
          const Tag tag = OnLane(late ? 5 : 4, size);
          const size_t room = static_cast<size_t>(size) + 64;
          Bytes& landing = landings.emplace_back(room);
          std::byte* const begin =
              landing.data() + (64 - reinterpret_cast<uintptr_t>(landing.data()) % 64) % 64;
          const absl::Span<std::byte> aligned(begin, static_cast<size_t>(size));
          if (i == 1) {
            context.object.Receive(Rank{peer}, tag, aligned, [&, aligned](absl::Status status) {
              failed.Update(status);
              ++ended;
              taken[1] = Bytes(aligned.begin(), aligned.end());
            });
            return;
          }
          context.object.ReceiveInPlace(
              Rank{peer}, tag, aligned, [&, i](absl::StatusOr<const std::byte*> bytes) {
                failed.Update(bytes.status());
                if (!bytes.ok()) return;
                const auto address = reinterpret_cast<uintptr_t>(*bytes);
                misaligned += address % Transport::kInPlaceAlignment == 0 ? 0 : 1;
                ++ended;
                taken[static_cast<size_t>(i)] = Bytes(*bytes, *bytes + size);
              });
        };
        for (int32_t i = 0; !late && i < kMessages; ++i) receive(i);
        for (int32_t i = 0; i < kMessages; ++i) {
          sent.push_back(Message(self, peer, size, i));
          operations.Send(peer, OnLane(late ? 5 : 4, size), sent.back());
        }
        if (late) {
          for (int i = 0; i < 100; ++i) context.object.Progress();
          for (int32_t i = 0; i < kMessages; ++i) receive(i);
        }
        ASSERT_TRUE(context.DriveUntil([&] { return ended == kMessages || !failed.ok(); }));
        operations.ExpectAllOk();
        ASSERT_EQ(failed, absl::OkStatus());
        EXPECT_EQ(misaligned, 0u);
        for (int32_t i = 0; i < kMessages; ++i) {
          EXPECT_TRUE(SameBytes(taken[static_cast<size_t>(i)], Message(peer, self, size, i)))
              << size << " bytes, message " << i << (late ? ", late" : "");
        }
      }
    }
  });
}

TEST_P(TransportConformance, KeepsTheOrderOfMessagesWithOneTag) {
  RunRanks<Transport>(GetParam(), 2, [&](TransportContext& context) {
    // Small and large ones alternate, so that a late large one could be overtaken.
    constexpr int32_t kMessages = 40;
    auto size_of = [](int32_t i) { return i % 3 == 0 ? int64_t{200000} : int64_t{i}; };
    Operations operations(context);
    std::deque<Bytes> buffers;
    for (int32_t i = 0; i < kMessages; ++i) {
      if (context.rank == Rank{0}) {
        buffers.push_back(Message(0, 1, size_of(i), i));
        operations.Send(1, OnLane(0, 1), buffers.back());
      } else {
        buffers.emplace_back(static_cast<size_t>(size_of(i)));
        operations.Receive(0, OnLane(0, 1), buffers.back());
      }
    }
    operations.ExpectAllOk();
    for (int32_t i = 0; i < kMessages; ++i)
      EXPECT_TRUE(SameBytes(buffers[static_cast<size_t>(i)], Message(0, 1, size_of(i), i))) << i;
  });
}

TEST_P(TransportConformance, MatchesTagsWhateverTheirOrder) {
  RunRanks<Transport>(GetParam(), 2, [&](TransportContext& context) {
    for (int64_t size : {100, 300000}) {
      Operations operations(context);
      std::deque<Bytes> buffers;
      for (int32_t i = 0; i < 10; ++i) {
        if (context.rank == Rank{0}) {
          buffers.push_back(Message(0, 1, size, i));
          operations.Send(1, OnLane(i % 3, size + i), buffers.back());
        } else {
          buffers.emplace_back(static_cast<size_t>(size));
          operations.Receive(0, OnLane((9 - i) % 3, size + 9 - i), buffers.back());
        }
      }
      operations.ExpectAllOk();
      if (context.rank == Rank{0}) continue;
      for (int32_t i = 0; i < 10; ++i)
        EXPECT_TRUE(SameBytes(buffers[static_cast<size_t>(i)], Message(0, 1, size, 9 - i))) << i;
    }
  });
}

TEST_P(TransportConformance, AMessageThatNobodyReceivesYetDoesNotBlockOtherLanes) {
  RunRanks<Transport>(GetParam(), 2, [&](TransportContext& context) {
    const int32_t peer = 1 - ToInt(context.rank);
    const int32_t self = ToInt(context.rank);
    // More of lane 1 than any transport keeps: small ones and a large one.
    constexpr int32_t kSmall = 2000;
    const Bytes small = Message(self, peer, 500);
    const Bytes large = Message(self, peer, 20 << 20);
    Operations waiting(context);
    for (int32_t i = 0; i < kSmall; ++i) waiting.Send(peer, OnLane(1, i), small);
    waiting.Send(peer, OnLane(1, kSmall), large);

    // Lane 2 gets through, both ways, small and large.
    for (int64_t size : {0, 40, 1 << 20}) {
      Operations passing(context);
      const Bytes sent = Message(self, peer, size, 2);
      Bytes received(static_cast<size_t>(size));
      passing.Send(peer, OnLane(2, size), sent);
      passing.Receive(peer, OnLane(2, size), received);
      passing.ExpectAllOk();
      EXPECT_TRUE(SameBytes(received, Message(peer, self, size, 2)));
    }
    context.barrier.arrive_and_wait();

    std::deque<Bytes> late(kSmall, Bytes(small.size()));
    Bytes late_large(large.size());
    for (int32_t i = 0; i < kSmall; ++i)
      waiting.Receive(peer, OnLane(1, i), late[static_cast<size_t>(i)]);
    waiting.Receive(peer, OnLane(1, kSmall), late_large);
    waiting.ExpectAllOk();
    for (const Bytes& bytes : late) EXPECT_TRUE(SameBytes(bytes, Message(peer, self, 500)));
    EXPECT_TRUE(SameBytes(late_large, Message(peer, self, 20 << 20)));
  });
}

// Else a rank that is late would have to keep whole tensors.
TEST_P(TransportConformance, SendsDoNotRunAheadOfAReceiverThatIsLate) {
  RunRanks<Transport>(GetParam(), 2, [&](TransportContext& context) {
    constexpr int32_t kMessages = 128;
    constexpr int64_t kBytes = 256 << 10;
    Operations operations(context);
    std::deque<Bytes> buffers;
    if (context.rank == Rank{0}) {
      for (int32_t i = 0; i < kMessages; ++i) {
        buffers.push_back(Message(0, 1, kBytes, i));
        operations.Send(1, OnLane(0, 1), buffers.back());
      }
    }
    // Long enough for all of them, if they went.
    for (int i = 0; i < 20000; ++i) {
      context.object.Progress();
      std::this_thread::yield();
    }
    if (context.rank == Rank{0}) {
      EXPECT_FALSE(operations.done(kMessages - 1));
    }
    context.barrier.arrive_and_wait();
    for (int32_t i = 0; context.rank == Rank{1} && i < kMessages; ++i) {
      buffers.emplace_back(static_cast<size_t>(kBytes));
      operations.Receive(0, OnLane(0, 1), buffers.back());
    }
    operations.ExpectAllOk();
    for (int32_t i = 0; context.rank == Rank{1} && i < kMessages; ++i) {
      EXPECT_TRUE(SameBytes(buffers[static_cast<size_t>(i)], Message(0, 1, kBytes, i))) << i;
    }
  });
}

TEST_P(TransportConformance, DoneMayStartTheNextOperation) {
  RunRanks<Transport>(GetParam(), 2, [&](TransportContext& context) {
    // A ball that goes back and forth: each rank starts its next move when the last one is done.
    constexpr int32_t kMoves = 100;
    const Rank peer{1 - ToInt(context.rank)};
    Bytes ball(8);
    int32_t moves = 0;
    std::function<void()> move = [&] {
      if (moves == kMoves) return;
      auto next = [&](absl::Status status) {
        EXPECT_EQ(status, absl::OkStatus());
        ++moves;
        move();
      };
      if (moves % 2 == ToInt(context.rank)) {
        context.object.Send(peer, OnLane(0, moves), ball, next);
      } else {
        context.object.Receive(peer, OnLane(0, moves), absl::MakeSpan(ball), next);
      }
    };
    move();
    context.DriveUntil([&] { return moves == kMoves; });
  });
}

TEST_P(TransportConformance, RefusesMessagesOfAnotherSize) {
  RunRanks<Transport>(GetParam(), 2, [&](TransportContext& context) {
    for (int64_t size : {10, 500000}) {
      for (int64_t expected : {size - 1, size + 1}) {
        Operations operations(context);
        const Bytes sent = Message(0, 1, size);
        Bytes received(static_cast<size_t>(expected));
        if (context.rank == Rank{0}) {
          operations.Send(1, OnLane(0, size + expected), sent);
        } else {
          operations.Receive(0, OnLane(0, size + expected), received);
        }
        operations.AwaitAll();
        if (context.rank == Rank{0}) continue;
        EXPECT_TRUE(absl::IsInternal(operations.status(0))) << operations.status(0);
      }
    }
  });
}

TEST_P(TransportConformance, NamesThePeerThatHasGone) {
  RunRanks<Transport>(GetParam(), 3, [&](TransportContext& context) {
    const Bytes last_words = Message(2, 0, 100);
    if (context.rank == Rank{2}) {
      Operations operations(context);
      Bytes hello(10);
      operations.Receive(0, OnLane(0, 1), hello);
      operations.Receive(1, OnLane(0, 1), hello);
      operations.ExpectAllOk();
      context.barrier.arrive_and_wait();
      context.destroy();
      return;
    }
    const Bytes hello = Message(ToInt(context.rank), 2, 10);
    Operations greeting(context);
    greeting.Send(2, OnLane(0, 1), hello);
    greeting.ExpectAllOk();

    Operations operations(context);
    Bytes received(100000);
    operations.Receive(2, OnLane(0, 2), received);
    std::optional<absl::Status> in_place;
    context.object.ReceiveInPlace(
        Rank{2}, OnLane(0, 6), absl::MakeSpan(received),
        [&](absl::StatusOr<const std::byte*> bytes) { in_place = bytes.status(); });
    context.barrier.arrive_and_wait();
    operations.AwaitAll();
    // Later ones end as well.
    operations.Receive(2, OnLane(0, 3), received);
    const Bytes large = Message(0, 2, 5 << 20);
    operations.Send(2, OnLane(0, 4), large);
    operations.AwaitAll();
    ASSERT_TRUE(context.DriveUntil([&] { return in_place.has_value(); }));
    EXPECT_EQ(SuspectRank(*in_place), Rank{2}) << *in_place;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(absl::IsUnavailable(operations.status(i))) << operations.status(i);
      EXPECT_EQ(SuspectRank(operations.status(i)), Rank{2}) << operations.status(i);
    }
    // Those who are left can still talk.
    Operations surviving(context);
    const int32_t peer = 1 - ToInt(context.rank);
    const Bytes sent = Message(ToInt(context.rank), peer, 1000);
    Bytes from_peer(1000);
    surviving.Send(peer, OnLane(0, 5), sent);
    surviving.Receive(peer, OnLane(0, 5), from_peer);
    surviving.ExpectAllOk();
    EXPECT_TRUE(SameBytes(from_peer, Message(peer, ToInt(context.rank), 1000)));
  });
}

TEST_P(TransportConformance, AbortEndsWhatIsPendingAndWhatComesLater) {
  RunRanks<Transport>(GetParam(), 2, [&](TransportContext& context) {
    const int32_t peer = 1 - ToInt(context.rank);
    Operations operations(context);
    Bytes received(1000);
    const Bytes sent = Message(0, 1, 20 << 20);
    operations.Receive(peer, OnLane(0, 1), received);
    operations.Send(peer, OnLane(0, 2), sent);
    for (int i = 0; i < 100; ++i) context.object.Progress();
    EXPECT_FALSE(operations.done(0));
    std::thread aborter = StartThread("aborter", [&] { context.object.Abort(); });
    aborter.join();
    context.object.Abort();  // again: idempotent
    operations.AwaitAll();
    operations.Receive(peer, OnLane(0, 3), received);
    operations.Send(peer, OnLane(0, 4), sent);
    operations.AwaitAll();
    for (size_t i = 0; i < 4; ++i)
      EXPECT_TRUE(absl::IsAborted(operations.status(i))) << operations.status(i);
  });
}

TEST_P(TransportConformance, DestructionEndsWhatIsPending) {
  RunRanks<Transport>(GetParam(), 2, [&](TransportContext& context) {
    Bytes received(1000);
    const Bytes sent = Message(0, 1, 20 << 20);
    std::vector<absl::Status> ended;
    auto record = [&](absl::Status status) { ended.push_back(std::move(status)); };
    const Rank peer{1 - ToInt(context.rank)};
    context.object.Receive(peer, OnLane(0, 1), absl::MakeSpan(received), record);
    context.object.Send(peer, OnLane(0, 2), sent, record);
    for (int i = 0; i < 100; ++i) context.object.Progress();
    context.barrier.arrive_and_wait();
    context.destroy();
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_TRUE(absl::IsAborted(ended[0])) << ended[0];
    EXPECT_TRUE(absl::IsAborted(ended[1])) << ended[1];
  });
}

}  // namespace coordd
