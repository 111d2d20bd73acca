#include "server/members/node_members.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/one_line.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/protocol/member_runs.h"
#include "common/protocol/protocol_bounds.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

constexpr size_t kMaxDetailBytes = 256;

absl::Status Wrong(const absl::AlphaNum& what) {
  return absl::InvalidArgumentError(absl::StrCat("a relay broke the protocol: ", what));
}

absl::Status Unreadable(size_t bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", bytes, " bytes that is no WorkerMessage"));
}

}  // namespace

absl::Status NodeMembers::TakeHello(const v1::NodeMessages& batch) {
  if (batch.has_hello() == said_hello_)
    return Wrong(said_hello_ ? "it said hello again" : "its first message has no hello");
  if (said_hello_) return absl::OkStatus();
  const v1::NodeHello& hello = batch.hello();
  COORDD_RETURN_IF_ERROR(ValidateJobName(hello.job()));
  if (hello.protocol() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the relay speaks protocol version ",
                                                      hello.protocol(), ", coordd ", kVersion,
                                                      " speaks version ", kProtocolVersion));
  }
  hello_ = hello;
  hello_.set_hostname(OneLine(Truncated(hello.hostname(), kMaxHostnameBytes)));
  said_hello_ = true;
  return absl::OkStatus();
}

absl::Status NodeMembers::Take(const v1::NodeMessages& batch, std::vector<Heard>& in,
                               std::vector<std::pair<int32_t, absl::Status>>& refused) {
  COORDD_RETURN_IF_ERROR(TakeHello(batch));
  ended_.clear();
  int64_t words = 0;
  size_t space = 0;
  for (const v1::NodeMessage& message : batch.messages()) {
    COORDD_RETURN_IF_ERROR(CheckRuns(message, words));
    if (message.has_end()) {
      End(message, in);
      continue;
    }
    v1::WorkerMessage said;
    const size_t bytes = message.message().size();
    const absl::StatusOr<size_t> taken =
        said.ParseFromString(message.message()) ? CheckSpace(said, bytes) : Unreadable(bytes);
    if (!taken.ok()) said.Clear();
    space += taken.value_or(0);
    if (space > kMaxSpacePerBatch)
      return Wrong(absl::StrCat("words that take more than ", kMaxSpacePerBatch >> 20,
                                " MiB of memory at once"));
    const int32_t known = last_;
    COORDD_RETURN_IF_ERROR(Add(message, said, refused));
    // Not the relay's fault, but a member's.
    if (!taken.ok()) {
      Refuse(message, taken.status(), known, in, refused);
      continue;
    }
    std::vector<SessionRange> from = RangesOf(message);
    if (from.empty()) continue;
    Heard& heard = in.emplace_back(Heard{.in = {}, .bytes = bytes, .space = *taken});
    if (from.size() == 1 && from[0].count == 1) {
      heard.in = SessionMessage{from[0].first, std::move(said)};
    } else {
      heard.in = SharedMessage{std::move(from),
                               std::make_shared<const v1::WorkerMessage>(std::move(said))};
    }
  }
  return absl::OkStatus();
}

// As where its stream is its own: it hears why, and is gone. Of one that opens so (its number is
// not `known`) the state never hears.
void NodeMembers::Refuse(const v1::NodeMessage& message, const absl::Status& why, int32_t known,
                         std::vector<Heard>& in,
                         std::vector<std::pair<int32_t, absl::Status>>& refused) {
  ForEachMember(message.members(), [&](int32_t member) {
    bool& is_refused = open_.at(member);
    if (std::exchange(is_refused, true)) return;
    ++refused_;
    ++changes_;
    refused.emplace_back(member, why);
    if (member > known) return;
    ended_.push_back(IdOf(member));
    in.push_back({.in = SessionEnded{ended_.back(), std::string(why.message())}});
  });
}

void NodeMembers::End(const v1::NodeMessage& message, std::vector<Heard>& in) {
  const std::string detail = OneLine(Truncated(message.end().detail(), kMaxDetailBytes));
  ForEachMember(message.members(), [&](int32_t member) {
    const auto it = open_.find(member);
    if (it->second) {
      --refused_;
    } else {
      ended_.push_back(IdOf(member));
      in.push_back({.in = SessionEnded{ended_.back(), detail}});
    }
    open_.erase(it);
    ++changes_;
  });
}

// Whether all of them are open, but for one that is new.
absl::Status NodeMembers::CheckRuns(const v1::NodeMessage& message, int64_t& words) const {
  if (message.members().empty()) return Wrong("a message of no member");
  const bool opens = message.members_size() == 1 && message.members(0).count() == 1 &&
                     message.members(0).first() == last_ + 1 && !message.has_end();
  int32_t next = 1;
  for (const v1::MemberRun& run : message.members()) {
    if (run.first() < next || run.count() < 1 || run.count() > kMaxMembers ||
        run.first() > kMaxMembers - run.count() + 1) {
      return Wrong(absl::StrCat("members ", run.first(), " and ", int64_t{run.count()} - 1,
                                " more, expected at least one, from ", next, " to ", kMaxMembers,
                                ", none twice"));
    }
    next = run.first() + run.count();
    words += run.count();
    if (words > kMaxWordsPerBatch)
      return Wrong(absl::StrCat("more than ", kMaxWordsPerBatch, " words of members at once"));
    // In the steady state all that have come are there.
    if (next - 1 <= last_ && open_.size() == static_cast<size_t>(last_)) continue;
    auto it = open_.lower_bound(run.first());
    for (int32_t member = run.first(); member < next && !opens; ++member, ++it) {
      if (it != open_.end() && it->first == member) continue;
      return Wrong(absl::StrCat("member ", member, " is not open; the next one that opens is ",
                                last_ + 1, ", by its Join alone"));
    }
  }
  return absl::OkStatus();
}

// The first word of a member opens it; it is here only if its job is the node session's.
absl::Status NodeMembers::Add(const v1::NodeMessage& message, const v1::WorkerMessage& said,
                              std::vector<std::pair<int32_t, absl::Status>>& refused) {
  const int32_t member = message.members(0).first();
  if (member <= last_) return absl::OkStatus();
  if (open_.size() >= kMaxOpen)
    return Wrong(absl::StrCat("more than ", kMaxOpen, " members at once"));
  last_ = member;
  ++changes_;
  const bool belongs = !said.has_join() || said.join().job() == hello_.job();
  open_.emplace(member, !belongs);
  if (belongs) return absl::OkStatus();
  ++refused_;
  refused.emplace_back(
      member, absl::InvalidArgumentError(absl::StrCat(
                  "a Join to job ", OneLine(Truncated(said.join().job(), kMaxJobNameBytes)),
                  " through a node session of job ", hello_.job())));
  return absl::OkStatus();
}

// Without those who were refused.
std::vector<SessionRange> NodeMembers::RangesOf(const v1::NodeMessage& message) const {
  std::vector<SessionRange> ranges;
  for (const v1::MemberRun& run : message.members()) {
    if (refused_ == 0) {
      ranges.push_back({IdOf(run.first()), run.count()});
      continue;
    }
    for (int32_t i = 0; i < run.count(); ++i)
      if (!open_.at(run.first() + i)) ranges.push_back({IdOf(run.first() + i), 1});
  }
  return ranges;
}

std::vector<SessionId> NodeMembers::MayBeOpen() const {
  std::vector<SessionId> open = ended_;
  for (const auto& [member, refused] : open_)
    if (!refused) open.push_back(IdOf(member));
  return open;
}

}  // namespace coordd
