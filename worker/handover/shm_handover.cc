#include "worker/handover/shm_handover.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/base/unix_message.h"
#include "worker/interfaces/peer_addresses.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

constexpr int kSecretBytes = 16;  // 128 bits
constexpr int kBacklog = 256;     // all ranks of a node at once (ShmTransport::kMaxLocalRanks)
// Accepted connections of our own user that have not said who they are: beyond it the oldest one is
// turned away, and connects again if it is a rank.
constexpr size_t kMaxStrangers = 256;
// Connections that are looked at before hellos are read: whoever floods the listener from another
// user's processes delays the ranks, but cannot keep this one from hearing them.
constexpr int kAcceptsPerTurn = 2 * kBacklog;
// Up to so many others each rank asks the store for each lower one, which is soonest. Beyond, that
// would be n * n / 2 calls, half the time in which 32 ranks of two cores begin: the first rank asks
// for all and puts them into one key.
constexpr size_t kAskEachMax = 4;
// How often a waiting handover looks at `aborted`.
constexpr int kPollMilliseconds = 100;
// The pause before a rank connects again to one whose backlog was full, or who turned it away.
constexpr int kRetryMilliseconds = 5;

struct Address {
  std::string name;
  std::string secret;
};

std::string Encode(const Address& address) {
  return absl::StrCat(address.name, " ", address.secret);
}

absl::StatusOr<Address> Decode(Rank rank, const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  constexpr size_t kNameMaxBytes = 100;  // sun_path has 108
  if (parts.size() == 2 && parts[0].size() <= kNameMaxBytes &&
      parts[1].size() == 2 * kSecretBytes) {
    return Address{parts[0], parts[1]};
  }
  return absl::InternalError(absl::StrCat("rank ", ToInt(rank), " announced \"", text,
                                          "\" as its Unix socket, expected a name and a secret"));
}

// Takes the same time wherever the difference is.
bool SameSecret(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned>(a[i]) ^ static_cast<unsigned>(b[i]);
  return difference == 0;
}

// Until one of them can be read; not always. ABORTED, DEADLINE_EXCEEDED: without `missing`.
absl::Status WaitForAny(const ShmHandoverOptions& options, std::vector<pollfd>& waiting,
                        const std::vector<Rank>& missing, Clock& clock, absl::Time deadline,
                        int longest_ms = kPollMilliseconds) {
  if (options.aborted != nullptr && options.aborted->load(std::memory_order_acquire))
    return absl::AbortedError("the transport was aborted");
  if (clock.Now() >= deadline) return RanksMissing(options.key_prefix, missing);
  const int64_t left = absl::ToInt64Milliseconds(deadline - clock.Now());
  poll(waiting.data(), waiting.size(), static_cast<int>(std::clamp<int64_t>(left, 1, longest_ms)));
  return absl::OkStatus();
}

// Secret, rank and note of a hello, as many of them as it has.
std::vector<std::string> WordsOf(const UnixMessage& hello) {
  return absl::StrSplit(hello.text, absl::MaxSplits(' ', 2));
}

// One handover: a loop of poll over the listener and one socket per peer.
class Handover {
 public:
  Handover(const ShmHandoverOptions& options, Store& store, Clock& clock, absl::Time deadline)
      : options_(options), store_(store), clock_(clock), deadline_(deadline) {}

  absl::StatusOr<std::vector<ShmPeer>> Run();

 private:
  absl::Status Announce();
  absl::Status FindLowerRanks();
  absl::StatusOr<std::vector<std::string>> AddressesOf(const std::vector<Rank>& lower);
  absl::Status ConnectLowerRanks();
  absl::Status ReadReplies();
  void AcceptAll();
  void ReadHellos();
  bool Complete() const;
  absl::Status WaitForSomething();
  ShmPeer* PeerOf(int32_t rank);
  // "SECRET RANK NOTE", with this rank's memory.
  absl::Status SendHello(int socket, const std::string& secret) const {
    return SendUnixMessage(socket,
                           absl::StrCat(secret, " ", ToInt(options_.self), " ", options_.note),
                           options_.segment_fd);
  }

  const ShmHandoverOptions& options_;
  Store& store_;
  Clock& clock_;
  const absl::Time deadline_;
  Address own_;
  OwnedFd listener_;
  std::vector<ShmPeer> peers_;                 // as options_.others
  std::vector<std::optional<Address>> lower_;  // same index; nullopt: that rank connects to us
  std::vector<OwnedFd> strangers_;             // accepted, no hello yet
};

absl::StatusOr<std::vector<ShmPeer>> Handover::Run() {
  for (Rank rank : options_.others) peers_.push_back({rank, {}, {}, {}, {}});
  COORDD_RETURN_IF_ERROR(Announce());
  COORDD_RETURN_IF_ERROR(FindLowerRanks());
  while (true) {
    COORDD_RETURN_IF_ERROR(ConnectLowerRanks());
    COORDD_RETURN_IF_ERROR(ReadReplies());
    AcceptAll();
    ReadHellos();
    if (Complete()) return std::move(peers_);
    COORDD_RETURN_IF_ERROR(WaitForSomething());
  }
}

absl::Status Handover::Announce() {
  own_ = {absl::StrCat("coordd-", SecretHex(kSecretBytes)), SecretHex(kSecretBytes)};
  COORDD_ASSIGN_OR_RETURN(listener_, ListenUnix(own_.name, kBacklog));
  return store_.Set(AddressKey(options_.key_prefix, options_.self), Encode(own_), deadline_);
}

absl::Status Handover::FindLowerRanks() {
  std::vector<Rank> lower;
  for (Rank rank : options_.others) {
    if (rank < options_.self) lower.push_back(rank);
  }
  COORDD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, AddressesOf(lower));
  size_t next = 0;
  for (const ShmPeer& peer : peers_) {
    lower_.emplace_back();
    if (peer.rank > options_.self) continue;
    COORDD_ASSIGN_OR_RETURN(lower_.back(), Decode(peer.rank, texts[next++]));
  }
  return absl::OkStatus();
}

// In their order. The first rank of the node, which needs none, tells the others.
absl::StatusOr<std::vector<std::string>> Handover::AddressesOf(const std::vector<Rank>& lower) {
  const auto await = [this](const std::vector<Rank>& ranks) {
    return AwaitAddresses(store_, options_.key_prefix, ranks, deadline_);
  };
  if (options_.others.size() <= kAskEachMax) return await(lower);
  const Rank first = lower.empty() ? options_.self : lower.front();
  const std::string key = absl::StrCat(options_.key_prefix, "/node/", ToInt(first));
  if (lower.empty()) {
    COORDD_ASSIGN_OR_RETURN(const std::vector<std::string> others, await(options_.others));
    COORDD_RETURN_IF_ERROR(
        store_.Set(key, absl::StrCat(Encode(own_), "\n", absl::StrJoin(others, "\n")), deadline_));
    return std::vector<std::string>();
  }
  const absl::StatusOr<std::string> told = store_.Get(key, deadline_);
  // Who has not shown up: the calls only look.
  if (absl::IsDeadlineExceeded(told.status()))
    COORDD_RETURN_IF_ERROR(await(options_.others).status());
  COORDD_RETURN_IF_ERROR(told.status());
  std::vector<std::string> texts = absl::StrSplit(*told, '\n');
  if (texts.size() != options_.others.size() + 1) {
    return absl::InternalError(absl::StrCat("rank ", ToInt(first), " announced ", texts.size(),
                                            " Unix sockets of its node, expected ",
                                            options_.others.size() + 1));
  }
  texts.resize(lower.size());
  return texts;
}

absl::Status Handover::ConnectLowerRanks() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    ShmPeer& peer = peers_[i];
    if (!lower_[i] || peer.socket.valid()) continue;
    absl::StatusOr<std::optional<OwnedFd>> connected = ConnectUnix(lower_[i]->name);
    if (!connected.ok()) {
      return PeerLost(peer.rank,
                      absl::StrCat(connected.status().message(),
                                   ": it has ended, or is in another network namespace, in which "
                                   "case it needs another COORDD_NODE_ID than this rank"));
    }
    if (!connected->has_value()) continue;  // its backlog is full: next round
    OwnedFd socket = **std::move(connected);
    COORDD_ASSIGN_OR_RETURN(const int32_t pid, CheckSameUser(socket.get()));
    // It has turned us away already: next round. If it has ended, nobody listens any more.
    if (!SendHello(socket.get(), lower_[i]->secret).ok()) continue;
    peer.process = WatchProcess(pid);
    peer.socket = std::move(socket);
  }
  return absl::OkStatus();
}

absl::Status Handover::ReadReplies() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    ShmPeer& peer = peers_[i];
    if (!lower_[i] || !peer.socket.valid() || peer.segment.valid()) continue;
    absl::StatusOr<std::optional<UnixMessage>> reply = ReceiveUnixMessage(peer.socket.get());
    if (absl::IsUnavailable(reply.status())) {
      // It was turned away among many strangers, or the peer has ended: connecting again tells.
      peer.socket = OwnedFd();
      peer.process = OwnedFd();
      continue;
    }
    if (!reply.ok()) return PeerLost(peer.rank, reply.status().message());
    if (!reply->has_value()) continue;
    if (!(*reply)->fd.valid()) return PeerLost(peer.rank, "it has handed over no memory");
    if (std::vector<std::string> words = WordsOf(**reply); words.size() == 3)
      peer.note = std::move(words[2]);
    peer.segment = std::move((*reply)->fd);
  }
  return absl::OkStatus();
}

// Any user of the machine can connect to an abstract name: who is not of ours takes no place here.
void Handover::AcceptAll() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    OwnedFd socket = AcceptUnix(listener_.get());
    if (!socket.valid()) return;
    if (!CheckSameUser(socket.get()).ok()) continue;
    if (strangers_.size() == kMaxStrangers) strangers_.erase(strangers_.begin());
    strangers_.push_back(std::move(socket));
  }
}

void Handover::ReadHellos() {
  std::erase_if(strangers_, [this](OwnedFd& socket) {
    const absl::StatusOr<int32_t> pid = CheckSameUser(socket.get());
    if (!pid.ok()) return true;
    absl::StatusOr<std::optional<UnixMessage>> hello = ReceiveUnixMessage(socket.get());
    if (!hello.ok()) return true;
    if (!hello->has_value()) return false;
    if (!(*hello)->fd.valid()) return true;
    std::vector<std::string> words = WordsOf(**hello);
    int32_t rank = -1;
    if (words.size() != 3 || !SameSecret(words[0], own_.secret) ||
        !absl::SimpleAtoi(words[1], &rank)) {
      return true;
    }
    ShmPeer* peer = PeerOf(rank);
    if (peer == nullptr || peer->rank < options_.self || peer->socket.valid()) return true;
    if (!SendHello(socket.get(), own_.secret).ok()) return true;
    peer->process = WatchProcess(*pid);
    peer->note = std::move(words[2]);
    peer->segment = std::move((*hello)->fd);
    peer->socket = std::move(socket);
    return true;
  });
}

ShmPeer* Handover::PeerOf(int32_t rank) {
  auto peer = std::find_if(peers_.begin(), peers_.end(),
                           [&](const ShmPeer& p) { return ToInt(p.rank) == rank; });
  return peer == peers_.end() ? nullptr : &*peer;
}

bool Handover::Complete() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const ShmPeer& peer) { return peer.segment.valid(); });
}

absl::Status Handover::WaitForSomething() {
  std::vector<pollfd> waiting = {{listener_.get(), POLLIN, 0}};
  std::vector<Rank> missing;
  bool connects_again = false;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const ShmPeer& peer = peers_[i];
    if (peer.segment.valid()) continue;
    missing.push_back(peer.rank);
    if (peer.socket.valid()) waiting.push_back({peer.socket.get(), POLLIN, 0});
    if (lower_[i] && !peer.socket.valid()) connects_again = true;
  }
  for (const OwnedFd& stranger : strangers_) waiting.push_back({stranger.get(), POLLIN, 0});
  return WaitForAny(options_, waiting, missing, clock_, deadline_,
                    connects_again ? kRetryMilliseconds : kPollMilliseconds);
}

}  // namespace

absl::StatusOr<std::vector<ShmPeer>> HandOverSegments(const ShmHandoverOptions& options,
                                                      Store& store, Clock& clock,
                                                      absl::Time deadline) {
  return Handover(options, store, clock, deadline).Run();
}

absl::StatusOr<std::optional<ShmObjection>> ObjectionOfAny(const ShmHandoverOptions& options,
                                                           absl::Span<const ShmPeer> peers,
                                                           absl::string_view objection,
                                                           Clock& clock, absl::Time deadline) {
  // No message is empty.
  const std::string said = absl::StrCat(" ", objection).substr(0, kUnixMessageMaxBytes);
  for (const ShmPeer& peer : peers) {
    const absl::Status sent = SendUnixMessage(peer.socket.get(), said, -1);
    if (!sent.ok()) return PeerLost(peer.rank, sent.message());
  }
  std::map<Rank, std::string> heard = {{options.self, said}};
  while (true) {
    std::vector<pollfd> waiting;
    std::vector<Rank> missing;
    for (const ShmPeer& peer : peers) {
      if (heard.contains(peer.rank)) continue;
      absl::StatusOr<std::optional<UnixMessage>> message = ReceiveUnixMessage(peer.socket.get());
      if (!message.ok()) return PeerLost(peer.rank, message.status().message());
      if (message->has_value()) {
        heard.emplace(peer.rank, (*message)->text);
        continue;
      }
      waiting.push_back({peer.socket.get(), POLLIN, 0});
      missing.push_back(peer.rank);
    }
    if (missing.empty()) break;
    COORDD_RETURN_IF_ERROR(WaitForAny(options, waiting, missing, clock, deadline));
  }
  for (const auto& [rank, text] : heard) {
    if (text.size() > 1) return ShmObjection{rank, text.substr(1)};
  }
  return std::nullopt;
}

}  // namespace coordd
