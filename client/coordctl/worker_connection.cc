#include "client/coordctl/worker_connection.h"

#include "absl/time/time.h"
#include "common/grpc/own_certificate.h"

namespace coordd {

WorkerConnection ReadWorkerConnection(const Environment& environment) {
  WorkerConnection connection;
  connection.tls = {.cert = Variable(environment, "COORDD_TLS_CERT"),
                    .key = Variable(environment, "COORDD_TLS_KEY"),
                    .ca = Variable(environment, "COORDD_TLS_CA")};
  if (!connection.tls.enabled()) return connection;
  const absl::Status usable = CheckOwnCertificate(connection.tls, TlsSide::kClient);
  connection.problem = std::string(usable.message());
  const absl::StatusOr<CertificateFacts> facts = ReadCertificateFacts(connection.tls.cert);
  if (!facts.ok()) return connection;
  connection.who = facts->who;
  connection.authority = facts->authority;
  connection.trusted = AuthoritiesIn(connection.tls.ca);
  connection.end = absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", facts->end, absl::UTCTimeZone());
  return connection;
}

}  // namespace coordd
