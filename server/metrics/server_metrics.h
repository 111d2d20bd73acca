// Every metric of coordd; docs/METRICS.md describes them and a test compares the two. (io)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace prometheus {
class Registry;
}

namespace coordd {

class ProcessMetrics;
struct Event;
namespace v1 {
class ServerState;
}

// Thread-safe. Labels are bounded: a job's name is one (the series of a job go when coordd forgets
// the job), ids of sessions, workers and ranks never are. A counter is there, at 0, before its
// first count, with each value of its labels (label_values.h): of a job from its first event on.
class ServerMetrics {
 public:
  // `registry` comes from main and outlives this.
  ServerMetrics(prometheus::Registry& registry, absl::Time start);
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // Called by whoever has the coordinator's turn.
  void OnEvent(const Event& event);
  void OnTurn(absl::Duration took);

  // The writer of the state that outlives coordd.
  void OnStateCommit(absl::StatusCode code, absl::Duration took);
  void SetStateWritable(bool writable);

  // What sessions count.
  enum class Drop { kOutboxFull, kNoJoin, kNotParsable };
  void AddSessions(int64_t delta);  // of workers, also through a node session
  void AddNodeSessions(int64_t delta);
  void OnSessionDropped(Drop why);
  void OnMessageReceived();
  void OnReadWithheld();  // the inbox was full
  void OnMessageSent();
  void AddOutboxMessages(int64_t delta);

  // The port. `why`: one of RefusalName's, all of which are expected from the start.
  void ExpectConnectionRefused(const char* why);
  void OnConnectionRefused(const char* why);
  void SetConnections(size_t open, size_t max);

  // A call that the access rules refuse. Both are names of ours.
  void OnCallDenied(absl::string_view call, absl::string_view role);
  // Entries that the file of the audit log does not have.
  enum class AuditLoss { kQueueFull, kNotWritten };
  void OnAuditEntriesLost(int64_t entries, AuditLoss why);
  // When the first of coordd's own certificates ends.
  void SetCertificateEnd(absl::Time end);

  // What the store and HTTP count. `method` and `path` are ours, never the client's.
  void OnStoreCallStarted();
  void OnStoreCallEnded(absl::string_view method, absl::StatusCode code);
  void ExpectHttpRequest(absl::string_view path, int status);
  void OnHttpRequest(absl::string_view path, int status);
  void ExpectHttpRefused(absl::string_view why);
  void OnHttpRefused(absl::string_view why);

  // Called before each scrape, with what is a state rather than an event.
  void SetState(const v1::ServerState& state);
  void SetInboxMessages(size_t count);

  // The registry as Prometheus reads it.
  std::string Text() const;

 private:
  struct Families;
  prometheus::Registry& registry_;
  const std::unique_ptr<Families> families_;
  const std::unique_ptr<ProcessMetrics> process_;
};

}  // namespace coordd
