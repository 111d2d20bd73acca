// A transport between threads of one process, for tests: the production interface without a wire.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "worker/interfaces/transport.h"

namespace coordd {

// What the ranks of one in-process group share. Thread-safe; outlives its transports.
class InProcessNetwork {
 public:
  explicit InProcessNetwork(int32_t world_size);
  ~InProcessNetwork();

 private:
  friend class InProcessTransport;

  // A Send that waits for its Receive. The receiver copies from the sender's memory, under the
  // mailbox's lock, so nothing is buffered and a sender that goes away takes its messages back.
  struct Message {
    Rank from;
    uint64_t tag = 0;
    absl::Span<const std::byte> bytes;
    std::shared_ptr<std::atomic<bool>> taken;
  };
  struct Mailbox {
    Mutex mu;
    std::deque<Message> messages ABSL_GUARDED_BY(mu);  // bounded by the senders' pending operations
    std::atomic<bool> closed = false;                  // the rank is gone
  };
  Mailbox& MailboxOf(Rank rank) { return *mailboxes_[static_cast<size_t>(ToInt(rank))]; }
  bool IsClosed(Rank rank) { return MailboxOf(rank).closed.load(std::memory_order_acquire); }

  std::vector<std::unique_ptr<Mailbox>> mailboxes_;  // constant after construction
};

class InProcessTransport final : public Transport {
 public:
  explicit InProcessTransport(InProcessNetwork& network) : network_(network) {}
  ~InProcessTransport() override;

  absl::string_view name() const override { return "in_process"; }
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override;
  void Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) override;
  void Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) override;
  void ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) override {
    Receive(from, tag, landing, TakenFrom(landing, std::move(taken)));
  }
  bool Progress() override;
  void Abort() override { aborted_.store(true, std::memory_order_release); }

 private:
  struct PendingSend {
    Rank to;
    std::shared_ptr<std::atomic<bool>> taken;
    Done done;
  };
  struct PendingReceive {
    Rank from;
    uint64_t tag;
    absl::Span<std::byte> bytes;
    Done done;
  };
  using Finished = std::vector<std::pair<Done, absl::Status>>;

  void FinishSends(Finished& finished);
  void FinishReceives(Finished& finished);
  void FailAll(const absl::Status& status);
  // Takes back what nobody has received.
  void WithdrawMessages();

  // Constant after construction.
  InProcessNetwork& network_;

  // Thread-safe by itself.
  std::atomic<bool> aborted_ = false;

  // Touched by the owner's thread.
  Rank self_{-1};  // -1: not connected
  std::deque<PendingSend> sends_;
  std::deque<PendingReceive> receives_;
};

}  // namespace coordd
