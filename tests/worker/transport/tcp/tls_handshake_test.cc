#include "worker/transport/tcp/tls_handshake.h"

#include <gmock/gmock.h>
#include <openssl/ec.h>
#include <openssl/x509.h>
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
using testing::HasSubstr;
using testing::Not;

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
  LinkIdentity other_rank = kIdentity, other_probe = kIdentity, other_number = kIdentity;
  other_rank.from = Rank{4};
  other_probe.probe_port = std::nullopt;
  other_number.number = 1;
  // The key of another generation; of another rank; of what was changed on the way; of another
  // connection.
  for (const LinkKey& key :
       {DeriveKey(SecretHex(32), text), DeriveKey(secret, other_rank.ToText()),
        DeriveKey(secret, other_probe.ToText()), DeriveKey(secret, other_number.ToText())}) {
    Sockets sockets;
    TlsHandshake connects = TlsHandshake::Connecting(context->get(), sockets.a.get(), text, key);
    TlsHandshake accepts = TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(secret));
    EXPECT_EQ(Shake(connects, accepts), std::pair(Outcome::kFailed, Outcome::kFailed));
    EXPECT_THAT(accepts.failure(), HasSubstr("it has another key, expected TLS 1.3 with the key"));
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
  EXPECT_THAT(accepts.failure(), HasSubstr("with no key of this generation"));
}

TEST(TlsHandshake, FailsForWhatIsNoHandshakeAndSaysWhatItIs) {
  const auto context = NewTlsContext();
  const std::pair<std::string, std::string> cases[] = {
      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it has sent HTTP, expected TLS 1.3 with the key"},
      {"CONNECT x:443 HTTP/1.1\r\n\r\n", "it has sent HTTP"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it has sent plain bytes"},
      {"SSH-2.0-OpenSSH_9.2\r\n", "it has sent plain bytes"},
      {std::string(4096, '\0'), "it has sent plain bytes"},
      {std::string(4096, '\xff'), "it has sent plain bytes"},
      {std::string("\x17\x03\x03\x00\x05hello", 10), "it has sent plain bytes"},
      {std::string("\x16\x03\x01\x02\x00\x01", 6) + std::string(600, 'x'),
       "it has sent a hello of TLS that is wrong in itself"}};
  for (const auto& [said, expected] : cases) {
    Sockets sockets;
    TlsHandshake accepts =
        TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(SecretHex(32)));
    ASSERT_EQ(write(sockets.a.get(), said.data(), said.size()), static_cast<ssize_t>(said.size()));
    EXPECT_EQ(accepts.Step(), Outcome::kFailed);
    EXPECT_THAT(accepts.failure(), HasSubstr(expected)) << said.substr(0, 20);
    // The same, said to who connects.
    Sockets others;
    TlsHandshake connects = TlsHandshake::Connecting(context->get(), others.a.get(), "me",
                                                     DeriveKey(SecretHex(32), "me"));
    EXPECT_EQ(connects.Step(), Outcome::kWantsRead);
    ASSERT_EQ(write(others.b.get(), said.data(), said.size()), static_cast<ssize_t>(said.size()));
    EXPECT_EQ(connects.Step(), Outcome::kFailed);
    EXPECT_THAT(connects.failure(), Not(HasSubstr("error:")));
  }
}

// How the handshake of an ordinary TLS client with a rank fails, for the rank.
std::string FailureOfAnOrdinaryClient(int version) {
  const auto context = NewTlsContext();
  const OpenSslOwned<SSL_CTX> theirs(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_security_level(theirs.get(), 0);
  SSL_CTX_set_max_proto_version(theirs.get(), version);
  Sockets sockets;
  const OpenSslOwned<SSL> client = NewTls(theirs.get(), sockets.a.get());
  TlsHandshake accepts =
      TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(SecretHex(32)));
  EXPECT_EQ(SSL_connect(client.get()), -1);
  EXPECT_EQ(accepts.Step(), Outcome::kFailed);
  return accepts.failure();
}

TEST(TlsHandshake, SaysThatTheOtherSideHasAnOldTlsOrNoKey) {
  for (const int version : {TLS1_VERSION, TLS1_2_VERSION})
    EXPECT_THAT(FailureOfAnOrdinaryClient(version), HasSubstr("it speaks an old TLS"));
  EXPECT_THAT(FailureOfAnOrdinaryClient(TLS1_3_VERSION),
              HasSubstr("it speaks TLS with no key of this generation"));
}

// An HTTPS server at what was a rank's port.
TEST(TlsHandshake, SaysThatTheOtherSideHasACertificate) {
  const auto context = NewTlsContext();
  const OpenSslOwned<SSL_CTX> theirs(SSL_CTX_new(TLS_server_method()));
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_sign(certificate, key, EVP_sha256());
  EXPECT_EQ(SSL_CTX_use_certificate(theirs.get(), certificate), 1);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(theirs.get(), key), 1);
  X509_free(certificate);
  EVP_PKEY_free(key);
  Sockets sockets;
  const OpenSslOwned<SSL> server = NewTls(theirs.get(), sockets.b.get());
  const std::string text = kIdentity.ToText();
  TlsHandshake connects = TlsHandshake::Connecting(context->get(), sockets.a.get(), text,
                                                   DeriveKey(SecretHex(32), text));
  EXPECT_EQ(connects.Step(), Outcome::kWantsRead);
  EXPECT_EQ(SSL_accept(server.get()), -1);
  EXPECT_EQ(connects.Step(), Outcome::kFailed);
  EXPECT_THAT(connects.failure(), HasSubstr("it has shown a certificate, which no rank has"));
}

TEST(TlsHandshake, EndsWithItsConnection) {
  const auto context = NewTlsContext();
  Sockets sockets;
  TlsHandshake accepts =
      TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(SecretHex(32)));
  EXPECT_EQ(accepts.Step(), Outcome::kWantsRead);
  EXPECT_FALSE(accepts.has_heard());
  sockets.a.Close();
  EXPECT_EQ(accepts.Step(), Outcome::kEnded);
  EXPECT_FALSE(accepts.has_heard());
}

TEST(TlsHandshake, KnowsWhetherItHasHeardAnything) {
  const auto context = NewTlsContext();
  Sockets sockets;
  TlsHandshake accepts =
      TlsHandshake::Accepting(context->get(), sockets.b.get(), Knows(SecretHex(32)));
  ASSERT_EQ(write(sockets.a.get(), "\x16", 1), 1);
  EXPECT_EQ(accepts.Step(), Outcome::kWantsRead);
  EXPECT_TRUE(accepts.has_heard());
  sockets.a.Close();
  EXPECT_EQ(accepts.Step(), Outcome::kEnded);
  EXPECT_THAT(accepts.failure(), HasSubstr("in the middle of its hello"));
}

TEST(LinkIdentity, IsReadAsItIsWritten) {
  LinkIdentity plain = kIdentity, encrypted = kIdentity, v6 = kIdentity, last = kIdentity;
  plain.probe_port = std::nullopt;
  encrypted.encrypts = true;
  v6.probe_port = HostPort{"fe80::1", 9};
  last.number = kTcpConnectionsMax - 1;
  for (const LinkIdentity& identity : {kIdentity, plain, encrypted, v6, last})
    EXPECT_EQ(*LinkIdentity::Parse(identity.ToText()), identity);
  for (const char* text :
       {"", "coordd-tcp/5 3 5 plain", "coordd-tcp/5 3 5 plain -", "coordd-tcp/4 3 5 plain - 0",
        "coordd-tcp/5 -3 5 plain - 0", "coordd-tcp/5 03 5 plain - 0", "coordd-tcp/5 3 5 clear - 0",
        "coordd-tcp/5 3 5 plain - 0 -", "coordd-tcp/5 3 5 plain - -1",
        "coordd-tcp/5 3 5 plain - 16", "coordd-tcp/5 3 5 plain - 00"}) {
    EXPECT_FALSE(LinkIdentity::Parse(text).ok()) << text;
  }
}

}  // namespace
}  // namespace coordd
