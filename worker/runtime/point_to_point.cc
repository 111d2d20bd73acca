#include "worker/runtime/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "worker/interfaces/lanes.h"

namespace coordd {
namespace {

// Headers to one rank that are under way: more would fill the lane of one that does not listen.
constexpr int32_t kMaxAnnouncing = 64;

std::string Elements(int64_t count, int32_t dtype) {
  return absl::StrCat(Counted(count, "element"), " of ", Name(static_cast<DataType>(dtype)));
}

}  // namespace

PointToPoint::PointToPoint(Needs needs)
    : needs_(std::move(needs)), callbacks_(1, *needs_.clock) {}  // it is bounded by the works

PointToPoint::~PointToPoint() {
  callbacks_.Close();
  MutexLock lock(&mu_);
  if (thread_.joinable()) thread_.join();
}

absl::Status PointToPoint::CheckPeer(int32_t peer) const {
  if (peer == needs_.self) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", peer, " sends to itself, expected another rank"));
  }
  if (peer + needs_.self < kMaxPairSum) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("a message between the ranks ", needs_.self, " and ",
                                               peer, ": expected ranks whose sum is below ",
                                               kMaxPairSum));
}

std::shared_ptr<Work> PointToPoint::NewWork(const Message& message, CollectiveKind kind) const {
  TensorSpec spec;
  spec.name = absl::StrCat(
      kind == CollectiveKind::kSend ? "send to" : "receive from",
      message.peer == kAnySource ? std::string(" any rank") : absl::StrCat(" rank ", message.peer),
      ", tag ", message.tag);
  spec.kind = kind;
  spec.dtype = message.dtype;
  spec.shape = {message.count};
  return std::make_shared<Work>(SharedSpec(std::move(spec)), *needs_.clock,
                                needs_.executor->seat());
}

// Which number a lane has both ends must see alike; a rank has no other pair with the same sum.
LaneId PointToPoint::LaneTo(int32_t peer, bool outgoing, bool headers, int* index) const {
  const bool upwards = outgoing == (needs_.self < peer);
  *index = (headers ? 0 : 2) + (upwards ? 0 : 1);
  return LaneId{kFirstPairLane + (needs_.self + peer) * 4 + *index};
}

bool PointToPoint::Launch(int32_t peer, bool outgoing, bool headers, std::byte* bytes, int64_t size,
                          std::function<void(const absl::Status&)> done) {
  Peer& with = peers_[peer];
  const int32_t number = kFirstPairLane + (needs_.self + peer) * 4;
  const int32_t low = std::min(needs_.self, peer), high = std::max(needs_.self, peer);
  if (!with.defined) {
    with.defined = true;
    needs_.executor->DefineGroup(ProcessSetId{number}, std::make_shared<const std::vector<int32_t>>(
                                                           std::vector<int32_t>{low, high}));
  }
  int index = 0;
  CollectiveArgs args;
  args.kind = CollectiveKind::kBroadcast;
  args.lane = LaneTo(peer, outgoing, headers, &index);
  args.group = ProcessSetId{number};
  args.sequence = ++with.sequences[static_cast<size_t>(index)];
  args.root = Rank{(outgoing ? needs_.self : peer) == low ? 0 : 1};
  args.output = {bytes, static_cast<size_t>(size)};
  return needs_.executor->TryLaunchMessage(
      std::move(args), [done = std::move(done)](absl::Status status) { done(status); });
}

absl::StatusOr<std::shared_ptr<Work>> PointToPoint::Send(Message message) {
  COORDD_RETURN_IF_ERROR(CheckPeer(message.peer));
  Open open{NewWork(message, CollectiveKind::kSend), std::move(message), needs_.clock->Now()};
  std::shared_ptr<Work> work = open.work;
  const int32_t to = open.message.peer;
  bool brings = false;
  Effects effects;
  {
    MutexLock lock(&mu_);
    COORDD_RETURN_IF_ERROR(ended_);
    const Message& sent = open.message;
    Peer& peer = peers_[to];
    Header header;
    header.dtype = static_cast<int32_t>(sent.dtype);
    header.comm = ToInt(sent.comm);
    header.tag = sent.tag;
    header.id = peer.next_id++;
    header.count = sent.count;
    ++peer.open;
    if (header.is_few() && sent.bytes() > 0)
      std::memcpy(header.few.data(), sent.buffer, static_cast<size_t>(sent.bytes()));
    brings = header.is_few() && peer.unread < kMaxEarly;
    if (brings) {
      ++peer.unread;
      header.saying = Saying::kBrought;
      Say(to, header, std::move(open), effects);
    } else {
      (header.is_few() ? peer.early : peer.announced).emplace(header.id, std::move(open));
      Say(to, header, {}, effects);
      Listen(to, effects);
    }
  }
  Do(std::move(effects));
  needs_.executor->DriveMessages();
  if (!brings || work->done()) return work;
  // The other one may wait for the same: a lane goes on when what it has carried was heard.
  {
    MutexLock lock(&mu_);
    Listen(to, effects = {});
  }
  Do(std::move(effects));
  needs_.executor->DriveMessages();
  return work;
}

absl::StatusOr<std::shared_ptr<Work>> PointToPoint::Receive(Message message) {
  if (message.peer != kAnySource) {
    message.sources = {message.peer};
  } else {
    for (int32_t member : *message.members)
      if (member != needs_.self) message.sources.push_back(member);
  }
  for (int32_t source : message.sources) COORDD_RETURN_IF_ERROR(CheckPeer(source));
  Open open{NewWork(message, CollectiveKind::kReceive), std::move(message), needs_.clock->Now()};
  std::shared_ptr<Work> work = open.work;
  Effects effects;
  {
    MutexLock lock(&mu_);
    COORDD_RETURN_IF_ERROR(ended_);
    for (int32_t source : open.message.sources) ++peers_[source].open;
    const auto found = std::find_if(arrived_.begin(), arrived_.end(), [&](const Arrived& one) {
      return Matches(open.message, one.from, one.header);
    });
    if (found != arrived_.end()) {
      const Arrived arrived = *found;
      arrived_.erase(found);
      Accept(arrived.from, arrived.header, std::move(open), effects);
    } else {
      receives_.push_back(std::move(open));
      for (int32_t source : receives_.back().message.sources) Listen(source, effects);
    }
  }
  Do(std::move(effects));
  needs_.executor->DriveMessages();
  return work;
}

void PointToPoint::Withdraw(const Work& receive) {
  Effects effects;
  {
    MutexLock lock(&mu_);
    const auto found =
        std::find_if(receives_.begin(), receives_.end(),
                     [&receive](const Open& one) { return one.work.get() == &receive; });
    if (found == receives_.end()) return;
    for (int32_t source : found->message.sources) --peers_[source].open;
    effects.ended.push_back({std::move(*found),
                             absl::CancelledError(absl::StrCat("withdrawn: ", receive.spec().name)),
                             0});
    receives_.erase(found);
  }
  Do(std::move(effects));
}

void PointToPoint::AddWaiting(std::vector<WaitingCall>& waiting) {
  const auto add = [&waiting](const Open& open, std::string call) {
    WaitingCall& one = waiting.emplace_back();
    one.comm = *open.message.name;
    one.call = std::move(call);
    one.since = open.since;
    if (open.message.peer != kAnySource) one.missing = {open.message.peer};
  };
  MutexLock lock(&mu_);
  std::set<std::pair<LaneId, int32_t>> told;
  for (const Open& open : receives_) {
    const Message& message = open.message;
    if (!told.insert({message.comm, message.peer}).second) continue;
    add(open, absl::StrCat(
                  "receive of tag ", message.tag, " from ",
                  message.peer == kAnySource ? "any member" : absl::StrCat("rank ", message.peer)));
  }
  for (const auto& [rank, peer] : peers_) {
    for (const std::map<int64_t, Open>* sends : {&peer.announced, &peer.early}) {
      if (sends->empty()) continue;
      const Open& open = sends->begin()->second;
      add(open, absl::StrCat("send of tag ", open.message.tag, " to rank ", rank));
    }
  }
}

bool PointToPoint::Matches(const Message& receive, int32_t from, const Header& header) {
  return ToInt(receive.comm) == header.comm && receive.tag == header.tag &&
         std::find(receive.sources.begin(), receive.sources.end(), from) != receive.sources.end();
}

void PointToPoint::Say(int32_t peer, Header header, Open open, Effects& effects) {
  peers_[peer].outbox.emplace_back(header, std::move(open));
  Pump(peer, effects);
}

void PointToPoint::Pump(int32_t peer, Effects& effects) {
  Peer& to = peers_[peer];
  while (to.announcing < kMaxAnnouncing && !to.outbox.empty() && ended_.ok()) {
    auto said = std::make_shared<std::pair<Header, Open>>(std::move(to.outbox.front()));
    to.outbox.pop_front();
    said->first.taken = to.told_taken = to.taken;
    ++to.announcing;
    const bool launched = Launch(
        peer, /*outgoing=*/true, /*headers=*/true, reinterpret_cast<std::byte*>(&said->first),
        sizeof(Header), [this, peer, said](const absl::Status& status) {
          Effects after;
          {
            MutexLock lock(&mu_);
            --peers_[peer].announcing;
            Open& brought = said->second;
            if (!status.ok()) {
              // An answer to who has left is missed by nobody.
              if (brought.work != nullptr || peers_[peer].open > 0)
                Fail(status, std::move(brought), after);
            } else {
              if (brought.work != nullptr) {
                --peers_[peer].open;
                after.ended.push_back({std::move(brought), absl::OkStatus(), 0});
              }
              Pump(peer, after);
            }
          }
          Do(std::move(after));
        });
    if (!launched) Fail(absl::AbortedError("the data plane has stopped"), said->second, effects);
  }
}

void PointToPoint::Listen(int32_t peer, Effects& effects) {
  Peer& from = peers_[peer];
  if (from.listening || from.open <= 0 || !ended_.ok()) return;
  from.listening = true;
  auto heard = std::make_shared<Header>();
  const bool launched =
      Launch(peer, /*outgoing=*/false, /*headers=*/true, reinterpret_cast<std::byte*>(heard.get()),
             sizeof(Header), [this, peer, heard](const absl::Status& status) {
               Effects after;
               {
                 MutexLock lock(&mu_);
                 peers_[peer].listening = false;
                 if (status.ok()) {
                   OnHeader(peer, *heard, after);
                   Listen(peer, after);
                 } else if (peers_[peer].open > 0) {
                   Fail(status, {}, after);
                 }  // else it has left, perhaps: coordd says so, and nobody waits for it
               }
               Do(std::move(after));
             });
  if (!launched) Fail(absl::AbortedError("the data plane has stopped"), {}, effects);
}

void PointToPoint::OnHeader(int32_t from, const Header& header, Effects& effects) {
  Peer& peer = peers_[from];
  if (header.taken > peer.known_taken) {
    peer.unread -= header.taken - std::exchange(peer.known_taken, header.taken);
    EndEarly(peer, effects);
  }
  if (header.saying == Saying::kBrought || header.saying == Saying::kHere) {
    OnHere(from, header, effects);
  } else if (header.saying != Saying::kTaken) {
    OnAnswer(from, header, effects);
  }
}

// There may be room for what waits for it.
void PointToPoint::EndEarly(Peer& peer, Effects& effects) {
  while (!peer.early.empty() && peer.unread < kMaxEarly) {
    --peer.open;
    ++peer.unread;
    effects.ended.push_back({std::move(peer.early.begin()->second), absl::OkStatus(), 0});
    peer.early.erase(peer.early.begin());
  }
}

void PointToPoint::OnHere(int32_t from, const Header& header, Effects& effects) {
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const Open& one) {
    return Matches(one.message, from, header);
  });
  if (found == receives_.end()) {
    arrived_.push_back({from, header});
    // Its sender waits for room, and does not know that there is some.
    const bool waits = header.saying == Saying::kHere && header.is_few();
    if (waits && peers_[from].told_taken < peers_[from].taken)
      Say(from, {.saying = Saying::kTaken, .few = {}}, {}, effects);
    return;
  }
  Open open = std::move(*found);
  receives_.erase(found);
  Accept(from, header, std::move(open), effects);
}

std::optional<PointToPoint::Open> PointToPoint::TakeAnnounced(Peer& peer, int64_t id) {
  for (std::map<int64_t, Open>* waiting : {&peer.announced, &peer.early}) {
    const auto found = waiting->find(id);
    if (found == waiting->end()) continue;
    std::optional<Open> open = std::move(found->second);
    waiting->erase(found);
    return open;
  }
  return std::nullopt;
}

void PointToPoint::OnAnswer(int32_t from, const Header& header, Effects& effects) {
  Peer& peer = peers_[from];
  std::optional<Open> open = TakeAnnounced(peer, header.id);
  if (!open.has_value()) {  // it has ended since there was room
    --peer.unread;
    return EndEarly(peer, effects);
  }
  --peer.open;
  const Message& sent = open->message;
  if (header.saying == Saying::kGo) {
    if (sent.bytes() > kFewBytes)
      return Transfer(from, /*outgoing=*/true, *std::move(open), effects);
    effects.ended.push_back({*std::move(open), absl::OkStatus(), 0});
    return;
  }
  const absl::Status refused = absl::InvalidArgumentError(
      absl::StrCat("send to rank ", from, ", tag ", sent.tag, ": ",
                   Elements(sent.count, static_cast<int32_t>(sent.dtype)), ", rank ", from,
                   " expected ", Elements(header.count, header.dtype)));
  effects.ended.push_back({*std::move(open), refused, 0});
}

void PointToPoint::Accept(int32_t from, const Header& header, Open open, Effects& effects) {
  for (int32_t source : open.message.sources) --peers_[source].open;
  const Message& wanted = open.message;
  if (header.saying == Saying::kBrought) ++peers_[from].taken;
  const bool same =
      header.count == wanted.count && header.dtype == static_cast<int32_t>(wanted.dtype);
  Header answer;
  answer.saying = same ? Saying::kGo : Saying::kRefused;
  answer.id = header.id;
  answer.count = wanted.count;
  answer.dtype = static_cast<int32_t>(wanted.dtype);
  if (!same) {
    const absl::Status differs = absl::InvalidArgumentError(absl::StrCat(
        "receive of tag ", wanted.tag, ": rank ", from, " has sent ",
        Elements(header.count, header.dtype), ", expected ", Elements(answer.count, answer.dtype)));
    effects.ended.push_back({std::move(open), differs, from});
  } else if (header.is_few()) {
    if (wanted.bytes() > 0)
      std::memcpy(wanted.buffer, header.few.data(), static_cast<size_t>(wanted.bytes()));
    effects.ended.push_back({std::move(open), absl::OkStatus(), from});
  } else {
    // The sender sends the bytes in the order of these answers.
    Transfer(from, /*outgoing=*/false, std::move(open), effects);
  }
  if (header.saying == Saying::kHere) Say(from, answer, {}, effects);
}

void PointToPoint::Transfer(int32_t peer, bool outgoing, Open open, Effects& effects) {
  auto moved = std::make_shared<Open>(std::move(open));
  const bool launched =
      Launch(peer, outgoing, /*headers=*/false, moved->message.buffer, moved->message.bytes(),
             [this, peer, moved](const absl::Status& status) {
               Effects after;
               if (status.ok()) {
                 after.ended.push_back({std::move(*moved), absl::OkStatus(), peer});
               } else {
                 MutexLock lock(&mu_);
                 Fail(status, std::move(*moved), after);
               }
               Do(std::move(after));
             });
  if (!launched) Fail(absl::AbortedError("the data plane has stopped"), std::move(*moved), effects);
}

// Of whom it is the fault coordd says, and so how what has failed ends.
void PointToPoint::Fail(const absl::Status& status, Open open, Effects& effects) {
  if (!ended_.ok()) {
    if (open.work != nullptr) effects.ended.push_back({std::move(open), ended_, 0});
    return;
  }
  if (open.work != nullptr) failed_.push_back(std::move(open));
  if (!reported_) effects.failure = status;
  reported_ = true;
}

void PointToPoint::End(const absl::Status& why) {
  Effects effects;
  {
    MutexLock lock(&mu_);
    if (!ended_.ok()) return;
    ended_ = why;
    const auto end = [&](Open& open) {
      if (open.work != nullptr) effects.ended.push_back({std::move(open), why, 0});
    };
    for (Open& open : receives_) end(open);
    for (Open& open : failed_) end(open);
    for (auto& [rank, peer] : peers_) {
      for (auto& [id, open] : peer.announced) end(open);
      for (auto& [id, open] : peer.early) end(open);
      for (auto& [header, open] : peer.outbox) end(open);
      peer.announced.clear();
      peer.early.clear();
      peer.outbox.clear();
    }
    receives_.clear();
    failed_.clear();
    arrived_.clear();
  }
  Do(std::move(effects));
}

void PointToPoint::Do(Effects effects) {
  if (!effects.failure.ok()) needs_.report_failure(effects.failure);
  for (Ended& one : effects.ended) Complete(std::move(one));
}

void PointToPoint::Complete(Ended ended) {
  const Message& message = ended.open.message;
  const std::shared_ptr<Work>& work = ended.open.work;
  WorkResult result;
  result.generation = needs_.generation;
  result.size = needs_.size;
  result.output_shape = {message.count};
  result.output_bytes = message.bytes();
  if (work->spec().kind == CollectiveKind::kReceive) {
    const std::vector<int32_t>& members = *message.members;
    result.received_splits = {std::find(members.begin(), members.end(), ended.source) -
                              members.begin()};
  }
  needs_.count(work->spec().kind, ended.status.code(), message.bytes());
  Work::Callbacks called = work->CompleteAlone(ended.status, std::move(result));
  if (called.empty()) return;
  callbacks_.PushUnbounded([called = std::move(called), status = ended.status] {
    for (const auto& callback : called) callback(status);
  });
  MutexLock lock(&mu_);
  if (thread_.joinable()) return;
  thread_ = StartThread("messages", [this] {
    while (!callbacks_.Finished())
      for (const auto& callback : callbacks_.TakeAll(absl::InfiniteFuture())) callback();
  });
}

}  // namespace coordd
