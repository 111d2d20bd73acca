#include "worker/transport/agreed_transport.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// How many ranks have only the transport that all have.
constexpr absl::string_view kKey = "transport/everywhere";
// A round trip, unless the store is in trouble.
constexpr absl::Duration kAgreementTimeout = absl::Seconds(10);

}  // namespace

AgreedTransport::~AgreedTransport() {
  if (failure_.ok()) failure_ = absl::AbortedError("the transport was closed");
  EndAll();
}

absl::string_view AgreedTransport::name() const {
  return chosen_ != nullptr ? chosen_->name() : "agreed";
}

absl::Status AgreedTransport::Connect(const GroupLayout& layout, Store& store,
                                      absl::Time deadline) {
  if (preferred_ != nullptr) {
    const absl::Status connected = preferred_->Connect(layout, store, deadline);
    has_preferred_ = connected.ok();
    if (!connected.ok()) {
      COORDD_LOG(kWarning, "all ranks use ", everywhere_->name(), ", since rank ",
                 ToInt(layout.self()), " has no ", preferred_->name(), ": ", connected.message());
    }
  }
  if (!has_preferred_) {
    COORDD_RETURN_IF_ERROR(store.Add(std::string(kKey), 1, deadline).status());
    chosen_ = everywhere_.get();
  }
  store_ = &store;
  return everywhere_->Connect(layout, store, deadline);
}

Transport* AgreedTransport::Chosen() {
  if (chosen_ == nullptr && failure_.ok()) Choose();
  return chosen_;
}

void AgreedTransport::Choose() {
  const absl::StatusOr<int64_t> without =
      store_->Add(std::string(kKey), 0, Clock::Real().Now() + kAgreementTimeout);
  if (without.ok()) {
    chosen_ = *without > 0 ? everywhere_.get() : preferred_.get();
  } else {
    failure_ = absl::Status(
        without.status().code(),
        absl::StrCat("which transport all ranks use: ", without.status().message()));
  }
}

void AgreedTransport::Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) {
  if (Transport* const chosen = Chosen()) return chosen->Send(to, tag, bytes, std::move(done));
  unsent_.push_back(std::move(done));
}

void AgreedTransport::Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) {
  if (Transport* const chosen = Chosen()) return chosen->Receive(from, tag, bytes, std::move(done));
  unsent_.push_back(std::move(done));
}

void AgreedTransport::ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing,
                                     Taken taken) {
  if (Transport* const chosen = Chosen())
    return chosen->ReceiveInPlace(from, tag, landing, std::move(taken));
  untaken_.push_back(std::move(taken));
}

void AgreedTransport::EndAll() {
  for (Done& done : std::exchange(unsent_, {})) std::move(done)(failure_);
  for (Taken& taken : std::exchange(untaken_, {})) std::move(taken)(failure_);
}

// Whose peers may have come further in their choice than this rank: both answer.
bool AgreedTransport::Progress() {
  if (chosen_ != nullptr) return chosen_->Progress();
  const bool moved = !unsent_.empty() || !untaken_.empty();
  EndAll();
  if (!has_preferred_ || !failure_.ok()) return moved;
  const bool everywhere = everywhere_->Progress();
  return preferred_->Progress() || everywhere || moved;
}

void AgreedTransport::LookAtPeers() {
  if (chosen_ != nullptr) chosen_->LookAtPeers();
}

int AgreedTransport::Descriptor() { return chosen_ != nullptr ? chosen_->Descriptor() : -1; }

void AgreedTransport::Abort() {
  everywhere_->Abort();
  if (preferred_ != nullptr) preferred_->Abort();
}

}  // namespace coordd
