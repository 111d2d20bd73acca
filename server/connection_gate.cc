#include "server/connection_gate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace coordd {
namespace {

// RFC 9113, 3.4: what a client that knows that it speaks HTTP/2 begins with.
constexpr absl::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
static_assert(kHttp2Preface.size() == kOpeningBytes);
constexpr char kTlsHandshake = 0x16;  // RFC 8446, 5.1: the type of a handshake's record

// More than a million descriptors are promised by some systems and backed by none.
constexpr size_t kMaxConnections = 1 << 20;
// Without a byte: a flood of them must find a bound that costs little memory.
constexpr size_t kMaxWaiting = 1024;
// For files, HTTP, etcd, and what is opened in between: see BoundsFor.
constexpr size_t kMinReserve = 24, kMaxReserve = 512;

}  // namespace

Opening OpeningOf(absl::string_view first_bytes) {
  if (first_bytes.empty()) return Opening::kUndecided;
  if (first_bytes[0] == kTlsHandshake) return Opening::kTls;
  if (absl::StartsWith(first_bytes, kHttp2Preface)) return Opening::kHttp2;
  if (absl::StartsWith(kHttp2Preface, first_bytes)) return Opening::kUndecided;
  return Opening::kOther;
}

const char* RefusalName(Refusal why) {
  switch (why) {
    case Refusal::kSilent:
      return "silent";
    case Refusal::kFull:
      return "full";
    case Refusal::kAddress:
      return "address_full";
    case Refusal::kPlaintext:
      return "plaintext";
    case Refusal::kTls:
      return "tls";
    case Refusal::kNotHttp2:
      return "not_http2";
    case Refusal::kHandshake:
      return "handshake";
    case Refusal::kDescriptor:
      return "descriptors";
  }
  return "";
}

ConnectionGate::ConnectionGate(const ConnectionGateOptions& options) : options_(options) {}

int ConnectionGate::Arrived(int fd, const std::string& address, absl::Time now) {
  Gone(fd);
  const int evicted = waiting_.size() >= options_.waiting_max ? LongestOfTheMost() : -1;
  if (evicted >= 0) ForgetWaiting(evicted);
  waiting_[fd] = {address, now, ++arrivals_};
  by_order_[arrivals_] = fd;
  ++by_address_[address].waiting;
  return evicted;
}

ConnectionGate::Verdict ConnectionGate::Opened(int fd, Opening opening) const {
  using Do = Verdict::Do;
  const auto found = waiting_.find(fd);
  if (found == waiting_.end() || opening == Opening::kUndecided) return {};
  if (opening == Opening::kOther) return {Do::kTell, Refusal::kNotHttp2};
  if (options_.tls && opening == Opening::kHttp2) return {Do::kTell, Refusal::kPlaintext};
  if (!options_.tls && opening == Opening::kTls) return {Do::kTell, Refusal::kTls};
  if (full()) return {Do::kTell, Refusal::kFull};
  if (AddressFull(found->second.address)) return {Do::kTell, Refusal::kAddress};
  return {Do::kLetIn};
}

bool ConnectionGate::AddressFull(const std::string& address) const {
  if (options_.connections_per_address_max == 0) return false;
  const auto found = by_address_.find(address);
  return found != by_address_.end() && found->second.let_in >= options_.connections_per_address_max;
}

void ConnectionGate::LetIn(int fd) {
  const auto found = waiting_.find(fd);
  if (found == waiting_.end()) return;
  std::string address = found->second.address;
  ++by_address_[address].let_in;
  ForgetWaiting(fd);
  let_in_[fd] = std::move(address);
}

void ConnectionGate::Gone(int fd) {
  ForgetWaiting(fd);
  const auto found = let_in_.find(fd);
  if (found == let_in_.end()) return;
  const std::string address = std::move(found->second);
  let_in_.erase(found);
  --by_address_[address].let_in;
  Forget(address);
}

void ConnectionGate::ForgetWaiting(int fd) {
  const auto found = waiting_.find(fd);
  if (found == waiting_.end()) return;
  const std::string address = std::move(found->second.address);
  by_order_.erase(found->second.order);
  waiting_.erase(found);
  --by_address_[address].waiting;
  Forget(address);
}

void ConnectionGate::Forget(const std::string& address) {
  const auto found = by_address_.find(address);
  if (found->second.waiting == 0 && found->second.let_in == 0) by_address_.erase(found);
}

int ConnectionGate::LongestOfTheMost() const {
  size_t most = 0;
  int longest = -1;
  // In the order of arrival: the first of an address is the longest silent one.
  for (const auto& [order, fd] : by_order_) {
    const size_t waiting = by_address_.at(waiting_.at(fd).address).waiting;
    if (waiting <= most) continue;
    most = waiting;
    longest = fd;
    if (most * 2 > waiting_.size()) break;  // no other has as many
  }
  return longest;
}

std::vector<int> ConnectionGate::TakeOverdue(absl::Time now) {
  std::vector<int> overdue;
  for (const auto& [order, fd] : by_order_) {
    if (waiting_.at(fd).since + options_.opening_within > now) break;
    overdue.push_back(fd);
  }
  for (int fd : overdue) ForgetWaiting(fd);
  return overdue;
}

absl::Time ConnectionGate::NextDeadline() const {
  if (by_order_.empty()) return absl::InfiniteFuture();
  return waiting_.at(by_order_.begin()->second).since + options_.opening_within;
}

std::string ConnectionGate::AddressOf(int fd) const {
  if (const auto found = waiting_.find(fd); found != waiting_.end()) return found->second.address;
  const auto found = let_in_.find(fd);
  return found == let_in_.end() ? std::string() : found->second;
}

size_t ReserveOf(size_t descriptors_max) {
  return std::clamp(descriptors_max / 16, kMinReserve, kMaxReserve);
}

ConnectionBounds BoundsFor(size_t descriptors_max, size_t in_use) {
  const size_t reserve = ReserveOf(descriptors_max);
  // At least one gets in, whatever the limit: what then runs out is survived all the same.
  const size_t free = descriptors_max > in_use + reserve ? descriptors_max - in_use - reserve : 2;
  ConnectionBounds bounds;
  bounds.waiting = std::clamp<size_t>(free / 8, 1, kMaxWaiting);
  bounds.connections =
      std::clamp<size_t>(free - std::min(free - 1, bounds.waiting), 1, kMaxConnections);
  return bounds;
}

}  // namespace coordd
