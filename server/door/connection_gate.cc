#include "server/door/connection_gate.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"

namespace coordd {
namespace {

// RFC 9113, 3.4: what a client that knows that it speaks HTTP/2 begins with, and then a frame of
// its settings, which may be empty.
constexpr absl::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHead = 9;
constexpr uint8_t kSettingsFrame = 4;
// RFC 9113, 6.5.2: a server takes frames of this size before it has said anything else.
constexpr size_t kMaxFrame = 16384;
static_assert(kHttp2Preface.size() + kFrameHead == kOpeningBytes);

// RFC 8446, 5.1 and 4: a record's type and the first byte of its version, then two of its length;
// and what is in it.
constexpr uint8_t kTlsHandshake = 22, kTlsMajorVersion = 3, kClientHello = 1;
constexpr size_t kRecordHead = 5, kMaxRecord = 16384;

// More than a million descriptors are promised by some systems and backed by none.
constexpr size_t kMaxConnections = 1 << 20;
// Each bound is one that a flood finds: so that it costs little memory (an unfinished handshake has
// some 60 KiB).
constexpr size_t kMaxWaiting = 1024, kMaxRefused = 256, kMaxUnfinished = 1024;
// Fewer are no protection: two addresses that do nothing but come would always hold them all.
constexpr size_t kMinWaiting = 4, kMinUnfinished = 3;
// For files, HTTP, etcd, and what is opened in between: see BoundsFor.
constexpr size_t kMinReserve = 25, kMaxReserve = 1024;
// Clients that say little at a time, and come again, hold each place for a tenth of a second
// (http_server): so many places let 5,000 a second pass, and a thousand of them delay nobody much.
constexpr size_t kMaxHttp = 512;
// Of the reserve, however small, for all else.
constexpr size_t kNotHttp = 14;
// Whom one newcomer can ask to be looked at.
constexpr size_t kMaxCandidates = 64;

uint8_t ByteOf(absl::string_view bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

// `bytes`: of a record of a handshake.
Opening TlsOpening(absl::string_view bytes, size_t received) {
  if (bytes.size() < kRecordHead + 1) {
    return bytes.size() > 1 && ByteOf(bytes, 1) != kTlsMajorVersion ? Opening::kOther
                                                                    : Opening::kUndecided;
  }
  const size_t size = ByteOf(bytes, 3) * size_t{256} + ByteOf(bytes, 4);
  if (ByteOf(bytes, 1) != kTlsMajorVersion || size == 0 || size > kMaxRecord ||
      ByteOf(bytes, kRecordHead) != kClientHello)
    return Opening::kOther;
  return received < kRecordHead + size ? Opening::kUndecided : Opening::kTls;
}

// `bytes` begin with the preface.
Opening Http2Opening(absl::string_view bytes, size_t received) {
  const absl::string_view head = bytes.substr(kHttp2Preface.size());
  if (head.size() < kFrameHead) return Opening::kUndecided;
  const size_t size = (ByteOf(head, 0) * size_t{256} + ByteOf(head, 1)) * 256 + ByteOf(head, 2);
  if (ByteOf(head, 3) != kSettingsFrame || size > kMaxFrame) return Opening::kOther;
  return received < kOpeningBytes + size ? Opening::kUndecided : Opening::kHttp2;
}

}  // namespace

Opening OpeningOf(absl::string_view first_bytes, size_t received) {
  if (first_bytes.empty()) return Opening::kUndecided;
  if (ByteOf(first_bytes, 0) == kTlsHandshake) return TlsOpening(first_bytes, received);
  if (absl::StartsWith(first_bytes, kHttp2Preface)) return Http2Opening(first_bytes, received);
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
    case Refusal::kUnfinished:
      return "unfinished";
    case Refusal::kEndless:
      return "endless";
    case Refusal::kFrames:
      return "frames";
    case Refusal::kName:
      return "name_full";
    case Refusal::kCertificate:
      return "certificate";
    case Refusal::kGrpc:
      return "grpc";
  }
  return "";
}

ConnectionGate::ConnectionGate(const ConnectionGateOptions& options) : options_(options) {}

int ConnectionGate::Arrived(int fd, const std::string& address, absl::Time now) {
  Gone(fd);
  waiting_[fd] = {address, now, ++arrivals_, /*in_line=*/false};
  by_order_[arrivals_] = fd;
  ++by_address_[address].waiting;
  if (waiting_.size() <= options_.waiting_max) return -1;
  const int evicted = LongestOfTheMost();
  ForgetWaiting(evicted);
  return evicted;
}

ConnectionGate::Verdict ConnectionGate::Opened(int fd, Opening opening) {
  using Do = Verdict::Do;
  const auto found = waiting_.find(fd);
  if (found == waiting_.end() || opening == Opening::kUndecided) return {};
  Waiting& one = found->second;
  if (std::exchange(one.in_line, false)) --in_line_;
  if (opening == Opening::kOther) return {Do::kTell, Refusal::kNotHttp2};
  if (options_.tls && opening == Opening::kHttp2) return {Do::kTell, Refusal::kPlaintext};
  if (!options_.tls && opening == Opening::kTls) return {Do::kTell, Refusal::kTls};
  if (full()) return {Do::kTell, Refusal::kFull};
  if (AddressFull(one.address)) return {Do::kTell, Refusal::kAddress};
  if (RoomForUnfinished()) return {Do::kLetIn};
  one.in_line = true;
  ++in_line_;
  return {Do::kMakeRoom};
}

std::vector<int> ConnectionGate::InLine() const {
  struct Place {
    size_t unfinished = 0;
    uint64_t order = 0;
    int fd = -1;
  };
  std::vector<Place> places;
  for (const auto& [order, fd] : by_order_) {
    const Waiting& one = waiting_.at(fd);
    if (one.in_line) places.push_back({by_address_.at(one.address).unfinished, order, fd});
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.unfinished, a.order) < std::tie(b.unfinished, b.order);
  });
  std::vector<int> fds;
  for (const Place& place : places) fds.push_back(place.fd);
  return fds;
}

ConnectionGate::Candidates ConnectionGate::WhoMakesRoom(int fd) const {
  const auto newcomer = waiting_.find(fd);
  if (newcomer == waiting_.end()) return {};
  size_t most = 0;
  std::string whose;
  for (const auto& [order, one] : unfinished_) {
    const std::string& address = let_in_.at(one).address;
    const size_t unfinished = by_address_.at(address).unfinished;
    if (unfinished <= most) continue;
    most = unfinished;
    whose = address;
    if (most * 2 > unfinished_.size()) break;  // no other has as many
  }
  Candidates found;
  for (const auto& [order, one] : unfinished_) {
    if (let_in_.at(one).address != whose) continue;
    found.fds.push_back(one);
    if (found.fds.size() == kMaxCandidates) break;
  }
  // So two addresses that have as many do not close each other's in turn.
  found.at_once = by_address_.at(newcomer->second.address).unfinished + 1 < most;
  return found;
}

bool ConnectionGate::AddressFull(const std::string& address) const {
  if (options_.connections_per_address_max == 0) return false;
  const auto found = by_address_.find(address);
  return found != by_address_.end() && found->second.let_in >= options_.connections_per_address_max;
}

void ConnectionGate::LetIn(int fd) { Enter(fd, /*refused=*/false); }

void ConnectionGate::LetInToRefuse(int fd) { Enter(fd, /*refused=*/true); }

void ConnectionGate::Enter(int fd, bool refused) {
  const auto found = waiting_.find(fd);
  if (found == waiting_.end()) return;
  const LetInOne one = {found->second.address, found->second.order, refused};
  Count& count = by_address_[one.address];
  if (refused) {
    ++refused_;
  } else {
    ++count.let_in;
    ++count.unfinished;
    unfinished_[one.order] = fd;
  }
  let_in_[fd] = one;
  ForgetWaiting(fd);
}

void ConnectionGate::Finished(int fd) {
  const auto found = let_in_.find(fd);
  if (found != let_in_.end()) ForgetUnfinished(found->second);
}

void ConnectionGate::Closing(int fd) {
  const auto found = let_in_.find(fd);
  if (found == let_in_.end() || !unfinished_.contains(found->second.order)) return;
  ForgetUnfinished(found->second);
  closing_[found->second.order] = fd;
}

void ConnectionGate::ForgetUnfinished(const LetInOne& one) {
  if (unfinished_.erase(one.order) != 0) --by_address_.at(one.address).unfinished;
}

void ConnectionGate::Gone(int fd) {
  ForgetWaiting(fd);
  const auto found = let_in_.find(fd);
  if (found == let_in_.end()) return;
  const LetInOne one = std::move(found->second);
  let_in_.erase(found);
  ForgetUnfinished(one);
  closing_.erase(one.order);
  if (one.refused) {
    --refused_;
  } else {
    --by_address_[one.address].let_in;
  }
  Forget(one.address);
}

std::vector<int> ConnectionGate::AllUnfinished() const {
  std::vector<int> fds;
  for (const auto& [order, fd] : unfinished_) fds.push_back(fd);
  return fds;
}

std::vector<int> ConnectionGate::AllClosing() const {
  std::vector<int> fds;
  for (const auto& [order, fd] : closing_) fds.push_back(fd);
  return fds;
}

void ConnectionGate::ForgetWaiting(int fd) {
  const auto found = waiting_.find(fd);
  if (found == waiting_.end()) return;
  const std::string address = std::move(found->second.address);
  by_order_.erase(found->second.order);
  if (found->second.in_line) --in_line_;
  waiting_.erase(found);
  --by_address_[address].waiting;
  Forget(address);
}

void ConnectionGate::Forget(const std::string& address) {
  const auto found = by_address_.find(address);
  if (found == by_address_.end()) return;
  if (found->second.waiting == 0 && found->second.let_in == 0) by_address_.erase(found);
}

int ConnectionGate::LongestOfTheMost() const {
  std::string whose;
  std::pair<size_t, size_t> most;
  for (const auto& [order, fd] : by_order_) {
    const std::string& address = waiting_.at(fd).address;
    const Count& count = by_address_.at(address);
    if (const std::pair has(count.waiting, count.unfinished); has > most) {
      most = has;
      whose = address;
    }
    if (most.first * 2 > waiting_.size()) break;  // no other has as many
  }
  int longest = -1;  // in line
  // In the order of arrival.
  for (const auto& [order, fd] : by_order_) {
    const Waiting& one = waiting_.at(fd);
    if (one.address != whose) continue;
    if (!one.in_line) return fd;
    if (longest < 0) longest = fd;
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
  return found == let_in_.end() ? std::string() : found->second.address;
}

size_t ReserveOf(size_t descriptors_max) {
  return std::clamp(descriptors_max / 16, kMinReserve, kMaxReserve);
}

size_t HttpShareOf(size_t descriptors_max) {
  const size_t reserve = ReserveOf(descriptors_max);
  return std::min({reserve / 2, reserve - kNotHttp, kMaxHttp});
}

ConnectionBounds BoundsFor(size_t descriptors_max, size_t in_use) {
  const size_t reserve = ReserveOf(descriptors_max);
  // At least one gets in, whatever the limit: what then runs out is survived all the same.
  const size_t free = descriptors_max > in_use + reserve ? descriptors_max - in_use - reserve : 2;
  ConnectionBounds bounds;
  bounds.waiting =
      std::clamp<size_t>(free / 10, std::clamp<size_t>(free / 2, 1, kMinWaiting), kMaxWaiting);
  bounds.refused = std::min(free / 20, kMaxRefused);
  const size_t left = free - std::min(free - 1, bounds.waiting + bounds.refused);
  bounds.connections = std::clamp<size_t>(left / kDescriptorsPerConnection, 1, kMaxConnections);
  bounds.unfinished = std::clamp<size_t>(
      bounds.connections / 4, std::min(bounds.connections, kMinUnfinished), kMaxUnfinished);
  return bounds;
}

}  // namespace coordd
