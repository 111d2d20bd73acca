#include "server/store/state_store_etcd.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/duration_text.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "coordd/v1/records.pb.h"
#include "etcd/v3/etcd.pb.h"

namespace coordd {
namespace {

constexpr int32_t kEtcdFormat = 1;
// Of one endpoint: longer than an election of etcd's takes by default.
constexpr absl::Duration kCallTimeout = absl::Seconds(2);
// On the way out nobody waits for long: the lease runs out by itself.
constexpr absl::Duration kResignTimeout = absl::Milliseconds(500);
constexpr int64_t kRecordsPerPage = 500;
// Clocks of two machines may run this much apart in rate, and no more.
constexpr double kClockDrift = 0.1;
constexpr absl::Duration kShortestMargin = absl::Milliseconds(300);

absl::Duration MarginOf(absl::Duration lease) {
  return std::max(kShortestMargin, lease * kClockDrift);
}

// The first key behind all that start with `prefix`. REQUIRES: it does not end in 0xff.
std::string PrefixEnd(std::string prefix) {
  prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

}  // namespace

EtcdStateStore::EtcdStateStore(EtcdStateOptions etcd, StateStoreOptions options, Clock& clock)
    : etcd_(std::move(etcd)), options_(std::move(options)), clock_(clock), looks_(1, clock) {}

EtcdStateStore::~EtcdStateStore() {
  looks_.Close();
  if (thread_.joinable()) thread_.join();
  if (leader_revision_ != 0) Resign();
  if (lease_id_ != 0) client_->RevokeLease(lease_id_, kResignTimeout).IgnoreError();
}

std::string EtcdStateStore::name() const {
  return absl::StrCat("etcd:",
                      absl::StrJoin(etcd_.endpoints, ",",
                                    [](std::string* out, const HostPort& endpoint) {
                                      out->append(endpoint.ToString());
                                    }),
                      "/", etcd_.prefix.substr(0, etcd_.prefix.size() - 1));
}

absl::StatusOr<StoredState> EtcdStateStore::Open(std::function<void(absl::Status)> lost) {
  COORDD_CHECK(client_ == nullptr);
  lost_ = std::move(lost);
  COORDD_ASSIGN_OR_RETURN(client_, EtcdClient::Make(etcd_.endpoints, etcd_.tls));
  COORDD_RETURN_IF_ERROR(Campaign());
  thread_ = StartThread("etcd-lease", [this] { KeepLease(); });
  COORDD_ASSIGN_OR_RETURN(v1::EtcdMeta meta, ReadMeta());
  COORDD_RETURN_IF_ERROR(CheckMeta(meta));
  const bool adopted = meta.etcd_cluster() != 0 && meta.etcd_cluster() != meta_->etcd_cluster();
  if (meta.epoch() > 0 && !meta.resigned()) {
    // Its lease is over for etcd. On its own machine the clock may be slower.
    BoundedQueue<Look> pause(1, clock_);
    pause.TakeAll(clock_.Now() + MarginOf(etcd_.lease));
  }
  if (meta.cluster_id().empty()) {
    const std::string& expected = options_.expected_cluster_id;
    meta.set_cluster_id(expected.empty() ? options_.new_cluster_id : expected);
  }
  meta.set_format(kEtcdFormat);
  meta.set_epoch(meta.epoch() + (adopted ? kAdoptionStride : 1));
  meta.set_etcd_cluster(meta_->etcd_cluster());
  meta.set_resigned(false);
  etcdserverpb::TxnRequest txn;
  Guard(&txn);
  PutMeta(meta, &txn);
  COORDD_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse answer, client_->Txn(txn, kCallTimeout));
  if (!answer.succeeded()) {
    return absl::AlreadyExistsError(
        absl::StrCat("the leadership in ", name(), " was lost while it was taken over"));
  }
  *meta_ = meta;
  COORDD_ASSIGN_OR_RETURN(auto records, ReadRecords());
  return StoredState{meta.cluster_id(), Epoch{meta.epoch()}, std::move(records), adopted};
}

absl::Status EtcdStateStore::Led(const std::string& by) const {
  return absl::AlreadyExistsError(absl::StrCat("the state in ", name(),
                                               " belongs to the coordd with ", by,
                                               ", which leads; --standby waits for its end"));
}

absl::Status EtcdStateStore::Campaign() {
  // Whoever stands by looks often: reading costs etcd less than a lease.
  etcdserverpb::RangeRequest look;
  look.set_key(Key("leader"));
  COORDD_ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse seen,
                          client_->Range(look, kCallTimeout));
  if (seen.kvs_size() > 0) return Led(seen.kvs(0).value());
  const absl::Time asked = clock_.Now();
  COORDD_ASSIGN_OR_RETURN(const etcdserverpb::LeaseGrantResponse lease,
                          client_->GrantLease(etcd_.lease, kCallTimeout));
  lease_id_ = lease.id();
  etcdserverpb::TxnRequest txn;
  etcdserverpb::Compare* absent = txn.add_compare();
  absent->set_target(etcdserverpb::Compare::CREATE);
  absent->set_key(Key("leader"));
  absent->set_create_revision(0);
  etcdserverpb::PutRequest* put = txn.add_success()->mutable_request_put();
  put->set_key(Key("leader"));
  put->set_value(options_.owner);
  put->set_lease(lease_id_);
  txn.add_failure()->mutable_request_range()->set_key(Key("leader"));
  COORDD_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse answer, client_->Txn(txn, kCallTimeout));
  meta_ = std::make_unique<v1::EtcdMeta>();
  meta_->set_etcd_cluster(answer.header().cluster_id());
  if (answer.succeeded()) {
    leader_revision_ = answer.header().revision();
  } else {
    const auto& found = answer.responses(0).response_range();
    // An earlier try of ours whose answer was lost is a success, too.
    const bool ours = found.kvs_size() == 1 && found.kvs(0).lease() == lease_id_;
    if (!ours) return Led(found.kvs_size() == 1 ? found.kvs(0).value() : "an unknown name");
    leader_revision_ = found.kvs(0).create_revision();
  }
  MutexLock lock(&mu_);
  valid_until_ = asked + absl::Seconds(lease.ttl());
  return absl::OkStatus();
}

absl::StatusOr<v1::EtcdMeta> EtcdStateStore::ReadMeta() {
  etcdserverpb::RangeRequest request;
  request.set_key(Key("meta"));
  COORDD_ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse answer,
                          client_->Range(request, kCallTimeout));
  v1::EtcdMeta meta;
  if (answer.kvs_size() == 1 && !meta.ParseFromString(answer.kvs(0).value())) {
    return absl::DataLossError(
        absl::StrCat("key ", Key("meta"), " in ", name(), " is not coordd's"));
  }
  return meta;
}

absl::Status EtcdStateStore::CheckMeta(const v1::EtcdMeta& meta) const {
  if (meta.format() > kEtcdFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state in ", name(), " has format ", meta.format(),
                     ", this coordd knows formats up to ", kEtcdFormat));
  }
  const std::string& expected = options_.expected_cluster_id;
  if (!expected.empty() && !meta.cluster_id().empty() && meta.cluster_id() != expected) {
    return absl::FailedPreconditionError(absl::StrCat("the state in ", name(), " is of cluster ",
                                                      meta.cluster_id(), ", expected was cluster ",
                                                      expected));
  }
  if (meta.etcd_cluster() != 0 && meta.etcd_cluster() != meta_->etcd_cluster() && !options_.adopt) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the state in ", name(), " was last written in etcd cluster ",
        absl::Hex(meta.etcd_cluster()), ", this is etcd cluster ", absl::Hex(meta_->etcd_cluster()),
        ": it was restored from a snapshot, and what was written since then would be missing; "
        "start "
        "coordd once with --adopt-state to go on from it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> EtcdStateStore::ReadRecords() {
  const std::string prefix = Key("records/");
  std::map<std::string, std::string> records;
  etcdserverpb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(PrefixEnd(prefix));
  request.set_limit(kRecordsPerPage);
  while (true) {
    COORDD_ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse page,
                            client_->Range(request, kCallTimeout));
    for (const etcdserverpb::KeyValue& kv : page.kvs()) {
      records[kv.key().substr(prefix.size())] = kv.value();
    }
    if (!page.more() || page.kvs_size() == 0) return records;
    request.set_revision(page.header().revision());  // all pages of one moment
    request.set_key(page.kvs(page.kvs_size() - 1).key() + std::string(1, '\0'));
  }
}

void EtcdStateStore::Guard(etcdserverpb::TxnRequest* txn) const {
  etcdserverpb::Compare* compare = txn->add_compare();
  compare->set_target(etcdserverpb::Compare::CREATE);
  compare->set_key(Key("leader"));
  compare->set_create_revision(leader_revision_);
}

void EtcdStateStore::PutMeta(const v1::EtcdMeta& meta, etcdserverpb::TxnRequest* txn) const {
  etcdserverpb::PutRequest* put = txn->add_success()->mutable_request_put();
  put->set_key(Key("meta"));
  put->set_value(meta.SerializeAsString());
}

absl::Status EtcdStateStore::Commit(absl::Span<const StateWrite> writes) {
  COORDD_CHECK(leader_revision_ != 0);
  COORDD_RETURN_IF_ERROR(CheckStateWrites(writes, /*bound_bytes=*/true));
  {
    MutexLock lock(&mu_);
    if (!deposed_.ok()) return deposed_;
    const absl::Duration over = clock_.Now() - valid_until_;
    if (over >= absl::ZeroDuration()) {
      return absl::UnavailableError(
          absl::StrCat("the leader's lease in ", name(), " has not been renewed and is over since ",
                       DurationText(over), ": etcd cannot be reached or has no quorum"));
    }
  }
  etcdserverpb::TxnRequest txn;
  Guard(&txn);
  for (const StateWrite& write : writes) {
    etcdserverpb::RequestOp* op = txn.add_success();
    const std::string key = Key("records/" + write.key);
    if (write.value.has_value()) {
      op->mutable_request_put()->set_key(key);
      op->mutable_request_put()->set_value(*write.value);
    } else {
      op->mutable_request_delete_range()->set_key(key);
    }
  }
  COORDD_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse answer, client_->Txn(txn, kCallTimeout));
  if (answer.succeeded()) return absl::OkStatus();
  MutexLock lock(&mu_);
  deposed_ = absl::FailedPreconditionError(
      absl::StrCat("this coordd does not lead in ", name(), " any more: its write was refused"));
  looks_.TryPush(Look{});  // the thread tells
  return deposed_;
}

// Its own thread, so that neither a slow write nor anything else lets the lease run out.
void EtcdStateStore::KeepLease() {
  const absl::Duration interval = etcd_.lease / 3;
  const absl::Duration timeout = std::min(kCallTimeout, interval);
  absl::Time next = clock_.Now() + interval;
  bool failed = false;
  while (!looks_.Finished()) {
    looks_.TakeAll(next);
    if (looks_.Finished()) return;
    const absl::Time asked = clock_.Now();
    {
      MutexLock lock(&mu_);
      if (!deposed_.ok()) break;
    }
    const absl::StatusOr<absl::Duration> ttl = client_->KeepLease(lease_id_, timeout);
    if (ttl.ok() && *ttl > absl::ZeroDuration()) {
      MutexLock lock(&mu_);
      valid_until_ = asked + *ttl;
    } else if (ttl.ok()) {
      MutexLock lock(&mu_);
      deposed_ = absl::FailedPreconditionError(absl::StrCat(
          "this coordd does not lead in ", name(), " any more: its lease of ",
          absl::FormatDuration(etcd_.lease), " has run out before it could be renewed"));
    } else if (!failed) {
      COORDD_LOG(kWarning, "the leader's lease was not renewed: ", ttl.status().message());
    }
    failed = !ttl.ok();
    next = asked + (failed ? interval / 3 : interval);
  }
  absl::Status why;
  {
    MutexLock lock(&mu_);
    why = deposed_;
  }
  if (!why.ok()) lost_(why);
}

void EtcdStateStore::Resign() {
  if (meta_->epoch() == 0) return;  // it never led
  v1::EtcdMeta meta = *meta_;
  meta.set_resigned(true);
  etcdserverpb::TxnRequest txn;
  Guard(&txn);
  PutMeta(meta, &txn);
  txn.add_success()->mutable_request_delete_range()->set_key(Key("leader"));
  client_->Txn(txn, kResignTimeout).status().IgnoreError();
}

}  // namespace coordd
