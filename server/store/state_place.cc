#include "server/store/state_place.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "server/store/state_directory.h"
#include "server/store/state_store_etcd.h"
#include "server/store/state_store_memory.h"
#include "server/store/state_store_sqlite.h"

namespace coordd {
namespace {

absl::Status ParseEtcd(absl::string_view text, StatePlace* place) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('/', 1));
  for (absl::string_view endpoint : absl::StrSplit(parts.first, ',')) {
    COORDD_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(endpoint));
    place->endpoints.push_back(std::move(address));
  }
  if (parts.second.empty()) return absl::OkStatus();
  place->prefix = std::string(absl::StripSuffix(parts.second, "/")) + "/";
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StateStore>> MakeStore(const StatePlace& place,
                                                      const StateStoreOptions& options,
                                                      Clock& clock) {
  switch (place.kind) {
    case StatePlace::Kind::kMemory:
      // What was sent to an earlier incarnation is refused by number: later is larger.
      return std::make_unique<MemoryStateStore>(
          std::make_shared<StateMemory>(Epoch(absl::ToUnixMillis(clock.Now()))), options);
    case StatePlace::Kind::kSqlite:
      return std::make_unique<SqliteStateStore>(place.directory, options);
    case StatePlace::Kind::kEtcd:
      break;
  }
  return std::make_unique<EtcdStateStore>(EtcdStateOptions{.endpoints = place.endpoints,
                                                           .prefix = place.prefix,
                                                           .tls = place.tls,
                                                           .lease = place.lease},
                                          options, clock);
}

}  // namespace

absl::StatusOr<StatePlace> ParseStatePlace(absl::string_view text) {
  StatePlace place;
  absl::string_view rest = text;
  if (text == "memory") return place;
  if (absl::ConsumePrefix(&rest, "sqlite:") && !rest.empty()) {
    place.kind = StatePlace::Kind::kSqlite;
    place.directory = std::string(rest);
    return place;
  }
  if (absl::ConsumePrefix(&rest, "etcd:") && !rest.empty()) {
    place.kind = StatePlace::Kind::kEtcd;
    COORDD_RETURN_IF_ERROR(ParseEtcd(rest, &place));
    return place;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text,
                   "\" is no place for coordd's state, expected memory, sqlite:DIRECTORY or "
                   "etcd:HOST:PORT,HOST:PORT"));
}

absl::Status StatePlace::Validate() const {
  if (kind != Kind::kEtcd) return absl::OkStatus();
  // etcd counts in seconds. A long one is a long time without a coordd.
  const bool whole = absl::Trunc(lease, absl::Seconds(1)) == lease;
  if (!whole || lease < absl::Seconds(1) || lease > absl::Minutes(5)) {
    return absl::InvalidArgumentError(absl::StrCat("--store-lease is ", absl::FormatDuration(lease),
                                                   ", expected 1s to 5m in whole seconds"));
  }
  return tls.Validate();
}

StatePlace DefaultStatePlace(const HostPort& listen, const Environment& environment) {
  StatePlace place;
  if (listen.port == 0) return place;
  place.kind = StatePlace::Kind::kSqlite;
  const std::string port = absl::StrCat(listen.port);
  // systemd may name several, the first of which is ours.
  const std::string given = Variable(environment, "STATE_DIRECTORY");
  if (!given.empty()) {
    place.directory = absl::StrCat(given.substr(0, given.find(':')), "/", port);
    return place;
  }
  std::string home = Variable(environment, "XDG_STATE_HOME");
  if (home.empty() && !Variable(environment, "HOME").empty()) {
    home = Variable(environment, "HOME") + "/.local/state";
  }
  place.directory = absl::StrCat(home, "/coordd/", port);
  if (home.empty() || home[0] != '/' || !NetworkFileSystemOf(home).empty()) {
    place.directory = absl::StrCat("/var/tmp/coordd-", geteuid(), "/", port);
  }
  return place;
}

StateLoss::StateLoss() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

StateLoss::~StateLoss() {
  if (fd_ >= 0) close(fd_);
}

void StateLoss::Raise(const absl::Status& why) {
  {
    MutexLock lock(&mu_);
    if (!why_.ok()) return;
    why_ = why;
  }
  const uint64_t one = 1;
  if (fd_ >= 0 && write(fd_, &one, sizeof(one)) < 0) return;  // it is readable already
}

absl::Status StateLoss::why() const {
  MutexLock lock(&mu_);
  return why_;
}

absl::StatusOr<OpenedState> OpenState(const StatePlace& place, const StateStoreOptions& options,
                                      Clock& clock) {
  OpenedState opened;
  opened.loss = std::make_shared<StateLoss>();
  COORDD_ASSIGN_OR_RETURN(opened.store, MakeStore(place, options, clock));
  COORDD_ASSIGN_OR_RETURN(
      const StoredState stored,
      opened.store->Open([loss = opened.loss](const absl::Status& why) { loss->Raise(why); }));
  COORDD_ASSIGN_OR_RETURN(opened.restored, ParseRecords(stored));
  opened.restored.outlives = place.kind != StatePlace::Kind::kMemory;
  return opened;
}

}  // namespace coordd
