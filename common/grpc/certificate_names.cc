#include "common/grpc/certificate_names.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/x509v3.h>
#include <time.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coordd {
namespace {

constexpr size_t kMarkBytes = 4;

std::string MarkOf(const unsigned char* id, size_t size) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(id), std::min(size, kMarkBytes)));
}

}  // namespace

std::string TextOf(const ASN1_STRING* string) {
  unsigned char* text = nullptr;
  const int size = ASN1_STRING_to_UTF8(&text, string);
  if (size < 0) return "";
  std::string copy(reinterpret_cast<const char*>(text), static_cast<size_t>(size));
  OPENSSL_free(text);
  return copy;
}

std::vector<std::string> UrisOf(const X509* certificate) {
  std::vector<std::string> uris;
  auto* const names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_URI) uris.push_back(TextOf(name->d.uniformResourceIdentifier));
  }
  GENERAL_NAMES_free(names);
  return uris;
}

std::string KeyMark(const X509* certificate) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (X509_pubkey_digest(certificate, EVP_sha1(), digest, &size) != 1) return "";
  return MarkOf(digest, size);
}

std::string SignersMark(X509* certificate) {
  const ASN1_OCTET_STRING* const id = X509_get0_authority_key_id(certificate);
  if (id == nullptr) return "";
  return MarkOf(ASN1_STRING_get0_data(id), static_cast<size_t>(ASN1_STRING_length(id)));
}

std::string TimeText(const ASN1_TIME* at) {
  tm time = {};
  if (ASN1_TIME_to_tm(at, &time) != 1) return "a time that is none";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromTM(time, absl::UTCTimeZone()),
                          absl::UTCTimeZone());
}

std::string ExpiredText(const X509* certificate) {
  return absl::StrCat(
      " has expired at ", TimeText(X509_get0_notAfter(certificate)),
      ": expected a new one (coordctl certs DIR --role ROLE [--name NAME] --renew)");
}

}  // namespace coordd
