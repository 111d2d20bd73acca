// coordd's side of a node session, over real gRPC: members are workers like others.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/protocol/member_runs.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_server.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A relay reduced to its stream.
class RawNode {
 public:
  explicit RawNode(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Coordinator::NewStub(channel)) {
    context_.set_deadline(TestDeadline());
    stream_ = stub_->NodeSession(&context_);
    Greet();
  }
  ~RawNode() {
    context_.TryCancel();
    if (!finished_) stream_->Finish();
  }

  int64_t epoch = 0, generation = 0;

  RawNode& Greet(const std::string& job = "train") {
    batch_.mutable_hello()->set_job(job);
    batch_.mutable_hello()->set_protocol(kProtocolVersion);
    batch_.mutable_hello()->set_hostname("host1");
    return *this;
  }
  RawNode& Say(std::vector<int32_t> members, v1::WorkerMessage message) {
    message.set_epoch(epoch);
    message.set_generation(generation);
    v1::NodeMessage& said = *batch_.add_messages();
    for (int32_t member : members) AddMember(member, said.mutable_members());
    said.set_message(message.SerializeAsString());
    return *this;
  }
  RawNode& Join(int32_t member, int32_t workers, const std::string& job = "train") {
    return Say({member}, JoinMessage(job, absl::StrCat("node.", member), workers));
  }
  RawNode& End(int32_t member) {
    v1::NodeMessage& said = *batch_.add_messages();
    AddMember(member, said.mutable_members());
    said.mutable_end();
    return *this;
  }
  bool Send() {
    const bool sent = stream_->Write(batch_);
    batch_.Clear();
    return sent;
  }

  struct Reply {
    std::vector<int32_t> members;
    v1::CoordinatorMessage message;
    v1::NodeMemberClose close;
    bool is_close = false;
  };
  // The next one; without members when the stream has ended.
  Reply Read() {
    while (next_ == replies_.replies_size()) {
      next_ = 0;
      replies_.Clear();
      if (!stream_->Read(&replies_)) return {};
    }
    const v1::NodeReply& said = replies_.replies(next_++);
    Reply reply{.members = {}, .message = {}, .close = said.close(), .is_close = said.has_close()};
    ForEachMember(said.members(), [&](int32_t member) { reply.members.push_back(member); });
    EXPECT_TRUE(reply.message.ParseFromString(said.message()));
    if (reply.message.has_membership()) {
      epoch = reply.message.epoch();
      generation = reply.message.generation();
    }
    return reply;
  }
  Reply ReadUntil(v1::CoordinatorMessage::BodyCase wanted) {
    Reply reply = Read();
    while (!reply.members.empty() && reply.message.body_case() != wanted) reply = Read();
    return reply;
  }
  Reply ReadClose() {
    Reply reply = Read();
    while (!reply.members.empty() && !reply.is_close) reply = Read();
    return reply;
  }
  grpc::Status Finish() {
    while (!Read().members.empty()) {
    }
    finished_ = true;
    return stream_->Finish();
  }
  void Vanish() { context_.TryCancel(); }

 private:
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NodeMessages, v1::NodeReplies>> stream_;
  v1::NodeMessages batch_;
  v1::NodeReplies replies_;
  int next_ = 0;
  bool finished_ = false;
};

v1::WorkerMessage ReadyOf(const std::string& tensor) {
  v1::WorkerMessage message;
  v1::TensorSpec& spec = *message.mutable_tensors_ready()->add_tensors();
  spec.set_name(tensor);
  spec.set_kind(v1::COLLECTIVE_KIND_ALLREDUCE);
  spec.set_dtype(v1::DATA_TYPE_FLOAT32);
  spec.set_op(v1::REDUCE_OP_SUM);
  spec.add_shape(4);
  spec.set_memory(v1::MEMORY_KIND_HOST);
  return message;
}

// Members 1 and 2 of a job of three, and a worker with a stream of its own.
struct NodeAndWorker {
  explicit NodeAndWorker(TestServer& server) : node(server.Channel()), worker(server.Channel()) {
    EXPECT_TRUE(node.Join(1, 3).Join(2, 3).Send());
    EXPECT_TRUE(worker.Join("train", "alone", 3));
    EXPECT_TRUE(worker.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
    for (int i = 0; i < 2; ++i) {
      const RawNode::Reply reply = node.ReadUntil(v1::CoordinatorMessage::kMembership);
      rank_of[reply.members.at(0)] = reply.message.membership().rank();
    }
  }
  RawNode node;
  RawWorker worker;
  std::map<int32_t, int32_t> rank_of;
};

TEST(NodeSession, ItsMembersAreRanksLikeOthers) {
  TestServer server;
  NodeAndWorker job(server);
  std::set<int32_t> ranks = {job.worker.rank};
  for (const auto& [member, rank] : job.rank_of) ranks.insert(rank);
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2));
  ASSERT_TRUE(job.node.Say({1, 2}, ReadyOf("w")).Send());
  ASSERT_TRUE(job.worker.Ready("w", 4));
  const RawNode::Reply plan = job.node.ReadUntil(v1::CoordinatorMessage::kPlan);
  EXPECT_THAT(plan.members, ElementsAre(1, 2));  // once for both
  EXPECT_EQ(plan.message.plan().batches(0).tensors(0), "w");
  EXPECT_EQ(plan.message.sequence(), 0);
  EXPECT_TRUE(job.worker.ReadUntil(v1::CoordinatorMessage::kPlan).has_plan());
  EXPECT_THAT(server.Get("/metrics").body, HasSubstr("coordd_node_sessions 1"));
  EXPECT_THAT(server.Get("/metrics").body, HasSubstr("coordd_sessions 3"));
}

// The same words each time, which need not be read again: each time they count anew.
TEST(NodeSession, WhatIsSaidAgainCountsAgain) {
  TestServer server;
  NodeAndWorker job(server);
  for (const std::string tensor : {"a", "b", "a", "a", "c", "d", "e", "f", "a", "b", "b", "a"}) {
    ASSERT_TRUE(job.node.Say({1, 2}, ReadyOf(tensor)).Send());
    ASSERT_TRUE(job.worker.Ready(tensor, 4));
    const RawNode::Reply plan = job.node.ReadUntil(v1::CoordinatorMessage::kPlan);
    ASSERT_EQ(plan.message.plan().batches_size(), 1);
    EXPECT_EQ(plan.message.plan().batches(0).tensors(0), tensor);
    EXPECT_TRUE(job.worker.ReadUntil(v1::CoordinatorMessage::kPlan).has_plan());
  }
}

TEST(NodeSession, WhatWasSaidBeforeAMemberEndedIsWrongAfterwards) {
  TestServer server;
  NodeAndWorker job(server);
  ASSERT_TRUE(job.node.Say({1, 2}, ReadyOf("a")).Send());
  ASSERT_TRUE(job.worker.Ready("a", 4));
  ASSERT_TRUE(job.node.ReadUntil(v1::CoordinatorMessage::kPlan).message.has_plan());
  ASSERT_TRUE(job.node.End(2).Send());
  ASSERT_TRUE(job.node.Say({1, 2}, ReadyOf("a")).Send());
  const grpc::Status status = job.node.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("member 2 is not open"));
}

TEST(NodeSession, ARelayGreetsOnce) {
  TestServer server;
  RawNode node(server.Channel());
  ASSERT_TRUE(node.Say({1}, ReadyOf("a")).Send());  // a member that says no Join first
  ASSERT_TRUE(node.Greet().Say({1}, ReadyOf("a")).Send());
  const grpc::Status status = node.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("it said hello again"));
}

TEST(NodeSession, ARelayThatNamesNoJobHearsHowOneGetsAName) {
  TestServer server;
  RawNode node(server.Channel());
  ASSERT_TRUE(node.Greet("").Send());
  const grpc::Status status = node.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("job: it has no name, expected one of 1 to 128"));
}

TEST(NodeSession, AMemberThatEndsIsTheOneThatIsBlamed) {
  TestServer server;
  NodeAndWorker job(server);
  ASSERT_TRUE(job.node.End(2).Send());
  const v1::Abort abort = job.worker.ReadUntil(v1::CoordinatorMessage::kAbort).abort();
  EXPECT_EQ(abort.departures_size(), 1);
  EXPECT_EQ(abort.departures(0).rank(), job.rank_of.at(2));
  EXPECT_THAT(job.node.ReadUntil(v1::CoordinatorMessage::kAbort).members, ElementsAre(1));
}

TEST(NodeSession, WhatAMemberMayNotSayEndsThatMemberAlone) {
  TestServer server;
  NodeAndWorker job(server);
  v1::WorkerMessage wrong;
  wrong.mutable_tensors_ready()->add_cached()->set_known(99);
  ASSERT_TRUE(job.node.Say({1}, wrong).Send());
  const RawNode::Reply closed = job.node.ReadClose();
  EXPECT_THAT(closed.members, ElementsAre(1));
  EXPECT_EQ(closed.close.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(closed.close.message(), HasSubstr("slot 99"));
  ASSERT_TRUE(job.node.End(1).Join(3, 3).Send());  // the node session goes on
}

TEST(NodeSession, AWrongTokenIsRefusedAsEverywhere) {
  TestServer server;
  NodeAndWorker job(server);
  v1::WorkerMessage join = JoinMessage("train", "stranger", 3);
  join.mutable_join()->set_token("guessed");
  job.node.epoch = job.node.generation = 0;
  ASSERT_TRUE(job.node.Say({3}, join).Send());
  const RawNode::Reply closed = job.node.ReadClose();
  EXPECT_THAT(closed.members, ElementsAre(3));
  EXPECT_EQ(closed.close.code(), static_cast<int>(absl::StatusCode::kUnauthenticated));
}

TEST(NodeSession, AnotherJobsWorkerIsRefusedAlone) {
  TestServer server;
  NodeAndWorker job(server);
  job.node.epoch = job.node.generation = 0;
  ASSERT_TRUE(job.node.Join(3, 1, "another").Send());
  const RawNode::Reply closed = job.node.ReadClose();
  EXPECT_THAT(closed.members, ElementsAre(3));
  EXPECT_THAT(closed.close.message(), HasSubstr("job another"));
}

TEST(NodeSession, ARelayThatBreaksTheProtocolIsToldWhy) {
  TestServer server;
  RawNode node(server.Channel());
  ASSERT_TRUE(node.Join(2, 1).Send());
  const grpc::Status status = node.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("member 2 is not open"));
}

// What one message says of many members is as much work, and as many answers, as if each had said
// it.
TEST(NodeSession, WhatManyMembersAreAnsweredWaitsForWhoReadsAndForNobodyElse) {
  constexpr int kMembers = 300, kTensors = 300;  // 100 MiB of answers
  CoordServerOptions options = TestServerOptions();
  options.decisions.lease = absl::Minutes(10);  // nobody's heart beats while they are read
  TestServer server(options);
  RawNode node(server.Channel());
  std::vector<int32_t> members;
  for (int32_t member = 1; member <= kMembers; ++member) {
    members.push_back(member);
    node.Join(member, kMembers);
  }
  ASSERT_TRUE(node.Send());
  for (int i = 0; i < kMembers; ++i)
    ASSERT_FALSE(node.ReadUntil(v1::CoordinatorMessage::kMembership).members.empty());
  RawWorker other(server.Channel());
  ASSERT_TRUE(other.Join("other", "alone", 1));
  ASSERT_TRUE(other.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());

  v1::WorkerMessage wrong;
  for (int i = 0; i < kTensors; ++i)
    wrong.mutable_tensors_ready()->add_tensors()->set_name(absl::StrCat(std::string(500, 'n'), i));
  ASSERT_TRUE(node.Say(members, wrong).Send());
  // Nobody reads the answers, of which there are more than may be left: others are not in the way.
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(other.Heartbeat());
    ASSERT_TRUE(other.ReadUntil(v1::CoordinatorMessage::kLeaseAck).has_lease_ack());
  }
  std::map<int32_t, int> failures;
  int left = kMembers * kTensors;
  while (left > 0) {
    const RawNode::Reply reply = node.ReadUntil(v1::CoordinatorMessage::kTensorFailures);
    ASSERT_FALSE(reply.members.empty()) << node.Finish().error_message();
    const int count = reply.message.tensor_failures().failures_size();
    for (int32_t member : reply.members) failures[member] += count;
    left -= count * static_cast<int>(reply.members.size());
  }
  for (int32_t member : members) ASSERT_EQ(failures[member], kTensors);
}

TEST(NodeSession, WhereNothingIsRememberedItsEndIsTheLossOfItsMembers) {
  TestServer server;
  NodeAndWorker job(server);
  job.node.Vanish();
  const v1::Abort abort = job.worker.ReadUntil(v1::CoordinatorMessage::kAbort).abort();
  EXPECT_GE(abort.departures_size(), 1);
  EXPECT_NE(abort.departures(0).rank(), job.worker.rank);
}

TEST(NodeSession, WhereMembersMayComeBackItsEndIsNobodysLoss) {
  const TempDirectory directory;
  CoordServerOptions options = TestServerOptions();
  options.store = *ParseStatePlace(absl::StrCat("sqlite:", directory / "state"));
  TestServer server(options);
  NodeAndWorker job(server);
  job.node.Vanish();
  // All come back to their generation; without that nobody is told of a loss.
  const grpc::Status status = job.worker.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("the relay of host1 was lost"));
}

}  // namespace
}  // namespace coordd
