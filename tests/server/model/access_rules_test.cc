// Each cell of the table of roles: what is decided here stands in docs/SECURITY.md, too.
#include "server/model/access_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr Role kRoles[] = {Role::kOperator, Role::kLauncher, Role::kWorker,
                           Role::kNode,     Role::kViewer,   Role::kNone};

// As the page calls them, in its order.
const std::vector<std::pair<std::string, Call>>& Calls() {
  static const auto* const calls = new std::vector<std::pair<std::string, Call>>{
      {"Session", Call::kJoin},      {"NodeSession", Call::kNodeSession},
      {"Store", Call::kStore},       {"ReportExits", Call::kReportExits},
      {"GetState", Call::kGetState}, {"GetEvents", Call::kGetEvents},
      {"Trace", Call::kTrace},       {"Dismiss", Call::kDismiss}};
  return *calls;
}

// "own", "any" or "-": what the page says in the row of the call and the column of the role.
std::string OnThePage(const std::string& call, Role role) {
  std::ifstream in(COORDD_SECURITY_DOCUMENT);
  std::vector<std::string> head;
  for (std::string line; std::getline(in, line);) {
    if (!absl::StartsWith(line, "|")) continue;
    std::vector<std::string> cells = absl::StrSplit(line, '|');
    for (std::string& cell : cells) cell = std::string(absl::StripAsciiWhitespace(cell));
    if (cells.size() > 1 && cells[1] == "call") head = cells;
    if (head.empty() || cells.size() != head.size() || cells[1] != absl::StrCat("`", call, "`"))
      continue;
    const auto column = std::find(head.begin(), head.end(), Name(role));
    if (column != head.end()) return cells[static_cast<size_t>(column - head.begin())];
  }
  return "not there";
}

std::string Text(Grant grant) {
  return grant == Grant::kAny ? "any" : grant == Grant::kOwn ? "own" : "-";
}

Identity SomebodyOf(Role role) {
  return {role, role == Role::kWorker || role == Role::kNode ? kAnyName : "alice"};
}

class Cell : public testing::TestWithParam<std::tuple<Role, size_t, bool>> {};

// By the page, so that the page, the table and what is decided are one.
TEST_P(Cell, IsDecidedAsThePageSays) {
  const auto& [role, index, own] = GetParam();
  const auto& [name, call] = Calls()[index];
  const std::string said = OnThePage(name, role);
  EXPECT_EQ(said, Text(GrantOf(role, call)));
  const Identity who = SomebodyOf(role);
  const JobClaim job{.job = "train", .owner = "launcher/bob", .knows_token = own};
  const absl::Status status = MayCall(who, call, job);
  if (said == "any" || (said == "own" && own)) {
    EXPECT_THAT(status, IsOk());
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(status.message()), HasSubstr("may not"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("bob")));
  }
}

INSTANTIATE_TEST_SUITE_P(OfTheTable, Cell,
                         testing::Combine(testing::ValuesIn(kRoles), testing::Range<size_t>(0, 8),
                                          testing::Bool()),
                         [](const auto& cell) {
                           return absl::StrCat(Name(std::get<0>(cell.param)), "_",
                                               Calls()[std::get<1>(cell.param)].first,
                                               std::get<2>(cell.param) ? "_own" : "_foreign");
                         });

TEST(AccessRules, WhoeverIsThereWithoutTlsMayDoEverything) {
  for (const auto& [name, call] : Calls())
    EXPECT_THAT(MayCall(WithoutTls(), call, {.job = "train", .owner = "launcher/bob"}), IsOk())
        << name;
}

TEST(AccessRules, ALauncherOwnsWhatItHasMade) {
  const Identity alice{Role::kLauncher, "alice"}, bob{Role::kLauncher, "bob"};
  const JobClaim job{.job = "train", .owner = ToString(alice)};
  EXPECT_THAT(MayCall(alice, Call::kDismiss, job), IsOk());
  EXPECT_FALSE(MayCall(bob, Call::kDismiss, job).ok());
  // Of the same name, and something else.
  EXPECT_FALSE(
      MayCall({Role::kLauncher, "alice"}, Call::kDismiss, {.job = "train", .owner = "worker/alice"})
          .ok());
}

TEST(AccessRules, NobodyOwnsAJobOfWhoIsNotKnown) {
  EXPECT_FALSE(MayCall({Role::kLauncher, "a"}, Call::kDismiss, {.job = "train"}).ok());
  EXPECT_FALSE(MayCall({Role::kNone, ""}, Call::kGetState, {.job = "train"}).ok());
}

TEST(AccessRules, WhereNothingIsYetNothingIsAnothers) {
  for (const Role role : {Role::kLauncher, Role::kWorker, Role::kNone})
    EXPECT_THAT(MayCall(SomebodyOf(role), Call::kGetState, {.job = "train", .exists = false}),
                IsOk());
}

TEST(AccessRules, AWorkersCertificateIsForItsJobAndThoseCalledAfterIt) {
  const Identity worker{Role::kWorker, "train"};
  for (const char* job : {"train", "train.group-1f"}) {
    EXPECT_THAT(MayCallWithToken(worker, Call::kJoin, job), IsOk()) << job;
    EXPECT_THAT(MayCall(worker, Call::kGetState, {.job = job, .owner = "worker/train"}), IsOk())
        << job;
  }
  EXPECT_THAT(MayCall(worker, Call::kGetState, {.job = "train", .owner = "launcher/a"}), IsOk());
  // Anybody may call a job so.
  for (const char* owner : {"launcher/bob", "worker/*", ""}) {
    EXPECT_FALSE(MayCall(worker, Call::kGetState, {.job = "train.group-1f", .owner = owner}).ok())
        << owner;
  }
  for (const char* job : {"train7", "trai", "other", "train-1", ""}) {
    EXPECT_FALSE(MayCallWithToken(worker, Call::kJoin, job).ok()) << job;
    EXPECT_FALSE(MayCallWithToken(worker, Call::kStore, job).ok()) << job;
    EXPECT_FALSE(MayCall(worker, Call::kGetState, {.job = job, .exists = false}).ok()) << job;
  }
}

TEST(AccessRules, ARelayIsForItsNode) {
  const Identity relay{Role::kNode, "node3"};
  EXPECT_THAT(MaySpeakFor(relay, "node3", "id"), IsOk());
  EXPECT_THAT(MaySpeakFor(relay, "host", "node3"), IsOk());
  EXPECT_THAT(std::string(MaySpeakFor(relay, "node4", "id").message()),
              HasSubstr("node/node3 may not speak for a worker of host node4"));
  EXPECT_THAT(MaySpeakFor({Role::kNode, kAnyName}, "node4", "id"), IsOk());
  // A worker's certificate, as relays had before.
  EXPECT_THAT(MaySpeakFor({Role::kWorker, "train"}, "node4", "id"), IsOk());
}

TEST(AccessRules, ARefusalSaysWhoMayAndWhatIsToBeDone) {
  const absl::Status viewer =
      MayCall({Role::kViewer, "grafana"}, Call::kDismiss, {.job = "train", .owner = "x"});
  EXPECT_EQ(viewer.message(),
            "viewer/grafana may not evict or drain workers of job train: no viewer may; expected "
            "an operator or a launcher that has made the job or brings its token");
  const JobClaim another = {.job = "train", .owner = "launcher/bob"};
  EXPECT_EQ(MayCall({Role::kLauncher, "alice"}, Call::kTrace, another).message(),
            "launcher/alice may not trace job train: it has neither made that job nor brought its "
            "token; expected an operator or a launcher that has made the job or brings its token");
  EXPECT_EQ(MayCall({Role::kLauncher, "alice"}, Call::kGetEvents, {}).message(),
            "launcher/alice may not read the events of all jobs: it may do so for jobs of its own, "
            "and has named none; expected an operator, a viewer, or a launcher that has made the "
            "job or brings its token");
  EXPECT_EQ(MayCallWithToken({Role::kWorker, "train"}, Call::kJoin, "other").message(),
            "worker/train may not be a worker of job other: its certificate is for job train and "
            "those called after it; expected an operator, a launcher that has made the job or "
            "brings its token, or a worker that brings its token");
  const absl::Status old = MayCall({Role::kNone, "coordd worker"}, Call::kGetState, another);
  EXPECT_THAT(std::string(old.message()),
              AllOf(HasSubstr("\"coordd worker\", which says no role, may not see the state of job "
                              "train: it has not brought that job's token; expected an operator"),
                    HasSubstr("`coordctl certs DIR --role operator`")));
  EXPECT_THAT(
      std::string(MayCall({Role::kNone, "coordd worker"}, Call::kTrace, another).message()),
      HasSubstr("may not trace job train: its certificate says no role, and such a one may not;"));
}

TEST(AccessRules, AnEventSaysWhoTraces) {
  const Caller alice = {{Role::kLauncher, "alice"}, "ipv4:127.0.0.1:1"};
  EXPECT_EQ(TracedText(&alice), "launcher/alice traces what its ranks execute");
  const Caller unknown = {WithoutTls(), "ipv4:127.0.0.1:1"};
  EXPECT_EQ(TracedText(&unknown), "somebody traces what its ranks execute");
  EXPECT_EQ(TracedText(nullptr), "somebody traces what its ranks execute");
}

TEST(AccessRules, WhoHasAskedIsWhatIsProven) {
  const Identity alice{Role::kOperator, "alice"};
  EXPECT_EQ(AskedBy(alice, "root@login1"), "operator/alice (which says: root@login1)");
  EXPECT_EQ(AskedBy(alice, ""), "operator/alice");
  EXPECT_EQ(AskedBy(WithoutTls(), "bob@login1"), "bob@login1");
  EXPECT_LE(AskedBy(alice, std::string(256, 'x')).size(), 256u);
  EXPECT_EQ(AskedBy(alice, std::string(257, 'x')).size(), 257u) << "to be refused";
}

}  // namespace
}  // namespace coordd
