// What a certificate says of its owner.
#pragma once

#include <openssl/asn1.h>
#include <openssl/x509.h>

#include <string>
#include <vector>

namespace coordd {

// As UTF-8; empty for what cannot be written so.
std::string TextOf(const ASN1_STRING* string);

// The URIs among its alternative names, in their order: "coordd://worker/train".
std::vector<std::string> UrisOf(const X509* certificate);

// When it begins or ends to be valid: "2027-01-02 03:04:05 UTC".
std::string TimeText(const ASN1_TIME* at);
// " has expired at ..", and what its owner does then.
std::string ExpiredText(const X509* certificate);

// Tells one key from another, for people: the first bytes of its identifier ("3f2a9c1d"), which
// `openssl x509 -ext subjectKeyIdentifier` shows, too. Of the certificate's own key as `coordctl
// certs` and most others identify it; empty: it has none.
std::string KeyMark(const X509* certificate);
// Of the key that has signed it; empty: it does not say.
std::string SignersMark(X509* certificate);

}  // namespace coordd
