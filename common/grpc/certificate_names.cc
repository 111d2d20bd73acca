#include "common/grpc/certificate_names.h"

#include <openssl/crypto.h>
#include <openssl/x509v3.h>

namespace coordd {

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

}  // namespace coordd
