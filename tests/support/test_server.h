// A whole coordd in the test's process, on ports of its own.
#pragma once

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>
#include <utility>

#include "server/service/coord_server.h"
#include "tests/support/http_client.h"
#include "tests/support/raw_worker.h"

namespace coordd {

inline CoordServerOptions TestServerOptions() {
  CoordServerOptions options;
  options.listen = {"127.0.0.1", 0};
  options.http = HostPort{"127.0.0.1", 0};
  options.decisions.settling_window = absl::ZeroDuration();
  return options;
}

class TestServer {
 public:
  explicit TestServer(const CoordServerOptions& options = TestServerOptions(),
                      Clock& clock = Clock::Real()) {
    auto server = CoordServer::Start(options, clock, registry_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  CoordServer& operator*() { return *server_; }
  CoordServer* operator->() { return server_.get(); }
  std::shared_ptr<grpc::Channel> Channel() { return ChannelTo(server_->listen_address()); }
  HttpAnswer Get(const std::string& path) { return HttpGet(*server_->http_address(), path); }

 private:
  prometheus::Registry registry_;
  std::unique_ptr<CoordServer> server_;
};

// Two members of job "train" with a generation.
struct TwoWorkers {
  explicit TwoWorkers(TestServer& server) : a(server.Channel()), b(server.Channel()) {
    EXPECT_TRUE(a.Join("train", "a", 2));
    EXPECT_TRUE(b.Join("train", "b", 2));
    EXPECT_TRUE(a.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
    EXPECT_TRUE(b.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  }
  RawWorker a, b;
};

}  // namespace coordd
