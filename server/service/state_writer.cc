#include "server/service/state_writer.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/thread.h"
#include "server/metrics/server_metrics.h"

namespace coordd {
namespace {

// The default of max_jobs: each has at most one write under way that it waits for.
constexpr size_t kUsualWrites = 1024;

size_t BytesOf(const Persist& persist) {
  size_t bytes = 0;
  for (const StateWrite& write : persist.writes) {
    bytes += write.key.size() + (write.value.has_value() ? write.value->size() : 0);
  }
  return bytes;
}

}  // namespace

StateWriter::StateWriter(StateStore& store, Clock& clock, ServerMetrics& metrics, Answer answer)
    : store_(store),
      clock_(clock),
      metrics_(metrics),
      answer_(std::move(answer)),
      queue_(kUsualWrites, clock) {
  metrics_.SetStateWritable(true);
  thread_ = StartThread("state-writer", [this] { Run(); });
}

StateWriter::~StateWriter() { Stop(); }

void StateWriter::Stop() {
  queue_.Close();
  if (thread_.joinable()) thread_.join();
}

std::string StateWriter::trouble() const {
  MutexLock lock(&mu_);
  return trouble_;
}

void StateWriter::Run() {
  while (!queue_.Finished()) {
    std::vector<Persist> batch = queue_.TakeAll(absl::InfiniteFuture());
    // As many as one commit may have, in their order: later ones overwrite earlier ones.
    size_t first = 0;
    while (first < batch.size()) {
      size_t last = first;
      size_t writes = 0;
      size_t bytes = 0;
      do {
        writes += batch[last].writes.size();
        bytes += BytesOf(batch[last]);
        ++last;
      } while (last < batch.size() &&
               writes + batch[last].writes.size() <= StateStore::kMaxWrites &&
               bytes + BytesOf(batch[last]) <= StateStore::kMaxCommitBytes);
      Write(batch, first, last);
      first = last;
    }
  }
}

void StateWriter::Write(std::vector<Persist>& batch, size_t first, size_t last) {
  std::vector<StateWrite> writes;
  for (size_t i = first; i < last; ++i) {
    writes.insert(writes.end(), batch[i].writes.begin(), batch[i].writes.end());
  }
  const absl::Status status = Commit(writes);
  // One of them may be the reason: the others shall not suffer from it.
  if (!status.ok() && IsPassing(status) && last - first > 1) {
    for (size_t i = first; i < last; ++i) Tell(batch[i], Commit(batch[i].writes));
    return;
  }
  for (size_t i = first; i < last; ++i) Tell(batch[i], status);
}

absl::Status StateWriter::Commit(const std::vector<StateWrite>& writes) {
  const absl::Time start = clock_.Now();
  absl::Status status = store_.Commit(writes);
  metrics_.OnStateCommit(status.code(), clock_.Now() - start);
  metrics_.SetStateWritable(status.ok());
  MutexLock lock(&mu_);
  if (!status.ok() && trouble_.empty()) {
    COORDD_LOG(kError, "state cannot be stored: ", status.message());
  } else if (status.ok() && !trouble_.empty()) {
    COORDD_LOG(kInfo, "state can be stored again in ", store_.name());
  }
  trouble_ = std::string(status.message());
  return status;
}

void StateWriter::Tell(Persist& persist, const absl::Status& status) {
  if (persist.generation == Generation{0} && persist.call == CallId{0}) return;
  answer_(Persisted{std::move(persist.job), persist.generation, status, persist.call});
}

}  // namespace coordd
