// The part of ConnectionAcceptor that makes room: strangers that begin and go no further hold no
// place that somebody else waits for.
#include "absl/strings/str_cat.h"
#include "server/door/connection_acceptor.h"
#include "server/door/socket_progress.h"

namespace coordd {
namespace {

// A look at all that are unfinished costs a system call for each.
constexpr absl::Duration kLookPause = absl::Milliseconds(5);
// However little at a time it says: what one at the end of a slow line takes.
constexpr absl::Duration kUndisturbedFor = absl::Seconds(1);

}  // namespace

void ConnectionAcceptor::LetInLine(absl::Time now) {
  std::vector<int> line;
  {
    MutexLock lock(&mu_);
    if (!gate_.has_line()) return;
    ForgetClosedLocked(gate_.AllClosing());
    line = gate_.InLine();
  }
  if (now >= look_after_) LookForRoom(now);
  for (int fd : line) Decide(fd);
  {
    MutexLock lock(&mu_);
    line = gate_.InLine();
  }
  MakeRoom(line, now);
}

void ConnectionAcceptor::RefuseInLine(const Waiting& one) {
  if (one.told || one.refusal.has_value()) return;
  Refused(Refusal::kUnfinished,
          absl::StrCat("a connection of ", one.peer, " was closed: as many as may be, ",
                       options_.unfinished_max, ", have begun ",
                       options_.tls ? "a TLS handshake" : "HTTP/2",
                       " and not gone on, most of them of one address"));
}

// Whose first exchange is over, and who is gone.
void ConnectionAcceptor::LookForRoom(absl::Time now) {
  look_after_ = now + kLookPause;
  MutexLock lock(&mu_);
  const std::vector<int> unfinished = gate_.AllUnfinished();
  ForgetClosedLocked(unfinished);
  for (int fd : unfinished) {
    const auto found = handed_.find(fd);
    if (found == handed_.end()) continue;
    const Handed& one = found->second;
    if (IsFinishedLocked(one, fd)) gate_.Finished(fd);
  }
  if (gate_.open() >= options_.connections_max) SweepLocked();
}

// Of TLS, the end of the handshake is told (Finished).
bool ConnectionAcceptor::IsFinishedLocked(const Handed& one, int fd) const {
  if (options_.tls) return false;
  return BytesReceived(fd) > one.opening_bytes || one.opening_bytes == UINT64_MAX;
}

// One for each in `line`, but for whom one that is closing makes room already.
void ConnectionAcceptor::MakeRoom(const std::vector<int>& line, absl::Time now) {
  size_t coming = 0;
  std::vector<std::string> closed;
  {
    MutexLock lock(&mu_);
    coming = gate_.closing();
    for (size_t i = coming; i < line.size(); ++i) {
      const ConnectionGate::Candidates candidates = gate_.WhoMakesRoom(line[i]);
      const int chosen = ChooseLocked(candidates, now);
      if (chosen < 0) break;  // those behind it are of no better address
      const Handed& one = handed_.at(chosen);
      EndConnection(chosen, one.cookie);
      gate_.Closing(chosen);
      closed.push_back(one.peer);
    }
  }
  for (const std::string& peer : closed)
    Refused(Refusal::kUnfinished,
            absl::StrCat("a connection of ", peer, " was closed: it has begun ",
                         options_.tls ? "a TLS handshake" : "HTTP/2",
                         " and not gone on, and others wait"));
}

// -1: none of them can be asked to go yet.
int ConnectionAcceptor::ChooseLocked(const ConnectionGate::Candidates& candidates,
                                     absl::Time now) const {
  for (int fd : candidates.fds) {
    const auto found = handed_.find(fd);
    if (found == handed_.end()) continue;
    const Handed& one = found->second;
    if (candidates.at_once || one.since + kUndisturbedFor < now ||
        ClientIsAwaited(fd, one.opening_bytes))
      return fd;
  }
  return -1;
}

void ConnectionAcceptor::ForgetClosedLocked(const std::vector<int>& fds) {
  for (int fd : fds) {
    const auto found = handed_.find(fd);
    if (found != handed_.end() && SocketCookie(fd) == found->second.cookie) continue;
    gate_.Gone(fd);
    if (found != handed_.end()) handed_.erase(found);
  }
}

}  // namespace coordd
