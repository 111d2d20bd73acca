// "host:port", "[v6]:port": how addresses are written on command lines, in the environment and in
// messages.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coordd {

struct HostPort {
  std::string host;   // a name or an address, without brackets
  uint16_t port = 0;  // 0: let the system choose

  // The address as text, with brackets around IPv6 addresses.
  std::string ToString() const;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// INVALID_ARGUMENT: one sentence that quotes the text and says what is expected.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// Ports that a firewall lets through, both ends included.
struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;

  int32_t size() const { return last - first + 1; }
  std::string ToString() const { return absl::StrCat(first, "-", last); }  // "20000-20099"
  friend bool operator==(const PortRange&, const PortRange&) = default;
};

// "20000-20099", or one port. INVALID_ARGUMENT.
absl::StatusOr<PortRange> ParsePortRange(absl::string_view text);

// True for "localhost", 127.0.0.0/8 and ::1: an address that other machines cannot reach.
bool IsLoopback(absl::string_view host);

// The local address from which packets to `remote` leave (connects a UDP socket, sends nothing):
// what other machines that reach `remote` can reach us by. UNAVAILABLE: no route, or the name does
// not resolve.
absl::StatusOr<std::string> LocalAddressTowards(const HostPort& remote);

// Name of the interface that has `address`, e.g. "eth0". NOT_FOUND.
absl::StatusOr<std::string> InterfaceOf(absl::string_view address);

}  // namespace coordd
