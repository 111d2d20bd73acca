// Why a handshake between ranks has failed, in the words of this transport. PURE but for OpenSSL
#pragma once

#include <string>

namespace coordd {

// Of OpenSSL's last error: a sentence whose subject, "it", is the other side.
std::string HandshakeFailure(unsigned long error);

}  // namespace coordd
