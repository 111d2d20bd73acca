// Every call of coordd's services, with messages made by chance from their descriptions, with bytes
// that are none, and with frames that lie about their length: over real gRPC, beside a job. A new
// call or field is among them as soon as it is in proto/.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/node.pb.h"
#include "coordd/v1/session.pb.h"
#include "coordd/v1/store.pb.h"
#include "tests/support/test_server.h"

namespace coordd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;

constexpr int kCalls = 1500;
constexpr int kDeepest = 5;
// Calls that would wait, as those of a store do, end so soon.
constexpr auto kPatience = std::chrono::milliseconds(150);

class RandomMessage {
 public:
  explicit RandomMessage(Random& random) : random_(random) {}

  // Some of its fields, with values that are often at an edge.
  void Fill(Message& message, int depth = 0) {
    const google::protobuf::Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      if (Below(5) < 2) continue;
      const FieldDescriptor& field = *type.field(i);
      const int times = !field.is_repeated() ? 1 : Below(8) == 0 ? 60 : static_cast<int>(Below(3));
      for (int n = 0; n < times; ++n) FillField(message, field, depth);
    }
  }

  std::string Bytes(size_t most) {
    std::string bytes(Below(most + 1), '\0');
    for (char& byte : bytes) byte = static_cast<char>(Below(256));
    return bytes;
  }

  uint64_t Below(uint64_t bound) { return random_.Below(bound); }

 private:
  template <typename T>
  T Number() {
    constexpr T kEdges[] = {T{0}, T{1}, std::numeric_limits<T>::lowest(),
                            std::numeric_limits<T>::max()};
    return Below(3) == 0 ? static_cast<T>(Below(70)) : kEdges[Below(std::size(kEdges))];
  }
  double Real() {
    constexpr double kReals[] = {0,
                                 -1,
                                 0.5,
                                 1e308,
                                 std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN()};
    return kReals[Below(std::size(kReals))];
  }
  std::string Text() {
    switch (Below(12)) {
      case 0:
        return "";
      case 1:
        return std::string(700, 'y');
      case 2:
        return "\x1b[2J\nFORGED\r";
      case 3:
        return "\u202e\u009b<img src=x>";
      case 4:
        return "gen/1/x";
      case 5:
        return Bytes(20);  // which no text need be
      case 6:
        return std::string(1, static_cast<char>('a' + Below(3)));
      case 7:
        return "train";  // the job beside, whose token is another
      case 8:
      case 9:
        return "secret";
      default:
        return "mad0";  // with that token
    }
  }

  void FillField(Message& message, const FieldDescriptor& field, int depth) {
    const google::protobuf::Reflection& to = *message.GetReflection();
    const bool many = field.is_repeated();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth < kDeepest)
          Fill(many ? *to.AddMessage(&message, &field) : *to.MutableMessage(&message, &field),
               depth + 1);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        many ? to.AddString(&message, &field, Text()) : to.SetString(&message, &field, Text());
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        many ? to.AddBool(&message, &field, Below(2) > 0)
             : to.SetBool(&message, &field, Below(2) > 0);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        // Of those that there are and some that there are not.
        many ? to.AddEnumValue(&message, &field, static_cast<int>(Below(30)) - 2)
             : to.SetEnumValue(&message, &field, static_cast<int>(Below(30)) - 2);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        many ? to.AddDouble(&message, &field, Real()) : to.SetDouble(&message, &field, Real());
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        many ? to.AddFloat(&message, &field, static_cast<float>(Real()))
             : to.SetFloat(&message, &field, static_cast<float>(Real()));
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        many ? to.AddInt32(&message, &field, Number<int32_t>())
             : to.SetInt32(&message, &field, Number<int32_t>());
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        many ? to.AddUInt32(&message, &field, Number<uint32_t>())
             : to.SetUInt32(&message, &field, Number<uint32_t>());
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        many ? to.AddInt64(&message, &field, Number<int64_t>())
             : to.SetInt64(&message, &field, Number<int64_t>());
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        many ? to.AddUInt64(&message, &field, Number<uint64_t>())
             : to.SetUInt64(&message, &field, Number<uint64_t>());
        break;
    }
  }

  Random& random_;
};

std::vector<const MethodDescriptor*> AllCalls() {
  std::vector<const MethodDescriptor*> calls;
  for (const auto* file :
       {v1::Join::descriptor()->file(), v1::GetStateRequest::descriptor()->file(),
        v1::SetRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s)
      for (int m = 0; m < file->service(s)->method_count(); ++m)
        calls.push_back(file->service(s)->method(m));
  }
  return calls;
}

class HostileMessagesTest : public testing::Test {
 protected:
  HostileMessagesTest() {
    CoordServerOptions options = TestServerOptions();
    // A job that hostile members never leave would outlive the test otherwise.
    options.decisions.max_jobs = 16;
    server_ = std::make_unique<TestServer>(options);
    stub_ = std::make_unique<grpc::GenericStub>(server_->Channel());
  }

  // Sends these messages, whatever they are, and reads until coordd ends the call or it is late.
  grpc::Status Send(const MethodDescriptor& method, const std::vector<std::string>& messages) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    grpc::CompletionQueue queue;
    const auto done = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    auto call = stub_->PrepareCall(
        &context, absl::StrCat("/", method.service()->full_name(), "/", method.name()), &queue);
    call->StartCall(nullptr);
    bool open = done();
    for (const std::string& message : messages) {
      if (!open) break;
      const grpc::Slice slice(message);
      call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
      open = done();
    }
    if (open) {
      call->WritesDone(nullptr);
      done();
    }
    grpc::ByteBuffer answer;
    for (bool more = true; more;) {
      call->Read(&answer, nullptr);
      more = done();
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    done();
    return status;
  }

  // A worker's way in, so that what follows is a member's.
  static std::string JoinOf(const std::string& job) {
    return JoinMessage(job, "mad", 1).SerializeAsString();
  }
  static std::string HelloOf(const std::string& job) {
    v1::NodeMessages hello;
    hello.mutable_hello()->set_protocol(kProtocolVersion);
    hello.mutable_hello()->set_job(job);
    return hello.SerializeAsString();
  }

  std::vector<std::string> SomeMessages(const MethodDescriptor& method) {
    std::vector<std::string> messages;
    const bool streams = method.client_streaming();
    const std::string job = absl::StrCat("mad", random_.Below(4));
    if (streams && random_.Below(4) > 0)
      messages.push_back(method.name() == "NodeSession" ? HelloOf(job) : JoinOf(job));
    const uint64_t count = streams ? 1 + random_.Below(6) : 1;
    for (uint64_t i = 0; i < count; ++i) {
      const std::unique_ptr<Message> message(
          MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
      some_.Fill(*message);
      std::string bytes = message->SerializeAsString();
      switch (some_.Below(8)) {
        case 0:
          bytes = some_.Bytes(300);
          break;
        case 1:
          bytes.resize(some_.Below(bytes.size() + 1));
          break;
        case 2:
          if (!bytes.empty())
            bytes[some_.Below(bytes.size())] = static_cast<char>(some_.Below(256));
          break;
        default:
          break;
      }
      messages.push_back(std::move(bytes));
    }
    return messages;
  }

  Random random_{static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) + 1};
  RandomMessage some_{random_};
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

TEST_F(HostileMessagesTest, NeitherEndCoorddNorItsJobsNorWhatItShows) {
  const std::vector<const MethodDescriptor*> calls = AllCalls();
  ASSERT_GE(calls.size(), 16u);
  std::map<std::string, std::map<grpc::StatusCode, int>> ends;
  std::optional<RawWorker> member;
  const auto join = [&] {  // so that there is such a job
    member.emplace(server_->Channel());
    return member->Join("mad0", "member", 1);
  };
  ASSERT_TRUE(join());
  for (int i = 0; i < kCalls; ++i) {
    // A Dismiss may have named it by chance.
    if (i % 50 == 0 && !member->Heartbeat()) {
      ASSERT_TRUE(join()) << i;
    }
    const MethodDescriptor& method = *calls[random_.Below(calls.size())];
    const grpc::Status status = Send(method, SomeMessages(method));
    ++ends[method.name()][status.error_code()];
    // A sentence that is shown to people.
    for (const char character : status.error_message())
      EXPECT_GE(static_cast<unsigned char>(character), ' ') << status.error_message();
  }
  for (const MethodDescriptor* method : calls) {
    EXPECT_FALSE(ends[method->name()].empty()) << method->name();
    EXPECT_EQ(ends[method->name()].count(grpc::StatusCode::UNAVAILABLE), 0u) << method->name();
  }
  TwoWorkers others(*server_);
  EXPECT_TRUE(others.a.Ready("t", 4));
  EXPECT_TRUE(others.b.Ready("t", 4));
  EXPECT_TRUE(others.a.ReadUntil(v1::CoordinatorMessage::kPlan).has_plan());
  EXPECT_EQ(server_->Get("/healthz").body, "ok\n");
  for (const char* path : {"/v1/jobs", "/v1/events", "/v1/targets"}) {
    const std::string body = server_->Get(path).body;
    EXPECT_TRUE(nlohmann::json::accept(body)) << path << ": " << body.substr(0, 2000);
    EXPECT_EQ(body.find('\x1b'), std::string::npos) << path;
    EXPECT_EQ(body.find("\u202e"), std::string::npos) << path;
  }
  EXPECT_EQ(server_->Get("/metrics").body.find('\x1b'), std::string::npos);
}

TEST_F(HostileMessagesTest, OneThatCannotBeReadIsRefusedByTheNameOfItsCall) {
  const std::string cut_short = "\x0a\x05x";
  int calls = 0;
  for (const MethodDescriptor* method : AllCalls()) {
    if (method->client_streaming()) continue;  // read by ourselves
    const grpc::Status status = Send(*method, {cut_short});
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method->name();
    EXPECT_EQ(status.error_message(),
              absl::StrCat("the message of a call of ", method->service()->name(), ".",
                           method->name(), " cannot be read: it is cut short, is of another kind, ",
                           "or has a text that is not UTF-8"));
    ++calls;
  }
  EXPECT_GE(calls, 14);
  const std::string key = "\x12\x02\xff\xfe";
  const MethodDescriptor& set = *v1::SetRequest::descriptor()->file()->service(0)->method(0);
  std::string log;
  while (log.find("refused a call of") == log.npos) {  // one line a second, after those of others
    testing::internal::CaptureStderr();
    EXPECT_EQ(Send(set, {key}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    log += testing::internal::GetCapturedStderr();
  }
  EXPECT_THAT(log,
              testing::ContainsRegex("refused a call of [a-z0-9:]*127.0.0.1:[0-9]+: the message "
                                     "of a call of Store.Set cannot be read"));
}

TEST_F(HostileMessagesTest, OneThatIsTooLargeIsRefusedForAllCalls) {
  for (const MethodDescriptor* method : AllCalls()) {
    const grpc::Status status = Send(*method, {std::string((4 << 20) + 1, 'x')});
    EXPECT_FALSE(status.ok()) << method->name();
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << method->name();
  }
  EXPECT_EQ(server_->Get("/healthz").body, "ok\n");
}

}  // namespace
}  // namespace coordd
