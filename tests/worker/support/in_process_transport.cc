#include "tests/worker/support/in_process_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/interfaces/peer_addresses.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

constexpr absl::string_view kInProcessKeyPrefix = "in_process";

}  // namespace

InProcessNetwork::InProcessNetwork(int32_t world_size) {
  for (int32_t i = 0; i < world_size; ++i) mailboxes_.push_back(std::make_unique<Mailbox>());
}

InProcessNetwork::~InProcessNetwork() = default;

InProcessTransport::~InProcessTransport() {
  FailAll(absl::AbortedError("the transport was closed"));
  if (ToInt(self_) < 0) return;
  network_.MailboxOf(self_).closed.store(true, std::memory_order_release);
}

absl::Status InProcessTransport::Connect(const GroupLayout& layout, Store& store,
                                         absl::Time deadline) {
  COORDD_CHECK(static_cast<size_t>(layout.size()) <= network_.mailboxes_.size());
  self_ = layout.self();
  COORDD_RETURN_IF_ERROR(store.Set(AddressKey(kInProcessKeyPrefix, self_), "here", deadline));
  std::vector<Rank> others;
  for (int32_t r = 0; r < layout.size(); ++r) {
    if (Rank{r} != self_) others.push_back(Rank{r});
  }
  return AwaitAddresses(store, kInProcessKeyPrefix, others, deadline).status();
}

void InProcessTransport::Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) {
  auto taken = std::make_shared<std::atomic<bool>>(false);
  InProcessNetwork::Mailbox& mailbox = network_.MailboxOf(to);
  {
    MutexLock lock(&mailbox.mu);
    mailbox.messages.push_back({self_, tag.Encode(), bytes, taken});
  }
  sends_.push_back({to, std::move(taken), std::move(done)});
}

void InProcessTransport::Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) {
  receives_.push_back({from, tag.Encode(), bytes, std::move(done)});
}

bool InProcessTransport::Progress() {
  if (aborted_.load(std::memory_order_acquire)) {
    const bool moved = !sends_.empty() || !receives_.empty();
    FailAll(absl::AbortedError("the transport was aborted"));
    return moved;
  }
  Finished finished;
  FinishReceives(finished);
  FinishSends(finished);
  for (auto& [done, status] : finished) std::move(done)(std::move(status));
  return !finished.empty();
}

void InProcessTransport::FinishSends(Finished& finished) {
  std::erase_if(sends_, [&](PendingSend& send) {
    const bool taken = send.taken->load(std::memory_order_acquire);
    if (!taken && !network_.IsClosed(send.to)) return false;
    // A message that was taken just before the mailbox closed has arrived all the same.
    const bool arrived = send.taken->load(std::memory_order_acquire);
    finished.emplace_back(std::move(send.done), arrived
                                                    ? absl::OkStatus()
                                                    : PeerLost(send.to, "its transport is closed"));
    return true;
  });
}

void InProcessTransport::FinishReceives(Finished& finished) {
  if (receives_.empty()) return;
  InProcessNetwork::Mailbox& mailbox = network_.MailboxOf(self_);
  // One lock over the whole pass: a message that came in the middle of it must not match a later
  // receive when an earlier one has already been passed over.
  MutexLock lock(&mailbox.mu);
  std::erase_if(receives_, [&](PendingReceive& receive) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const bool sender_closed = network_.IsClosed(receive.from);
    auto message =
        std::find_if(mailbox.messages.begin(), mailbox.messages.end(), [&](const auto& candidate) {
          return candidate.from == receive.from && candidate.tag == receive.tag;
        });
    if (message == mailbox.messages.end()) {
      if (!sender_closed) return false;
      finished.emplace_back(std::move(receive.done),
                            PeerLost(receive.from, "its transport is closed"));
      return true;
    }
    absl::Status status;
    if (message->bytes.size() == receive.bytes.size()) {
      if (!receive.bytes.empty())
        std::memcpy(receive.bytes.data(), message->bytes.data(), receive.bytes.size());
    } else {
      status = absl::InternalError(absl::StrCat("message from rank ", ToInt(receive.from), " has ",
                                                message->bytes.size(), " bytes, expected ",
                                                receive.bytes.size()));
    }
    message->taken->store(true, std::memory_order_release);
    mailbox.messages.erase(message);
    finished.emplace_back(std::move(receive.done), std::move(status));
    return true;
  });
}

void InProcessTransport::FailAll(const absl::Status& status) {
  WithdrawMessages();
  std::deque<PendingSend> sends;
  std::deque<PendingReceive> receives;
  sends.swap(sends_);
  receives.swap(receives_);
  for (PendingSend& send : sends) std::move(send.done)(status);
  for (PendingReceive& receive : receives) std::move(receive.done)(status);
}

void InProcessTransport::WithdrawMessages() {
  for (const PendingSend& send : sends_) {
    InProcessNetwork::Mailbox& mailbox = network_.MailboxOf(send.to);
    MutexLock lock(&mailbox.mu);
    std::erase_if(mailbox.messages,
                  [&](const auto& message) { return message.taken == send.taken; });
  }
}

}  // namespace coordd
