// Whose a job is, and what others may not do with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/job/coordinator_state.h"
#include "server/model/job_record.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Code = absl::StatusCode;

Caller CallerWith(Role role, const std::string& name) {
  return {.identity = {role, name}, .peer = "ipv4:10.0.0.7:4711"};
}

class CoordinatorAccessTest : public testing::Test {
 protected:
  CoordinatorAccessTest() { Restart(); }

  void Restart() {
    const auto restored = ParseRecords({"c0ffee", Epoch{++epoch_}, disk_});
    ASSERT_THAT(restored, IsOk());
    Effects effects;
    state_ = std::make_unique<CoordinatorState>(options_, *restored, now_, effects);
  }

  Effects Do(const Inbound& in) {
    Effects effects;
    state_->Step(in, now_, effects);
    state_->Tick(now_, effects);
    for (const Persist& persist : effects.persist) {
      for (const StateWrite& write : persist.writes) {
        if (write.value.has_value()) disk_[write.key] = *write.value;
        if (!write.value.has_value()) disk_.erase(write.key);
      }
      if (persist.generation != Generation{0}) {
        state_->Step(Persisted{.job = persist.job, .generation = persist.generation}, now_,
                     effects);
        break;
      }
    }
    return effects;
  }

  // The status with which the session was closed.
  absl::Status Join(const Caller& caller, const std::string& job, const std::string& token,
                    const std::string& node = "node0") {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf(absl::StrCat("w", ++session_), node);
    message.mutable_join()->set_job(job);
    message.mutable_join()->set_token(token);
    message.mutable_join()->set_traces(true);
    message.mutable_join()->mutable_limits()->set_min_workers(1);
    message.mutable_join()->mutable_limits()->set_max_workers(1);
    const Effects effects =
        Do(SessionMessage{SessionId{session_}, message, std::make_shared<const Caller>(caller)});
    for (const Outgoing& out : effects.outgoing) {
      const auto* close = std::get_if<CloseSession>(&out);
      if (close != nullptr && close->session == SessionId{session_}) return close->status;
    }
    return absl::OkStatus();
  }

  absl::Status Evict(const Caller& caller, const std::string& job, const std::string& token = "") {
    DismissCall call{.call = CallId{--call_}, .caller = std::make_shared<const Caller>(caller)};
    call.request.set_job(job);
    call.request.set_token(token);
    call.request.set_action(v1::DISMISS_ACTION_EVICT);
    call.request.set_rank(0);
    call.request.set_force(true);
    for (const Outgoing& out : Do(call).outgoing)
      if (const auto* answer = std::get_if<DismissAnswer>(&out)) return answer->status;
    return absl::UnknownError("no answer");
  }

  absl::Status Trace(const Caller& caller, const std::string& job) {
    TraceCall call{.call = CallId{--call_}, .caller = std::make_shared<const Caller>(caller)};
    call.request.set_job(job);
    call.request.set_seconds(1);
    for (const Outgoing& out : Do(call).outgoing)
      if (const auto* answer = std::get_if<TraceAnswer>(&out)) return answer->status;
    return absl::OkStatus();  // it is under way
  }

  absl::StatusOr<std::vector<std::string>> Sees(const Caller& caller, const std::string& job = "",
                                                const std::string& token = "") {
    v1::GetStateRequest request;
    request.set_job(job);
    request.set_token(token);
    v1::ServerState state;
    const absl::Status status = state_->DescribeTo(caller, request, now_, &state);
    if (!status.ok()) return status;
    std::vector<std::string> jobs;
    for (const v1::JobState& one : state.jobs()) jobs.push_back(one.name());
    return jobs;
  }

  ServerOptions options_;
  absl::Time now_ = kStart;
  std::map<std::string, std::string> disk_;
  int64_t epoch_ = 0, session_ = 0, call_ = 0;
  std::unique_ptr<CoordinatorState> state_;
  const Caller alice_ = CallerWith(Role::kLauncher, "alice");
  const Caller bob_ = CallerWith(Role::kLauncher, "bob");
  const Caller operator_ = CallerWith(Role::kOperator, "olga");
  const Caller viewer_ = CallerWith(Role::kViewer, "grafana");
  const Caller anybody_ = CallerWith(Role::kWorker, "*");
};

TEST_F(CoordinatorAccessTest, WhoBringsTheFirstMemberOwnsTheJob) {
  ASSERT_THAT(Join(alice_, "train", "a"), IsOk());
  ASSERT_THAT(Join(bob_, "other", "b"), IsOk());
  EXPECT_THAT(*Sees(alice_), ElementsAre("train"));
  EXPECT_THAT(*Sees(bob_), ElementsAre("other"));
  EXPECT_THAT(*Sees(operator_), ElementsAre("other", "train"));
  EXPECT_THAT(*Sees(viewer_), ElementsAre("other", "train"));
  EXPECT_EQ(Evict(bob_, "train").code(), Code::kPermissionDenied);
  EXPECT_EQ(Trace(bob_, "train").code(), Code::kPermissionDenied);
  EXPECT_EQ(Sees(bob_, "train").status().code(), Code::kPermissionDenied);
  EXPECT_EQ(Evict(viewer_, "train").code(), Code::kPermissionDenied);
  EXPECT_THAT(Evict(alice_, "train"), IsOk());
  EXPECT_THAT(Evict(operator_, "other"), IsOk());
}

TEST_F(CoordinatorAccessTest, SaysInTheStateWhoseItIs) {
  ASSERT_THAT(Join(alice_, "train", "a"), IsOk());
  v1::ServerState state;
  state_->Describe("train", now_, &state);
  EXPECT_EQ(state.jobs(0).owner(), "launcher/alice");
}

TEST_F(CoordinatorAccessTest, TheTokenMakesAJobALaunchersOwn) {
  ASSERT_THAT(Join(anybody_, "train", "secret"), IsOk());
  EXPECT_FALSE(Evict(bob_, "train", "guess").ok());
  EXPECT_FALSE(Evict(bob_, "train", "").ok());
  EXPECT_THAT(*Sees(bob_, "train", "secret"), ElementsAre("train"));
  EXPECT_THAT(Evict(bob_, "train", "secret"), IsOk());
}

TEST_F(CoordinatorAccessTest, AnEmptyTokenProvesNothing) {
  ASSERT_THAT(Join(anybody_, "train", ""), IsOk());
  EXPECT_EQ(Sees(anybody_, "train").status().code(), Code::kPermissionDenied);
  EXPECT_EQ(Evict(bob_, "train").code(), Code::kPermissionDenied);
}

TEST_F(CoordinatorAccessTest, WorkersSeeTheirJobAndEvictNobody) {
  ASSERT_THAT(Join(anybody_, "train", "secret"), IsOk());
  EXPECT_THAT(*Sees(anybody_, "train", "secret"), ElementsAre("train"));
  EXPECT_EQ(Sees(anybody_, "train", "guess").status().code(), Code::kPermissionDenied);
  EXPECT_EQ(Sees(anybody_).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(Evict(anybody_, "train", "secret").code(), Code::kPermissionDenied);
}

TEST_F(CoordinatorAccessTest, AWorkersCertificateForAJobIsForThatJob) {
  const Caller worker = CallerWith(Role::kWorker, "train");
  EXPECT_EQ(Join(worker, "other", "a").code(), Code::kPermissionDenied);
  EXPECT_THAT(*Sees(operator_), IsEmpty()) << "nothing was made";
  EXPECT_THAT(Join(worker, "train", "a"), IsOk());
  EXPECT_EQ(Join(worker, "train", "wrong").code(), Code::kUnauthenticated);
}

TEST_F(CoordinatorAccessTest, ViewersAndRelaysAreNoWorkers) {
  EXPECT_EQ(Join(viewer_, "train", "a").code(), Code::kPermissionDenied);
  Caller relay = CallerWith(Role::kNode, "node3");
  EXPECT_EQ(Join(relay, "train", "a", "node3").code(), Code::kPermissionDenied);
  relay.of_node = true;
  EXPECT_EQ(Join(relay, "train", "a", "node4").code(), Code::kPermissionDenied);
  EXPECT_THAT(Join(relay, "train", "a", "node3"), IsOk());
}

TEST_F(CoordinatorAccessTest, TheOnlyJobIsTheOnlyOneOfOnesOwn) {
  ASSERT_THAT(Join(alice_, "train", "a"), IsOk());
  ASSERT_THAT(Join(bob_, "other", "b"), IsOk());
  EXPECT_EQ(Evict(operator_, "").code(), Code::kInvalidArgument) << "there are two";
  EXPECT_THAT(Evict(bob_, ""), IsOk());
  EXPECT_EQ(Evict(CallerWith(Role::kLauncher, "eve"), "").code(), Code::kPermissionDenied);
}

TEST_F(CoordinatorAccessTest, ARefusedJoinMakesNobodyAnOwner) {
  ASSERT_THAT(Join(alice_, "train", "a"), IsOk());
  EXPECT_EQ(Join(bob_, "train", "guess").code(), Code::kUnauthenticated);
  EXPECT_EQ(Sees(bob_).status().code(), Code::kPermissionDenied);
  EXPECT_THAT(*Sees(alice_), ElementsAre("train"));
}

TEST_F(CoordinatorAccessTest, OwnersAreKnownAfterANewStart) {
  ASSERT_THAT(Join(alice_, "train", "a"), IsOk());
  Restart();
  EXPECT_THAT(*Sees(alice_), ElementsAre("train"));
  EXPECT_EQ(Sees(bob_).status().code(), Code::kPermissionDenied);
  EXPECT_THAT(*Sees(bob_, "train", "a"), ElementsAre("train")) << "of the token the hash is known";
  EXPECT_FALSE(Sees(bob_, "train", "b").ok());
}

TEST_F(CoordinatorAccessTest, OwnersOfJobsThatHaveEndedAreKnownAfterANewStart) {
  ASSERT_THAT(Join(alice_, "train", "a"), IsOk());
  ASSERT_THAT(Evict(alice_, "train"), IsOk());
  Restart();
  EXPECT_THAT(*Sees(alice_), ElementsAre("train"));
  EXPECT_EQ(Sees(bob_).status().code(), Code::kPermissionDenied);
  EXPECT_THAT(*Sees(bob_, "train", "a"), ElementsAre("train"));
  EXPECT_THAT(Join(bob_, "train", "b"), IsOk()) << "the name is free";
  EXPECT_EQ(Sees(alice_, "train", "a").status().code(), Code::kPermissionDenied);
  EXPECT_THAT(*Sees(bob_), ElementsAre("train"));
}

TEST_F(CoordinatorAccessTest, OneOwnerLeavesRoomForOthers) {
  options_.max_jobs_per_owner = 2;
  Restart();
  EXPECT_THAT(Join(anybody_, "one", "a"), IsOk());
  EXPECT_THAT(Join(anybody_, "two", "a"), IsOk());
  const absl::Status status = Join(anybody_, "three", "a");
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "worker/* has 2 jobs at this coordd already, as many as one may have "
            "(--max-jobs-per-owner)");
  EXPECT_THAT(Join(alice_, "three", "a"), IsOk());
  EXPECT_THAT(Evict(operator_, "one"), IsOk()) << "which ends it";
  EXPECT_THAT(Join(anybody_, "four", "a"), IsOk());
  for (const char* job : {"five", "six", "seven"})
    EXPECT_THAT(Join(operator_, job, "a"), IsOk()) << job;
}

// In two ranks' job one reports tensors that the other never does: what is pending grows.
TEST_F(CoordinatorAccessTest, WhatTheWorkersOfAnOwnerSayHasABound) {
  options_.max_bytes_per_owner = 4 << 20;  // of which a quarter
  Restart();
  // How many of 100 came in, each of which says so much.
  const auto crowd = [this](const Caller& caller, const std::string& job, int devices) {
    int in = 0;
    for (int i = 0; i < 100; ++i) {
      v1::WorkerMessage message;
      v1::Join& join = *message.mutable_join();
      join = JoinOf(absl::StrCat("w", ++session_), "node0");
      join.set_job(job);
      join.mutable_limits()->set_min_workers(1000);
      join.mutable_limits()->set_max_workers(1000);
      for (int device = 0; device < devices; ++device) {
        v1::Device& gpu = *join.add_devices();
        gpu.set_uuid(absl::StrCat("GPU-", session_, "-", device, std::string(100, 'u')));
        gpu.set_model(std::string(100, 'm'));
        gpu.set_kind(v1::MEMORY_KIND_CUDA);
      }
      const Effects effects =
          Do(SessionMessage{SessionId{session_}, message, std::make_shared<const Caller>(caller)});
      bool refused = false;
      for (const Outgoing& out : effects.outgoing) {
        const auto* close = std::get_if<CloseSession>(&out);
        if (close == nullptr) continue;
        EXPECT_THAT(close->status, StatusIs(Code::kResourceExhausted,
                                            testing::HasSubstr("--max-bytes-per-owner")));
        refused = true;
      }
      in += refused ? 0 : 1;
    }
    return in;
  };
  EXPECT_EQ(crowd(alice_, "few", 8), 100);
  const int64_t before = session_;
  const int many = crowd(alice_, "many", 64);
  EXPECT_GT(many, 0);
  EXPECT_LT(many, 100);
  EXPECT_EQ(crowd(alice_, "more", 64), 0);
  EXPECT_EQ(crowd(alice_, "usual", 4), 100) << "who says what is usual is not counted";
  EXPECT_EQ(crowd(bob_, "other", 64), many) << "nor is another owner";
  for (int i = 1; i <= many; ++i) Do(SessionEnded{SessionId{before + i}, ""});
  EXPECT_GT(crowd(alice_, "again", 64), 0) << "who is gone says nothing more";
}

TEST_F(CoordinatorAccessTest, WhatJobsOfOneOwnerTakeIsBoundedTogether) {
  options_.max_bytes_per_owner = 350'000;
  Restart();
  // How many of 200 tensors were refused.
  const auto flood = [this](const Caller& caller, const std::string& job) {
    int refused = 0;
    int64_t first = session_ + 1;
    for (int rank : {0, 1}) {
      v1::WorkerMessage message;
      *message.mutable_join() = JoinOf(absl::StrCat("w", ++session_), "node0");
      message.mutable_join()->set_job(job);
      message.mutable_join()->mutable_limits()->set_min_workers(2);
      message.mutable_join()->mutable_limits()->set_max_workers(2);
      Do(SessionMessage{SessionId{first + rank}, message, std::make_shared<const Caller>(caller)});
    }
    v1::ServerState state;
    state_->Describe(job, now_, &state);
    SessionMessage ready{.session = SessionId{first}, .message = {}};
    ready.message.set_epoch(state.epoch());
    ready.message.set_generation(state.jobs(0).generation());
    for (int i = 0; i < 200; ++i) {
      v1::TensorSpec& tensor = *ready.message.mutable_tensors_ready()->add_tensors();
      ToProto(Gradient(absl::StrCat("t", i, std::string(400, 'z')), {4}), &tensor);
    }
    for (const Outgoing& out : Do(ready).outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver != nullptr) refused += deliver->message->tensor_failures().failures_size();
    }
    return refused;
  };
  EXPECT_EQ(flood(alice_, "one"), 0);
  EXPECT_GT(flood(alice_, "two"), 0);
  EXPECT_EQ(flood(bob_, "three"), 0);
  for (const char* job : {"one", "two"}) EXPECT_THAT(Evict(operator_, job), IsOk());
  EXPECT_EQ(flood(alice_, "four"), 0) << "with its generation what was pending is gone";
}

TEST_F(CoordinatorAccessTest, WhoHasReachedABoundIsKnownWithHisAddress) {
  options_.max_bytes_per_owner = 1000;
  Restart();
  ASSERT_THAT(Join(alice_, "train", "a"), IsOk());
  SessionMessage ask{.session = SessionId{session_}, .message = {}};
  ask.message = MessageOf(Epoch{epoch_}, Generation{1});
  ask.message.mutable_process_set_request()->set_name("large");
  ask.message.mutable_process_set_request()->add_ranks(0);
  const Effects effects = Do(ask);
  ASSERT_EQ(effects.events.size(), 1u);
  EXPECT_EQ(effects.events[0].code, Code::kResourceExhausted);
  ASSERT_NE(effects.events[0].caller, nullptr);
  EXPECT_EQ(CallerText(*effects.events[0].caller), CallerText(alice_));
}

TEST_F(CoordinatorAccessTest, WhoGuessesTokensWaits) {
  ASSERT_THAT(Join(alice_, "train", "a"), IsOk());
  for (int i = 0; i < WrongTokens::kFree; ++i)
    EXPECT_EQ(Join(anybody_, "train", absl::StrCat("guess", i)).code(), Code::kUnauthenticated);
  EXPECT_EQ(Join(anybody_, "train", "a").code(), Code::kUnavailable) << "right, and not looked at";
  EXPECT_EQ(Sees(anybody_, "train", "a").status().code(), Code::kUnavailable);
  EXPECT_THAT(*Sees(bob_, "train", "a"), ElementsAre("train"));
  EXPECT_THAT(Join(anybody_, "another", "a"), IsOk());
  now_ += WrongTokens::kFirst;
  Effects effects;
  state_->Tick(now_, effects);
  EXPECT_THAT(*Sees(anybody_, "train", "a"), ElementsAre("train"));
}

TEST_F(CoordinatorAccessTest, WhoBringsARightOneThatNobodyGuessesDoesNotWait) {
  const std::string token = "3f9a0c51e7d24b683f9a0c51e7d24b68";
  ASSERT_THAT(Join(alice_, "train", token), IsOk());
  for (int i = 0; i < 2 * WrongTokens::kFree; ++i)
    EXPECT_FALSE(Join(anybody_, "train", absl::StrCat("a long enough guess ", i)).ok());
  Caller newcomer = anybody_;
  newcomer.peer = absl::StrCat(anybody_.peer.substr(0, anybody_.peer.rfind(':')), ":9");
  EXPECT_EQ(Join(newcomer, "train", "3f9a0c51e7d24b683f9a0c51e7d24b69").code(), Code::kUnavailable);
  EXPECT_THAT(*Sees(newcomer, "train", token), ElementsAre("train"));
  // Right, if too many: the job has its one worker.
  EXPECT_NE(Join(newcomer, "train", token).code(), Code::kUnavailable);
  EXPECT_THAT(*Sees(newcomer, "", token), ElementsAre("train"));
}

TEST_F(CoordinatorAccessTest, QuestionsAreGuessesToo) {
  ASSERT_THAT(Join(alice_, "train", "a"), IsOk());
  for (int i = 0; i < WrongTokens::kFree; ++i)
    EXPECT_FALSE(Sees(anybody_, "train", absl::StrCat("guess", i)).ok());
  EXPECT_EQ(Sees(anybody_, "train", "a").status().code(), Code::kUnavailable);
  // Who needs no token may bring a wrong one.
  for (int i = 0; i < 2 * WrongTokens::kFree; ++i)
    EXPECT_THAT(*Sees(alice_, "train", "old"), ElementsAre("train"));
}

TEST_F(CoordinatorAccessTest, WhoNamesNoJobLearnsNoName) {
  ASSERT_THAT(Join(alice_, "secret-project", "a"), IsOk());
  for (const absl::Status& refused : {Sees(bob_).status(), Evict(bob_, "")}) {
    EXPECT_EQ(refused.code(), Code::kPermissionDenied) << refused;
    EXPECT_EQ(refused.message().find("secret-project"), std::string::npos) << refused;
  }
}

// Why names are no secret of those who may make jobs: no answer to a Join could hide it.
TEST_F(CoordinatorAccessTest, WhoMayMakeJobsLearnsByThatWhetherANameIsTaken) {
  ASSERT_THAT(Join(alice_, "train-a", "a"), IsOk());
  EXPECT_EQ(Join(bob_, "train-a", "b").code(), Code::kUnauthenticated);
  EXPECT_THAT(Join(bob_, "train-b", "b"), IsOk());
}

TEST_F(CoordinatorAccessTest, AWorkersCertificateOfAJobHearsTheSameOfOthersThereOrNot) {
  ASSERT_THAT(Join(alice_, "train-a", "a"), IsOk());
  const Caller worker = CallerWith(Role::kWorker, "own");
  const auto told = [](const absl::Status& status) {
    return absl::StrReplaceAll(status.ToString(), {{"train-a", "JOB"}, {"train-b", "JOB"}});
  };
  for (const char* token : {"", "a", "wrong"}) {
    EXPECT_EQ(told(Join(worker, "train-a", token)), told(Join(worker, "train-b", token)));
    EXPECT_EQ(told(Sees(worker, "train-a", token).status()),
              told(Sees(worker, "train-b", token).status()));
    EXPECT_EQ(told(Evict(worker, "train-a", token)), told(Evict(worker, "train-b", token)));
  }
  EXPECT_EQ(told(Trace(worker, "train-a")), told(Trace(worker, "train-b")));
  EXPECT_EQ(Sees(worker, "train-b").status().code(), Code::kPermissionDenied);
}

TEST_F(CoordinatorAccessTest, AMemberIsNotKeptOutByGuessesOfOthersOnItsHost) {
  ASSERT_THAT(Join(anybody_, "train", "a"), IsOk());
  Caller guesser = anybody_;
  guesser.peer = absl::StrCat(anybody_.peer.substr(0, anybody_.peer.rfind(':')), ":9");
  for (int i = 0; i < 2 * WrongTokens::kFree; ++i)
    EXPECT_FALSE(Join(guesser, "train", absl::StrCat("guess", i), "other").ok());
  EXPECT_EQ(Sees(guesser, "train", "a").status().code(), Code::kUnavailable);
  EXPECT_THAT(*Sees(anybody_, "train", "a"), ElementsAre("train"));
}

TEST_F(CoordinatorAccessTest, ATokenOfOneJobIsNoGuessAtTheOthers) {
  ASSERT_THAT(Join(alice_, "others", "a"), IsOk());
  ASSERT_THAT(Join(alice_, "train", "t"), IsOk());
  for (int i = 0; i < 2 * WrongTokens::kFree; ++i)
    EXPECT_THAT(*Sees(anybody_, "", "t"), ElementsAre("train"));
  EXPECT_THAT(*Sees(anybody_, "others", "a"), ElementsAre("others"));
}

TEST_F(CoordinatorAccessTest, AWrongTokenForAllJobsIsOneGuess) {
  ASSERT_THAT(Join(alice_, "one", "a"), IsOk());
  ASSERT_THAT(Join(alice_, "two", "b"), IsOk());
  ASSERT_THAT(Join(bob_, "own", "c"), IsOk());
  for (int i = 0; i + 1 < WrongTokens::kFree; ++i)
    EXPECT_THAT(*Sees(bob_, "", absl::StrCat("guess", i)), ElementsAre("own"));
  EXPECT_THAT(*Sees(bob_, "", "a"), ElementsAre("one", "own"));
  EXPECT_THAT(*Sees(bob_, "", "guess"), ElementsAre("own"));
  EXPECT_THAT(*Sees(bob_, "", "a"), ElementsAre("own")) << "it is not looked at any more";
  EXPECT_THAT(*Sees(bob_, "one", "a"), ElementsAre("one")) << "at this one he has not guessed";
}

TEST_F(CoordinatorAccessTest, OneOwnerLeavesATraceForAnother) {
  for (const char* job : {"one", "two", "three"}) ASSERT_THAT(Join(alice_, job, "a"), IsOk());
  ASSERT_THAT(Join(bob_, "four", "b"), IsOk());
  for (const char* job : {"one", "two"}) EXPECT_THAT(Trace(alice_, job), IsOk());
  const absl::Status third = Trace(alice_, "three");
  EXPECT_EQ(third.code(), Code::kResourceExhausted);
  EXPECT_EQ(third.message(),
            "2 traces of jobs of launcher/alice are under way already: try again when one has "
            "ended");
  EXPECT_THAT(Trace(bob_, "four"), IsOk());
}

TEST_F(CoordinatorAccessTest, WithoutTlsNobodyOwnsAnything) {
  v1::WorkerMessage message;
  *message.mutable_join() = JoinOf("w1");
  message.mutable_join()->mutable_limits()->set_max_workers(1);
  Do(SessionMessage{SessionId{++session_}, message});
  v1::ServerState state;
  state_->Describe("train", now_, &state);
  EXPECT_EQ(state.jobs(0).owner(), "");
  EXPECT_THAT(Evict({.identity = WithoutTls(), .peer = ""}, "train"), IsOk());
}

TEST_F(CoordinatorAccessTest, WhoSeesAJobSeesNoOthersThatAreCalledAfterIt) {
  ASSERT_THAT(Join(alice_, "train", "a"), IsOk());
  ASSERT_THAT(Join(alice_, "train.group-1", "a"), IsOk());
  ASSERT_THAT(Join(bob_, "train.v2", "b"), IsOk());
  EXPECT_THAT(*Sees(alice_, "train"), ElementsAre("train", "train.group-1"));
  EXPECT_THAT(*Sees(anybody_, "train", "a"), ElementsAre("train", "train.group-1"));
  EXPECT_THAT(*Sees(operator_, "train"), ElementsAre("train", "train.group-1", "train.v2"));
  EXPECT_EQ(Sees(bob_, "train.group-1").status().code(), Code::kPermissionDenied);
  EXPECT_THAT(*Sees(bob_, "train"), ElementsAre("train.v2"));
  // Nor by a name that there is not.
  ASSERT_THAT(Join(bob_, "eval.v2", "b"), IsOk());
  EXPECT_EQ(Sees(alice_, "eval").status().code(), Code::kPermissionDenied);
  EXPECT_EQ(Sees(anybody_, "eval", "a").status().code(), Code::kPermissionDenied);
}

// The groups of torch.distributed are jobs of the same processes, which their launcher does not
// know.
TEST_F(CoordinatorAccessTest, HowAProcessEndedIsToldToTheGroupsOfTheJobToo) {
  ASSERT_THAT(Join(operator_, "train.group-1", "a"), IsOk());
  ASSERT_THAT(Join(operator_, "train.group-2", "another"), IsOk());
  ASSERT_THAT(Join(operator_, "trainer", "a"), IsOk());
  const auto told = [this](const std::string& job, const std::string& token) {
    ExitsReported report{.call = CallId{--call_}};
    report.request.set_job(job);
    report.request.set_token(token);
    v1::LaunchedExit& exit = *report.request.add_exits();
    exit.set_launch("r.0.0");
    exit.mutable_exit()->set_signal(9);
    for (const Outgoing& out : Do(report).outgoing)
      if (const auto* answer = std::get_if<ExitsAnswer>(&out)) return answer->status;
    return absl::UnknownError("no answer");
  };
  EXPECT_THAT(told("train", "a"), IsOk());
  EXPECT_EQ(told("train", "wrong").code(), Code::kUnauthenticated);
  EXPECT_EQ(told("tra", "a").code(), Code::kNotFound);
  EXPECT_THAT(*Sees(operator_, "train"), ElementsAre("train.group-1", "train.group-2"));
}

}  // namespace
}  // namespace coordd
