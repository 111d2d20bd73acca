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

}  // namespace coordd
