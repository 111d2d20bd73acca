#include "worker/transport/tcp/tls_handshake.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "common/base/owned_fd.h"
#include "common/base/random.h"

namespace coordd {
namespace {

using Outcome = TlsHandshake::Outcome;

struct Sockets {
  Sockets() {
    std::array<int, 2> pair;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()), 0);
    a = OwnedFd(pair[0]);
    b = OwnedFd(pair[1]);
  }
  OwnedFd a, b;
};

const LinkIdentity kIdentity{Rank{3}, Rank{5}, false, HostPort{"10.0.0.3", 4711}};

TlsHandshake::FindKey Knows(std::string secret) {
  return [secret](absl::string_view identity) -> std::optional<LinkKey> {
    if (!LinkIdentity::Parse(identity).ok()) return std::nullopt;
    return DeriveKey(secret, identity);
  };
}

bool IsOver(Outcome outcome) {
  return outcome != Outcome::kWantsRead && outcome != Outcome::kWantsWrite;
}

// How it ends for who connects, and for who was connected to.
std::pair<Outcome, Outcome> Shake(TlsHandshake& connects, TlsHandshake& accepts) {
  Outcome first = Outcome::kWantsRead, second = Outcome::kWantsRead;
  for (int i = 0; i < 20; ++i) {
    if (!IsOver(first)) first = connects.Step();
    if (!IsOver(second)) second = accepts.Step();
  }
  return {first, second};
}

TEST(TlsHandshake, EndsWellForThoseThatHaveTheKey) {
  const auto context = NewTlsContext();
  ASSERT_TRUE(context.ok()) << context.status();
  const std::string secret = SecretHex(32), text = kIdentity.ToText();
  Sockets sockets;
  TlsHandshake connects =
      TlsHandshake::Connecting(context->get(), sockets.a.get(), text, DeriveKey(secret, text));
  TlsHandshake accepts = TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(secret));
  EXPECT_EQ(Shake(connects, accepts), std::pair(Outcome::kDone, Outcome::kDone));
  EXPECT_EQ(accepts.identity(), text);
  EXPECT_EQ(*LinkIdentity::Parse(accepts.identity()), kIdentity);
}

// Each direction of each connection has a secret that both ends have, and nobody else.
TEST(TlsHandshake, LeavesSecretsToWhoEncrypts) {
  const auto context = NewTlsContext();
  const std::string secret = SecretHex(32), text = kIdentity.ToText();
  std::vector<RecordSecret> all;
  for (int i = 0; i < 2; ++i) {
    Sockets sockets;
    TlsHandshake connects =
        TlsHandshake::Connecting(context->get(), sockets.a.get(), text, DeriveKey(secret, text));
    TlsHandshake accepts = TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(secret));
    ASSERT_EQ(Shake(connects, accepts), std::pair(Outcome::kDone, Outcome::kDone));
    const auto here = connects.ExportSecrets(), there = accepts.ExportSecrets();
    ASSERT_TRUE(here.has_value() && there.has_value());
    EXPECT_EQ(here->sends, there->receives);
    EXPECT_EQ(here->receives, there->sends);
    all.insert(all.end(), {here->sends, here->receives});
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

// What follows in plain is there whole, both ways, even if it has come with the handshake's end.
TEST(TlsHandshake, ReadsNothingBeyondItsEnd) {
  const auto context = NewTlsContext();
  const std::string secret = SecretHex(32), text = kIdentity.ToText();
  Sockets sockets;
  TlsHandshake connects =
      TlsHandshake::Connecting(context->get(), sockets.a.get(), text, DeriveKey(secret, text));
  TlsHandshake accepts = TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(secret));
  EXPECT_EQ(connects.Step(), Outcome::kWantsRead);
  EXPECT_EQ(accepts.Step(), Outcome::kWantsRead);
  ASSERT_EQ(connects.Step(), Outcome::kDone);
  const std::string from_a(3000, 'a'), from_b(3000, 'b');
  ASSERT_EQ(write(sockets.a.get(), from_a.data(), from_a.size()), 3000);
  ASSERT_EQ(write(sockets.b.get(), from_b.data(), from_b.size()), 3000);
  ASSERT_EQ(accepts.Step(), Outcome::kDone);
  std::string got(4000, ' ');
  EXPECT_EQ(read(sockets.b.get(), got.data(), got.size()), 3000);
  EXPECT_EQ(got.substr(0, 3000), from_a);
  EXPECT_EQ(read(sockets.a.get(), got.data(), got.size()), 3000);
  EXPECT_EQ(got.substr(0, 3000), from_b);
}

TEST(TlsHandshake, FailsForWhoHasAnotherKey) {
  const auto context = NewTlsContext();
  const std::string secret = SecretHex(32), text = kIdentity.ToText();
  LinkIdentity other_rank = kIdentity, other_probe = kIdentity;
  other_rank.from = Rank{4};
  other_probe.probe_port = std::nullopt;
  // The key of another generation; of another rank; of what was changed on the way.
  for (const LinkKey& key : {DeriveKey(SecretHex(32), text), DeriveKey(secret, other_rank.ToText()),
                             DeriveKey(secret, other_probe.ToText())}) {
    Sockets sockets;
    TlsHandshake connects = TlsHandshake::Connecting(context->get(), sockets.a.get(), text, key);
    TlsHandshake accepts = TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(secret));
    EXPECT_EQ(Shake(connects, accepts), std::pair(Outcome::kFailed, Outcome::kFailed));
    EXPECT_NE(accepts.failure(), "");
  }
}

TEST(TlsHandshake, FailsForWhoIsNotKnown) {
  const auto context = NewTlsContext();
  Sockets sockets;
  TlsHandshake connects = TlsHandshake::Connecting(context->get(), sockets.a.get(), "me",
                                                   DeriveKey(SecretHex(32), "me"));
  TlsHandshake accepts = TlsHandshake::Accepting(context->get(), sockets.b.get(),
                                                 [](absl::string_view) { return std::nullopt; });
  EXPECT_EQ(Shake(connects, accepts), std::pair(Outcome::kFailed, Outcome::kFailed));
}

TEST(TlsHandshake, FailsForWhatIsNoHandshake) {
  const auto context = NewTlsContext();
  for (const std::string& said :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(4096, '\0'),
        std::string(4096, '\xff'),
        std::string("\x16\x03\x01\x02\x00\x01", 6) + std::string(600, 'x')}) {
    Sockets sockets;
    TlsHandshake accepts =
        TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(SecretHex(32)));
    ASSERT_EQ(write(sockets.a.get(), said.data(), said.size()), static_cast<ssize_t>(said.size()));
    EXPECT_EQ(accepts.Step(), Outcome::kFailed);
    // The same, said to who connects.
    Sockets others;
    TlsHandshake connects = TlsHandshake::Connecting(context->get(), others.a.get(), "me",
                                                     DeriveKey(SecretHex(32), "me"));
    EXPECT_EQ(connects.Step(), Outcome::kWantsRead);
    ASSERT_EQ(write(others.b.get(), said.data(), said.size()), static_cast<ssize_t>(said.size()));
    EXPECT_EQ(connects.Step(), Outcome::kFailed);
  }
}

TEST(TlsHandshake, EndsWithItsConnection) {
  const auto context = NewTlsContext();
  Sockets sockets;
  TlsHandshake accepts =
      TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(SecretHex(32)));
  EXPECT_EQ(accepts.Step(), Outcome::kWantsRead);
  sockets.a.Close();
  EXPECT_EQ(accepts.Step(), Outcome::kEnded);
}

TEST(LinkIdentity, IsReadAsItIsWritten) {
  LinkIdentity plain = kIdentity, encrypted = kIdentity, v6 = kIdentity;
  plain.probe_port = std::nullopt;
  encrypted.encrypts = true;
  v6.probe_port = HostPort{"fe80::1", 9};
  for (const LinkIdentity& identity : {kIdentity, plain, encrypted, v6})
    EXPECT_EQ(*LinkIdentity::Parse(identity.ToText()), identity);
  for (const char* text :
       {"", "coordd-tcp/2 3 5 plain", "coordd-tcp/1 3 5 plain -", "coordd-tcp/2 -3 5 plain -",
        "coordd-tcp/2 03 5 plain -", "coordd-tcp/2 3 5 clear -", "coordd-tcp/2 3 5 plain - -"}) {
    EXPECT_FALSE(LinkIdentity::Parse(text).ok()) << text;
  }
}

}  // namespace
}  // namespace coordd
