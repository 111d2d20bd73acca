#include "worker/transport/agreed_transport.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/interfaces/peer_addresses.h"

namespace coordd {
namespace {

// Which ranks have only the transport that all have.
constexpr absl::string_view kKeyPrefix = "everywhere";
// A round trip, unless the store is in trouble.
constexpr absl::Duration kAgreementTimeout = absl::Seconds(10);

}  // namespace

AgreedTransport::~AgreedTransport() { EndAll(absl::AbortedError("the transport was closed")); }

absl::Status AgreedTransport::Connect(const GroupLayout& layout, Store& store,
                                      absl::Time deadline) {
  if (preferred_ != nullptr) {
    const absl::Status connected = preferred_->Connect(layout, store, deadline);
    has_preferred_ = connected.ok();
    if (!connected.ok()) {
      COORDD_LOG(kWarning, "rank ", ToInt(layout.self()), " uses ", everywhere_->name(),
                 " between nodes, and not ", preferred_->name(), ": ", connected.message());
    }
  }
  chosen_.resize(static_cast<size_t>(layout.size()));
  store_ = &store;
  if (!has_preferred_) {
    COORDD_RETURN_IF_ERROR(store.Add(AddressKey(kKeyPrefix, layout.self()), 1, deadline).status());
  }
  return everywhere_->Connect(layout, store, deadline);
}

Transport* AgreedTransport::TransportTo(Rank rank) {
  Transport* const chosen = chosen_.at(static_cast<size_t>(ToInt(rank)));
  return chosen != nullptr ? chosen : Choose(rank);
}

absl::StatusOr<bool> AgreedTransport::BothHavePreferred(Rank rank) {
  if (!has_preferred_) return false;
  COORDD_ASSIGN_OR_RETURN(
      const int64_t without,
      store_->Add(AddressKey(kKeyPrefix, rank), 0, Clock::Real().Now() + kAgreementTimeout));
  return without == 0;
}

Transport* AgreedTransport::Choose(Rank rank) {
  const absl::StatusOr<bool> preferred = BothHavePreferred(rank);
  if (!preferred.ok()) {
    failure_ = absl::Status(preferred.status().code(),
                            absl::StrCat("over what rank ", ToInt(rank),
                                         " is reached: ", preferred.status().message()));
    return nullptr;
  }
  if (told_.report != nullptr)
    told_.report->NoteRank(rank, *preferred ? told_.preferred : told_.everywhere);
  return chosen_[static_cast<size_t>(ToInt(rank))] =
             *preferred ? preferred_.get() : everywhere_.get();
}

void AgreedTransport::Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) {
  if (Transport* const chosen = TransportTo(to))
    return chosen->Send(to, tag, bytes, std::move(done));
  unsent_.push_back(std::move(done));
}

void AgreedTransport::Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) {
  if (Transport* const chosen = TransportTo(from))
    return chosen->Receive(from, tag, bytes, std::move(done));
  unsent_.push_back(std::move(done));
}

void AgreedTransport::ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing,
                                     Taken taken) {
  if (Transport* const chosen = TransportTo(from))
    return chosen->ReceiveInPlace(from, tag, landing, std::move(taken));
  untaken_.push_back(std::move(taken));
}

void AgreedTransport::EndAll(const absl::Status& status) {
  for (Done& done : std::exchange(unsent_, {})) std::move(done)(status);
  for (Taken& taken : std::exchange(untaken_, {})) std::move(taken)(status);
}

bool AgreedTransport::Progress() {
  bool moved = everywhere_->Progress();
  if (!has_preferred_) return moved;
  moved |= preferred_->Progress();
  if (unsent_.empty() && untaken_.empty()) return moved;
  EndAll(failure_);
  return true;
}

void AgreedTransport::LookAtPeers() {
  everywhere_->LookAtPeers();
  if (has_preferred_) preferred_->LookAtPeers();
}

int AgreedTransport::Descriptor() { return has_preferred_ ? -1 : everywhere_->Descriptor(); }

void AgreedTransport::Abort() {
  everywhere_->Abort();
  if (preferred_ != nullptr) preferred_->Abort();
}

}  // namespace coordd
